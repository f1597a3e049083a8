//! The last changes of effects, for those who follow them: each row as it was when its record was
//! written.

use std::collections::VecDeque;

use super::Index;
use super::key;
use super::ordered::Change;
use super::query;
use super::row::Row;
use crate::effect::{EffectFilter, EffectRow};
use crate::words::Seq;

/// So many changes are remembered; who is further behind reads the journal.
const REMEMBERED: usize = 8192;

/// The last changes.
pub struct Recent {
    changes: VecDeque<(Seq, Vec<u8>)>,
    /// Every change behind this position, up to `to`, is remembered.
    from: Seq,
    to: Seq,
}

impl Recent {
    /// Nothing is remembered of what was written up to here.
    pub fn since(seq: Seq) -> Self {
        Self {
            changes: VecDeque::new(),
            from: seq,
            to: seq,
        }
    }

    /// Takes in what a record changed.
    pub fn add(&mut self, seq: Seq, facts: &[Change]) {
        self.to = seq;
        for (key, value) in facts {
            let Some(row) = value else { continue };
            if key.first() == Some(&key::ROW) {
                self.changes.push_back((seq, row.clone()));
            }
        }
        while self.changes.len() > REMEMBERED {
            if let Some((gone, _)) = self.changes.pop_front() {
                self.from = gone;
            }
        }
    }

    /// Forgets everything up to here.
    pub fn forget(&mut self, seq: Seq) {
        *self = Self::since(seq);
    }

    fn behind(&self, after: Seq) -> Option<Vec<(Seq, Vec<u8>)>> {
        if after < self.from {
            return None;
        }
        let start = self.changes.partition_point(|(seq, _)| *seq <= after);
        Some(self.changes.range(start..).cloned().collect())
    }
}

/// Changes behind a position.
pub struct Changes {
    /// Rows that fit, in the order of the records that changed them.
    pub rows: Vec<EffectRow>,
    /// Up to where that is all.
    pub reached: Seq,
}

impl Index {
    /// Rows that records behind `after` began or changed, as they were then; none when these records
    /// are remembered no more.
    pub fn changes(&self, after: Seq, filter: &EffectFilter) -> Option<Changes> {
        let (changes, to) = {
            let recent = self.recent.lock();
            (recent.behind(after)?, recent.to)
        };
        let rows = changes
            .iter()
            .filter_map(|(_, bytes)| Row::decode(bytes))
            .filter(|row| query::fits(row, filter))
            .map(|row| row.shown)
            .collect();
        Some(Changes {
            rows,
            reached: to.max(after),
        })
    }
}
