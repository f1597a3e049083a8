//! Ids that providers and clients give to calls, messages and responses.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::mark::{Kind, Marker};

/// Longest id that is kept as it is.
const LONGEST: usize = 96;

/// Fewest characters that an id must have beside its prefix to identify anything outside its own
/// conversation.
const FEWEST_RANDOM: usize = 8;

/// An id of a tool call, a message or a response, as it stands on the wire.
///
/// Some say which one of all in the world is meant (`toolu_01A09q90qw90lq917835lq9`), others only
/// which one of this conversation (`call_0`): see [`Self::is_unique`].
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ProviderId(Box<str>);

impl ProviderId {
    /// The id that was sent. One too long to keep is kept as a hash.
    pub fn new(marker: &Marker, sent: &str) -> Self {
        if sent.len() <= LONGEST {
            return Self(sent.into());
        }
        let a = marker.mark(Kind::Id, sent.as_bytes());
        let b = marker.whole([a]);
        Self(format!("long_{:016x}{:016x}", a.0, b.0).into())
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this id can be expected not to be made twice: it has a random-looking part.
    pub fn is_unique(&self) -> bool {
        // What follows the words that ids begin with: `toolu_`, `chatcmpl-tool-`, `functions.pay:`.
        let mut random = &*self.0;
        while let Some(at) = random.find(['_', '-', '.', ':', '|', '/']) {
            let (word, rest) = random.split_at(at);
            if !word.bytes().all(|b| b.is_ascii_lowercase()) {
                break;
            }
            random = &rest[1..];
        }
        let mut letters = false;
        let mut digits = 0;
        let mut count = 0;
        let mut different = [false; 128];
        for b in random.bytes().filter(u8::is_ascii_alphanumeric) {
            count += 1;
            letters |= b.is_ascii_alphabetic();
            digits += usize::from(b.is_ascii_digit());
            different[usize::from(b)] = true;
        }
        let different = different.iter().filter(|d| **d).count();
        count >= FEWEST_RANDOM
            && letters
            && different >= 5
            // A word has no digits; random letters of both cases need none.
            && (digits > 0 || random.bytes().any(|b| b.is_ascii_uppercase()) && count >= 12)
    }
}

impl fmt::Display for ProviderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for ProviderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_ids_identify_and_numbered_ones_do_not() {
        let marker = Marker::new(&[7; 32]);
        for unique in [
            "toolu_01A09q90qw90lq917835lq9",
            "toolu_06fa1bc7af044333a3ed8f13",
            "call_521a31985f204586b70d",
            "call_Qw3rTyUiOpAsDfGhJkLz",
            "chatcmpl-tool-0c8953f05adc4d36a381e7d6a11202bd",
            "msg_01a22da6-a3cd-7f11-815f-5d19e163ef17",
            "0c8953f0-5adc-4d36-a381-e7d6a11202bd",
            "D681PevKs",
            "c_1f0e9d8c7b6a5f4e",
            "adk-7b6a5f4e-1f0e-4d8c-9a9a-0123456789ab",
            "lc_run--0c8953f0-5adc-4d36-a381-e7d6a11202bd",
        ] {
            assert!(ProviderId::new(&marker, unique).is_unique(), "{unique}");
        }
        for weak in [
            "",
            "call_0",
            "call_1",
            "1",
            "tool_call_12",
            "functions.get_weather:0",
            "get_weather",
            "call_pay",
            "call_aaaaaaaaaaaa1",
            "20240601",
            "call_123",
            "pay-2024-06-01",
        ] {
            assert!(!ProviderId::new(&marker, weak).is_unique(), "{weak}");
        }
    }

    #[test]
    fn a_long_id_is_kept_as_a_hash_and_still_identifies() {
        let marker = Marker::new(&[7; 32]);
        let long = "x".repeat(5000);
        let id = ProviderId::new(&marker, &long);
        assert!(id.as_str().len() <= LONGEST);
        assert!(id.is_unique());
        assert_eq!(id, ProviderId::new(&marker, &long));
        assert_ne!(id, ProviderId::new(&marker, &"x".repeat(5001)));
    }
}
