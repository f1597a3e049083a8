//! `acrfence log gc`: whole segments are rewritten without the records that nobody can need any more.
//!
//! What stays is what was written, byte for byte, in a segment of the same number whose signed header
//! states what the segment held and where its chain ended. So the chain stays verifiable, positions
//! stay what they are, and a crash leaves either the old or the new segment.

use std::collections::HashSet;
use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::Store;
use crate::effect::index::Moved;
use crate::effect::journal::archive::Archive;
use crate::effect::journal::seal::Record;
use crate::effect::journal::segment::{self, Compacted, SegmentHeader};
use crate::effect::journal::{Loc, frame};
use crate::effect::{Event, Harvest, LogError, Prepared};
use crate::words::{BranchId, EffectId, Fingerprint, Seq, Status, ThreadId, Timestamp};

/// When records may go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GcPolicy {
    /// Only what was written before this time.
    pub older_than: Option<Timestamp>,
    /// Only as much as it takes to bring the segments and their bodies under so many bytes.
    pub max_bytes: Option<u64>,
}

/// What must stay whatever its age: threads and branches that are alive, or that a restore could
/// bring back to life.
#[derive(Clone, Debug, Default)]
pub struct GcKeep {
    /// Everything of these threads.
    pub threads: HashSet<ThreadId>,
    /// Everything of these branches, of the threads they belong to, and of the effects that were
    /// replayed into them.
    pub branches: HashSet<BranchId>,
}

/// What a garbage collection did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, serde::Deserialize)]
pub struct GcReport {
    /// Segments that were looked at.
    pub segments: u64,
    /// Records that were removed.
    pub removed: u64,
    /// Effects among them.
    pub effects: u64,
    /// Records in those segments that stayed.
    pub kept: u64,
    /// Body files that were removed.
    pub bodies: u64,
    /// Bytes that were freed.
    pub freed: u64,
}

/// Who must stay, worked out before anything is removed.
struct Keep {
    threads: HashSet<ThreadId>,
    branches: HashSet<BranchId>,
    effects: HashSet<EffectId>,
}

impl Store {
    /// Removes what `policy` allows and nobody can need.
    ///
    /// These stay in any case: effects that are prepared or in doubt; effects that presented a
    /// credential which the log saw issued, and the record that issued it (a spent credential stays
    /// spent); lives, threads, branches and checkpoints; everything that `keep` names; everything in
    /// the segment in use. With neither age nor size in `policy`, nothing is removed.
    pub fn gc(&self, policy: &GcPolicy, keep: &GcKeep) -> Result<GcReport, LogError> {
        if policy.older_than.is_none() && policy.max_bytes.is_none() {
            return Ok(GcReport::default());
        }
        let _upkeep = self.upkeep.lock();
        let keep = self.work_out(keep)?;
        let archive = self.journal.archive().clone();
        let headers = archive.headers();
        let head = self.journal.head().seq;
        let pass = headers
            .iter()
            .filter_map(|header| header.compacted.as_ref())
            .map(|compacted| compacted.pass)
            .max()
            .unwrap_or(0)
            + 1;
        let mut total = archive.bytes()?;
        let mut report = GcReport::default();
        let mut done = Ok(());
        for pair in headers.windows(2) {
            let (header, next) = (&pair[0], &pair[1]);
            let old = policy.older_than.is_none_or(|time| next.created < time);
            let too_much = policy.max_bytes.is_none_or(|max| total > max);
            if next.first.0 > head.0 || !old || !too_much {
                break;
            }
            let before = report.freed;
            done = self.compact(&archive, header, next, pass, &keep, &mut report);
            if done.is_err() {
                break;
            }
            total = total.saturating_sub(report.freed - before);
        }
        if report.removed > 0 {
            self.index.took_in_pass(pass);
        }
        done?;
        self.sweep_bodies(&archive, &mut report)?;
        Ok(report)
    }

    fn work_out(&self, keep: &GcKeep) -> Result<Keep, LogError> {
        let mut all = Keep {
            threads: keep.threads.clone(),
            branches: keep.branches.clone(),
            effects: HashSet::new(),
        };
        use crate::effect::EffectLog as _;
        for (_, event) in self.lineage_events()? {
            match event {
                Event::BranchOpened(branch) if keep.branches.contains(&branch.id) => {
                    all.threads.insert(branch.thread);
                }
                // What was replayed into a branch of a thread that stays, or held there, is part of
                // what that thread remembers.
                Event::BranchOpened(branch) if keep.threads.contains(&branch.thread) => {
                    all.branches.insert(branch.id);
                }
                Event::Replayed { effect, branch, .. }
                | Event::HoldOpened { effect, branch, .. }
                    if all.branches.contains(&branch) =>
                {
                    all.effects.insert(effect);
                }
                _ => {}
            }
        }
        Ok(all)
    }

