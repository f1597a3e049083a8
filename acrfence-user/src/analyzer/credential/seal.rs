//! Secrets are kept as fingerprints. What a comparison needs beside the secret stays readable:
//! the scheme, the claims of a token (without what makes it valid), the kind prefix of a key.

use super::super::decode::token;
use super::super::naming::Names;
use super::super::shape::{self, Randomness};
use super::command_line::redact_command_line;
use super::fingerprint;
use crate::words::{Header, Request};

const MARK: &str = "redacted:";

/// Replaces the secrets of a request by their fingerprints, so that they are never stored. Equal
/// secrets stay equal. Doing it again changes nothing.
pub fn redact(request: &mut Request, key: &[u8; 32]) {
    match request {
        Request::Http(r) => {
            headers(&mut r.headers, key);
            r.url = url(&r.url, key);
        }
        Request::Mcp(r) => headers(&mut r.headers, key),
        Request::Exec(r) => {
            redact_command_line(&mut r.argv, key, &|_| false);
            for (name, value) in &mut r.env {
                if is_secret_name(name) {
                    *value = sealed(value, key);
                }
            }
        }
    }
}

/// Replaces what an operator named by fingerprints too: header fields and environment variables whose
/// names the two say yes to.
pub fn redact_named(
    request: &mut Request,
    key: &[u8; 32],
    hides_header: impl Fn(&str) -> bool,
    hides_variable: impl Fn(&str) -> bool,
) {
    let headers = match request {
        Request::Http(r) => &mut r.headers,
        Request::Mcp(r) => &mut r.headers,
        Request::Exec(r) => {
            redact_command_line(&mut r.argv, key, &hides_header);
            for (name, value) in &mut r.env {
                if hides_variable(name) {
                    *value = sealed(value, key);
                }
            }
            return;
        }
    };
    for header in headers.iter_mut().filter(|h| hides_header(&h.name)) {
        let value = String::from_utf8_lossy(&header.value).into_owned();
        header.value = sealed(value.trim(), key).into();
    }
}

/// The header fields of a recorded request with their secrets back in, taken from a request of the
/// same caller that carries the very same ones. None when one of them is not there: what is kept of a
/// secret is a keyed hash, and nothing else makes it whole.
pub fn unseal(recorded: &[Header], live: &[Header], key: &[u8; 32]) -> Option<Vec<Header>> {
    recorded
        .iter()
        .map(|field| {
            let text = field.text().unwrap_or_default();
            if !is_secret_header(&field.name) && !text.contains(MARK) {
                return Some(field.clone());
            }
            let same = |other: &&Header| {
                let value = other.text().unwrap_or_default();
                other.is(&field.name)
                    && !value.contains(MARK)
                    && (header_value(&field.name, value, key) == text
                        || sealed(value.trim(), key) == text)
            };
            let found = live.iter().find(same)?;
            Some(Header::new(field.name.clone(), found.value.clone()))
        })
        .collect()
}

/// A recorded URL with its secrets back in, like [`unseal`].
pub fn unseal_url(recorded: &str, live: &str, key: &[u8; 32]) -> Option<String> {
    if url(live, key) == recorded {
        return Some(live.to_owned());
    }
    let hidden = recorded.contains(MARK) || recorded.contains(":redacted-");
    (!hidden).then(|| recorded.to_owned())
}

/// The kind prefix that a sealed value keeps (`sk_live_`), where it is one.
pub(in crate::analyzer) fn kind_of_seal(value: &str) -> Option<&str> {
    value.strip_prefix(MARK)?.splitn(3, ':').nth(2)
}

/// Whether a sealed value was random.
pub(in crate::analyzer) fn is_random_seal(value: &str) -> bool {
    value
        .strip_prefix(MARK)
        .is_some_and(|rest| rest.split(':').nth(1) == Some("r"))
}

fn headers(headers: &mut [Header], key: &[u8; 32]) {
    for header in headers {
        if is_secret_header(&header.name)
            && let Some(value) = header.text()
        {
            header.value = header_value(&header.name, value, key).into();
        }
    }
}

