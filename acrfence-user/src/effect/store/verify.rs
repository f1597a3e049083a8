//! `acrfence log verify`: the whole chain, every body, and that the index tells the same.

use std::sync::Arc;

use serde::Serialize;

use super::{Phase, Progress, Store, StoreConfig, lock};
use crate::effect::index::Index;
use crate::effect::journal::archive::Archive;
use crate::effect::journal::disk::OsDisk;
use crate::effect::journal::seal::Record;
use crate::effect::journal::{self, Fault, Inspected};
use crate::effect::{Event, LogError};
use crate::words::Seq;

/// Faults that are listed; there may be more.
const LISTED: usize = 100;

/// What a check of the whole log found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, serde::Deserialize)]
pub struct Verification {
    /// Records that are right.
    pub records: u64,
    /// Effects among them.
    pub effects: u64,
    /// Segments looked at.
    pub segments: u64,
    /// Body files that are right.
    pub bodies: u64,
    /// Position of the last record.
    pub last: Seq,
    /// What is wrong, in the order of the journal; the first hundred.
    pub faults: Vec<Fault>,
}

impl Store {
    /// Checks every record that is on disk now, every body, and the index.
    pub fn verify(&self, progress: &mut dyn FnMut(Progress)) -> Result<Verification, LogError> {
        let _upkeep = self.upkeep.lock();
        let head = self.journal.head();
        let archive = self.journal.archive();
        let mut found = check(
            archive,
            Some(head.seq),
            Some(&self.index),
            head.seq,
            progress,
        );
        if found.last != head.seq && found.faults.is_empty() {
            found.faults.push(Fault {
                place: "journal".to_owned(),
                detail: format!("it ends at record {} instead of {}", found.last, head.seq),
            });
        }
        let rows = self.index.count_rows(head.seq)?;
        if rows != found.effects && found.faults.is_empty() {
            found.faults.push(Fault {
                place: "index".to_owned(),
                detail: format!(
                    "it knows of {rows} effects, the journal of {}",
                    found.effects
                ),
            });
        }
        Ok(found)
    }

    /// Checks a log that is not open, also one that [`Self::open`] refuses. Changes nothing.
    pub fn verify_closed(
        config: &StoreConfig,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Verification, LogError> {
        let _lock = lock(config)?;
        let Inspected {
            archive,
            last,
            anchored,
            faults,
        } = journal::inspect(Arc::new(OsDisk), &config.settings())?;
        let mut found = check(&archive, None, None, last, progress);
        found.faults.splice(0..0, faults);
        if let Some(anchored) = anchored.filter(|anchored| *anchored > found.last) {
            found.faults.push(Fault {
                place: "anchor".to_owned(),
                detail: format!(
                    "the journal ends at record {}, and record {anchored} is known to have been written",
                    found.last
                ),
            });
        }
        found.faults.truncate(LISTED);
        Ok(found)
    }

    /// Throws the index away and builds it anew from the journal, in the background. Look-ups are
    /// refused until that is done.
    pub fn rebuild_index(&self, why: &str) {
        self.index.distrust(why);
    }
}

/// Walks all segments; a fault in one does not keep the next from being looked at.
fn check(
    archive: &Archive,
    to: Option<Seq>,
    index: Option<&Index>,
    last: Seq,
    progress: &mut dyn FnMut(Progress),
) -> Verification {
    let mut found = Verification::default();
    let mut before = None;
    for header in archive.headers() {
        found.segments += 1;
        let mut faults = Vec::new();
        let end = archive.check_segment(&header, before, to, &mut faults, &mut |walked| {
            let seq = walked.frame.header.seq;
            match archive.open(walked.frame) {
                Ok(record) => {
                    found.records += 1;
                    found.bodies += u64::from(Archive::body_of(walked.frame).is_some());
                    found.effects += u64::from(matches!(record, Record::Event(Event::Prepared(_))));
                    if let (Some(index), Record::Event(event)) = (index, &record)
                        && let Err(detail) = index.agrees(seq, walked.loc, event)
                    {
                        return Some(detail);
                    }
                }
                Err(detail) => return Some(detail),
            }
            if seq.0.is_multiple_of(4096) {
                progress(Progress {
                    phase: Phase::Verify,
                    done: seq.0,
                    total: last.0.max(seq.0),
                });
            }
            None
        });
        found.last = found.last.max(end.map_or(Seq(0), |(seq, _)| seq));
        before = end;
        let more = LISTED.saturating_sub(found.faults.len());
        found.faults.extend(faults.into_iter().take(more));
    }
    found
}
