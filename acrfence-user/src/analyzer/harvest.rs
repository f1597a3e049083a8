//! What a message told: keyed hashes of its values and fingerprints of what it issued, so that a
//! later call's value can be told from one the model made up without keeping the values.

use std::collections::HashSet;

use hmac::{Hmac, KeyInit, Mac};
use unicode_normalization::UnicodeNormalization as _;

use super::compare::trees;
use super::credential;
use super::normal::spelling;
use super::value::Value;
use crate::effect::Harvest;
use crate::words::{Request, Response};

/// Most values taken from one message. A long conversation has many: its latest ones come first.
pub const MOST_VALUES: usize = 16_384;

/// Longest value that is hashed whole, in bytes.
const LONGEST: usize = 512;

/// What a request told: the values it carries.
pub fn request(key: &[u8; 32], request: &Request) -> Harvest {
    let mut values = Values::new(key);
    match request {
        Request::Http(r) => {
            values.text(&super::decode::url::unescape(&r.url, true).unwrap_or_default());
            let kind = r
                .headers
                .iter()
                .find(|h| h.is("content-type"))
                .and_then(|h| h.text());
            values.tree(&super::decode::body(kind, &r.body));
        }
        Request::Mcp(r) => match super::decode::json::read(&r.arguments) {
            Ok(tree) => values.tree(&tree),
            Err(_) => values.text(&r.arguments),
        },
        Request::Exec(r) => {
            r.argv.iter().for_each(|word| values.text(word));
            if let Some(stdin) = &r.stdin {
                values.tree(&super::decode::body(None, stdin));
            }
        }
    }
    Harvest {
        issued: Vec::new(),
        values: values.finish(),
    }
}

/// What a response told: the values it carries, and the credentials it issued. The request it
/// answers, where it is known, may have named a credential that only the answer calls single-use.
///
/// Values are hashed with `key`, credentials with `credential_key`: the one that presented credentials
/// are hashed with, or an issued one is never found again.
pub fn response(
    key: &[u8; 32],
    credential_key: &[u8; 32],
    request: Option<&Request>,
    response: &Response,
) -> Harvest {
    let mut values = Values::new(key);
    trees(response).iter().for_each(|tree| values.tree(tree));
    let mut secrets = credential::issued(response);
    if let Some(request) = request {
        secrets.extend(credential::vouched(request, response));
    }
    let mut issued: Vec<_> = secrets
        .iter()
        .map(|secret| credential::fingerprint(credential_key, &secret.value))
        .collect();
    issued.sort_unstable();
    issued.dedup();
    Harvest {
        issued,
        values: values.finish(),
    }
}

/// The texts of a response, for what they say about fields.
pub(super) fn texts(response: &Response) -> Vec<String> {
    match response {
        Response::Http(r) => vec![String::from_utf8_lossy(&r.body.kept).into_owned()],
        Response::Mcp(r) => {
            let Ok(tree) = super::decode::json::read(&r.answer) else {
                return vec![r.answer.clone()];
            };
            let Some(Value::List(items)) = tree.get("content") else {
                return vec![r.answer.clone()];
            };
            items
                .iter()
                .filter_map(|i| i.get("text"))
                .filter_map(Value::as_text)
                .map(str::to_owned)
                .collect()
        }
        Response::Exec(r) => vec![String::from_utf8_lossy(&r.stdout.kept).into_owned()],
    }
}

/// Keyed hash of a scalar value in its normal form: trimmed, NFC, lower case. Numbers hash by their
/// value.
pub fn value_hash(key: &[u8; 32], value: &str) -> u64 {
    hash(&keyed(key), value)
}

type Keyed = Hmac<sha2::Sha256>;

fn keyed(key: &[u8; 32]) -> Keyed {
    match Keyed::new_from_slice(key) {
        Ok(mac) => mac,
        Err(never) => unreachable!("HMAC takes keys of any length: {never}"),
    }
}

