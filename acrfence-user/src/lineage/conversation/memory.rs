//! What is remembered of a thread, and how it changes.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::finding::Confidence;
use super::ids::ProviderId;
use super::mark::Mark;
use crate::words::{AgentName, BranchId, EffectId, ProcessIdentity, Seq, ThreadId, Timestamp};

/// Number of a turn within its thread. Never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TurnNo(pub u32);

impl ThreadMemory {
    /// A turn by its number.
    pub fn turn(&self, number: TurnNo) -> Option<&TurnMemory> {
        self.position(number).map(|at| &self.turns[at])
    }

    /// A line by its number.
    pub fn strand(&self, number: Strand) -> Option<&StrandMemory> {
        self.strands.iter().find(|s| s.number == number)
    }

    /// Positions in [`Self::turns`] from the first turn that is known to the given one.
    pub(super) fn path_to(&self, tip: Option<TurnNo>) -> Vec<usize> {
        let mut path = Vec::new();
        let mut next = tip;
        while let Some(at) = next.and_then(|number| self.position(number)) {
            path.push(at);
            // Parents have lower numbers: whatever was read back, this ends.
            next = self.turns[at].parent.filter(|p| *p < self.turns[at].number);
        }
        path.reverse();
        path
    }

    pub(super) fn position(&self, number: TurnNo) -> Option<usize> {
        self.turns.binary_search_by_key(&number, |t| t.number).ok()
    }

    /// All effects of a turn, with those of the sub-agents that it started.
    pub(super) fn ties_of_turn<'t>(&'t self, turn: &'t TurnMemory) -> Vec<&'t Tie> {
        let mut ties: Vec<&Tie> = turn.ties().collect();
        for call in 0..turn.calls.len() {
            self.ties_of_children(turn.number, call, 0, &mut ties);
        }
        ties
    }

    /// Effects of the sub-agents that a call started, and of theirs.
    pub(super) fn ties_below_call(&self, turn: TurnNo, call: usize) -> Vec<&Tie> {
        let mut ties = Vec::new();
        self.ties_of_children(turn, call, 0, &mut ties);
        ties
    }

    fn ties_of_children<'t>(
        &'t self,
        turn: TurnNo,
        call: usize,
        depth: u8,
        into: &mut Vec<&'t Tie>,
    ) {
        if depth > 8 {
            return;
        }
        let started = |born: Option<(TurnNo, u16)>| {
            born.is_some_and(|(t, c)| t == turn && usize::from(c) == call)
        };
        for child in self.strands.iter().filter(|s| started(s.born_of)) {
            for turn in self.turns.iter().filter(|t| t.strand == child.number) {
                into.extend(turn.ties());
                for call in 0..turn.calls.len() {
                    self.ties_of_children(turn.number, call, depth + 1, into);
                }
            }
        }
    }
}

impl TurnMemory {
    /// Gives effects that came before their calls were known to those calls.
    pub(super) fn find_calls_of_ties(&mut self) {
        for mut tie in std::mem::take(&mut self.loose) {
            let by_id = |c: &CallMemory| c.id.is_some() && c.id == tie.call_id;
            let by_arguments =
                |c: &CallMemory| c.ties.is_empty() && Some(c.arguments) == tie.arguments;
            let place = self
                .calls
                .iter()
                .position(by_id)
                .map(|at| (at, Confidence::Id))
                .or_else(|| {
                    let at = self.calls.iter().position(by_arguments)?;
                    Some((at, Confidence::Arguments))
                });
            match place {
                Some((at, confidence)) => {
                    tie.confidence = confidence;
                    tie.call_id = None;
                    tie.arguments = None;
                    self.calls[at].ties.push(tie);
                }
                None => self.loose.push(tie),
            }
        }
    }

    /// All effects of this turn.
    pub fn ties(&self) -> impl Iterator<Item = &Tie> {
        self.calls.iter().flat_map(|c| &c.ties).chain(&self.loose)
    }
}

impl fmt::Display for TurnNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Number of a line of conversation within its thread: the main one, one that was split off, a
/// sub-agent's. Never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Strand(pub u32);

/// What is remembered of one thread: ids and marks, no words.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThreadMemory {
    /// The thread.
    pub id: ThreadId,
    /// The agent it was first seen with.
    pub agent: AgentName,
    /// What identifies it, for people.
    pub title: String,
    /// Sessions that belong to it.
    pub sessions: Vec<Mark>,
    /// Keys that may mean a session.
    pub hints: Vec<Mark>,
    /// Its turns by number, ascending. The oldest go first when there are too many.
    pub turns: Vec<TurnMemory>,
    /// Its lines, oldest first.
    pub strands: Vec<StrandMemory>,
    /// Marks of the long lines of recent summaries, newest last.
    pub summaries: Vec<Mark>,
    /// The next turn's number.
    pub next_turn: u32,
    /// The next line's number.
    pub next_strand: u32,
    /// Position of the last effect of a turn that had to be dropped for want of room.
    pub dropped_through: Option<Seq>,
    /// When anything of it was last seen.
    pub active: Timestamp,
}

