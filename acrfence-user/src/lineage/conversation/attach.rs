//! Which turn caused a tool call that was seen at the boundary.

use serde_json::Value;

use super::again::{Order, executed_again, orders};
use super::finding::{Attachment, Confidence, Evidence, Rewind};
use super::ids::ProviderId;
use super::mark::{Kind, Mark, Marker};
use super::memory::{
    Absence, CallMemory, Delta, Strand, StrandMemory, ThreadMemory, Tie, TurnMemory, TurnNo,
};
use super::observe::Seen;
use super::read::{command_values, mark_arguments, values_of_body};
use super::state::{Conversations, is_open};
use crate::words::{BranchId, EffectId, ForkPoint, Grade, ProcessIdentity, Request, Seq};

/// Most lines that are looked at for one, those that were active last.
const MOST_LINES: usize = 256;

/// Most turns of a line that are looked at for a call that has not come back.
const MOST_TURNS: usize = 64;

/// A tool call at the boundary, as far as a conversation can know it.
#[derive(Clone, Debug, PartialEq)]
pub struct CallSeen {
    /// The model's id of the call, where the agent passes it on (`claudecode/toolUseId`, `callId`).
    pub call_id: Option<ProviderId>,
    /// The session that it names.
    pub session: Option<Mark>,
    /// Name of the tool; none for plain HTTP and commands.
    pub tool: Option<String>,
    /// Mark of the arguments.
    pub arguments: Option<Mark>,
    /// Marks of the values in it, sorted.
    pub values: Vec<Mark>,
    /// Mark of where it goes: method and address without the query, server and tool, program.
    pub target: Mark,
    /// Whether it can be the model's tool call itself, and not only something a tool does.
    pub is_call: bool,
}

impl CallSeen {
    /// What a conversation can know of a request. HTTP bodies must be content-decoded.
    pub fn of(marker: &Marker, request: &Request) -> Self {
        match request {
            Request::Mcp(mcp) => {
                let arguments = Value::String(mcp.arguments.clone());
                let (arguments, values) = mark_arguments(marker, &arguments);
                let meta = mcp
                    .meta
                    .as_deref()
                    .and_then(|meta| serde_json::from_str::<Value>(meta).ok())
                    .unwrap_or(Value::Null);
                let said = |key: &str| meta.get(key).and_then(Value::as_str);
                let session = said("threadId").or_else(|| said("sessionId"));
                Self {
                    call_id: [
                        "claudecode/toolUseId",
                        "callId",
                        "toolUseId",
                        "tool_call_id",
                    ]
                    .into_iter()
                    .find_map(said)
                    .map(|id| ProviderId::new(marker, id)),
                    session: session.map(|id| marker.mark(Kind::Session, id.as_bytes())),
                    tool: Some(mcp.name.clone()),
                    arguments: Some(arguments),
                    values,
                    target: target(marker, &[&mcp.server, &mcp.name]),
                    is_call: true,
                }
            }
            Request::Http(http) => {
                let mut values = values_of_body(marker, &http.body.kept);
                if let Some((_, query)) = http.url.split_once('?') {
                    values.extend(values_of_body(marker, query.as_bytes()));
                    values.sort_unstable();
                    values.dedup();
                }
                let address = http.url.split(['?', '#']).next().unwrap_or_default();
                Self::inside(values, target(marker, &[&http.method, address]))
            }
            Request::Exec(exec) => Self {
                is_call: true,
                ..Self::inside(
                    command_values(marker, &exec.argv),
                    target(marker, &[exec.argv.first().map_or("", String::as_str)]),
                )
            },
        }
    }

    fn inside(values: Vec<Mark>, target: Mark) -> Self {
        Self {
            call_id: None,
            session: None,
            tool: None,
            arguments: None,
            values,
            target,
            is_call: false,
        }
    }
}

fn target(marker: &Marker, parts: &[&str]) -> Mark {
    marker.mark(Kind::Target, parts.join("\0").as_bytes())
}

