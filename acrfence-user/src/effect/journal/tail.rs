//! Whether the end of the last segment was torn by a crash, or is damaged.
//!
//! Cutting a damaged end back would forget acknowledged effects, so it is cut only on proof that
//! the damaged record was never acknowledged. What is known:
//!
//! - A commit group is written only after the group before it was synced, and a record is
//!   acknowledged only after its own group was synced. So only the very last group can be torn.
//! - Room for records is zeros before it is written, and the disk writes whole sectors. So a torn
//!   group has at least one sector in which nothing but zeros stands where it should be. A record
//!   has no such sector by itself: it begins and ends with bytes that are not zero, and its inside
//!   is cipher text.
//! - The anchor names a record that was synced.
//!
//! Everything else is damage, and is reported with its place.

use super::frame::{self, FrameFault};
use super::walk::{Walk, WalkFault};

const SECTOR: usize = 512;

/// What the end of the last segment is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tail {
    /// Zeros follow the last record.
    Clean,
    /// A commit group that was never acknowledged was written in part.
    Torn {
        /// Bytes from the last whole record to the last one that is not zero.
        bytes: usize,
    },
    /// Something that was synced is not what was written.
    Damaged {
        /// What is wrong.
        detail: String,
    },
}

/// Judges what follows the last whole record of the last segment, after `walk` ended with `fault`
/// (none: it ended where nothing is written).
pub fn judge(bytes: &[u8], walk: &Walk<'_>, fault: Option<&WalkFault>, anchored: bool) -> Tail {
    let end = written_end(bytes);
    if end <= walk.at && fault.is_none() {
        return Tail::Clean;
    }
    let damaged = |detail: String| Tail::Damaged { detail };
    if anchored {
        return damaged(format!(
            "records after {} are known to have been written, and are not there",
            walk.seq
        ));
    }
    let suspect = match fault {
        // A chain that does not fit under right checksums was written whole.
        Some(WalkFault::Chain(why)) => return damaged(why.clone()),
        Some(WalkFault::Frame(fault)) => match fault {
            FrameFault::Version(_) => return damaged(fault.to_string()),
            FrameFault::Checksum { len } => *len,
            FrameFault::Short { need, .. } => *need,
            FrameFault::Blank | FrameFault::Header(_) => frame::HEADER,
        },
        None => frame::HEADER,
    };
    let what = fault.map_or_else(
        || "zeros stand where a record should begin".to_owned(),
        ToString::to_string,
    );
    if let Some(at) = later_group(bytes, walk) {
        return damaged(format!(
            "{what}, and a record of a later commit stands at offset {at}"
        ));
    }
    if !has_unwritten_sector(bytes, walk.at, walk.at.saturating_add(suspect)) {
        return damaged(format!(
            "{what}, and every sector of it was written: a crash does not do that"
        ));
    }
    Tail::Torn {
        bytes: end.saturating_sub(walk.at),
    }
}

/// Offset behind the last byte that is not zero.
pub fn written_end(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|b| *b != 0).map_or(0, |at| at + 1)
}

/// Whether a sector that `from..to` touches is all zeros from `from` on.
fn has_unwritten_sector(bytes: &[u8], from: usize, to: usize) -> bool {
    let mut at = from;
    while at < to {
        let sector_end = (at / SECTOR + 1) * SECTOR;
        let part = bytes
            .get(at..sector_end.min(bytes.len()))
            .unwrap_or_default();
        if part.iter().all(|b| *b == 0) {
            return true;
        }
        at = sector_end;
    }
    false
}

