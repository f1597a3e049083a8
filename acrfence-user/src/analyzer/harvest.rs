//! What a message told: keyed hashes of its values and fingerprints of what it issued, so that a
//! later call's value can be told from one the model made up without keeping the values.

use hmac::{Hmac, KeyInit, Mac};
use unicode_normalization::UnicodeNormalization as _;

use crate::effect::Harvest;
use crate::words::{Request, Response};

use super::credential;

/// Most values taken from one message.
pub const MOST_VALUES: usize = 4096;

/// What a request told: the values it carries.
pub fn request(key: &[u8; 32], request: &Request) -> Harvest {
    let mut text = String::new();
    match request {
        Request::Http(r) => {
            text.push_str(&r.url);
            text.push(' ');
            text.push_str(&String::from_utf8_lossy(&r.body.kept));
        }
        Request::Mcp(r) => text.push_str(&r.arguments),
        Request::Exec(r) => {
            for word in &r.argv {
                text.push_str(word);
                text.push(' ');
            }
            if let Some(stdin) = &r.stdin {
                text.push_str(&String::from_utf8_lossy(&stdin.kept));
            }
        }
    }
    Harvest {
        issued: Vec::new(),
        values: values(key, &text),
    }
}

/// What a response told: the values it carries, and the credentials it issued. The request it
/// answers, where it is known, may have named a credential that only the answer calls single-use.
pub fn response(key: &[u8; 32], request: Option<&Request>, response: &Response) -> Harvest {
    let _ = request;
    let text = match response {
        Response::Http(r) => String::from_utf8_lossy(&r.body.kept).into_owned(),
        Response::Mcp(r) => r.answer.clone(),
        Response::Exec(r) => String::from_utf8_lossy(&r.stdout.kept).into_owned(),
    };
    let mut issued: Vec<_> = credential::issued(response)
        .iter()
        .map(|secret| credential::fingerprint(key, &secret.value))
        .collect();
    issued.sort_unstable();
    issued.dedup();
    Harvest {
        issued,
        values: values(key, &text),
    }
}

/// Keyed hash of a scalar value in its normal form: trimmed, NFC, lower case.
pub fn value_hash(key: &[u8; 32], value: &str) -> u64 {
    let normal: String = value.trim().nfc().flat_map(char::to_lowercase).collect();
    let mut mac = match Hmac::<sha2::Sha256>::new_from_slice(key) {
        Ok(mac) => mac,
        Err(never) => unreachable!("HMAC takes keys of any length: {never}"),
    };
    mac.update(normal.as_bytes());
    let hash: [u8; 32] = mac.finalize().into_bytes().into();
    let mut first = [0; 8];
    first.copy_from_slice(&hash[..8]);
    u64::from_le_bytes(first)
}

fn values(key: &[u8; 32], text: &str) -> Vec<u64> {
    let mut values: Vec<u64> = text
        .split(|c: char| !(c.is_alphanumeric() || "-_.:@/+".contains(c)))
        .filter(|piece| piece.len() > 1)
        .take(MOST_VALUES)
        .map(|piece| value_hash(key, piece))
        .collect();
    values.sort_unstable();
    values.dedup();
    values
}