/// Where a tool call belongs, before it is decided.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    /// Where.
    pub at: Attachment,
    /// The model's call was already executed, by an earlier life of the agent: this is a restore that
    /// no model request told of. The caller opens a branch and moves the line
    /// ([`Rewind::moved`]) before it decides.
    pub again: Option<Rewind>,
    /// What the model ordered that the call may be part of, with what was done for it already, by this
    /// life of the agent.
    pub orders: Vec<Order>,
    pub(super) call_id: Option<ProviderId>,
    pub(super) arguments: Option<Mark>,
    pub(super) target: Mark,
    pub(super) is_call: bool,
    pub(super) below: bool,
    pub(super) incarnation: u32,
}

/// An effect that was attached.
#[derive(Clone, Debug, PartialEq)]
pub struct Attached {
    /// The change to journal and apply.
    pub delta: Delta,
    /// Lines that had already gone on without the turn when its effect came: each is a rewind that
    /// was noticed late. The caller opens a branch for each and moves the line.
    pub late: Vec<(Strand, Rewind)>,
}

impl Conversations {
    /// Where a tool call belongs. `lineage` is its process and that one's ancestors, nearest first.
    /// None when the agent has shown no conversation it could belong to.
    pub fn place(
        &self,
        call: &CallSeen,
        seen: &Seen<'_>,
        lineage: &[ProcessIdentity],
    ) -> Option<Placement> {
        let found = self
            .by_id(call)
            .or_else(|| self.by_open_calls(call, seen, lineage))
            .or_else(|| self.by_time(call, seen, lineage))?;
        let below = lineage.contains(&found.strand.process);
        let mut placement = Placement {
            at: Attachment {
                thread: found.thread.id,
                branch: found.strand.branch,
                strand: found.strand.number,
                turn: found.turn,
                call: found.call.map(|(number, _)| number),
                confidence: found.confidence,
            },
            again: None,
            orders: Vec::new(),
            call_id: call.call_id.clone(),
            arguments: call.arguments,
            target: call.target,
            is_call: call.is_call,
            below,
            incarnation: seen.incarnation,
        };
        if let Some((_, known)) = found.call
            && found.confidence >= Confidence::Values
        {
            placement.again = executed_again(&found, known, &placement, call);
            placement.orders = orders(&found, call);
        }
        Some(placement)
    }

