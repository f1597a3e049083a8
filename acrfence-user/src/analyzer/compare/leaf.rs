//! Two scalars that differ: what kind of difference it is, and why.

use std::borrow::Cow;

use super::super::decode::{self, Hints, argv, token};
use super::super::naming::{Deed, Names};
use super::super::normal::instant;
use super::super::prose;
use super::super::shape::{self, Randomness};
use super::super::text;
use super::super::value::Value;
use super::Found;
use super::path::Path;
use super::walk::Walk;
use crate::words::FieldClass::{self, Intent, Prose, Unknown, Volatile};

/// A class and the evidence for it.
pub(super) type Judged = (FieldClass, Cow<'static, str>);

/// One way to judge a difference of two texts; none where it has nothing to say.
type Check<'c> = fn(&Walk<'c>, &Path<'_>, &Names, &str, &str) -> Option<Judged>;

impl Walk<'_> {
    pub(super) fn leaf(&mut self, path: &Path<'_>, one: &Value<'_>, two: &Value<'_>) {
        let names = path.names();
        if let Some(reason) = self.same_meaning(path, &names, one, two) {
            self.found(path, Volatile, reason, one, two);
            return;
        }
        if let (Value::Text(a), Value::Text(b)) = (one, two) {
            self.texts(path, &names, a, b);
            return;
        }
        let (judged, made_up) = self.judge(path, &names, one, two);
        self.note(path, judged, made_up, one, two);
    }

    fn texts(&mut self, path: &Path<'_>, names: &Names, a: &str, b: &str) {
        let (one, two) = (Value::text(a), Value::text(b));
        if self.opened(path, names, a, b) {
            return;
        }
        if path.is_in("argv") && is_script(path, names) && text::same_tokens(a, b) {
            self.found(
                path,
                Volatile,
                "the same script with other blanks",
                &one,
                &two,
            );
            return;
        }
        let extension = extension(path);
        if let Some(reason) = text::same_words(a, b, names, extension.as_deref()) {
            self.found(path, Volatile, reason, &one, &two);
            return;
        }
        let (judged, made_up) = self.judge(path, names, &one, &two);
        if judged.0 != Unknown && judged.0 != Intent {
            self.note(path, judged, made_up, &one, &two);
            return;
        }
        // Longer texts may differ in a clock only, or say the same in other words.
        if let Some(reason) = self.only_clocks(path, names, a, b) {
            self.found(path, Volatile, reason, &one, &two);
            return;
        }
        if !self.in_token
            && !path.is_in("cookie")
            && prose::may_be(a, b, names)
            && !is_code_file(extension.as_deref())
        {
            match prose::judge(a, b) {
                prose::Judgement::Rewording => {
                    self.push(Found {
                        path: path.show(),
                        class: Prose,
                        reason: "free text; numbers, names and negations agree, the words do not"
                            .into(),
                        recorded: Some(one.show()),
                        restored: Some(two.show()),
                        texts: Some((a.to_owned(), b.to_owned())),
                        ids: None,
                        made_anew: false,
                    });
                }
                prose::Judgement::Different(reason) => {
                    self.found(path, Intent, reason, &one, &two);
                }
                prose::Judgement::Unclear(reason) => {
                    self.found(path, Unknown, reason, &one, &two);
                }
            }
            return;
        }
        self.note(path, judged, made_up, &one, &two);
    }

    /// Opens what is encoded in two texts, and compares inside.
    fn opened(&mut self, path: &Path<'_>, names: &Names, a: &str, b: &str) -> bool {
        if self.depth == 0 {
            return false;
        }
        if names.last_is(&["command", "cmd", "script", "shell", "commandline"])
            && a.trim().contains(char::is_whitespace)
            && b.trim().contains(char::is_whitespace)
            && !decode::sql::looks_like(a)
            && let Some((x, y)) = argv::command_text(a, b)
            && !matches!((&x, &y), (Value::Text(_), _) | (_, Value::Text(_)))
        {
            let inner = Path::part_of("argv", path);
            self.deeper(|w| w.value(&inner, &x, &y));
            return true;
        }
        let extension = extension(path);
        let hints = Hints {
            names,
            extension: extension.as_deref(),
            depth: self.depth,
        };
        let Some(inner) = decode::inner(a, b, &hints) else {
            return false;
        };
        match inner.kind {
            "URL" => {
                if let (Value::Map(x), Value::Map(y)) = (&inner.one, &inner.two) {
                    self.address(path, x, y);
                }
            }
            "token with a payload" => self.token_payloads(path, &inner.one, &inner.two),
            "SQL" => {
                let before = self.creating;
                self.creating = Some(false);
                self.deeper(|w| w.value(path, &inner.one, &inner.two));
                self.creating = before;
            }
            _ if matches!((&inner.one, &inner.two), (Value::Text(_), Value::Text(_))) => {
                let (Value::Text(x), Value::Text(y)) = (&inner.one, &inner.two) else {
                    return false;
                };
                let (x, y) = (x.clone().into_owned(), y.clone().into_owned());
                self.deeper(|w| w.texts(path, names, &x, &y));
            }
            _ => self.deeper(|w| w.value(path, &inner.one, &inner.two)),
        }
        true
    }

    fn deeper(&mut self, run: impl FnOnce(&mut Self)) {
        self.depth -= 1;
        run(self);
        self.depth += 1;
    }

    /// Two tokens with readable payloads: what they grant counts, the rest is made anew.
    pub(super) fn token_payloads(&mut self, path: &Path<'_>, one: &Value<'_>, two: &Value<'_>) {
        let claims = |tree: &Value<'_>| match tree {
            Value::Map(entries) => Value::Map(
                entries
                    .iter()
                    .filter(|(name, _)| name != token::SIGNATURE)
                    .map(|(n, v)| (Cow::Owned(n.to_string()), v.clone().into_owned()))
                    .collect(),
            ),
            other => other.clone().into_owned(),
        };
        let before = self.in_token;
        self.in_token = true;
        self.deeper(|w| w.value(path, &claims(one), &claims(two)));
        self.in_token = before;
        self.push(Found {
            path: path.show(),
            class: Volatile,
            reason: "a token that was issued again; what it grants is compared by itself".into(),
            recorded: None,
            restored: None,
            texts: None,
            ids: None,
            made_anew: false,
        });
    }

    /// Notes a difference that was judged. `made_up`: the caller made up both values.
    fn note(
        &mut self,
        path: &Path<'_>,
        (class, reason): Judged,
        made_up: bool,
        one: &Value<'_>,
        two: &Value<'_>,
    ) {
        let ids = match (one.scalar(), two.scalar()) {
            (Some(a), Some(b))
                if shape::randomness(&a) == Randomness::Strong
                    && shape::randomness(&b) == Randomness::Strong =>
            {
                // Only what nobody saw before can be made up.
                let made_up = shape::are_unrelated(&a, &b) && self.context.seen(&a, &b).is_none();
                made_up.then(|| (a.into_owned(), b.into_owned()))
            }
            _ => None,
        };
        let secret = self.in_token
            || path.names().has(&[
                "token",
                "password",
                "passwd",
                "secret",
                "otp",
                "pin",
                "cookie",
                "signature",
                "authorization",
            ]);
        let show = |v: &Value<'_>| if secret { masked(&v.show()) } else { v.show() };
        self.push(Found {
            path: path.show(),
            class,
            reason,
            recorded: Some(show(one)),
            restored: Some(show(two)),
            texts: None,
            ids,
            made_anew: made_up && self.names_an_order(path),
        });
    }

    /// The class of a difference between two scalars that do not mean the same by themselves, and
    /// whether it is volatile because the caller made up both values.
    fn judge(
        &self,
        path: &Path<'_>,
        names: &Names,
        one: &Value<'_>,
        two: &Value<'_>,
    ) -> (Judged, bool) {
        let plain = |judged| (judged, false);
        let (Some(a), Some(b)) = (one.scalar(), two.scalar()) else {
            return plain((Intent, "another value".into()));
        };
        if one.is_empty() && two.is_empty() {
            let class = if self.deed() == Deed::Update {
                Unknown
            } else {
                Volatile
            };
            return plain((class, "nothing, written in two ways".into()));
        }
        if matches!(one, Value::Code(_)) || matches!(two, Value::Code(_)) {
            return plain(self.judge_code(names, &a, &b));
        }
        if matches!(one, Value::Opaque(_)) || matches!(two, Value::Opaque(_)) {
            return plain((Intent, "other bytes".into()));
        }
        if matches!(one, Value::Bool(_)) || matches!(two, Value::Bool(_)) {
            return plain((Intent, "a switch set in another way".into()));
        }
        if path.is_in("path") && path.is_in("url") && !path.is_in("query") {
            return plain((Intent, "the path names what the call is about".into()));
        }
        let checks: [(Check<'_>, bool); 8] = [
            (Self::judge_counter, false),
            (Self::judge_clock, false),
            (Self::judge_signature, false),
            (Self::judge_uniqueness, true),
            (Self::judge_token, false),
            (Self::judge_claim, false),
            (Self::judge_noted, true),
            (Self::judge_made_up, true),
        ];
        for (check, made_up) in checks {
            if let Some(judged) = check(self, path, names, &a, &b) {
                let made_up = made_up && judged.0 == Volatile;
                return (judged, made_up);
            }
        }
        if names.is_target() {
            return plain((Intent, "names what the call is about".into()));
        }
        let random = shape::randomness(&a).min(shape::randomness(&b));
        let makes = !matches!(self.deed(), Deed::Act | Deed::Update | Deed::Remove);
        if makes
            && random == Randomness::Strong
            && shape::are_unrelated(&a, &b)
            && self.context.seen(&a, &b).is_none()
        {
            return plain((
                Unknown,
                "looks made up, but nothing says that it means nothing".into(),
            ));
        }
        if let Some(place) = self.context.seen(&a, &b) {
            return plain((
                Intent,
                format!("a value that the agent knew: {place}").into(),
            ));
        }
        plain((Intent, "another value".into()))
    }

    fn judge_code(&self, names: &Names, a: &str, b: &str) -> Judged {
        let now = |t: &str, added| instant::says_now(t) || self.is_now(t, added);
        if names.is_clock() && !names.is_schedule() && now(a, false) && now(b, true) {
            return (Volatile, "the clock at the time of the call".into());
        }
        (Intent, "another statement".into())
    }
}

fn is_script(path: &Path<'_>, names: &Names) -> bool {
    path.is_in("argv") && names.has(&["eval", "execute", "expression", "expr", "e"])
}

/// The ending of a file name that stands beside a text.
fn extension(path: &Path<'_>) -> Option<String> {
    let name = path.beside(&[
        "path",
        "file",
        "filename",
        "file_path",
        "filepath",
        "name",
        "key",
        "uri",
        "filePath",
        "file_name",
    ])?;
    let (stem, extension) = name.rsplit_once('.')?;
    (!stem.is_empty()
        && (1..=8).contains(&extension.len())
        && extension.bytes().all(|b| b.is_ascii_alphanumeric()))
    .then(|| extension.to_ascii_lowercase())
}

/// Files whose text is a program or a setting, not prose.
fn is_code_file(extension: Option<&str>) -> bool {
    extension.is_some_and(|e| {
        !matches!(
            e,
            "txt" | "md" | "markdown" | "rst" | "adoc" | "html" | "htm" | "eml" | "tex" | "org"
        )
    })
}

fn masked(text: &str) -> String {
    let kept: String = text.chars().take(6).collect();
    if kept.len() < text.len() {
        format!("{kept}…")
    } else {
        text.to_owned()
    }
}