/// One answer of the model, with the calls it made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TurnMemory {
    /// Its number.
    pub number: TurnNo,
    /// The turn before it.
    pub parent: Option<TurnNo>,
    /// The line that it was answered in.
    pub strand: Strand,
    /// Journal position when the answer was seen.
    pub at: Seq,
    /// When.
    pub time: Timestamp,
    /// Ids of the response, its messages, its sealed reasoning.
    pub ids: Vec<ProviderId>,
    /// Ids of the input that it answered.
    pub input_ids: Vec<ProviderId>,
    /// What the model said.
    pub said: Option<Mark>,
    /// Its calls, in order.
    pub calls: Vec<CallMemory>,
    /// Effects of this turn that belong to no known call.
    pub loose: Vec<Tie>,
    /// Mark of the input that it answered.
    pub input: Mark,
    /// Mark of the last words of the agent's side before it.
    pub prompt: Option<Mark>,
    /// Position by which the results of its calls had been shown.
    pub shown_at: Option<Seq>,
    /// Whether its answer came to the end.
    pub complete: bool,
    /// Whether it was learned from a history instead of from the answer itself.
    pub imported: bool,
}

/// One tool call of a turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallMemory {
    /// Its id.
    pub id: Option<ProviderId>,
    /// The tool.
    pub name: Box<str>,
    /// Mark of its arguments.
    pub arguments: Mark,
    /// Marks of the values in its arguments, sorted; empty once its result was shown.
    pub values: Vec<Mark>,
    /// How often it says that it is to be done, with the mark of that value.
    #[serde(default)]
    pub times: Option<(u32, Mark)>,
    /// Its effects.
    pub ties: Vec<Tie>,
    /// What histories showed of its result so far.
    pub result: ResultMemory,
}

/// What histories showed of a call's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResultMemory {
    /// Nothing yet.
    Open,
    /// Something that could not be judged yet, because the effect was still running.
    Undecided,
    /// Something that is, or has to be taken for, the true one. Its mark.
    True(Mark),
    /// Something that is not.
    Lost,
}

/// An effect of a call or turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tie {
    /// The effect.
    pub effect: EffectId,
    /// Position at which it entered this timeline: where it was prepared, or replayed.
    pub at: Seq,
    /// When.
    pub time: Timestamp,
    /// How sure it is that it belongs here.
    pub confidence: Confidence,
    /// The id of its call, while that call is not known yet.
    #[serde(default)]
    pub call_id: Option<ProviderId>,
    /// The mark of its arguments, while its call is not known yet.
    #[serde(default)]
    pub arguments: Option<Mark>,
    /// Mark of where it went; none in records of before this was kept.
    #[serde(default)]
    pub target: Option<Mark>,
    /// Whether the effect is the call itself (an MCP call, a command) and not something that the
    /// tool did while it ran.
    pub is_call: bool,
    /// Whether it came from the process that held the conversation, or below it.
    pub below: bool,
    /// Which life of the agent it came from.
    pub incarnation: u32,
}

/// A line of conversation: what its next request is expected to show.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StrandMemory {
    /// Its number.
    pub number: Strand,
    /// The branch that its calls belong to.
    pub branch: BranchId,
    /// The line within a session, where the client names it.
    pub line: Option<Mark>,
    /// The call that started it, for a sub-agent.
    pub born_of: Option<(TurnNo, u16)>,
    /// Whether the client says that it is a sub-agent's.
    pub is_child: bool,
    /// Whether it parted from another line by a rewind.
    pub parted: bool,
    /// Words it began with, and those it went on with after each compaction.
    pub openings: Vec<Mark>,
    /// Its last turn.
    pub tip: Option<TurnNo>,
    /// The last turn that lies behind a summary.
    pub summarised: Option<TurnNo>,
    /// The number that the answer to the last request gets.
    pub pending: Option<TurnNo>,
    /// Mark of the input of the last request.
    pub input: Option<Mark>,
    /// Ids in that input.
    pub input_ids: Vec<ProviderId>,
    /// Mark of the last words of the agent's side in the last request.
    pub prompt: Option<Mark>,
    /// Whether the last request was answered to the end.
    pub answered: bool,
    /// The process that sent the last request.
    pub process: ProcessIdentity,
    /// The agent that sent it.
    pub agent: AgentName,
    /// Position at which this line began.
    pub began: Seq,
    /// Position of the last request.
    pub asked: Seq,
    /// When anything of it was last seen.
    pub active: Timestamp,
    /// Sketch of the tools it offers: the smallest of their marks.
    pub tools: Vec<Mark>,
    /// Whether its model may call tools.
    pub may_call: bool,
    /// The summary that its last request introduced.
    pub summary: Option<Mark>,
    /// How often the client had compacted it.
    pub window: Option<u64>,
    /// Effects that it is known not to remember, ascending by effect.
    pub absent: Vec<(EffectId, Absence)>,
}