/// Whether a header field of this name is kept as a fingerprint.
pub fn is_secret_header(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    if matches!(
        lower.as_str(),
        "authorization" | "proxy-authorization" | "cookie" | "x-amz-security-token"
    ) {
        return true;
    }
    let names = Names::of(name);
    !names.is_uniqueness_key() && (is_secret_name(name) || names.has(&["token", "cookie"]))
}

/// Names whose values are secrets whatever they look like.
pub(super) fn is_secret_name(name: &str) -> bool {
    let names = Names::of(name);
    let joined = names.own.concat();
    names.has(&["password", "passwd", "secret", "passphrase"])
        || joined.ends_with("password")
        || joined.ends_with("apikey")
        || joined.ends_with("accesskey")
        || joined.ends_with("authtoken")
        || joined.ends_with("accesstoken")
        || names.own == ["token"]
        || (names.last_is(&["token", "key"])
            && names.has(&[
                "api", "access", "auth", "github", "gitlab", "npm", "bearer", "private", "secret",
                "session", "security",
            ]))
}

pub(super) fn header_value(name: &str, value: &str, key: &[u8; 32]) -> String {
    let value = value.trim();
    if name.eq_ignore_ascii_case("cookie") {
        return value
            .split(';')
            .map(|pair| match pair.trim().split_once('=') {
                Some((cookie, value)) if value.len() >= 8 => {
                    format!("{cookie}={}", sealed(value, key))
                }
                _ => pair.trim().to_owned(),
            })
            .collect::<Vec<_>>()
            .join("; ");
    }
    let Some((scheme, rest)) = value
        .split_once(' ')
        .filter(|_| name.to_ascii_lowercase().ends_with("authorization"))
    else {
        return sealed(value, key);
    };
    let rest = rest.trim();
    // `Scheme name=value, …`: only what proves something is a secret.
    let parameters = rest.contains('=') && rest.contains(',');
    if parameters {
        let parts: Vec<String> = rest
            .split(',')
            .map(|part| match part.trim().split_once('=') {
                Some((name, value))
                    if matches!(
                        name.to_ascii_lowercase().as_str(),
                        "signature" | "response" | "oauth_signature" | "mac" | "oauth_token"
                    ) =>
                {
                    format!("{name}={}", fingerprint(key, value))
                }
                _ => part.trim().to_owned(),
            })
            .collect();
        return format!("{scheme} {}", parts.join(", "));
    }
    format!("{scheme} {}", sealed(rest, key))
}

/// `redacted:<fingerprint>:<r where it was random>:<kind prefix>`; a token with claims keeps them.
pub(super) fn sealed(value: &str, key: &[u8; 32]) -> String {
    if value.is_empty() || value.contains(MARK) {
        return value.to_owned();
    }
    let print = fingerprint(key, value);
    if let Some((claims, _signature)) = value.rsplit_once('.')
        && token::read(value).is_ok()
        && token::json(value.rsplit('.').next().unwrap_or_default()).is_err()
    {
        return format!("{claims}.{MARK}{print}");
    }
    let random = if shape::randomness(value) == Randomness::Strong {
        "r"
    } else {
        "p"
    };
    let prefix = value
        .rfind(['_', '-', ':', '.'])
        .filter(|at| *at <= 16 && value.len() >= at + 12)
        .map_or("", |at| &value[..=at]);
    format!("{MARK}{print}:{random}:{prefix}")
}

