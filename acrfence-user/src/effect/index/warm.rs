//! Reading ahead after a start: what the first look-ups of a call need lies in memory before the call comes.
//!
//! A call waits for its look-up of candidates, and one that is not in memory costs a read of the disk. A
//! log of ten million effects has some hundred MiB of candidates, in places all over the index. The newest
//! threads come first: they are what agents go on with.

use std::ops::{Bound, ControlFlow};

use super::key::{self, CANDIDATE};
use super::ordered::{IndexFault, Ordered};

/// Entries read at a time, so that whoever has something to write waits no longer than for these.
const SLICE: usize = 2000;
/// What an entry takes in memory beside its key and value, roughly.
const BESIDE: usize = 48;

/// How far reading ahead got.
pub struct Warming {
    /// Before this key; none when there is nothing left to read.
    before: Option<Vec<u8>>,
    /// Bytes that may still be filled.
    room: usize,
}

impl Warming {
    /// Begins to read ahead for a cache of so many bytes, and leaves a quarter of it for the rest.
    pub fn new(cache: u64) -> Self {
        let room = usize::try_from(cache / 4 * 3).unwrap_or(usize::MAX);
        Self {
            before: (room > 0).then(|| key::behind(&[CANDIDATE])),
            room,
        }
    }

    /// Whether it is over.
    pub fn is_done(&self) -> bool {
        self.before.is_none()
    }

    /// Reads the next few.
    pub fn go_on(&mut self, ordered: &dyn Ordered) -> Result<(), IndexFault> {
        let Some(before) = self.before.take() else {
            return Ok(());
        };
        let mut read = 0;
        let (from, to) = (
            Bound::Included(&[CANDIDATE][..]),
            Bound::Excluded(&before[..]),
        );
        let mut last = None;
        ordered.scan(from, to, true, &mut |key, value| {
            let taken = key.len() + value.len() + BESIDE;
            read += 1;
            self.room = self.room.saturating_sub(taken);
            if read < SLICE && self.room > 0 {
                return ControlFlow::Continue(());
            }
            last = Some(key.to_vec());
            ControlFlow::Break(())
        })?;
        self.before = last.filter(|_| self.room > 0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::ordered::{Home as _, MemoryHome};
    use super::*;

    fn filled(candidates: usize) -> std::sync::Arc<dyn Ordered> {
        let ordered = MemoryHome::default().open().unwrap();
        let change = |tree: u8, n: usize| {
            let key = [&[tree][..], &n.to_be_bytes()].concat();
            (key, Some(vec![0; 11]))
        };
        let all = (0..candidates).map(|n| change(CANDIDATE, n));
        let others = (0..10).flat_map(|n| [change(CANDIDATE - 1, n), change(CANDIDATE + 1, n)]);
        ordered.apply(all.chain(others).collect()).unwrap();
        ordered
    }

    /// How many entries were read, and in how many steps.
    fn run(candidates: usize, cache: u64) -> (usize, usize) {
        let ordered = filled(candidates);
        let mut warming = Warming::new(cache);
        let before = warming.room;
        let mut steps = 0;
        while !warming.is_done() {
            warming.go_on(&*ordered).unwrap();
            steps += 1;
        }
        ((before - warming.room) / (9 + 11 + BESIDE), steps)
    }

    #[test]
    fn every_candidate_is_read_once_and_nothing_else() {
        assert_eq!(run(0, 1 << 20).0, 0);
        assert_eq!(run(7, 1 << 20), (7, 1));
        assert_eq!(run(SLICE + 7, 1 << 20), (SLICE + 7, 2));
    }

    #[test]
    fn no_more_is_read_than_there_is_room_for() {
        let (read, steps) = run(3 * SLICE, 4 * SLICE as u64 * 68 / 3);
        assert!(
            (SLICE - 1..=SLICE).contains(&read),
            "{read} in {steps} steps"
        );
        assert_eq!(run(100, 0), (0, 0));
    }
}
