//! Packed values: many small entries under one key, sorted, so that sled has fewer and larger ones.
//!
//! A list of effects is cut into blocks of positions; the key ends with the block, the value holds the
//! low bits of each position with what belongs to it. First sightings of values are cut by the
//! high bits of the value. Two packed values under one key are joined entry by entry, and the order in
//! which they are joined does not matter.

use std::cmp::Ordering;

use super::key::{self, Tree};
use super::row::status_byte;
use crate::words::{BranchId, Seq, Status};

/// Positions of one block share all but this many bits. Few in tests, so that they cross blocks.
pub const BLOCK_BITS: u32 = if cfg!(test) { 3 } else { 10 };
/// The status byte of an effect that garbage collection removed.
pub const GONE: u8 = 0xff;
/// The effect presented the credential.
pub const PRESENTED: u8 = 1;
/// The effect's response issued it.
pub const ISSUED: u8 = 2;

const LOW: u64 = (1 << BLOCK_BITS) - 1;

/// How the entries under a key are laid out.
struct Layout {
    /// Bytes of an entry.
    len: usize,
    /// Bytes at its beginning that say which entry it is.
    id: usize,
    join: fn(&mut [u8], &[u8]),
}

/// Joins two packed values, or none when the values under this key are not packed.
pub fn join(key: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
    let layout = layout(key)?;
    let mut out = Vec::with_capacity(older.len() + newer.len());
    let mut a = older.chunks_exact(layout.len).peekable();
    let mut b = newer.chunks_exact(layout.len).peekable();
    loop {
        let order = match (a.peek(), b.peek()) {
            (None, None) => return Some(out),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(x), Some(y)) => x[..layout.id].cmp(&y[..layout.id]),
        };
        let from = if order == Ordering::Greater {
            &mut b
        } else {
            &mut a
        };
        out.extend_from_slice(from.next().unwrap_or_default());
        if order == Ordering::Equal
            && let Some(other) = b.next()
        {
            let start = out.len() - layout.len;
            (layout.join)(&mut out[start..], other);
        }
    }
}

/// Whether values under this key are packed.
pub fn is_packed(key: &[u8]) -> bool {
    layout(key).is_some()
}

/// The block of a position.
pub fn block(seq: Seq) -> u64 {
    seq.0 >> BLOCK_BITS
}

/// The positions in a packed list, in order.
pub fn positions(key: &[u8], value: &[u8]) -> Vec<Seq> {
    let len = layout(key).map_or(2, |layout| layout.len);
    let base = key::last_number(key) << BLOCK_BITS;
    value
        .chunks_exact(len)
        .map(|entry| Seq(base | u64::from(low_of(entry))))
        .collect()
}

/// An entry of a list.
pub fn listed(seq: Seq) -> Vec<u8> {
    low(seq).to_vec()
}

/// An entry of a list by credential.
pub fn credential(seq: Seq, how: u8) -> Vec<u8> {
    let [a, b] = low(seq);
    vec![a, b, how]
}

/// Positions in a list by credential, with how each came by it.
pub fn credentials(key: &[u8], value: &[u8]) -> Vec<(Seq, u8)> {
    let how = value.chunks_exact(3).map(|entry| entry[2]);
    positions(key, value).into_iter().zip(how).collect()
}

/// An entry among candidates.
pub fn candidate(seq: Seq, branch: BranchId, status: Status) -> Vec<u8> {
    let mut entry = low(seq).to_vec();
    entry.extend_from_slice(&branch.0.0.to_be_bytes());
    entry.push(status_byte(status));
    entry
}

/// An entry that takes an effect out of the candidates for ever.
pub fn no_candidate(seq: Seq) -> Vec<u8> {
    let mut entry = low(seq).to_vec();
    entry.extend_from_slice(&[0; 8]);
    entry.push(GONE);
    entry
}

/// Candidates: position, branch, status byte.
pub fn candidates(key: &[u8], value: &[u8]) -> Vec<(Seq, BranchId, u8)> {
    let rest = value.chunks_exact(11).filter_map(|entry| {
        let (_, rest) = entry.split_at_checked(2)?;
        let (branch, status) = rest.split_first_chunk::<8>()?;
        Some((BranchId(Seq(u64::from_be_bytes(*branch))), *status.first()?))
    });
    let seqs = positions(key, value);
    seqs.into_iter()
        .zip(rest)
        .map(|(seq, (branch, status))| (seq, branch, status))
        .collect()
}

