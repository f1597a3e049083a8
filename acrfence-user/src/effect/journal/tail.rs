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
