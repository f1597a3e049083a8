//! Two requests, part by part.

use std::borrow::Cow;

use super::super::decode::{self, argv, json, url};
use super::super::value::{Value, shorten};
use super::path::Path;
use super::walk::Walk;
use crate::words::{Body, ExecRequest, FieldClass, Header, HttpRequest, McpRequest, Request};

impl Walk<'_> {
    /// Compares two requests.
    pub fn calls(&mut self, one: &Request, two: &Request) {
        match (one, two) {
            (Request::Http(one), Request::Http(two)) => self.http(one, two),
            (Request::Mcp(one), Request::Mcp(two)) => self.mcp(one, two),
            (Request::Exec(one), Request::Exec(two)) => self.exec(one, two),
            _ => self.found(
                &Path::part("transport"),
                FieldClass::Intent,
                "the calls go different ways",
                &Value::text(one.transport().to_string()),
                &Value::text(two.transport().to_string()),
            ),
        }
    }

    fn http(&mut self, one: &HttpRequest, two: &HttpRequest) {
        self.exact(
            "method",
            &one.method.to_ascii_uppercase(),
            &two.method.to_ascii_uppercase(),
            "another method",
        );
        self.urls(&one.url, &two.url);
        self.headers(&one.headers, &two.headers);
        if one.body.digest == two.body.digest && one.body.len == two.body.len {
            return;
        }
        let kind = |headers: &[Header]| -> Option<String> {
            let header = headers.iter().find(|h| h.is("content-type"))?;
            header.text().map(str::to_owned)
        };
        let (a, b) = (kind(&one.headers), kind(&two.headers));
        let a = decode::body(a.as_deref(), &one.body);
        let b = decode::body(b.as_deref(), &two.body);
        self.value(&Path::part("body"), &a, &b);
    }

    fn mcp(&mut self, one: &McpRequest, two: &McpRequest) {
        self.exact("server", &one.server, &two.server, "another server");
        self.exact("name", &one.name, &two.name, "another tool");
        self.headers(&one.headers, &two.headers);
        if one.arguments == two.arguments {
            return;
        }
        let read = |text: &'_ str| -> Value<'static> {
            match json::read(text) {
                Ok(value) if text.len() <= decode::MOST_BYTES => value.into_owned(),
                _ => decode::mime::opaque(text.as_bytes()),
            }
        };
        // Borrowing where it decodes keeps the common case cheap.
        match (json::read(&one.arguments), json::read(&two.arguments)) {
            (Ok(a), Ok(b)) => self.value(&Path::part("arguments"), &a, &b),
            _ => self.value(
                &Path::part("arguments"),
                &read(&one.arguments),
                &read(&two.arguments),
            ),
        }
    }

    fn exec(&mut self, one: &ExecRequest, two: &ExecRequest) {
        if one.argv != two.argv {
            let (a, b) = argv::pair(&one.argv, &two.argv);
            self.value(&Path::part("argv"), &a, &b);
        }
        let bare = |t: &'_ str| -> String {
            let cut = t.trim_end_matches('/');
            if cut.is_empty() {
                t.to_owned()
            } else {
                cut.to_owned()
            }
        };
        if bare(&one.cwd) != bare(&two.cwd) {
            self.found(
                &Path::part("cwd"),
                FieldClass::Intent,
                "the command would run in another directory",
                &Value::text(one.cwd.clone()),
                &Value::text(two.cwd.clone()),
            );
        }
        if one.env != two.env {
            self.environment(&one.env, &two.env);
        }
        let empty = Body::empty();
        let (a, b) = (
            one.stdin.as_ref().unwrap_or(&empty),
            two.stdin.as_ref().unwrap_or(&empty),
        );
        if a.digest != b.digest || a.len != b.len {
            let (a, b) = (decode::body(None, a), decode::body(None, b));
            self.value(&Path::part("stdin"), &a, &b);
        }
    }

    fn environment(&mut self, one: &[(String, String)], two: &[(String, String)]) {
        let as_map = |env: &[(String, String)]| -> Vec<(Cow<'static, str>, Value<'static>)> {
            env.iter()
                .filter(|(name, _)| !is_surroundings(name))
                .map(|(name, value)| (Cow::Owned(name.clone()), Value::text(value.clone())))
                .collect()
        };
        self.value(
            &Path::part("env"),
            &Value::Map(as_map(one)),
            &Value::Map(as_map(two)),
        );
    }

    fn urls(&mut self, one: &str, two: &str) {
        if one == two {
            return;
        }
        let root = Path::part("url");
        let (Some(Value::Map(a)), Some(Value::Map(b))) = (url::read(one), url::read(two)) else {
            self.found(
                &root,
                FieldClass::Intent,
                "another address",
                &Value::text(shorten(one)),
                &Value::text(shorten(two)),
            );
            return;
        };
        self.address(&root, &a, &b);
    }

    /// Two URLs that were read.
    pub fn address(
        &mut self,
        root: &Path<'_>,
        one: &[(Cow<'_, str>, Value<'_>)],
        two: &[(Cow<'_, str>, Value<'_>)],
    ) {
        let get = |entries: &[(Cow<'_, str>, Value<'_>)], name: &str| {
            entries
                .iter()
                .find(|(n, _)| n == name)
                .map(|(_, v)| v.clone().into_owned())
        };
        for (name, reason) in [
            ("scheme", "another protocol"),
            ("user", "another user"),
            ("host", "another host"),
        ] {
            let (a, b) = (get(one, name), get(two, name));
            if a != b {
                let path = Path::part_of(name, root);
                self.one_sided(&path, FieldClass::Intent, reason, a.as_ref(), b.as_ref());
            }
        }
        let path = Path::part_of("path", root);
        let (a, b) = (get(one, "path"), get(two, "path"));
        match (&a, &b) {
            (Some(Value::List(a)), Some(Value::List(b))) if a.len() == b.len() => {
                for (i, (a, b)) in a.iter().zip(b).enumerate() {
                    if a != b {
                        self.found(
                            &path.index(i),
                            FieldClass::Intent,
                            "the path names what the call is about",
                            a,
                            b,
                        );
                    }
                }
            }
            _ => self.one_sided(
                &path,
                FieldClass::Intent,
                "another path",
                a.as_ref(),
                b.as_ref(),
            ),
        }
        let query = Path::part_of("query", root);
        let none = || Value::Map(Vec::new());
        let (a, b) = (
            get(one, "query").unwrap_or_else(none),
            get(two, "query").unwrap_or_else(none),
        );
        self.value(&query, &a, &b);
    }

    fn exact(&mut self, part: &str, one: &str, two: &str, reason: &'static str) {
        if one != two {
            self.found(
                &Path::part(part),
                FieldClass::Intent,
                reason,
                &Value::text(one),
                &Value::text(two),
            );
        }
    }
}

/// Variables that say where a command is started from, not what it does.
fn is_surroundings(name: &str) -> bool {
    const NAMES: &[&str] = &[
        "_",
        "SHLVL",
        "PWD",
        "OLDPWD",
        "TERM",
        "COLORTERM",
        "COLUMNS",
        "LINES",
        "LANG",
        "LANGUAGE",
        "SSH_AUTH_SOCK",
        "SSH_AGENT_PID",
        "DISPLAY",
        "EDITOR",
        "PAGER",
        "GIT_PAGER",
        "HISTFILE",
        "TMPDIR",
        "INVOCATION_ID",
        "JOURNAL_STREAM",
        "SYSTEMD_EXEC_PID",
    ];
    NAMES.contains(&name)
        || name.starts_with("LC_")
        || name.starts_with("XDG_")
        || name.starts_with("OTEL_")
}
