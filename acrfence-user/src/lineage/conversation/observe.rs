//! What a request tells: the questions of this room and what is needed to answer them.

use std::time::Duration;

use super::finding::{Finding, Rewind};
use super::history::{Called, Reply, Turned};
use super::ids::ProviderId;
use super::mark::{Mark, Marker};
use super::memory::{Absence, Asked, CallMemory, Delta, ResultMemory, Strand, TurnMemory, TurnNo};
use super::place::Ground;
use super::state::Conversations;
use crate::words::{
    AgentName, BranchId, EffectId, ProcessIdentity, Response, Seq, ThreadId, Timestamp,
};

/// Who sent a request or an effect, and when.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The agent.
    pub agent: &'a AgentName,
    /// The process.
    pub process: ProcessIdentity,
    /// Which life of the agent it is.
    pub incarnation: u32,
    /// Position of the journal's last record: what is at or before it happened before this.
    pub at: Seq,
    /// The time.
    pub now: Timestamp,
}

/// What the log knows of an effect's outcome.
#[derive(Clone, Debug, PartialEq)]
pub enum Known {
    /// It has not ended.
    Running,
    /// It happened, and this came back. HTTP bodies content-decoded.
    Response(Box<Response>),
    /// It was sent, and nobody knows.
    InDoubt,
    /// It did not happen, or the log does not know it.
    Nothing,
}

/// Tells outcomes of effects. The effect log stands behind it; it is asked only for effects whose
/// result a history shows for the first time or otherwise than before.
pub trait Outcomes {
    /// What is known of an effect's outcome.
    fn known(&self, effect: EffectId) -> Known;
}

impl<F: Fn(EffectId) -> Known> Outcomes for F {
    fn known(&self, effect: EffectId) -> Known {
        self(effect)
    }
}

/// What a request tells, and the change that it makes once it is bound to a thread and branch.
#[derive(Clone, Debug)]
pub struct Observed {
    /// What it tells. Never empty.
    pub findings: Vec<Finding>,
    /// What the caller has to open before it binds.
    pub needs: Needs,
    /// Every effect of the thread that the request's line does not remember, ascending: the fenced
    /// set of its branch, with what was fenced before.
    pub absent: Vec<(EffectId, Absence)>,
    pub(super) draft: Draft,
}

/// What the caller has to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing.
    Nothing,
    /// A thread with its first branch.
    Thread,
    /// A branch of a thread, because something is not remembered. A caller that wants none binds to
    /// `parent`; the finding is not repeated.
    Branch {
        /// The thread.
        thread: ThreadId,
        /// The branch that is left.
        parent: BranchId,
    },
}

#[derive(Clone, Debug)]
pub(super) enum Draft {
    /// On the side, and about which thread, if any.
    Aside(Option<ThreadId>),
    /// A request of a line.
    Asked(Box<Asked>),
}

/// A request that waits for its answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Exchange {
    /// The thread it belongs to; none on the side.
    pub thread: Option<ThreadId>,
    line: Option<Line>,
}

impl Exchange {
    /// Its line of the thread; none on the side.
    pub fn strand(&self) -> Option<Strand> {
        self.line.as_ref().map(|line| line.strand)
    }

    /// Whether this asks at the same place of the conversation for the same thing.
    pub fn asks_again(&self, earlier: &Self) -> bool {
        match (&self.line, &earlier.line) {
            (Some(line), Some(before)) => {
                self.thread == earlier.thread
                    && (line.after, &line.input) == (before.after, &before.input)
            }
            _ => false,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Line {
    strand: Strand,
    turn: TurnNo,
    after: Option<TurnNo>,
    input: Mark,
    input_ids: Vec<ProviderId>,
    prompt: Option<Mark>,
}

impl Observed {
    /// Binds the request to where it belongs and gives the change to journal and apply, and what
    /// the answer is read with. `thread` and `branch` are what was opened as [`Needs`] says; none
    /// where nothing was needed.
    pub fn bind(
        self,
        thread: Option<ThreadId>,
        branch: Option<BranchId>,
    ) -> (Exchange, Option<Delta>) {
        let mut asked = match self.draft {
            Draft::Aside(thread) => return (Exchange { thread, line: None }, None),
            Draft::Asked(asked) => asked,
        };
        if let Some(thread) = thread {
            asked.thread = thread;
        }
        if let Some(branch) = branch {
            asked.strand.branch = branch;
        }
        let strand = &asked.strand;
        let exchange = Exchange {
            thread: Some(asked.thread),
            line: strand.pending.zip(strand.input).map(|(turn, input)| Line {
                strand: strand.number,
                turn,
                after: strand.tip,
                input,
                input_ids: strand.input_ids.clone(),
                prompt: strand.prompt,
            }),
        };
        (exchange, Some(Delta::Asked(asked)))
    }

    /// The rewind, where there is one.
    pub fn rewind(&self) -> Option<&Rewind> {
        self.findings.iter().find_map(|finding| match finding {
            Finding::Rewind(rewind) => Some(rewind),
            _ => None,
        })
    }
}

impl Conversations {
    /// What a request tells. Nothing changes until the caller applies the delta that
    /// [`Observed::bind`] gives.
    pub fn observe_request(
        &self,
        marker: &Marker,
        turned: &Turned,
        seen: &Seen<'_>,
        suspect_window: Duration,
        outcomes: &dyn Outcomes,
    ) -> Observed {
        Ground::new(self, marker, turned, seen, suspect_window, outcomes).observe()
    }

    /// What an answer changes; none when nothing came. May be asked again while the answer streams
    /// ([`ReplyReader::so_far`](super::ReplyReader::so_far)): each delta replaces the one before.
    pub fn observe_reply(
        &self,
        exchange: &Exchange,
        reply: &Reply,
        seen: &Seen<'_>,
    ) -> Option<Delta> {
        let thread = exchange.thread?;
        if reply.failed {
            return None;
        }
        let lines = reply.said.as_ref().map_or(&[][..], |said| &said.lines);
        let Some(line) = &exchange.line else {
            return (lines.len() > 1).then(|| Delta::Summarised {
                thread,
                lines: lines.to_vec(),
            });
        };
        if reply.is_empty() {
            return None;
        }
        let before = self
            .threads
            .get(&thread)
            .and_then(|memory| memory.turn(line.turn));
        let turn = TurnMemory {
            number: line.turn,
            parent: line.after,
            strand: line.strand,
            at: seen.at,
            time: seen.now,
            ids: reply.ids.clone(),
            input_ids: line.input_ids.clone(),
            said: reply.said.as_ref().map(|said| said.mark),
            calls: reply.calls.iter().map(call_memory).collect(),
            loose: before.map_or(Vec::new(), |b| b.loose.clone()),
            input: line.input,
            prompt: line.prompt,
            shown_at: None,
            complete: reply.complete,
            imported: false,
        };
        Some(Delta::Answered {
            thread,
            strand: line.strand,
            turn: Box::new(turn),
            // Only an answer without calls can be a summary.
            lines: if reply.calls.is_empty() && lines.len() > 1 {
                lines.to_vec()
            } else {
                Vec::new()
            },
        })
    }
}

pub(super) fn call_memory(call: &Called) -> CallMemory {
    CallMemory {
        id: call.id.clone(),
        name: call.name.clone(),
        arguments: call.arguments,
        values: call.values.clone(),
        times: call.times,
        ties: Vec::new(),
        result: ResultMemory::Open,
    }
}
