//! Walks the records of a segment and checks that each follows from the one before.

use sha2::{Digest as _, Sha256};

use crate::words::Seq;

use super::frame::{self, Frame, FrameFault, Hash, SKIPS};
use super::keys::Keyring;
use super::seal::MARK;
use super::segment::{self, SegmentHeader};

/// A walk over the records of one segment.
pub struct Walk<'a> {
    bytes: &'a [u8],
    keyring: &'a Keyring,
    holes: bool,
    /// Where the next record begins.
    pub at: usize,
    /// Position of the last record that was right.
    pub seq: Seq,
    /// Chain hash of that record.
    pub chain: Hash,
    /// Records that its commit group still has to come.
    pub left: u16,
}

/// One record on the way.
pub struct Step<'a> {
    /// The record.
    pub frame: Frame<'a>,
    /// Where it begins.
    pub offset: usize,
    /// Its chain hash.
    pub chain: Hash,
}

/// What stopped a walk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WalkFault {
    /// The bytes are no record.
    #[error("{0}")]
    Frame(#[from] FrameFault),
    /// They are one, but not the one that belongs here.
    #[error("{0}")]
    Chain(String),
}

impl<'a> Walk<'a> {
    /// A walk over `bytes`, a whole segment with its header.
    pub fn new(bytes: &'a [u8], header: &SegmentHeader, keyring: &'a Keyring) -> Self {
        Self {
            bytes,
            keyring,
            holes: header.compacted.is_some(),
            at: segment::HEADER,
            seq: Seq(header.first.0.saturating_sub(1)),
            chain: header.previous,
            left: 0,
        }
    }

    /// The next record; none where nothing more is written.
    pub fn step(&mut self) -> Result<Option<Step<'a>>, WalkFault> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        if rest.is_empty() {
            return Ok(None);
        }
        let frame = match frame::read(rest) {
            Err(FrameFault::Blank) => return Ok(None),
            other => other?,
        };
        let header = &frame.header;
        let chain = header.chain(&Sha256::digest(frame.payload).into());
        let next = self.seq.0.saturating_add(1);
        let skips = header.flags & SKIPS != 0 && header.kind == MARK;
        if header.seq.0 < next || (header.seq.0 > next && !skips && !self.holes) {
            return Err(WalkFault::Chain(format!(
                "record {} stands where record {next} belongs",
                header.seq
            )));
        }
        let follows = header.seq.0 == next || !self.holes;
        if follows && header.previous != self.chain {
            return Err(WalkFault::Chain(format!(
                "record {} does not follow from the record before it",
                header.seq
            )));
        }
        let Some(keys) = self.keyring.get(header.key) else {
            return Err(WalkFault::Chain(format!(
                "record {} was written with key {:08x}, which is not in the key file",
                header.seq, header.key
            )));
        };
        if keys.mac(&chain) != header.mac {
            return Err(WalkFault::Chain(format!(
                "record {} was not written by us: its keyed hash does not fit",
                header.seq
            )));
        }
        let offset = self.at;
        self.at += frame::length(frame.payload.len());
        self.seq = header.seq;
        self.chain = chain;
        self.left = header.left;
        Ok(Some(Step {
            frame,
            offset,
            chain,
        }))
    }
}