/// Why a line does not remember an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Absence {
    /// Another line of the thread, which parted from this one by a rewind, did it meanwhile.
    Elsewhere,
    /// It is behind a summary or fell out of the window.
    Compacted,
    /// Its call is there, without its true result.
    Lost,
    /// It came after the point that the line goes on from.
    Forgotten,
}

/// A change. Applying all of them in order rebuilds the same memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Delta {
    /// A request was seen.
    Asked(Box<Asked>),
    /// An answer, or more of one, was seen.
    Answered {
        /// The thread.
        thread: ThreadId,
        /// The line.
        strand: Strand,
        /// The turn, whole. Replaces what was seen of it before.
        turn: Box<TurnMemory>,
        /// Marks of its long lines, where it may be a summary.
        lines: Vec<Mark>,
    },
    /// A request on the side was answered; a later history may be its summary.
    Summarised {
        /// The thread it was about.
        thread: ThreadId,
        /// Marks of the long lines.
        lines: Vec<Mark>,
    },
    /// An effect was attached.
    Tied {
        /// The thread.
        thread: ThreadId,
        /// The line that the call belongs to.
        strand: Strand,
        /// The turn.
        turn: TurnNo,
        /// Which of its calls.
        call: Option<u16>,
        /// The effect.
        tie: Tie,
    },
    /// Somebody else (a person, the kernel, a restart) opened a branch: the line goes on in it.
    Moved {
        /// The thread.
        thread: ThreadId,
        /// The line that goes on.
        strand: Strand,
        /// The new branch.
        branch: BranchId,
        /// Effects that it does not remember, where that is news.
        absent: Vec<(EffectId, Absence)>,
    },
}

impl Delta {
    /// The thread that changes.
    pub fn thread(&self) -> ThreadId {
        match self {
            Self::Asked(asked) => asked.thread,
            Self::Answered { thread, .. }
            | Self::Summarised { thread, .. }
            | Self::Tied { thread, .. }
            | Self::Moved { thread, .. } => *thread,
        }
    }
}

/// Version of the encoding of changes in the journal. A change of an unknown version is not read.
const CHANGES: u8 = 1;

/// A change as the journal keeps it: a version and CBOR.
pub fn encode_change(delta: &Delta) -> Vec<u8> {
    let mut bytes = vec![CHANGES];
    if let Err(never) = ciborium::into_writer(delta, &mut bytes) {
        unreachable!("a change always encodes: {never}");
    }
    bytes
}

/// Reads what [`encode_change`] wrote. Errors say in words what cannot be read.
pub fn decode_change(bytes: &[u8]) -> Result<Delta, String> {
    match bytes.split_first() {
        Some((&CHANGES, rest)) => ciborium::from_reader(rest).map_err(|e| e.to_string()),
        Some((version, _)) => Err(format!(
            "it has version {version}, this program reads {CHANGES}"
        )),
        None => Err("it is empty".into()),
    }
}

/// A request that was seen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// The thread.
    pub thread: ThreadId,
    /// Set when the request opens the thread: its agent and title.
    pub opens: Option<(AgentName, String)>,
    /// The line as it stands after this request, without what it is known not to remember. New when
    /// its number is the thread's next.
    pub strand: StrandMemory,
    /// Effects that it does not remember, where that is news.
    pub absent: Vec<(EffectId, Absence)>,
    /// Turns that were learned from the history.
    pub imported: Vec<TurnMemory>,
    /// What the history showed of results, where that is news.
    pub results: Vec<(TurnNo, u16, ResultMemory)>,
    /// Turns whose results had all been shown by now.
    pub shown: Vec<TurnNo>,
    /// Sessions that are new to the thread.
    pub sessions: Vec<Mark>,
    /// Hints that are new to the thread.
    pub hints: Vec<Mark>,
}
