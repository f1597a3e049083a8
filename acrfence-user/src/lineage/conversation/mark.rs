//! Keyed hashes that stand for texts and ids, so that no prompt is kept.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};

/// Keyed 64-bit hash of a text, an id or a value. Says "the same" and nothing else.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Mark(pub u64);

impl fmt::Debug for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mark({:016x})", self.0)
    }
}

/// Makes [`Mark`]s under one key. The key is the caller's: without it a mark cannot be guessed from
/// a text one suspects.
#[derive(Clone)]
pub struct Marker(Hmac<sha2::Sha256>);

impl fmt::Debug for Marker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Marker")
    }
}

/// What is marked. The same bytes as another kind get another mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// What somebody said.
    Words,
    /// One long line of it.
    Line,
    /// Arguments of a tool call in their normal form.
    Arguments,
    /// One value inside arguments.
    Value,
    /// Name of a tool.
    Name,
    /// An id that was too long to keep.
    Id,
    /// A session.
    Session,
    /// What a tool call brought.
    Result,
    /// Several marks as one.
    Whole,
    /// Where a call goes.
    Target,
}

impl Marker {
    /// A maker of marks under `key`.
    pub fn new(key: &[u8; 32]) -> Self {
        match Hmac::new_from_slice(key) {
            Ok(mac) => Self(mac),
            Err(never) => unreachable!("HMAC takes keys of any length: {never}"),
        }
    }

    /// The mark of `bytes` as a `kind`.
    pub fn mark(&self, kind: Kind, bytes: &[u8]) -> Mark {
        let mut mac = self.0.clone();
        mac.update(&[kind as u8]);
        mac.update(bytes);
        finish(mac)
    }

    /// One mark for several, in order.
    pub fn whole(&self, parts: impl IntoIterator<Item = Mark>) -> Mark {
        let mut mac = self.0.clone();
        mac.update(&[Kind::Whole as u8]);
        for part in parts {
            mac.update(&part.0.to_le_bytes());
        }
        finish(mac)
    }
}

fn finish(mac: Hmac<sha2::Sha256>) -> Mark {
    let hash: [u8; 32] = mac.finalize().into_bytes().into();
    let mut first = [0; 8];
    first.copy_from_slice(&hash[..8]);
    Mark(u64::from_le_bytes(first))
}
