//! Secrets in calls: what is presented, what is issued, and how they are kept.

use hmac::{Hmac, KeyInit, Mac};

use crate::words::{Fingerprint, Header, Request, Response};

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
/// them are single-use credentials is known from where they were issued.
pub fn presented(request: &Request) -> Vec<Secret> {
    let headers: &[Header] = match request {
        Request::Http(r) => &r.headers,
        Request::Mcp(r) => &r.headers,
        Request::Exec(_) => &[],
    };
    headers
        .iter()
        .filter(|h| h.is("authorization"))
        .filter_map(|h| Some((h, h.text()?)))
        .map(|(_, value)| Secret {
            path: "headers.authorization".into(),
            value: value.rsplit(' ').next().unwrap_or(value).into(),
        })
        .collect()
}

/// Credentials that a response issued.
pub fn issued(_response: &Response) -> Vec<Secret> {
    Vec::new()
}

/// Replaces the secrets of a request by their fingerprints, so that they are never stored. What a
/// comparison needs beside the secret (scheme, user, audience, prefix) stays.
pub fn redact(request: &mut Request, key: &[u8; 32]) {
    let headers = match request {
        Request::Http(r) => &mut r.headers,
        Request::Mcp(r) => &mut r.headers,
        Request::Exec(_) => return,
    };
    for header in headers.iter_mut().filter(|h| h.is("authorization")) {
        if let Some(value) = header.text() {
            header.value = format!("redacted:{}", fingerprint(key, value)).into();
        }
    }
}

/// Credentials that a request named and its response called single-use.
pub fn vouched(_request: &Request, _response: &Response) -> Vec<Secret> {
    Vec::new()
}