    fn by_id(&self, call: &CallSeen) -> Option<Found<'_>> {
        let id = call.call_id.as_ref()?;
        let (thread, turn) = self.ids.get(id)?.last()?;
        let thread = self.threads.get(thread)?;
        let turn = thread.turn(*turn)?;
        let mut calls = (0u16..).zip(&turn.calls);
        Some(Found {
            thread,
            strand: line_of(thread, turn)?,
            turn: turn.number,
            call: Some(calls.find(|(_, c)| c.id.as_ref() == Some(id))?),
            confidence: Confidence::Id,
        })
    }

    fn lines_of<'c>(
        &'c self,
        call: &CallSeen,
        seen: &Seen<'_>,
        lineage: &[ProcessIdentity],
    ) -> Vec<(&'c ThreadMemory, &'c StrandMemory)> {
        let threads = self.agents.get(seen.agent).into_iter().flatten();
        let session = call.session;
        let mut lines: Vec<_> = threads
            .filter_map(|id| self.threads.get(id))
            .filter(|t| session.is_none_or(|s| t.sessions.is_empty() || t.sessions.contains(&s)))
            .flat_map(|t| t.strands.iter().map(move |s| (t, s)))
            .filter(|(_, s)| s.agent == *seen.agent)
            .collect();
        let rank = |s: &StrandMemory| lineage.iter().position(|p| *p == s.process);
        // The conversation of the nearest process, if any of them holds one.
        if let Some(nearest) = lines.iter().filter_map(|(_, s)| rank(s)).min() {
            lines.retain(|(_, s)| rank(s) == Some(nearest));
        }
        lines.sort_by_key(|(t, s)| std::cmp::Reverse((s.active, t.id, s.number)));
        lines.truncate(MOST_LINES);
        lines
    }

    fn by_open_calls(
        &self,
        call: &CallSeen,
        seen: &Seen<'_>,
        lineage: &[ProcessIdentity],
    ) -> Option<Found<'_>> {
        let mut best: Option<(Found<'_>, (bool, Confidence, bool))> = None;
        let mut open: Vec<Found<'_>> = Vec::new();
        for (thread, strand) in self.lines_of(call, seen, lineage) {
            let path = thread.path_to(strand.tip);
            for at in path.into_iter().rev().take(MOST_TURNS) {
                let turn = &thread.turns[at];
                for (number, known) in (0u16..).zip(&turn.calls) {
                    let found = |confidence| Found {
                        thread,
                        strand,
                        turn: turn.number,
                        call: Some((number, known)),
                        confidence,
                    };
                    let is_open = is_open(known.result);
                    if is_open {
                        open.push(found(Confidence::OnlyCall));
                    }
                    let Some(confidence) = likeness(call, known) else {
                        continue;
                    };
                    // A result that was shown ends a call; only a restore executes it again, and
                    // then its arguments are the same to the letter.
                    if !is_open && confidence < Confidence::Arguments {
                        continue;
                    }
                    let rank = (is_open, confidence, known.ties.is_empty());
                    if best.as_ref().is_none_or(|(_, before)| rank > *before) {
                        best = Some((found(confidence), rank));
                    }
                }
            }
        }
        match best {
            Some((found, _)) => Some(found),
            None if open.len() == 1 && call.call_id.is_none() => open.pop(),
            None => None,
        }
    }

    /// The newest line of the nearest process: for a tool call, the answer that the line waits for, of
    /// which nothing was seen yet though the agent already acts on it; else its last turn.
    fn by_time(
        &self,
        call: &CallSeen,
        seen: &Seen<'_>,
        lineage: &[ProcessIdentity],
    ) -> Option<Found<'_>> {
        let lines = self.lines_of(call, seen, lineage);
        lines.into_iter().find_map(|(thread, strand)| {
            let waited_for = strand.pending.filter(|_| call.is_call && !strand.answered);
            Some(Found {
                thread,
                strand,
                turn: waited_for.or(strand.tip)?,
                call: None,
                confidence: Confidence::Time,
            })
        })
    }

    /// Attaches an effect to where its call was placed. `at` is the position at which it entered the
    /// timeline: of its *prepared* record, or of its replay.
    pub fn attach_effect(
        &self,
        placement: &Placement,
        effect: EffectId,
        at: Seq,
        seen: &Seen<'_>,
    ) -> Attached {
        let place = &placement.at;
        let tie = Tie {
            effect,
            at,
            time: seen.now,
            confidence: place.confidence,
            // Needed while the call itself is not known yet.
            call_id: placement.call_id.clone().filter(|_| place.call.is_none()),
            arguments: placement.arguments.filter(|_| place.call.is_none()),
            target: Some(placement.target),
            is_call: placement.is_call,
            below: placement.below,
            incarnation: placement.incarnation,
        };
        Attached {
            late: self.late(placement, effect, at),
            delta: Delta::Tied {
                thread: place.thread,
                strand: place.strand,
                turn: place.turn,
                call: place.call,
                tie,
            },
        }
    }

    /// Lines that parted before a turn while nothing of it was known, and do not show it.
    fn late(&self, placement: &Placement, effect: EffectId, at: Seq) -> Vec<(Strand, Rewind)> {
        let place = &placement.at;
        let Some(thread) = self.threads.get(&place.thread) else {
            return Vec::new();
        };
        let Some(turn) = thread.turn(place.turn) else {
            return Vec::new();
        };
        let shows = |s: &StrandMemory, number: TurnNo| {
            let path = thread.path_to(s.tip);
            path.iter().any(|p| thread.turns[*p].number == number)
        };
        let made_in = thread.strand(turn.strand);
        let went_on = |s: &&StrandMemory| {
            if s.born_of.is_some() || shows(s, turn.number) {
                return false;
            }
            let parts_here = turn.parent.is_none_or(|p| shows(s, p));
            // The same line asked again, or another process took it over. A line beside it in the
            // same process is a parallel one.
            let replaced = s.number == turn.strand && s.pending > Some(turn.number);
            let taken_over = made_in.is_some_and(|m| {
                m.number != s.number && m.process != s.process && s.began >= turn.at
            });
            parts_here && (replaced || taken_over)
        };
        thread
            .strands
            .iter()
            .filter(went_on)
            .map(|s| {
                let rewind = Rewind {
                    thread: thread.id,
                    parent: s.branch,
                    grade: Grade::Certain,
                    evidence: vec![Evidence::Ids],
                    last_remembered: turn.parent,
                    forgotten_turns: vec![turn.number],
                    remembered: Vec::new(),
                    forgotten: vec![effect],
                    fork_point: ForkPoint::At(Seq(at.0.saturating_sub(1))),
                    exact: false,
                    note: format!(
                        "turn {} had its effect after the conversation had gone on without it",
                        turn.number
                    ),
                };
                (s.number, rewind)
            })
            .collect()
    }
}

