//! Reading records in the order of the journal: `acrfence log export`.

use std::collections::HashMap;
use std::io::Write;
use std::ops::ControlFlow;

use serde::Serialize;

use super::Store;
use crate::effect::index::query;
use crate::effect::journal::seal::{self, Mark, Record};
use crate::effect::journal::{Loc, archive::Walked};
use crate::effect::{EffectFilter, EffectRow, Event, LogError};
use crate::words::{AgentName, BranchId, EffectId, Opaque, Ran, Seq, ThreadId, Timestamp};

/// Which records to export. Fields that are set must all match; a record that has no such property
/// (an observation has no branch) does not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExportFilter {
    /// Only this agent's.
    pub agent: Option<AgentName>,
    /// Only this thread's.
    pub thread: Option<ThreadId>,
    /// Only this branch's.
    pub branch: Option<BranchId>,
    /// Only those that speak of this effect.
    pub effect: Option<EffectId>,
    /// Only of these kinds (`prepared`, `settled`, …); empty for all.
    pub kinds: Vec<String>,
    /// Only those at or after this time.
    pub since: Option<Timestamp>,
    /// Only those before this time.
    pub until: Option<Timestamp>,
    /// Only those at or after this position.
    pub from: Option<Seq>,
    /// Only those at or before this position.
    pub to: Option<Seq>,
}

/// Whether an export shows what records say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Only the envelope: position, kind, place, chain hash.
    Sealed,
    /// What was recorded, bodies included.
    Open,
}

/// A line of an export.
#[derive(Serialize)]
struct Line<'a> {
    seq: Seq,
    kind: &'static str,
    segment: u32,
    offset: u32,
    bytes: u32,
    body: Option<String>,
    key: String,
    chain: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<&'a Event>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mark: Option<&'a Mark>,
}

