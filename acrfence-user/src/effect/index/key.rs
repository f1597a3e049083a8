//! Keys of the index: a letter for the tree, then fixed-length big-endian parts, so that a range scan
//! gives the order in which a question wants its answers.

use std::collections::HashMap;

use hmac::{Hmac, Mac as _};
use parking_lot::RwLock;
use sha2::Sha256;

use super::pack;
use crate::effect::journal::frame::Hash;
use crate::effect::journal::keys::keyed;
use crate::words::{EffectId, Fingerprint, Seq, Status, ThreadId};

/// A tree of effects by one of their properties: property, then position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Tree {
    /// By agent.
    Agent = b'A',
    /// All of them, under the property 0.
    All = b'W',
    /// By branch.
    Branch = b'B',
    /// By host.
    Host = b'H',
    /// By tool key.
    Tool = b'K',
    /// By process id.
    Process = b'P',
    /// By status; completed effects are not listed, they are the rule.
    Status = b'S',
    /// By thread.
    Thread = b'T',
}

/// Rows of effects by position. What keeps them puts several into one value under [`ROWS`].
pub const ROW: u8 = b'R';
/// Several rows in one value.
pub const ROWS: u8 = b'r';
/// Candidates: thread, tool key, block of positions (packed).
pub const CANDIDATE: u8 = b'C';
/// Records that place things: what lineage and holds are folded from at start.
pub const LINEAGE: u8 = b'E';
/// Calls that were not let through.
pub const REFUSED: u8 = b'F';
/// What was decided against an effect and said of it: effect, then position.
pub const HISTORY: u8 = b'Y';
/// Credentials: fingerprint, thread that issued it.
pub const ISSUED: u8 = b'I';
/// Credentials: fingerprint, block of effects that presented it or were issued it (packed).
pub const CREDENTIAL: u8 = b'L';
/// How far the index got.
pub const META: u8 = b'M';
/// Names behind hashed properties.
pub const NAME: u8 = b'N';
/// Values: thread, high bits of the keyed hash (packed).
pub const VALUE: u8 = b'V';
/// Body files by digest.
pub const BODY: u8 = b'X';
/// Times of runs of positions.
pub const ZONE: u8 = b'Z';

/// Hashes names into fixed-length parts of keys, with a secret, so that the index does not show them.
pub struct Names {
    key: Hmac<Sha256>,
    memo: RwLock<HashMap<Tree, HashMap<String, u64>>>,
}

/// Hashed names are remembered up to this number.
const MEMO: usize = 16_384;

impl Names {
    /// Names under this secret.
    pub fn new(secret: &[u8; 32]) -> Self {
        Self {
            key: keyed(secret),
            memo: RwLock::default(),
        }
    }

    /// The part of a key that stands for `name` in `tree`.
    pub fn hash(&self, tree: Tree, name: &str) -> u64 {
        let known = self
            .memo
            .read()
            .get(&tree)
            .and_then(|of| of.get(name).copied());
        if let Some(hash) = known {
            return hash;
        }
        let mut mac = self.key.clone();
        mac.update(&[tree as u8]);
        mac.update(name.as_bytes());
        let full = mac.finalize().into_bytes();
        let mut short = [0; 8];
        short.copy_from_slice(&full[..8]);
        let hash = u64::from_be_bytes(short);
        let mut memo = self.memo.write();
        let of = memo.entry(tree).or_default();
        if of.len() >= MEMO {
            of.clear();
        }
        of.insert(name.to_owned(), hash);
        hash
    }
}

/// Key of an effect's row, or of the record of another tree that is keyed by position.
pub fn at(tree: u8, seq: Seq) -> Vec<u8> {
    join(tree, &[&seq.0.to_be_bytes()])
}

/// Key of a record that speaks of an effect.
pub fn told_of(effect: EffectId, seq: Seq) -> Vec<u8> {
    join(HISTORY, &[&effect.0.0.to_be_bytes(), &seq.0.to_be_bytes()])
}

/// What the keys of all records that speak of an effect begin with.
pub fn history(effect: EffectId) -> Vec<u8> {
    join(HISTORY, &[&effect.0.0.to_be_bytes()])
}

/// Key of the block of a list that an effect is in.
pub fn listed(tree: Tree, property: u64, seq: Seq) -> Vec<u8> {
    join(
        tree as u8,
        &[&property.to_be_bytes(), &pack::block(seq).to_be_bytes()],
    )
}

/// Key of an effect in the list by status, which is not packed: effects leave it.
pub fn with_status(number: u64, seq: Seq) -> Vec<u8> {
    join(
        Tree::Status as u8,
        &[&number.to_be_bytes(), &seq.0.to_be_bytes()],
    )
}

/// What the keys of all effects with this property begin with.
pub fn list(tree: Tree, property: u64) -> Vec<u8> {
    join(tree as u8, &[&property.to_be_bytes()])
}

/// Key of the block of candidates that an effect is in.
pub fn candidate(thread: ThreadId, tool: u64, seq: Seq) -> Vec<u8> {
    join(
        CANDIDATE,
        &[
            &thread.0.0.to_be_bytes(),
            &tool.to_be_bytes(),
            &pack::block(seq).to_be_bytes(),
        ],
    )
}

/// Key of the first time `thread` issued a credential.
pub fn issued(fingerprint: Fingerprint, thread: ThreadId) -> Vec<u8> {
    join(ISSUED, &[&fingerprint.0, &thread.0.0.to_be_bytes()])
}

/// Key of the block of a credential's effects that an effect is in.
pub fn credential(fingerprint: Fingerprint, effect: EffectId) -> Vec<u8> {
    join(
        CREDENTIAL,
        &[&fingerprint.0, &pack::block(effect.0).to_be_bytes()],
    )
}

/// What the keys of one credential begin with in one of its trees.
pub fn credentials(tree: u8, fingerprint: Fingerprint) -> Vec<u8> {
    join(tree, &[&fingerprint.0])
}

/// Key of the values of a thread that a value is among.
pub fn value(thread: ThreadId, value: u64) -> Vec<u8> {
    join(VALUE, &[&thread.0.0.to_be_bytes(), &[(value >> 59) as u8]])
}

/// Key of a name.
pub fn name(tree: Tree, hash: u64) -> Vec<u8> {
    join(NAME, &[&[tree as u8], &hash.to_be_bytes()])
}

/// Key of a body file.
pub fn body(digest: &Hash) -> Vec<u8> {
    join(BODY, &[digest])
}

/// Key of the zone that `seq` lies in.
pub fn zone(seq: Seq) -> Vec<u8> {
    join(ZONE, &[&pack::block(seq).to_be_bytes()])
}

/// The number at the end of a key: in most trees the position.
pub fn last_number(key: &[u8]) -> u64 {
    key.last_chunk()
        .map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

/// How [`Tree::Status`] numbers a status; none for those that are not listed.
pub fn status_number(status: Status) -> Option<u64> {
    match status {
        Status::Prepared => Some(0),
        Status::InDoubt => Some(1),
        Status::Failed => Some(2),
        Status::Completed => None,
    }
}

/// The key behind all keys that begin with `prefix`.
pub fn behind(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            break;
        }
    }
    end
}

fn join(tree: u8, parts: &[&[u8]]) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + parts.iter().map(|p| p.len()).sum::<usize>());
    key.push(tree);
    for part in parts {
        key.extend_from_slice(part);
    }
    key
}
