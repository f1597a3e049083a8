//! Header fields: how a request travels means nothing, what it asks for does.

use std::borrow::Cow;

use super::super::credential;
use super::super::decode::{mime, token, url};
use super::super::normal::instant;
use super::super::value::Value;
use super::opened::Fields;
use super::path::Path;
use super::walk::Walk;
use crate::words::FieldClass::{Intent, Unknown, Volatile};
use crate::words::Header;

impl Walk<'_> {
    pub(super) fn headers(&mut self, one: &Fields<'_>, two: &Fields<'_>) {
        if one == two {
            return;
        }
        let root = Path::part("headers");
        let mut plain_one = Vec::new();
        let mut plain_two = Vec::new();
        for (name, value) in one {
            match name.as_ref() {
                "authorization" | "proxy-authorization" => {
                    let other = two.iter().find(|(n, _)| n == name).map(|(_, v)| v);
                    self.authorization(&root, name, Some(value), other);
                }
                "cookie" => {
                    let other = two.iter().find(|(n, _)| n == name).map(|(_, v)| v);
                    self.cookies(&root, Some(value), other);
                }
                _ => plain_one.push((name.clone(), value.clone())),
            }
        }
        for (name, value) in two {
            let missing = !one.iter().any(|(n, _)| n == name);
            match name.as_ref() {
                "authorization" | "proxy-authorization" if missing => {
                    self.authorization(&root, name, None, Some(value));
                }
                "cookie" if missing => self.cookies(&root, None, Some(value)),
                "authorization" | "proxy-authorization" | "cookie" => {}
                _ => plain_two.push((name.clone(), value.clone())),
            }
        }
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for (name, value) in &plain_one {
            let other = plain_two.iter().find(|(n, _)| n == name).map(|(_, v)| v);
            match other {
                Some(other) if other == value => {}
                Some(other) if self.known_header(&root, name, value, other) => {}
                _ => a.push((name.clone(), value.clone())),
            }
        }
        for (name, value) in &plain_two {
            let other = plain_one.iter().find(|(n, _)| n == name).map(|(_, v)| v);
            match other {
                Some(_) if !a.iter().any(|(n, _)| n == name) => {}
                _ => b.push((name.clone(), value.clone())),
            }
        }
        self.value(&root, &Value::Map(a), &Value::Map(b));
    }

    /// Header fields whose meaning is fixed. Says whether it is done with.
    fn known_header(
        &mut self,
        root: &Path<'_>,
        name: &str,
        one: &Value<'_>,
        two: &Value<'_>,
    ) -> bool {
        let path = root.name(name, None);
        // The host stands in the address, too; where this one differs, it decides.
        if is_transport(name) && name != "host" {
            self.found(
                &path,
                Volatile,
                "says how the request travels, not what it asks for",
                one,
                two,
            );
            return true;
        }
        if is_body_digest(name) {
            self.found(
                &path,
                Volatile,
                "follows from the bytes of the body, which is compared by itself",
                one,
                two,
            );
            return true;
        }
        if name == "content-type" {
            let kind = |v: &Value<'_>| {
                v.as_text().map(|t| match mime::media_type(t).as_str() {
                    "text/xml" => "application/xml".to_owned(),
                    "text/json" => "application/json".to_owned(),
                    "text/yaml" | "application/x-yaml" | "text/x-yaml" => {
                        "application/yaml".to_owned()
                    }
                    other => other.to_owned(),
                })
            };
            if kind(one) == kind(two) {
                self.found(
                    &path,
                    Volatile,
                    "the same content type, with another boundary or charset",
                    one,
                    two,
                );
            } else {
                self.found(&path, Unknown, "another content type", one, two);
            }
            return true;
        }
        false
    }

    /// `Scheme token`, or `Scheme name=value, …`.
    fn authorization(
        &mut self,
        root: &Path<'_>,
        name: &str,
        one: Option<&Value<'_>>,
        two: Option<&Value<'_>>,
    ) {
        let path = root.name(name, None);
        let (Some(one), Some(two)) = (one, two) else {
            self.one_sided(
                &path,
                Unknown,
                "only one of the calls says who sends it",
                hidden(one).as_ref(),
                hidden(two).as_ref(),
            );
            return;
        };
        if one == two {
            return;
        }
        let (Some(a), Some(b)) = (one.as_text(), two.as_text()) else {
            self.found(
                &path,
                Unknown,
                "credentials that cannot be read",
                &Value::text("…"),
                &Value::text("…"),
            );
            return;
        };
        let split = |t: &str| -> (String, String) {
            let (scheme, rest) = t.trim().split_once(' ').unwrap_or(("", t.trim()));
            (scheme.to_ascii_lowercase(), rest.trim().to_owned())
        };
        let ((scheme, a), (other, b)) = (split(a), split(b));
        if scheme != other {
            self.found(
                &path,
                Unknown,
                "another way of saying who sends it",
                &Value::text(scheme),
                &Value::text(other),
            );
            return;
        }
        if scheme == "basic" {
            self.found(
                &path,
                Intent,
                "another user",
                &Value::text("…"),
                &Value::text("…"),
            );
            return;
        }
        if let (Some(a), Some(b)) = (parameters(&a), parameters(&b)) {
            self.value(&path, &Value::Map(a), &Value::Map(b));
            return;
        }
        self.tokens(&path, &a, &b);
    }

    /// Two access tokens that are not the same.
    fn tokens(&mut self, path: &Path<'_>, one: &str, two: &str) {
        if let (Ok(a), Ok(b)) = (token::read(one), token::read(two)) {
            self.token_payloads(path, &a, &b);
            return;
        }
        let shown = (Value::text(prefix(one)), Value::text(prefix(two)));
        if prefix(one) == prefix(two)
            && opaque(one)
            && opaque(two)
            && super::super::shape::are_unrelated(one, two)
        {
            self.found(
                path,
                Volatile,
                "an access token that was issued again; its kind is the same",
                &shown.0,
                &shown.1,
            );
        } else {
            self.found(
                path,
                Unknown,
                "another access token; nothing tells whose it is",
                &shown.0,
                &shown.1,
            );
        }
    }

    fn cookies(&mut self, root: &Path<'_>, one: Option<&Value<'_>>, two: Option<&Value<'_>>) {
        let path = root.name("cookie", None);
        let read = |value: Option<&Value<'_>>| -> Value<'static> {
            let text = value.and_then(Value::as_text).unwrap_or_default();
            Value::Map(
                text.split(';')
                    .map(str::trim)
                    .filter(|pair| !pair.is_empty())
                    .map(|pair| match pair.split_once('=') {
                        Some((name, value)) => {
                            let value = url::unescape(value, false).unwrap_or(Cow::Borrowed(value));
                            (Cow::Owned(name.to_owned()), Value::text(value))
                        }
                        None => (Cow::Owned(pair.to_owned()), Value::Bool(true)),
                    })
                    .collect(),
            )
        };
        self.value(&path, &read(one), &read(two));
    }
}