/// Takes records in order until it says stop.
type Visit<'a> = &'a mut dyn FnMut(&Walked<'_>, Record) -> Result<ControlFlow<()>, LogError>;

/// What a record is about.
#[derive(Clone, Default)]
struct About {
    agent: Option<AgentName>,
    thread: Option<ThreadId>,
    branch: Option<BranchId>,
    effect: Option<EffectId>,
    at: Option<Timestamp>,
}

impl Store {
    /// Visits every record from position `from` on that is on disk now, in order.
    pub fn visit(
        &self,
        from: Seq,
        visit: &mut dyn FnMut(Seq, Record) -> Result<ControlFlow<()>, LogError>,
    ) -> Result<(), LogError> {
        self.walk(from, &mut |walked, record| {
            visit(walked.frame.header.seq, record)
        })
    }

    /// Traffic that was seen and not fenced, of the whole log or of one agent, oldest first: the newest
    /// `most` since a time. Records of other kinds are passed over unopened.
    pub fn opaque(
        &self,
        agent: Option<&AgentName>,
        since: Option<Timestamp>,
        most: usize,
    ) -> Result<Vec<(Seq, Opaque)>, LogError> {
        self.newest(seal::OPAQUE, most, |event| match event {
            Event::Opaque(seen)
                if agent.is_none_or(|agent| seen.origin.agent == *agent)
                    && since.is_none_or(|since| seen.at >= since) =>
            {
                Some(*seen)
            }
            _ => None,
        })
    }

    /// Programs that ran and were no effects, the newest `most` that fit, oldest first.
    pub fn ran(
        &self,
        agent: Option<&AgentName>,
        since: Option<Timestamp>,
        most: usize,
    ) -> Result<Vec<(Seq, Ran)>, LogError> {
        self.newest(seal::RAN, most, |event| match event {
            Event::Ran(ran)
                if agent.is_none_or(|agent| ran.origin.agent == *agent)
                    && since.is_none_or(|since| ran.at >= since) =>
            {
                Some(*ran)
            }
            _ => None,
        })
    }

    /// What `pick` takes of the records of a kind, the newest `most`, oldest first.
    fn newest<T>(
        &self,
        kind: u8,
        most: usize,
        pick: impl Fn(Event) -> Option<T>,
    ) -> Result<Vec<(Seq, T)>, LogError> {
        // Observations may wait for company, and whoever asks is to see those that were made before.
        self.journal.settle();
        let mut found = std::collections::VecDeque::new();
        self.walk_kind(Seq(0), Some(kind), &mut |walked, record| {
            if let Record::Event(event) = record
                && let Some(picked) = pick(event)
                && most > 0
            {
                if found.len() == most {
                    found.pop_front();
                }
                found.push_back((walked.frame.header.seq, picked));
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(found.into())
    }

    /// Writes one JSON object a line for every record that fits; returns how many.
    pub fn export(
        &self,
        filter: &ExportFilter,
        content: Content,
        out: &mut dyn Write,
    ) -> Result<u64, LogError> {
        let mut lines = 0;
        let mut owners = Owners::default();
        self.walk(filter.from.unwrap_or_default(), &mut |walked, record| {
            let seq = walked.frame.header.seq;
            if filter.to.is_some_and(|to| seq > to) {
                return Ok(ControlFlow::Break(()));
            }
            let about = self.about(seq, &record, &mut owners)?;
            let kind = seal::kind_name(walked.frame.header.kind);
            if !about.fits(filter)
                || !(filter.kinds.is_empty() || filter.kinds.iter().any(|k| k == kind))
            {
                return Ok(ControlFlow::Continue(()));
            }
            let Loc {
                segment,
                offset,
                len,
            } = walked.loc;
            let open = content == Content::Open;
            let line = Line {
                seq,
                kind,
                segment,
                offset,
                bytes: len,
                body: crate::effect::journal::archive::Archive::body_of(walked.frame)
                    .map(hex::encode),
                key: format!("{:08x}", walked.frame.header.key),
                chain: hex::encode(walked.chain),
                event: match &record {
                    Record::Event(event) if open => Some(event),
                    _ => None,
                },
                mark: match &record {
                    Record::Mark(mark) if open => Some(mark),
                    _ => None,
                },
            };
            let failed = |e: std::io::Error| {
                LogError::Unusable(format!("the export could not be written: {e}"))
            };
            serde_json::to_writer(&mut *out, &line).map_err(|e| failed(e.into()))?;
            out.write_all(b"\n").map_err(failed)?;
            lines += 1;
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(lines)
    }

    /// Effects that records behind `after` began or changed, as they are now, and up to where that is
    /// all.
    pub(super) fn changes_in_journal(
        &self,
        after: Seq,
        filter: &EffectFilter,
    ) -> Result<(Vec<EffectRow>, Seq), LogError> {
        const MOST: usize = 1000;
        let mut changed = Vec::new();
        let mut reached = after;
        self.walk(Seq(after.0.saturating_add(1)), &mut |walked, record| {
            reached = walked.frame.header.seq;
            match record {
                Record::Event(Event::Prepared(_)) => changed.push(EffectId(reached)),
                Record::Event(Event::Settled { effect, .. } | Event::Resolved { effect, .. }) => {
                    changed.push(effect);
                }
                _ => {}
            }
            Ok(if changed.len() < MOST {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            })
        })?;
        let mut rows = Vec::new();
        for id in changed {
            if let Some(row) = self.index.row(id)?
                && query::fits(&row, filter)
            {
                rows.push(row.shown);
            }
        }
        Ok((rows, reached))
    }

    fn walk(&self, from: Seq, visit: Visit<'_>) -> Result<(), LogError> {
        self.walk_kind(from, None, visit)
    }

    /// The same for records of one kind only.
    fn walk_kind(&self, from: Seq, kind: Option<u8>, visit: Visit<'_>) -> Result<(), LogError> {
        let archive = self.journal.archive();
        let head = self.journal.head().seq;
        let start = archive
            .headers()
            .iter()
            .rfind(|header| header.first <= from)
            .map_or(0, |header| header.number);
        archive.walk(start, head, &mut |walked| {
            let seq = walked.frame.header.seq;
            if seq < from || kind.is_some_and(|kind| walked.frame.header.kind != kind) {
                return Ok(ControlFlow::Continue(()));
            }
            let record = archive
                .open(walked.frame)
                .map_err(|detail| LogError::Corrupt {
                    place: crate::effect::journal::place(
                        walked.loc.segment,
                        walked.loc.offset as usize,
                        Some(seq),
                    ),
                    detail,
                })?;
            visit(&walked, record)
        })
    }

    fn about(&self, seq: Seq, record: &Record, owners: &mut Owners) -> Result<About, LogError> {
        let Record::Event(event) = record else {
            return Ok(About::default());
        };
        let mut about = About::default();
        let mut effect = None;
        match event {
            Event::IncarnationBegan(began) => {
                about.agent = Some(began.agent.clone());
                about.at = Some(began.at);
            }
            Event::IncarnationEnded { agent, at, .. } => {
                about.agent = Some(agent.clone());
                about.at = Some(*at);
            }
            Event::ThreadOpened(thread) => {
                about.agent = Some(thread.agent.clone());
                about.thread = Some(thread.id);
                about.at = Some(thread.at);
                owners.threads.insert(thread.id, thread.agent.clone());
            }
            Event::BranchOpened(branch) => {
                about.thread = Some(branch.thread);
                about.branch = Some(branch.id);
                about.at = Some(branch.at);
            }
            Event::CheckpointTaken(checkpoint) => {
                about.agent = Some(checkpoint.agent.clone());
                about.thread = checkpoint.thread;
                about.at = Some(checkpoint.at);
            }
            Event::Prepared(prepared) => {
                about.agent = Some(prepared.call.origin.agent.clone());
                about.thread = Some(prepared.thread);
                about.branch = Some(prepared.branch);
                about.at = Some(prepared.call.at);
                about.effect = Some(EffectId(seq));
            }
            Event::Settled { effect: of, at, .. }
            | Event::Resolved { effect: of, at, .. }
            | Event::Asked { effect: of, at, .. }
            | Event::Answered { effect: of, at, .. }
            | Event::OutcomeLost { effect: of, at, .. } => {
                effect = Some(*of);
                about.at = Some(*at);
            }
            Event::Replayed {
                effect: of,
                branch,
                call,
                at,
                ..
            } => {
                about.agent = Some(call.origin.agent.clone());
                about.branch = Some(*branch);
                about.effect = Some(*of);
                about.at = Some(*at);
            }
            Event::Refused {
                branch, call, at, ..
            } => {
                about.agent = Some(call.origin.agent.clone());
                about.branch = Some(*branch);
                about.at = Some(*at);
            }
            Event::HoldOpened {
                branch,
                effect: of,
                call,
                at,
                ..
            } => {
                about.agent = Some(call.origin.agent.clone());
                about.branch = Some(*branch);
                about.effect = Some(*of);
                about.at = Some(*at);
            }
            Event::Remembered { branch, at, .. } | Event::Corroborated { branch, at, .. } => {
                about.branch = Some(*branch);
                about.at = Some(*at);
            }
            Event::Conversed { thread, agent, .. } => {
                about.agent = Some(agent.clone());
                about.thread = Some(*thread);
            }
            Event::HoldDecided { at, .. } | Event::HoldUsed { at, .. } => about.at = Some(*at),
            Event::Opaque(seen) => {
                about.agent = Some(seen.origin.agent.clone());
                about.at = Some(seen.at);
            }
            Event::Ran(ran) => {
                about.agent = Some(ran.origin.agent.clone());
                about.at = Some(ran.at);
            }
            Event::Observed { thread, at, .. } => {
                about.thread = Some(*thread);
                about.at = Some(*at);
            }
        }
        if let Some(id) = effect {
            about.effect = Some(id);
            if let Some(row) = self.index.row(id)? {
                about.agent = Some(row.shown.agent);
                about.thread = Some(row.shown.thread);
                about.branch = Some(row.shown.branch);
            }
        }
        if let (None, Some(thread)) = (&about.agent, about.thread) {
            about.agent = owners.threads.get(&thread).cloned();
        }
        Ok(about)
    }
}

/// Whose a thread is, as far as the walk has seen.
#[derive(Default)]
struct Owners {
    threads: HashMap<ThreadId, AgentName>,
}

impl About {
    fn fits(&self, filter: &ExportFilter) -> bool {
        fn is<T: PartialEq>(wanted: Option<&T>, have: Option<&T>) -> bool {
            wanted.is_none() || wanted == have
        }
        is(filter.agent.as_ref(), self.agent.as_ref())
            && is(filter.thread.as_ref(), self.thread.as_ref())
            && is(filter.branch.as_ref(), self.branch.as_ref())
            && is(filter.effect.as_ref(), self.effect.as_ref())
            && filter
                .since
                .is_none_or(|since| self.at.is_some_and(|at| at >= since))
            && filter
                .until
                .is_none_or(|until| self.at.is_some_and(|at| at < until))
    }
}
