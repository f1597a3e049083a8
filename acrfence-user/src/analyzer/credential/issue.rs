//! Answers that issue credentials: by the name of the field, and by what stands beside it
//! ("single use", "uses left: 1").

use super::super::compare::trees;
use super::super::decode::{token, url};
use super::super::naming::{self, Names};
use super::super::normal::instant;
use super::super::normal::number::Decimal;
use super::super::shape::{self, Randomness};
use super::super::value::Value;
use super::{MOST_SECRETS, Secret, is_credential_name, presented};
use crate::words::{Request, Response};

/// Credentials that a response issued. Values that it calls reusable, and tokens that open a
/// session, are not among them.
pub fn issued(response: &Response) -> Vec<Secret> {
    let mut survey = Survey::default();
    for tree in trees(response) {
        survey.tree("answer", &tree, Uses::Unsaid, 0);
    }
    let reusable = survey.reusable;
    survey.found.retain(|s| !reusable.contains(&s.value));
    survey.found
}

/// Credentials that a request named and its response called single-use (a gift code that was
/// checked before it is redeemed).
pub fn vouched(request: &Request, response: &Response) -> Vec<Secret> {
    let mut survey = Survey::default();
    for tree in trees(response) {
        survey.tree("answer", &tree, Uses::Unsaid, 0);
    }
    if !survey.once || !survey.found.is_empty() {
        return Vec::new();
    }
    presented(request)
        .into_iter()
        .filter(|s| {
            !s.path.starts_with("headers.") && shape::randomness(&s.value) > Randomness::None
        })
        .filter(|s| !survey.reusable.contains(&s.value))
        .collect()
}

