//! Secrets in calls: what is presented, what is issued, and how they are kept.
//!
//! [`presented`] is broad: ids and codes too, because only the answer that issued a value tells
//! whether it is good for one use. [`issued`] is narrow. A credential is single-use when a value
//! that was issued is presented and consumed; the fence and `judge` put the two together.

mod command_line;
mod issue;
mod seal;

pub use command_line::redact_command_line;
pub use issue::{issued, says_consumed, vouched};
pub(super) use seal::{is_random_seal, kind_of_seal};
pub use seal::{is_secret_header, redact, redact_named, unseal, unseal_url};

use hmac::{Hmac, KeyInit, Mac};

use super::decode::{self, json, url};
use super::naming::Names;
use super::normal::instant;
use super::shape::{self, Randomness};
use super::value::Value;
use crate::words::{Fingerprint, Header, Request};

/// Most values taken from one message.
pub const MOST_SECRETS: usize = 128;

/// A value that may be a credential.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    /// Where it stands: `headers.authorization`, `arguments.token`.
    pub path: String,
    /// The value without scheme prefix. Never to be logged.
    pub value: String,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Secret({}, {} bytes)", self.path, self.value.len())
    }
}

/// Keyed hash of a credential.
pub fn fingerprint(key: &[u8; 32], value: &str) -> Fingerprint {
    let mut mac = match Hmac::<sha2::Sha256>::new_from_slice(key) {
        Ok(mac) => mac,
        Err(never) => unreachable!("HMAC takes keys of any length: {never}"),
    };
    mac.update(b"acrfence credential\0");
    mac.update(value.as_bytes());
    let hash: [u8; 32] = mac.finalize().into_bytes().into();
    let mut first = [0; 16];
    first.copy_from_slice(&hash[..16]);
    Fingerprint(first)
}

/// Values of a request that may be credentials, secrets and plain identifiers alike: which of
/// them are single-use credentials is known from where they were issued. Call it before
/// [`redact`].
pub fn presented(request: &Request) -> Vec<Secret> {
    let mut found = Presented::default();
    match request {
        Request::Http(r) => {
            found.headers(&r.headers);
            found.url(&r.url);
            let kind = r
                .headers
                .iter()
                .find(|h| h.is("content-type"))
                .and_then(|h| h.text());
            found.tree("body", &decode::body(kind, &r.body));
        }
        Request::Mcp(r) => {
            found.headers(&r.headers);
            if let Ok(tree) = json::read(&r.arguments) {
                found.tree("arguments", &tree);
            }
        }
        Request::Exec(r) => {
            for (i, word) in r.argv.iter().enumerate().skip(1) {
                let path = format!("argv[{i}]");
                let header = word
                    .split_once(": ")
                    .filter(|(name, _)| !name.contains(' '));
                if let Some((name, value)) = header {
                    found.headers(&[Header::new(name, value.to_owned())]);
                    continue;
                }
                if word.contains("://") {
                    found.url(word);
                    continue;
                }
                if let Ok(tree @ Value::Map(_)) = json::read(word) {
                    found.tree(&path, &tree);
                    continue;
                }
                for part in word.split(['=', '&', ',']) {
                    found.add(&path, &Names::default(), part);
                }
            }
            for (name, value) in &r.env {
                found.add(&format!("env.{name}"), &Names::of(name), value);
            }
            if let Some(stdin) = &r.stdin {
                found.tree("stdin", &decode::body(None, stdin));
            }
        }
    }
    found.secrets
}

/// Whether the place of a value is named like one for a credential good for one deed.
pub fn is_named_credential(secret: &Secret) -> bool {
    let last = secret.path.rsplit('.').next().unwrap_or_default();
    let names = Names::of(last.split('[').next().unwrap_or_default());
    let login = names.has(&["authorization", "cookie", "password", "secret", "passwd"])
        || secret.path.starts_with("headers.cookie");
    is_credential_name(&names) && !login
}

/// Words of names that hold credentials.
pub(super) fn is_credential_name(names: &Names) -> bool {
    names.has(&[
        "token",
        "secret",
        "password",
        "passwd",
        "otp",
        "pin",
        "approval",
        "grant",
        "voucher",
        "coupon",
        "consent",
        "nonce",
        "permit",
        "invite",
        "invitation",
        "ticket",
        "passcode",
        "code",
        "confirmation",
        "credential",
        "gift",
        "license",
        "licence",
        "redemption",
        "challenge",
        "proof",
        "signature",
        "authorization",
        "auth",
        "pass",
        "mandate",
        "ballot",
        "claim",
        "unlock",
        "tan",
        "totp",
        "mfa",
        "clearance",
        "waiver",
        "authorisation",
        "allowance",
        "warrant",
    ])
}

#[derive(Default)]
struct Presented {
    secrets: Vec<Secret>,
}

impl Presented {
    fn add(&mut self, path: &str, names: &Names, value: &str) {
        let value = value.trim();
        let length = value.len();
        if self.secrets.len() >= MOST_SECRETS
            || !(4..=8192).contains(&length)
            || value.contains(char::is_whitespace)
        {
            return;
        }
        if names.is_uniqueness_key()
            || instant::read(value).is_some_and(|_| !is_credential_name(names))
        {
            return;
        }
        let named = is_credential_name(names);
        let digits = value.bytes().any(|b| b.is_ascii_digit());
        if named || digits || shape::randomness(value) > Randomness::None || length >= 20 {
            let secret = Secret {
                path: path.to_owned(),
                value: value.to_owned(),
            };
            if !self.secrets.contains(&secret) {
                self.secrets.push(secret);
            }
        }
    }

