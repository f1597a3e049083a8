//! Two requests, part by part.

use std::borrow::Cow;

use super::super::decode::{self, argv};
use super::super::value::{Value, shorten};
use super::opened::Opened;
use super::path::Path;
use super::walk::Walk;
use crate::words::{Body, ExecRequest, FieldClass, Request};

impl Walk<'_> {
    /// Compares two requests.
    pub fn calls(&mut self, one: &Opened<'_>, two: &Opened<'_>) {
        match (one.request, two.request) {
            (Request::Http(a), Request::Http(b)) => {
                if !a.method.eq_ignore_ascii_case(&b.method) {
                    self.exact("method", &a.method, &b.method, "another method");
                }
                if a.url != b.url {
                    self.urls(one, two, &a.url, &b.url);
                }
                if a.headers != b.headers {
                    self.headers(one.headers(), two.headers());
                }
                if a.body.digest != b.body.digest || a.body.len != b.body.len {
                    self.value(&Path::part("body"), one.content(), two.content());
                }
            }
            (Request::Mcp(a), Request::Mcp(b)) => {
                self.exact("server", &a.server, &b.server, "another server");
                self.exact("name", &a.name, &b.name, "another tool");
                if a.headers != b.headers {
                    self.headers(one.headers(), two.headers());
                }
                if a.arguments != b.arguments {
                    self.value(&Path::part("arguments"), one.content(), two.content());
                }
            }
            (Request::Exec(a), Request::Exec(b)) => self.exec(a, b),
            (a, b) => self.found(
                &Path::part("transport"),
                FieldClass::Intent,
                "the calls go different ways",
                &Value::text(a.transport().to_string()),
                &Value::text(b.transport().to_string()),
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

    fn urls(&mut self, one: &Opened<'_>, two: &Opened<'_>, a: &str, b: &str) {
        let root = Path::part("url");
        match (one.address(), two.address()) {
            (Some(Value::Map(a)), Some(Value::Map(b))) => self.address(&root, a, b),
            _ => self.found(
                &root,
                FieldClass::Intent,
                "another address",
                &Value::text(shorten(a)),
                &Value::text(shorten(b)),
            ),
        }
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