/// Whether a response says that a credential was used up by the call it answers.
pub fn says_consumed(response: &Response) -> bool {
    let mut text = String::new();
    match response {
        Response::Http(r) => {
            text.push_str(&String::from_utf8_lossy(&r.body.kept));
            for header in &r.headers {
                text.push(' ');
                text.push_str(&header.name);
                text.push(' ');
                text.push_str(header.text().unwrap_or_default());
            }
        }
        Response::Mcp(r) => text.push_str(&r.answer),
        Response::Exec(r) => {
            text.push_str(&String::from_utf8_lossy(&r.stdout.kept));
            text.push_str(&String::from_utf8_lossy(&r.stderr.kept));
        }
    }
    let text: String = text
        .chars()
        .take(1 << 16)
        .flat_map(char::to_lowercase)
        .collect();
    let words = || {
        text.split(|c: char| !c.is_alphanumeric())
            .filter(|w| !w.is_empty())
    };
    let said = words().any(|w| {
        matches!(
            w,
            "consumed"
                | "redeemed"
                | "spent"
                | "void"
                | "voided"
                | "burned"
                | "burnt"
                | "exhausted"
                | "invalidated"
        )
    });
    // `"used": true`, `"uses_remaining": 0`, `"trips_left": 0`.
    let list: Vec<&str> = words().collect();
    said || list
        .windows(2)
        .any(|w| matches!(w, ["used", "true"] | ["left" | "remaining", "0"]))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Uses {
    Once,
    Many,
    Unsaid,
}

#[derive(Default)]
struct Survey {
    found: Vec<Secret>,
    reusable: Vec<String>,
    /// Whether anything was called single-use.
    once: bool,
}

impl Survey {
    fn tree(&mut self, path: &str, tree: &Value<'_>, around: Uses, depth: usize) {
        if depth > 32 || self.found.len() >= MOST_SECRETS || self.reusable.len() >= MOST_SECRETS {
            return;
        }
        match tree {
            Value::Map(entries) => {
                let own = uses(entries);
                let uses = if own == Uses::Unsaid { around } else { own };
                self.once |= own == Uses::Once;
                let session = entries.iter().any(|(name, _)| {
                    let name = naming::words(name).join(" ");
                    [
                        "token type",
                        "refresh token",
                        "scope",
                        "scopes",
                        "permissions",
                    ]
                    .contains(&name.as_str())
                });
                // Where a name says what is the credential, the other values are not.
                let named = entries.iter().any(|(name, value)| {
                    is_credential_name(&Names::of(name))
                        && value.as_text().is_some_and(looks_issued)
                });
                for (name, value) in entries {
                    let names = Names::of(name);
                    let path = format!("{path}.{name}");
                    if uses == Uses::Once
                        && let Some(address) = value.as_text().and_then(url::read)
                    {
                        self.address(&path, &address);
                    }
                    if let Some(text) = value.as_text().filter(|t| looks_issued(t)) {
                        let session = session || is_session_token(&names);
                        self.field(&path, &names, text, uses, session, named);
                    }
                    self.tree(&path, value, uses, depth + 1);
                }
            }
            Value::List(items) => {
                for (i, item) in items.iter().enumerate() {
                    self.tree(&format!("{path}[{i}]"), item, around, depth + 1);
                }
            }
            Value::Text(text) if text.contains(char::is_whitespace) => self.prose(path, text),
            _ => {}
        }
    }

    fn field(
        &mut self,
        path: &str,
        names: &Names,
        value: &str,
        uses: Uses,
        session: bool,
        named: bool,
    ) {
        if names.is_uniqueness_key() && !names.has(&["nonce"]) {
            return;
        }
        let is_named = is_credential_name(names);
        match uses {
            Uses::Many => self.reusable.push(value.to_owned()),
            Uses::Once
                if is_named
                    || !named
                        && (shape::randomness(value) > Randomness::None
                            || names.has(&["id", "source", "key"])) =>
            {
                self.add(path, value);
            }
            Uses::Unsaid if is_named && !session => {
                let token =
                    shape::randomness(value) > Randomness::None || token::read(value).is_ok();
                // An approval is for one thing unless it says otherwise, whatever it looks like.
                let one_deed = names
                    .has(&["approval", "otp", "grant", "consent", "permit", "passcode"])
                    && is_code(value);
                if (token && !names.has(&["code"])) || one_deed {
                    self.add(path, value);
                }
            }
            _ => {}
        }
    }

    /// Text for people: `approval pgate1-e0c18740f2d61f6c (valid for one push)`.
    fn prose(&mut self, path: &str, text: &str) {
        for line in text.lines().take(400) {
            let lower = line.to_lowercase();
            let once = says_once(&lower) && !says_many(&lower);
            self.once |= once;
            let words = Names::of(&lower.chars().take(120).collect::<String>());
            if !(is_credential_name(&words) || once) {
                continue;
            }
            for word in line.split(|c: char| c.is_whitespace() || ",;()'\"`".contains(c)) {
                let word = word.trim_matches(|c: char| ".:!?=".contains(c));
                let random = shape::randomness(word);
                let code = is_code(word);
                let enough = match (once, is_credential_name(&words)) {
                    (true, true) => code,
                    (true, false) => random >= Randomness::Weak,
                    (false, _) => random == Randomness::Strong,
                };
                if enough && looks_issued(word) {
                    self.add(path, word);
                }
            }
        }
    }

    /// The parts of a URL that is good for one use which make it so.
    fn address(&mut self, path: &str, address: &Value<'_>) {
        let mut part = |value: &Value<'_>| {
            if let Some(text) = value
                .as_text()
                .filter(|t| shape::randomness(t) > Randomness::None)
            {
                self.add(path, text);
            }
        };
        if let Some(Value::List(segments)) = address.get("path") {
            segments.iter().for_each(&mut part);
        }
        if let Some(Value::Map(query)) = address.get("query") {
            query.iter().for_each(|(_, value)| part(value));
        }
    }

    fn add(&mut self, path: &str, value: &str) {
        let secret = Secret {
            path: path.to_owned(),
            value: value.to_owned(),
        };
        if self.found.len() < MOST_SECRETS && !self.found.contains(&secret) {
            self.found.push(secret);
        }
    }
}

/// A value that could be handed out: some length, one word, no time, no address.
fn looks_issued(text: &str) -> bool {
    (4..=8192).contains(&text.len())
        && !text.contains(char::is_whitespace)
        && !text.contains(['@', '/'])
        && (text.bytes().any(|b| b.is_ascii_digit()) || shape::randomness(text) > Randomness::None)
        && instant::read(text).is_none()
        && instant::date(text).is_none_or(|_| text.len() != 10)
        && Decimal::read(text).is_none_or(|_| !text.contains('.'))
}

/// A code that people could read out: letters and digits, or several digits.
fn is_code(text: &str) -> bool {
    let digits = text.bytes().filter(u8::is_ascii_digit).count();
    let letters = text.bytes().filter(u8::is_ascii_alphabetic).count();
    text.len() >= 6 && digits >= 1 && letters >= 1 || text.len() >= 5 && digits == text.len()
}