    fn headers(&mut self, headers: &[Header]) {
        for header in headers.iter().take(256) {
            let Some(text) = header.text() else { continue };
            let name = header.name.to_ascii_lowercase();
            let path = format!("headers.{name}");
            match name.as_str() {
                "authorization" | "proxy-authorization" => {
                    let bare = text
                        .trim()
                        .split_once(' ')
                        .map_or(text.trim(), |(_, rest)| rest.trim());
                    self.add(&path, &Names::of("token"), bare);
                }
                "cookie" => {
                    for (cookie, value) in text.split(';').filter_map(|p| p.trim().split_once('='))
                    {
                        self.add(&format!("{path}.{cookie}"), &Names::of(cookie), value);
                    }
                }
                _ => {
                    let names = Names::of(&name);
                    if is_credential_name(&names)
                        || names.has(&["key"])
                        || shape::randomness(text) > Randomness::None
                    {
                        self.add(&path, &names, text);
                    }
                }
            }
        }
    }

    fn url(&mut self, text: &str) {
        let Some(tree) = url::read(text) else { return };
        if let Some(Value::List(segments)) = tree.get("path") {
            for (i, segment) in segments.iter().enumerate() {
                if let Some(segment) = segment.as_text() {
                    self.add(&format!("url.path[{i}]"), &Names::default(), segment);
                }
            }
        }
        if let Some(query) = tree.get("query") {
            self.tree("url.query", query);
        }
    }

    fn tree(&mut self, path: &str, tree: &Value<'_>) {
        self.named(path, &Names::default(), tree, 0);
    }

    fn named(&mut self, path: &str, names: &Names, tree: &Value<'_>, depth: usize) {
        if self.secrets.len() >= MOST_SECRETS || depth > 32 {
            return;
        }
        match tree {
            Value::Map(entries) => {
                for (name, value) in entries {
                    self.named(
                        &format!("{path}.{name}"),
                        &Names::of(name),
                        value,
                        depth + 1,
                    );
                }
            }
            Value::List(items) => {
                for (i, item) in items.iter().enumerate() {
                    self.named(&format!("{path}[{i}]"), names, item, depth + 1);
                }
            }
            Value::Text(text) | Value::Number(text) => {
                self.add(path, names, text);
                if text.starts_with('{')
                    && let Ok(inner @ Value::Map(_)) = json::read(text)
                {
                    self.named(path, names, &inner, depth + 1);
                }
                // Codes inside of longer texts: options, messages, statements.
                if text.contains(char::is_whitespace) || text.contains('=') {
                    for part in text
                        .split(|c: char| c.is_whitespace() || "=&,;'\"()".contains(c))
                        .take(256)
                    {
                        if shape::randomness(part) > Randomness::None {
                            self.add(path, &Names::default(), part);
                        }
                    }
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::{Body, ExecRequest, HttpRequest};

    #[test]
    fn presented_values() {
        let request = Request::Http(HttpRequest {
            method: "POST".into(),
            url: "https://h/coupons/VCH-8H2K-PP04/redeem?ticket=tk-01HV5Z2Q7M8N9P0R".into(),
            headers: vec![
                Header::new("Authorization", "Bearer demo-token-1"),
                Header::new("Cookie", "sid=abcdef; theme=dark"),
                Header::new("Idempotency-Key", "6a1f0f0e-45b7-4d13-b76c-3c1a0e7b5f11"),
                Header::new("X-Step-Up-Token", "su_c531dd68d963041436bbb4870de3"),
                Header::new("Content-Type", "application/json"),
            ],
            body: Body::whole("{\"otp\":481920,\"to\":\"Ann\",\"at\":\"2032-03-04T09:00:00Z\"}"),
            rpc: Vec::new(),
        });
        let found = presented(&request);
        let values: Vec<&str> = found.iter().map(|s| s.value.as_str()).collect();
        for wanted in [
            "demo-token-1",
            "VCH-8H2K-PP04",
            "tk-01HV5Z2Q7M8N9P0R",
            "su_c531dd68d963041436bbb4870de3",
            "481920",
        ] {
            assert!(values.contains(&wanted), "{wanted} in {values:?}");
        }
        for unwanted in [
            "6a1f0f0e-45b7-4d13-b76c-3c1a0e7b5f11",
            "Ann",
            "2032-03-04T09:00:00Z",
            "dark",
        ] {
            assert!(!values.contains(&unwanted), "{unwanted}");
        }
        assert!(
            !format!("{found:?}").contains("demo-token-1"),
            "secrets are not printed"
        );
    }

    #[test]
    fn presented_on_a_command_line() {
        let request = Request::Exec(ExecRequest {
            argv: [
                "git",
                "push",
                "-o",
                "approval=pgate1-e0c18740f2d61f6c",
                "origin",
                "a:b",
            ]
            .map(str::to_owned)
            .into(),
            cwd: "/".into(),
            env: vec![],
            stdin: None,
        });
        assert!(
            presented(&request)
                .iter()
                .any(|s| s.value == "pgate1-e0c18740f2d61f6c")
        );
    }
}