/// Names in lower case; a name that repeats has a list.
pub(super) fn read(headers: &[Header]) -> Vec<(Cow<'_, str>, Value<'_>)> {
    let mut out: Vec<(Cow<'_, str>, Value<'_>)> = Vec::with_capacity(headers.len());
    for header in headers.iter().take(512) {
        let name = if header.name.bytes().any(|b| b.is_ascii_uppercase()) {
            Cow::Owned(header.name.to_ascii_lowercase())
        } else {
            Cow::Borrowed(header.name.as_str())
        };
        let value = match header.text() {
            Some(text) => Value::Text(Cow::Borrowed(text.trim())),
            None => mime::opaque(&header.value),
        };
        super::super::decode::add_repeatable(&mut out, name, value);
    }
    out
}

/// `Credential=A/20320304/eu/s3/aws4_request, SignedHeaders=…, Signature=…`, `username="x", …`.
fn parameters(text: &str) -> Option<Vec<(Cow<'static, str>, Value<'static>)>> {
    let mut out = Vec::new();
    for part in text.split(',') {
        let (name, value) = part.trim().split_once('=')?;
        if name.is_empty()
            || !name
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
        {
            return None;
        }
        let value = value.trim().trim_matches('"');
        let value = match name {
            // The date in the scope of a signature is that of the request.
            "Credential" => value
                .split('/')
                .map(|s| {
                    if instant::date(s).is_some() {
                        "date"
                    } else {
                        s
                    }
                })
                .collect::<Vec<_>>()
                .join("/"),
            // What a digest proves follows from the rest.
            "response" | "cnonce" | "nc" | "mac" | "signature" | "Signature"
            | "oauth_signature" | "opaque" => continue,
            "SignedHeaders" | "headers" => continue,
            _ => value.to_owned(),
        };
        out.push((Cow::Owned(name.to_owned()), Value::text(value)));
    }
    // One `name=value` could also be base64 with padding.
    (text.contains(',') && !out.is_empty()).then_some(out)
}