fn is_session_token(names: &Names) -> bool {
    names.has(&[
        "access",
        "session",
        "refresh",
        "csrf",
        "xsrf",
        "bearer",
        "page",
        "next",
        "continuation",
        "sync",
        "cursor",
        "api",
    ]) || names.own == ["id", "token"]
}

/// How often what stands in an object may be used, as the object says.
fn uses(entries: &[(std::borrow::Cow<'_, str>, Value<'_>)]) -> Uses {
    let mut out = Uses::Unsaid;
    for (name, value) in entries {
        let words = naming::words(name);
        let joined = words.join(" ");
        let truth = match value {
            Value::Bool(b) => Some(*b),
            Value::Text(t) if t.eq_ignore_ascii_case("true") => Some(true),
            Value::Text(t) if t.eq_ignore_ascii_case("false") => Some(false),
            _ => None,
        };
        let said = match (joined.as_str(), truth) {
            (
                "single use" | "one time" | "onetime" | "one time use" | "once" | "singleuse"
                | "one shot" | "consumable" | "burn after use" | "valid once" | "once only"
                | "use once" | "disposable",
                Some(once),
            ) => Some(if once { Uses::Once } else { Uses::Many }),
            ("reusable" | "multi use" | "multiuse" | "renewable", Some(many)) => {
                Some(if many { Uses::Many } else { Uses::Once })
            }
            _ => None,
        };
        let counts = words
            .iter()
            .any(|w| COUNTED.contains(&naming::singular(w).as_str()));
        let left = words
            .iter()
            .any(|w| ["left", "remaining"].contains(&w.as_str()))
            && !words.iter().any(|w| UNCOUNTED.contains(&w.as_str()));
        let limits = words.iter().any(|w| {
            [
                "max",
                "allowed",
                "limit",
                "valid",
                "total",
                "permitted",
                "maximum",
            ]
            .contains(&w.as_str())
        });
        let number = value
            .scalar()
            .and_then(|v| Decimal::read(&v))
            .and_then(|d| d.integer());
        let counted = match number {
            Some(1) if left || counts && (limits || words.len() == 1) => Some(Uses::Once),
            Some(n) if n > 1 && (left || counts && (limits || words.len() == 1)) => {
                Some(Uses::Many)
            }
            _ => None,
        };
        let text = value.as_text().filter(|t| t.len() < 200).and_then(|t| {
            let lower = t.to_lowercase();
            if says_many(&lower) {
                Some(Uses::Many)
            } else if says_once(&lower) {
                Some(Uses::Once)
            } else {
                None
            }
        });
        match said.or(counted).or(text) {
            Some(Uses::Many) => return Uses::Many,
            Some(found) => out = found,
            None => {}
        }
    }
    out
}

/// Things that are counted where a credential is good for a number of them.
const COUNTED: &[&str] = &[
    "use",
    "usage",
    "redemption",
    "trip",
    "entry",
    "admission",
    "charge",
    "ride",
    "claim",
    "login",
    "attempt",
    "time",
    "activation",
    "visit",
    "load",
    "shipment",
    "delivery",
    "night",
    "scan",
    "download",
    "upload",
    "transfer",
    "withdrawal",
    "vote",
    "run",
    "push",
    "deployment",
    "operation",
    "request",
    "call",
    "deletion",
    "print",
    "test",
    "dose",
    "release",
    "booking",
    "order",
    "payment",
    "deed",
];

/// Words of a remainder that is no number of uses.
const UNCOUNTED: &[&str] = &[
    "day", "days", "hours", "minutes", "seconds", "balance", "amount", "credit", "stock", "quota",
    "time", "ttl", "percent", "budget",
];

fn says_many(lower: &str) -> bool {
    [
        "any number",
        "unlimited",
        "reusable",
        "multiple times",
        "as often as",
        "many times",
        "until it expires",
        "multi-use",
        "multiple use",
        "standing approval",
        "long-lived",
    ]
    .iter()
    .any(|p| lower.contains(p))
}