/// Offset of a whole record, behind the place where `walk` stopped, that belongs to a later group
/// than the record that should stand there.
fn later_group(bytes: &[u8], walk: &Walk<'_>) -> Option<usize> {
    // The broken record belongs to the group of the last whole one as long as that has some left.
    let last_of_group = walk.seq.0.saturating_add(u64::from(walk.left));
    let mut at = walk.at;
    while let Some(found) = frame::next_magic(bytes, at) {
        if let Ok(frame) = frame::read(&bytes[found..]) {
            let first = frame
                .header
                .seq
                .0
                .saturating_sub(u64::from(frame.header.index));
            let later = if walk.left > 0 {
                first > last_of_group
            } else {
                // The broken record is the first of its group, and so is its position.
                first > walk.seq.0.saturating_add(1)
            };
            if later {
                return Some(found);
            }
        }
        at = found + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sha2::Digest as _;

    use super::*;
    use crate::effect::journal::frame::Header;
    use crate::effect::journal::keys::{KeyFile, Keyring};
    use crate::effect::journal::segment::{self, SegmentHeader};
    use crate::words::{Seq, Timestamp};

    const SIZE: usize = 16 << 10;

    struct Written {
        bytes: Vec<u8>,
        header: SegmentHeader,
        keyring: Keyring,
        /// Where groups end.
        ends: Vec<usize>,
    }

    /// A segment with these groups of payload lengths. Payloads look like cipher text.
    fn segment(groups: &[Vec<usize>]) -> Written {
        let dir = tempfile::tempdir().unwrap();
        let store = [7; 16];
        let keyring = KeyFile::load(&dir.path().join("k"), true)
            .unwrap()
            .bind(&store);
        let header = SegmentHeader {
            number: 1,
            store,
            first: Seq(1),
            previous: [0; 32],
            created: Timestamp(1),
            compacted: None,
        };
        let mut bytes = header.write(keyring.current()).to_vec();
        let (mut seq, mut chain) = (1, [0; 32]);
        let mut ends = Vec::new();
        let mut state = 0x1234_5678_9abc_def1_u64;
        for group in groups {
            for (index, len) in group.iter().enumerate() {
                let payload: Vec<u8> = (0..*len)
                    .map(|_| {
                        state ^= state << 13;
                        state ^= state >> 7;
                        state ^= state << 17;
                        state as u8
                    })
                    .collect();
                let mut header = Header {
                    kind: 6,
                    len: *len as u32,
                    seq: Seq(seq),
                    index: index as u16,
                    left: (group.len() - 1 - index) as u16,
                    flags: 0,
                    key: keyring.current().id,
                    nonce: [state as u8; 24],
                    previous: chain,
                    mac: [0; 16],
                };
                chain = header.chain(&sha2::Sha256::digest(&payload).into());
                header.mac = keyring.current().mac(&chain);
                frame::write(&header, &payload, &mut bytes);
                seq += 1;
            }
            ends.push(bytes.len());
        }
        assert!(bytes.len() <= SIZE);
        bytes.resize(SIZE, 0);
        Written {
            bytes,
            header,
            keyring,
            ends,
        }
    }

    /// The judgement on the bytes, and where the last whole record ends.
    fn judged(written: &Written) -> (Tail, usize) {
        let mut walk = Walk::new(&written.bytes, &written.header, &written.keyring);
        let fault = loop {
            match walk.step() {
                Ok(Some(_)) => {}
                Ok(None) => break None,
                Err(fault) => break Some(fault),
            }
        };
        let tail = judge(&written.bytes, &walk, fault.as_ref(), false);
        (tail, walk.at)
    }

    fn groups() -> impl Strategy<Value = Vec<Vec<usize>>> {
        let group = proptest::collection::vec(17..900usize, 1..4);
        proptest::collection::vec(group, 1..5)
    }

    proptest! {
        #[test]
        fn a_torn_last_group_is_cut_and_nothing_before_it(
            groups in groups(), keep in proptest::collection::vec(any::<bool>(), 64),
        ) {
            let mut written = segment(&groups);
            let from = if groups.len() > 1 { written.ends[groups.len() - 2] } else { segment::HEADER };
            let to = written.ends[groups.len() - 1];
            let mut at = from;
            while at < to {
                let stop = ((at / SECTOR + 1) * SECTOR).min(to);
                if !keep[at / SECTOR] {
                    written.bytes[at..stop].fill(0);
                }
                at = stop;
            }
            let (tail, whole) = judged(&written);
            prop_assert!(!matches!(tail, Tail::Damaged { .. }), "{tail:?}");
            prop_assert!(whole >= from);
        }

        #[test]
        fn a_flipped_bit_is_never_taken_for_a_torn_group(
            groups in groups(), at in any::<prop::sample::Index>(), bit in 0..8u8,
        ) {
            let mut written = segment(&groups);
            let end = written.ends[groups.len() - 1];
            let at = segment::HEADER + at.index(end - segment::HEADER);
            written.bytes[at] ^= 1 << bit;
            let (tail, _) = judged(&written);
            prop_assert!(matches!(tail, Tail::Damaged { .. }), "{tail:?}");
        }

        #[test]
        fn a_lost_sector_of_an_earlier_group_is_damage(
            groups in groups(), at in any::<prop::sample::Index>(),
        ) {
            prop_assume!(groups.len() > 1);
            let mut written = segment(&groups);
            let end = written.ends[groups.len() - 2];
            let at = segment::HEADER + at.index(end - segment::HEADER);
            let (from, to) = (at / SECTOR * SECTOR, ((at / SECTOR + 1) * SECTOR).min(end));
            written.bytes[from..to].fill(0);
            let (tail, _) = judged(&written);
            prop_assert!(matches!(tail, Tail::Damaged { .. }), "{tail:?}");
        }
    }

    #[test]
    fn what_the_anchor_names_is_never_cut() {
        let mut written = segment(&[vec![300], vec![900]]);
        let lost = written.ends[0] + SECTOR;
        written.bytes[lost / SECTOR * SECTOR..].fill(0);
        let mut walk = Walk::new(&written.bytes, &written.header, &written.keyring);
        let fault = loop {
            match walk.step() {
                Ok(Some(_)) => {}
                Ok(None) => break None,
                Err(fault) => break Some(fault),
            }
        };
        let torn = judge(&written.bytes, &walk, fault.as_ref(), false);
        assert!(matches!(torn, Tail::Torn { .. }), "{torn:?}");
        let known = judge(&written.bytes, &walk, fault.as_ref(), true);
        assert!(matches!(known, Tail::Damaged { .. }), "{known:?}");
    }
}