fn hidden(value: Option<&Value<'_>>) -> Option<Value<'static>> {
    value.map(|_| Value::text("…"))
}

/// The part of a token that says what kind it is: `sk_live_`, `ghp_`, `sess-`.
fn prefix(token: &str) -> String {
    if let Some(kind) = credential::kind_of_seal(token) {
        return format!("{kind}…");
    }
    let end = token
        .rfind(['_', '-', ':', '.'])
        .filter(|at| *at <= 16)
        .map_or(0, |at| at + 1);
    format!("{}…", &token[..end])
}

/// Whether a token is long and mixed enough to be random.
fn opaque(token: &str) -> bool {
    super::super::shape::randomness(token) == super::super::shape::Randomness::Strong
        || credential::is_random_seal(token)
}

/// Header fields that say how a request travels.
pub(super) fn is_transport(name: &str) -> bool {
    const NAMES: &[&str] = &[
        "host",
        "connection",
        "content-length",
        "accept-encoding",
        "user-agent",
        "date",
        "te",
        "transfer-encoding",
        "via",
        "forwarded",
        "tracestate",
        "traceparent",
        "baggage",
        "b3",
        "sentry-trace",
        "x-cloud-trace-context",
        "x-amzn-trace-id",
        "uber-trace-id",
        "x-amz-date",
        "x-amz-security-token",
        "referer",
        "origin",
        "accept-language",
        "cache-control",
        "pragma",
        "dnt",
        "priority",
        "keep-alive",
        "expect",
        "upgrade-insecure-requests",
        "accept-charset",
        "mcp-session-id",
        "mcp-protocol-version",
        "mcp-method",
        "mcp-name",
        "last-event-id",
        "x-goog-api-client",
        "x-requested-with",
        "sec-gpc",
        "x-correlation-id",
        "x-client-version",
        "x-ms-date",
        "x-ms-client-request-id",
        "amz-sdk-request",
        "amz-sdk-invocation-id",
        "x-stripe-client-user-agent",
        "x-client-data",
        "accept",
        "max-forwards",
        // What is left of the caller's patience, and what its library can unpack.
        "grpc-timeout",
        "grpc-accept-encoding",
        "grpc-previous-rpc-attempts",
    ];
    const PREFIXES: &[&str] = &[
        "sec-",
        "x-forwarded-",
        "x-b3-",
        "x-datadog-",
        "x-stainless-",
        "x-envoy-",
        "x-sdk-",
        "x-newrelic-",
    ];
    NAMES.contains(&name) || PREFIXES.iter().any(|p| name.starts_with(p))
}

fn is_body_digest(name: &str) -> bool {
    matches!(
        name,
        "content-md5"
            | "digest"
            | "content-digest"
            | "repr-digest"
            | "x-amz-content-sha256"
            | "x-goog-hash"
            | "x-amz-checksum-sha256"
            | "x-amz-checksum-crc32"
    )
}
