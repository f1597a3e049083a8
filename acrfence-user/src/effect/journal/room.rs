//! Room on the disk, counted before anything is promised.
//!
//! Segments are allocated in full before they are used. A *prepared* record is taken only when there
//! is room for it and for the outcome of every effect that is still running, so an outcome never
//! fails for lack of room. A thread of its own keeps spare segments ready.

use std::collections::HashSet;

use crate::words::EffectId;

/// What a record may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// A *prepared* record: room for its outcome is kept from now on.
    Prepared,
    /// The outcome of this effect: uses the room kept for it.
    Outcome(EffectId),
    /// Anything else.
    Other,
}

/// Counts room. Sizes are bytes of whole records.
#[derive(Debug)]
pub struct Room {
    /// Bytes a fresh segment has for records.
    pub capacity: u64,
    /// No record in a segment is longer: as much of each segment may be lost to rounding.
    pub largest: u64,
    /// Bytes left in the segment in use.
    pub left: u64,
    /// Allocated segments that wait to be used.
    pub spares: u64,
    /// Bytes of records that were taken and not placed in a segment yet.
    pub queued: u64,
    running: HashSet<EffectId>,
}

impl Room {
    /// Room with nothing taken.
    pub fn new(capacity: u64, largest: u64) -> Self {
        Self {
            capacity,
            largest,
            left: 0,
            spares: 0,
            queued: 0,
            running: HashSet::new(),
        }
    }

    /// Bytes that are missing for a record of `len` bytes; 0 when it fits.
    pub fn missing(&self, len: u64, claim: Claim) -> u64 {
        let kept = self.running.len() as u64 * self.largest;
        let wanted = match claim {
            Claim::Prepared => self.queued + kept + len + self.largest,
            Claim::Outcome(effect) if self.running.contains(&effect) => return 0,
            Claim::Outcome(_) | Claim::Other => self.queued + kept + len,
        };
        wanted.saturating_sub(self.usable())
    }

    /// Takes room for a record that was asked for with [`Self::missing`]. For a *prepared* record
    /// `effect` is its id.
    pub fn take(&mut self, len: u64, claim: Claim, effect: EffectId) {
        self.queued += len;
        match claim {
            Claim::Prepared => {
                self.running.insert(effect);
            }
            Claim::Outcome(effect) => {
                self.running.remove(&effect);
            }
            Claim::Other => {}
        }
    }

    /// Keeps room for the outcome of an effect that was prepared before the start.
    pub fn keep_for(&mut self, effect: EffectId) {
        self.running.insert(effect);
    }

    /// Whether room is kept for the outcome of this effect.
    pub fn is_running(&self, effect: EffectId) -> bool {
        self.running.contains(&effect)
    }

    /// Effects for whose outcome room is kept.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Whether one more segment should be allocated ahead of need.
    pub fn wants_spare(&self) -> bool {
        let kept = self.running.len() as u64 * self.largest;
        self.spares == 0 || self.usable() < self.queued + kept + self.capacity / 2
    }

    fn usable(&self) -> u64 {
        self.left.saturating_sub(self.largest)
            + self.spares * self.capacity.saturating_sub(self.largest)
    }
}
