//! What a request tells about the thread it belongs to.

use serde::{Deserialize, Serialize};

use super::memory::{Strand, TurnNo};
use crate::words::{BranchId, EffectId, ForkPoint, Grade, ThreadId};

/// What a request tells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// It goes on where the thread stood. Nothing is forgotten that was not before.
    Continues {
        /// The thread.
        thread: ThreadId,
        /// The branch.
        branch: BranchId,
    },
    /// A conversation that was not seen before.
    OpensThread {
        /// What identifies it, for people.
        title: String,
        /// The thread with the same session, where this one is not part of it.
        beside: Option<ThreadId>,
    },
    /// It continues a thread without turns whose effects are known.
    Rewind(Rewind),
    /// It shows calls without the outcome that they had.
    LostOutcome {
        /// The thread.
        thread: ThreadId,
        /// The branch it continues.
        branch: BranchId,
        /// The calls.
        lost: Vec<Lost>,
    },
    /// Its history is shortened: it shows what came later, or a summary, but not these.
    Compacted {
        /// The thread.
        thread: ThreadId,
        /// The branch it continues.
        branch: BranchId,
        /// Turns that it no longer shows.
        turns: Vec<TurnNo>,
        /// Their effects.
        effects: Vec<EffectId>,
    },
    /// It belongs to no line of work: a title, a summary, a count.
    SideRequest {
        /// Why it is taken for one.
        why: String,
    },
}

/// A request that continues a thread without what came after a point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rewind {
    /// The thread.
    pub thread: ThreadId,
    /// The branch that is left.
    pub parent: BranchId,
    /// How sure it is.
    pub grade: Grade,
    /// What ties the request to the thread.
    pub evidence: Vec<Evidence>,
    /// The last turn that it still shows; none when it goes back to before the first.
    pub last_remembered: Option<TurnNo>,
    /// Turns with effects that it does not show, oldest first.
    pub forgotten_turns: Vec<TurnNo>,
    /// Effects that it remembers, oldest first.
    pub remembered: Vec<EffectId>,
    /// Effects that it does not remember, oldest first: the fenced set, to the call.
    pub forgotten: Vec<EffectId>,
    /// The fork point as a position, the nearest there is.
    pub fork_point: ForkPoint,
    /// Whether the position alone says the same as the two lists.
    pub exact: bool,
    /// For people: what was seen.
    pub note: String,
}

/// What ties a request to a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Evidence {
    /// Ids in its history that only this thread has.
    Ids,
    /// It names a response of this thread as the one before.
    PreviousResponse,
    /// It names the session of this thread.
    Session,
    /// It says that it was split off from a session of this thread.
    SplitOff,
    /// Its words begin the same way.
    SameOpening,
    /// It is, word for word, a request that already led to effects.
    SameRequest,
    /// Its calls and answers are, word for word, those of the thread.
    SameTurns,
    /// A key that may mean a session is the same.
    Hint,
    /// A tool call that already had its effect is being executed again by another life of the agent.
    ExecutedAgain,
    /// Another line of the thread, which parted from this one by a rewind, had effects meanwhile.
    OtherLine,
}

/// A call that a history shows without the outcome it had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// The turn.
    pub turn: TurnNo,
    /// The call's id, where it has one.
    pub call: Option<String>,
    /// The tool.
    pub tool: String,
    /// What the history shows instead.
    pub shown: Shown,
    /// The effects whose outcome is not remembered.
    pub effects: Vec<EffectId>,
}

/// What a history shows of an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shown {
    /// What was recorded, in whatever wrapping.
    True,
    /// Nothing.
    Missing,
    /// That it was broken off, interrupted, timed out.
    Aborted,
    /// Something else.
    Different,
}

/// How sure it is that an effect belongs to the turn or call it is attached to, weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// It came from the agent after that turn; nothing else tells.
    Time,
    /// It came from the process of that conversation while this was its only open call.
    OnlyCall,
    /// The tool's name is the call's.
    Name,
    /// Values of the call's arguments are in it.
    Values,
    /// Tool name and arguments are the call's.
    Arguments,
    /// It carries the call's id.
    Id,
}

/// Where an effect was attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// The thread.
    pub thread: ThreadId,
    /// The branch that the turn belongs to.
    pub branch: BranchId,
    /// The line of the conversation.
    pub strand: Strand,
    /// The turn that caused it.
    pub turn: TurnNo,
    /// Which of the turn's calls, by number; none when only the turn is known.
    pub call: Option<u16>,
    /// How sure that is.
    pub confidence: Confidence,
}