impl Rewind {
    /// The change that moves a line to the branch that was opened for this rewind.
    pub fn moved(&self, strand: Strand, branch: BranchId) -> Delta {
        Delta::Moved {
            thread: self.thread,
            strand,
            branch,
            absent: self
                .forgotten
                .iter()
                .map(|effect| (*effect, Absence::Forgotten))
                .collect(),
        }
    }
}

/// Where a call was found.
pub(super) struct Found<'c> {
    pub(super) thread: &'c ThreadMemory,
    pub(super) strand: &'c StrandMemory,
    pub(super) turn: TurnNo,
    pub(super) call: Option<(u16, &'c CallMemory)>,
    pub(super) confidence: Confidence,
}

/// The line that a turn's calls belong to: the newest that shows it.
fn line_of<'c>(thread: &'c ThreadMemory, turn: &TurnMemory) -> Option<&'c StrandMemory> {
    thread
        .strands
        .iter()
        .filter(|s| {
            let path = thread.path_to(s.tip);
            path.iter().any(|p| thread.turns[*p].number == turn.number)
        })
        .max_by_key(|s| (s.tip == Some(turn.number), s.asked, s.number))
        .or_else(|| thread.strand(turn.strand))
}

/// How like a call at the boundary is to one that the model made; none when nothing is alike.
pub(super) fn likeness(call: &CallSeen, known: &CallMemory) -> Option<Confidence> {
    let both = call.call_id.as_ref().zip(known.id.as_ref());
    if both.is_some_and(|(ours, theirs)| ours != theirs) {
        return None;
    }
    if let Some(tool) = &call.tool {
        if !is_tool(&known.name, tool) {
            return None;
        }
        return Some(if call.arguments == Some(known.arguments) {
            Confidence::Arguments
        } else {
            Confidence::Name
        });
    }
    let common = call
        .values
        .iter()
        .filter(|v| known.values.binary_search(v).is_ok())
        .count();
    // A command is found as a whole. A request shares values with the call that made it, though the
    // tool may add and leave out.
    let enough = if call.is_call {
        1
    } else {
        2.min(known.values.len())
    };
    (common > 0 && common >= enough).then_some(Confidence::Values)
}

/// Whether the model's name of a tool means a server's tool: clients put the server's name before.
pub(super) fn is_tool(known: &str, tool: &str) -> bool {
    known == tool
        || known
            .strip_suffix(tool)
            .is_some_and(|before| before.ends_with(['_', '.', '|', '/', ':', '-']))
}