pub(super) fn url(text: &str, key: &[u8; 32]) -> String {
    let mut text = text.to_owned();
    // `https://user:password@host`
    if let Some(start) = text.find("://").map(|at| at + 3) {
        let end = text[start..]
            .find(['/', '?'])
            .map_or(text.len(), |n| start + n);
        if let Some(at) = text[start..end].rfind('@').map(|n| start + n)
            && let Some(colon) = text[start..at].find(':').map(|n| start + n)
        {
            let password = &text[colon + 1..at];
            if !password.starts_with("redacted-") {
                let hidden = format!("redacted-{}", fingerprint(key, password));
                text.replace_range(colon + 1..at, &hidden);
            }
        }
    }
    let Some((path, query)) = text.split_once('?') else {
        return text;
    };
    let query: Vec<String> = query
        .split('&')
        .map(|pair| match pair.split_once('=') {
            Some((name, value)) if is_secret_name(name) && value.len() >= 8 => {
                format!("{name}={}", sealed(value, key))
            }
            _ => pair.to_owned(),
        })
        .collect();
    format!("{path}?{}", query.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::{Body, ExecRequest, HttpRequest};

    const KEY: [u8; 32] = [3; 32];

    fn http(authorization: &str) -> Request {
        Request::Http(HttpRequest {
            method: "POST".into(),
            url: "https://bob:hunter22@h/a?api_key=0123456789abcdef&x=1".into(),
            headers: vec![
                Header::new("Authorization", authorization.to_owned()),
                Header::new("Cookie", "sid=5f0c6a2e2b574d1e8a9b; theme=dark"),
                Header::new("X-Api-Key", "k-very-secret-000"),
                Header::new("Idempotency-Key", "ik-1"),
            ],
            body: Body::empty(),
            rpc: Vec::new(),
        })
    }

    #[test]
    fn no_secret_is_left() {
        let jwt = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.c2lnbmF0dXJl";
        for value in [
            "Bearer sk_live_0123456789abcdefABCD",
            "Basic Ym9iOmh1bnRlcjIy",
            &format!("Bearer {jwt}"),
        ] {
            let mut request = http(value);
            redact(&mut request, &KEY);
            let text = format!("{request:?}");
            for secret in [
                "0123456789abcdef",
                "Ym9iOmh1bnRlcjIy",
                "hunter22",
                "c2lnbmF0dXJl",
                "5f0c6a2e2b574d1e8a9b",
                "very-secret",
            ] {
                assert!(!text.contains(secret), "{secret} in {text}");
            }
            assert!(text.contains("ik-1"));
            let again = {
                let mut again = request.clone();
                redact(&mut again, &KEY);
                again
            };
            assert_eq!(request, again, "sealing twice changes nothing");
        }
    }

    #[test]
    fn equal_secrets_stay_equal_and_others_do_not() {
        let sealed_request = |v: &str| {
            let mut r = http(v);
            redact(&mut r, &KEY);
            r
        };
        assert_eq!(
            sealed_request("Bearer sk_live_1a2b3c4d5e6f7a8b"),
            sealed_request("Bearer sk_live_1a2b3c4d5e6f7a8b")
        );
        assert_ne!(
            sealed_request("Bearer sk_live_1a2b3c4d5e6f7a8b"),
            sealed_request("Bearer sk_live_1a2b3c4d5e6f7a8c")
        );
        assert_eq!(
            kind_of_seal(&sealed("sk_live_1a2b3c4d5e6f7a8b9c0d", &KEY)),
            Some("sk_live_")
        );
        assert!(is_random_seal(&sealed(
            "sk_live_1a2b3c4d5e6f7a8b9c0d",
            &KEY
        )));
        assert!(!is_random_seal(&sealed("demo-key", &KEY)));
    }

    #[test]
    fn command_lines_are_sealed() {
        let mut request = Request::Exec(ExecRequest {
            argv: [
                "curl",
                "-H",
                "Authorization: Bearer abc123abc123",
                "--password",
                "pw12345",
                "--token=tok98765",
                "https://u:secretpw@h/",
            ]
            .map(str::to_owned)
            .into(),
            cwd: "/".into(),
            env: vec![
                ("PGPASSWORD".into(), "dbpw9999".into()),
                ("LANG".into(), "C".into()),
            ],
            stdin: None,
        });
        redact(&mut request, &KEY);
        let text = format!("{request:?}");
        for secret in [
            "abc123abc123",
            "pw12345",
            "tok98765",
            "secretpw",
            "dbpw9999",
        ] {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
    }
}