fn says_once(lower: &str) -> bool {
    const PHRASES: &[&str] = &[
        "single use",
        "single-use",
        "one use",
        "one-time",
        "one time",
        "once",
        "valid for one",
        "good for one",
        "good for a single",
        "for a single",
        "single upload",
        "only one",
        "one confirmation",
        "one push",
        "one redemption",
        "card_nonce",
        "not be used again",
        "cannot be reused",
        "usable once",
        "one single",
        "unused",
        "unspent",
        "unredeemed",
        "consumed when",
        "consumed by",
        "burned",
        "used up",
        "exactly one",
        "just one",
        "only for one",
    ];
    PHRASES.iter().any(|p| lower.contains(p)) || (lower.starts_with("one ") && lower.len() < 40)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::{Body, ExecResponse, McpRequest, McpResponse};

    fn mcp(json: &str) -> Response {
        Response::Mcp(McpResponse {
            is_result: true,
            answer: format!("{{\"content\":[],\"structuredContent\":{json}}}"),
            is_error: false,
        })
    }

    fn values(response: &Response) -> Vec<String> {
        issued(response).into_iter().map(|s| s.value).collect()
    }

    #[test]
    fn what_is_issued() {
        for (json, wanted) in [
            (
                r#"{"approval_token":"apv_7Hq2LmZ09xTtR4","valid_uses":1}"#,
                vec!["apv_7Hq2LmZ09xTtR4"],
            ),
            (
                r#"{"source_id":"cnon:demo-ok-h7Qw2","single_use":true,"card":{"last_4":"0021"}}"#,
                vec!["cnon:demo-ok-h7Qw2"],
            ),
            (
                r#"{"sent_to":"account owner","uses":1,"code":"481920"}"#,
                vec!["481920"],
            ),
            (
                r#"{"id":"otk_d53958273e1ab44fef0baf12","object":"token","one_time":true}"#,
                vec!["otk_d53958273e1ab44fef0baf12"],
            ),
            (
                r#"{"code":"AUTUMN10","max_redemptions":50000,"redemptions_left":48212}"#,
                vec![],
            ),
            (
                r#"{"code":"VCH-8H2K-PP04","max_redemptions":1,"redemptions_left":1}"#,
                vec!["VCH-8H2K-PP04"],
            ),
            (
                r#"{"cards":[{"id":"ccof:demo-4kd81","reusable":true}]}"#,
                vec![],
            ),
            (
                r#"{"access_token":"sess-8f7a6b5c4d3e2f10","token_type":"bearer","expires_in":3600}"#,
                vec![],
            ),
            (
                r#"{"payments":[{"payment_id":"6a1f0f0e-45b7-4d13-b76c-3c1a0e7b5f11","amount":200}]}"#,
                vec![],
            ),
            (
                r#"{"otp":"294817","valid_for":"one confirmation"}"#,
                vec!["294817"],
            ),
            (
                r#"{"ticket":"tk-01HV5Z2Q7M8N9P0R","note":"good for a single upload"}"#,
                vec!["tk-01HV5Z2Q7M8N9P0R"],
            ),
        ] {
            assert_eq!(values(&mcp(json)), wanted, "{json}");
        }
    }

    #[test]
    fn issued_in_text() {
        let text = |t: &str| {
            Response::Exec(ExecResponse {
                exit: 0,
                stdout: Body::whole(t.to_owned()),
                stderr: Body::empty(),
            })
        };
        assert_eq!(
            values(&text(
                "approval pgate1-e0c18740f2d61f6c (protected branches, valid for one push)\n"
            )),
            ["pgate1-e0c18740f2d61f6c"]
        );
        assert!(values(&text("[main 4c1d9ab] Fix rounding\n")).is_empty());
        assert!(values(&text("commit 9fceb02d0ae598e95dc970b74767f19372d61af8\n")).is_empty());
    }

    #[test]
    fn a_code_that_was_only_checked() {
        let request = Request::Mcp(McpRequest {
            server: "s".into(),
            name: "check".into(),
            arguments: r#"{"c":"GIFT-8C6D461CA22C"}"#.into(),
            meta: None,
            headers: Vec::new(),
            extra: None,
        });
        let answer = mcp(r#"{"state":"ACTIVE","singleUse":true,"value":"30.00"}"#);
        assert_eq!(vouched(&request, &answer)[0].value, "GIFT-8C6D461CA22C");
        assert!(vouched(&request, &mcp(r#"{"state":"ACTIVE"}"#)).is_empty());
    }
}