/// A first sighting.
pub fn sighting(value: u64, seq: Seq) -> Vec<u8> {
    [value.to_be_bytes(), seq.0.to_be_bytes()].concat()
}

/// Where a value was first sighted.
pub fn sighted(packed: &[u8], value: u64) -> Option<Seq> {
    let count = packed.len() / 16;
    let at = |n: usize| {
        let entry = packed.get(n * 16..n * 16 + 16)?;
        Some((entry.first_chunk::<8>()?, entry.last_chunk::<8>()?))
    };
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = usize::midpoint(low, high);
        let (found, seq) = at(middle)?;
        match u64::from_be_bytes(*found).cmp(&value) {
            Ordering::Less => low = middle + 1,
            Ordering::Greater => high = middle,
            Ordering::Equal => return Some(Seq(u64::from_be_bytes(*seq))),
        }
    }
    None
}

fn layout(key: &[u8]) -> Option<Layout> {
    const LISTS: [Tree; 6] = [
        Tree::Agent,
        Tree::Branch,
        Tree::Host,
        Tree::Process,
        Tree::Thread,
        Tree::Tool,
    ];
    let tree = *key.first()?;
    Some(match tree {
        key::CANDIDATE => Layout {
            len: 11,
            id: 2,
            // The later step of a life wins, and gone for ever is the last.
            join: |there, other| {
                if other[10] > there[10] {
                    there.copy_from_slice(other);
                }
            },
        },
        key::CREDENTIAL => Layout {
            len: 3,
            id: 2,
            join: |there, other| there[2] |= other[2],
        },
        key::VALUE => Layout {
            len: 16,
            id: 8,
            join: |there, other| {
                if other[8..] < there[8..] {
                    there.copy_from_slice(other);
                }
            },
        },
        _ if LISTS.iter().any(|list| *list as u8 == tree) => Layout {
            len: 2,
            id: 2,
            join: |_, _| {},
        },
        _ => return None,
    })
}

fn low(seq: Seq) -> [u8; 2] {
    ((seq.0 & LOW) as u16).to_be_bytes()
}

fn low_of(entry: &[u8]) -> u16 {
    entry
        .first_chunk()
        .map_or(0, |bytes| u16::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn joining_is_a_union_in_any_order(
            entries in proptest::collection::vec((0..40u64, 0..9u64), 0..60), cut in any::<prop::sample::Index>(),
        ) {
            let key = key::value(crate::words::ThreadId(Seq(1)), 3);
            let pack = |part: &[(u64, u64)]| {
                part.iter().fold(Vec::new(), |packed, (value, seq)| {
                    join(&key, &packed, &sighting(*value, Seq(*seq))).unwrap()
                })
            };
            let cut = cut.index(entries.len() + 1);
            let (a, b) = (pack(&entries[..cut]), pack(&entries[cut..]));
            let joined = join(&key, &a, &b).unwrap();
            prop_assert_eq!(&joined, &join(&key, &b, &a).unwrap());
            let mut expected = BTreeMap::new();
            for (value, seq) in entries {
                let there = expected.entry(value).or_insert(seq);
                *there = seq.min(*there);
            }
            for value in 0..41 {
                prop_assert_eq!(sighted(&joined, value).map(|seq| seq.0), expected.get(&value).copied());
            }
        }

        #[test]
        fn candidates_climb(steps in proptest::collection::vec((0..8u64, 0..4u8), 0..60)) {
            let key = key::candidate(crate::words::ThreadId(Seq(1)), 7, Seq(0));
            let mut packed = Vec::new();
            let mut expected: BTreeMap<u64, u8> = BTreeMap::new();
            for (seq, status) in steps {
                let status = super::super::row::status_of(status).unwrap();
                packed = join(&key, &packed, &candidate(Seq(seq), BranchId(Seq(5)), status)).unwrap();
                let there = expected.entry(seq).or_insert(0);
                *there = status_byte(status).max(*there);
            }
            let told: BTreeMap<u64, u8> =
                candidates(&key, &packed).into_iter().map(|(seq, _, status)| (seq.0, status)).collect();
            prop_assert_eq!(told, expected);
        }
    }
}