    fn compact(
        &self,
        archive: &Archive,
        header: &SegmentHeader,
        next: &SegmentHeader,
        pass: u32,
        keep: &Keep,
        report: &mut GcReport,
    ) -> Result<(), LogError> {
        report.segments += 1;
        let bytes = archive.segment_bytes(header.number)?;
        let mut kept = Vec::new();
        let mut moved = Moved::default();
        let last = Seq(next.first.0 - 1);
        archive.walk(header.number, last, &mut |walked| {
            let seq = walked.frame.header.seq;
            let record = archive
                .open(walked.frame)
                .map_err(|detail| LogError::Corrupt {
                    place: crate::effect::journal::place(
                        header.number,
                        walked.loc.offset as usize,
                        Some(seq),
                    ),
                    detail,
                })?;
            let event = match record {
                Record::Event(event) => Some(event),
                Record::Mark(_) => None,
            };
            let stays = match &event {
                Some(event) => self.stays(EffectId(seq), event, keep)?,
                None => true,
            };
            if stays {
                let from = walked.loc.offset as usize;
                let to = from + walked.loc.len as usize;
                let loc = Loc {
                    offset: (segment::HEADER + kept.len()) as u32,
                    ..walked.loc
                };
                kept.extend_from_slice(&bytes[from..to]);
                moved.kept.extend(event.map(|event| (seq, loc, event)));
                report.kept += 1;
            } else {
                report.removed += 1;
                report.effects += u64::from(matches!(event, Some(Event::Prepared(_))));
                moved.bodies.extend(Archive::body_of(walked.frame));
                moved.removed.extend(event.map(|event| (seq, event)));
            }
            Ok(ControlFlow::Continue(()))
        })?;
        if moved.removed.is_empty() {
            return Ok(());
        }
        let compacted = SegmentHeader {
            compacted: Some(Compacted {
                pass,
                last,
                end: next.previous,
                kept: Sha256::digest(&kept).into(),
                removed: moved.removed.len() as u64
                    + header.compacted.as_ref().map_or(0, |before| before.removed),
            }),
            ..header.clone()
        };
        report.freed += (bytes.len() as u64).saturating_sub((segment::HEADER + kept.len()) as u64);
        // What the index still holds back must be below the facts that change now.
        self.index.catch_up();
        {
            let _rewriting = archive.rewriting.lock();
            self.index.ready()?;
            let _layout = self.layout.write();
            archive.replace(compacted, &kept)?;
            self.index.moved(&moved)?;
        }
        for digest in &moved.bodies {
            report.freed += archive.bodies.size(digest).unwrap_or(0);
            archive.bodies.remove(digest).map_err(|e| {
                LogError::Unusable(format!(
                    "a body file could not be removed: {e}; run gc again"
                ))
            })?;
            report.bodies += 1;
        }
        Ok(())
    }

    fn stays(&self, id: EffectId, event: &Event, keep: &Keep) -> Result<bool, LogError> {
        Ok(match event {
            Event::IncarnationBegan(_)
            | Event::IncarnationEnded { .. }
            | Event::ThreadOpened(_)
            | Event::BranchOpened(_)
            | Event::CheckpointTaken(_)
            | Event::HoldDecided { .. }
            | Event::HoldUsed { .. } => true,
            Event::Opaque(_) | Event::Ran(_) => false,
            Event::Prepared(prepared) => self.effect_stays(id, Some(prepared), keep)?,
            Event::Settled {
                effect, harvest, ..
            } => self.effect_stays(*effect, None, keep)? || self.issued_something_spent(harvest)?,
            Event::Resolved { effect, .. }
            | Event::OutcomeLost { effect, .. }
            | Event::Asked { effect, .. }
            | Event::Answered { effect, .. } => self.effect_stays(*effect, None, keep)?,
            Event::Conversed { thread, .. } => keep.threads.contains(thread),
            Event::Remembered { branch, .. }
            | Event::Corroborated { branch, .. }
            | Event::Replayed { branch, .. }
            | Event::Refused { branch, .. }
            | Event::HoldOpened { branch, .. } => keep.branches.contains(branch),
            Event::Observed {
                thread, harvest, ..
            } => keep.threads.contains(thread) || self.issued_something_spent(harvest)?,
        })
    }

    fn effect_stays(
        &self,
        id: EffectId,
        prepared: Option<&Prepared>,
        keep: &Keep,
    ) -> Result<bool, LogError> {
        if keep.effects.contains(&id) {
            return Ok(true);
        }
        let Some(row) = self.index.row(id)? else {
            // Its *prepared* record went in an earlier pass, or the index has a gap: then keep it.
            return Ok(prepared.is_some());
        };
        let shown = &row.shown;
        if matches!(shown.status, Status::Prepared | Status::InDoubt)
            || keep.threads.contains(&shown.thread)
            || keep.branches.contains(&shown.branch)
        {
            return Ok(true);
        }
        // What it issued and somebody spent stays with it; what it spent and somebody issued as well.
        for fingerprint in row.issued.iter().chain(&row.presented) {
            if self.spent(*fingerprint)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn issued_something_spent(&self, harvest: &Harvest) -> Result<bool, LogError> {
        for fingerprint in &harvest.issued {
            if self.spent(*fingerprint)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a credential was seen issued and was presented.
    fn spent(&self, fingerprint: Fingerprint) -> Result<bool, LogError> {
        let history = self.index.credential(fingerprint)?;
        Ok(!history.issued.is_empty() && !history.presented.is_empty())
    }

    /// Removes body files that no record names: left by a crash between the body and its record.
    fn sweep_bodies(&self, archive: &Archive, report: &mut GcReport) -> Result<(), LogError> {
        let unusable =
            |e: std::io::Error| LogError::Unusable(format!("the body files cannot be listed: {e}"));
        report.bodies += archive.bodies.remove_leftovers().map_err(unusable)?;
        let mut named = None;
        for digest in archive.bodies.at_rest().map_err(unusable)? {
            if self.index.names_body(&digest)? {
                continue;
            }
            // Before anything is removed on the word of the index, the journal is asked.
            let named = match &named {
                Some(named) => named,
                None => named.insert(self.named_bodies()?),
            };
            if !named.contains(&digest) {
                report.freed += archive.bodies.size(&digest).unwrap_or(0);
                archive.bodies.remove(&digest).map_err(unusable)?;
                report.bodies += 1;
            }
        }
        Ok(())
    }

    fn named_bodies(&self) -> Result<HashSet<frame::Hash>, LogError> {
        let mut named = HashSet::new();
        let head = self.journal.head().seq;
        self.journal.archive().walk(0, head, &mut |walked| {
            named.extend(Archive::body_of(walked.frame));
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(named)
    }
}