fn hash(keyed: &Keyed, value: &str) -> u64 {
    let value = value.trim();
    let mut mac = keyed.clone();
    match super::normal::number::Decimal::read(value) {
        // A code with leading zeros is no number.
        Some(number) if !value.starts_with('0') || value == "0" || value.starts_with("0.") => {
            mac.update(number.to_string().as_bytes());
        }
        _ if value.is_ascii() => mac.update(value.to_ascii_lowercase().as_bytes()),
        _ => {
            let normal: String = value.nfc().flat_map(char::to_lowercase).collect();
            mac.update(normal.as_bytes());
        }
    }
    let hash: [u8; 32] = mac.finalize().into_bytes().into();
    let mut first = [0; 8];
    first.copy_from_slice(&hash[..8]);
    u64::from_le_bytes(first)
}

struct Values {
    keyed: Keyed,
    found: HashSet<u64>,
}

impl Values {
    fn new(key: &[u8; 32]) -> Self {
        Self {
            keyed: keyed(key),
            found: HashSet::new(),
        }
    }

    fn add(&mut self, value: &str) {
        if self.found.len() < MOST_VALUES && value.len() <= LONGEST && value.len() > 1 {
            self.found.insert(hash(&self.keyed, value));
        }
    }

    fn tree(&mut self, tree: &Value<'_>) {
        if self.found.len() >= MOST_VALUES {
            return;
        }
        match tree {
            Value::Map(entries) => entries.iter().for_each(|(_, value)| self.tree(value)),
            // The last elements of a conversation are the latest, and the likeliest to be used.
            Value::List(items) => items.iter().rev().for_each(|item| self.tree(item)),
            Value::Null | Value::Bool(_) => {}
            leaf => {
                if let Some(text) = leaf.scalar() {
                    self.text(&text);
                }
            }
        }
    }

    /// A text as a whole, its words, and the parts of its words that tell things apart.
    fn text(&mut self, text: &str) {
        self.add(text);
        for piece in spelling::pieces(text) {
            if self.found.len() >= MOST_VALUES {
                return;
            }
            // Ordinary words are everywhere and tell nothing.
            if piece
                .bytes()
                .any(|b| b.is_ascii_digit() || b == b'@' || b == b'-' || b == b'_')
            {
                self.add(piece);
            }
        }
    }

    fn finish(self) -> Vec<u64> {
        let mut values: Vec<u64> = self.found.into_iter().collect();
        values.sort_unstable();
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::{McpRequest, McpResponse};

    const KEY: [u8; 32] = [7; 32];

    #[test]
    fn values_are_found_again_in_other_spellings() {
        let told = response(
            &KEY,
            &KEY,
            None,
            &Response::Mcp(McpResponse {
                is_result: true,
                answer: r#"{"content":[{"type":"text","text":"Open: INV-3310 and SO-7719 for Zo\u00eb"}],"structuredContent":{"id":"6a1f0f0e-45b7-4d13-b76c-3c1a0e7b5f11","amount":480.0,"name":"Bramble Logistics"}}"#.into(),
                is_error: false,
            }),
        );
        for seen in [
            "INV-3310",
            "inv-3310",
            "7719",
            "480",
            "480.00",
            "6A1F0F0E-45B7-4D13-B76C-3C1A0E7B5F11",
            "Bramble Logistics",
        ] {
            assert!(
                told.values.binary_search(&value_hash(&KEY, seen)).is_ok(),
                "{seen}"
            );
        }
        for unseen in ["INV-3311", "481", "Bramble", "xyz"] {
            assert!(
                told.values
                    .binary_search(&value_hash(&KEY, unseen))
                    .is_err(),
                "{unseen}"
            );
        }
        assert_ne!(value_hash(&KEY, "a"), value_hash(&[8; 32], "a"));
        assert_ne!(value_hash(&KEY, "007"), value_hash(&KEY, "7"));
    }

    #[test]
    fn harvests_are_bounded() {
        let many: Vec<String> = (0..50_000).map(|i| format!("\"v-{i}\"")).collect();
        let told = request(
            &KEY,
            &Request::Mcp(McpRequest {
                server: "s".into(),
                name: "t".into(),
                arguments: format!("{{\"a\":[{}]}}", many.join(",")),
                meta: None,
                headers: Vec::new(),
                extra: None,
            }),
        );
        assert_eq!(told.values.len(), MOST_VALUES);
    }
}
