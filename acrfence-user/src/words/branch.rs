//! Lives, lines of work and timelines of an agent.

use serde::{Deserialize, Serialize};

use super::{AgentName, BranchId, EffectId, ProcessIdentity, Seq, ThreadId, Timestamp};

/// One life of an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Incarnation {
    /// The agent.
    pub agent: AgentName,
    /// 1 for the first life.
    pub number: u32,
    /// How it began.
    pub cause: IncarnationCause,
    /// Its root process.
    pub root: ProcessIdentity,
    /// `/proc/sys/kernel/random/boot_id`: process identities mean nothing across boots.
    pub boot_id: String,
    /// Real user id of the root process.
    pub uid: u32,
    /// Executable of the root process.
    pub exe: String,
    /// Argument vector of the root process.
    pub argv: Vec<String>,
    /// When it began.
    pub at: Timestamp,
}

/// How a life began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IncarnationCause {
    /// `acrfence attach PID`.
    Attach,
    /// `acrfence run`.
    Launch,
    /// A restore of the process itself (CRIU).
    Restore,
}

/// One line of work of an agent, usually one LLM conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Thread {
    /// Its id.
    pub id: ThreadId,
    /// The agent it was first seen with.
    pub agent: AgentName,
    /// What identifies it (`main` for the line of work of an agent that showed no conversation).
    pub title: String,
    /// When it was first seen.
    pub at: Timestamp,
}

/// A timeline inside a thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Branch {
    /// Its id; also the journal position at which it opened.
    pub id: BranchId,
    /// The thread it belongs to.
    pub thread: ThreadId,
    /// The branch it left; none for the first of a thread.
    pub parent: Option<BranchId>,
    /// Up to where it remembers what its parent did.
    pub fork_point: ForkPoint,
    /// Why it exists.
    pub cause: Cause,
    /// How sure we are that it is a restore.
    pub grade: Grade,
    /// In the words of whoever or whatever opened it.
    pub note: String,
    /// When it opened.
    pub at: Timestamp,
    /// What it does not remember, ascending by effect, where a conversation told that to the call:
    /// then everything else that its thread did before is remembered, and the fork point is only
    /// the nearest position. None: the fork point tells.
    #[serde(default)]
    pub absent: Option<Vec<Absent>>,
    /// Whether a restore that was noticed from outside its conversation opened it (told, seen in the
    /// kernel, a restart), as a rule one in each thread of the agent; or a fork of such. What it forgot
    /// is forgotten by the agent, whichever thread its next call is taken for.
    #[serde(default)]
    pub wide: bool,
}

/// An effect that a branch does not remember.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Absent {
    /// The effect.
    pub effect: EffectId,
    /// What is not remembered of it.
    pub forgotten: Forgotten,
    /// How sure that is.
    pub grade: Grade,
}

/// What a branch does not remember of an effect in its fenced set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Forgotten {
    /// The call itself.
    Call,
    /// It remembers the call, but its true outcome never reached it.
    Outcome,
    /// Its history was shortened, and no longer shows it.
    Compacted,
    /// Nothing is missing in its history, which shows the order; the agent's program carries that out
    /// again as if it had not been done.
    Done,
}

/// Up to where a branch remembers its parent's timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ForkPoint {
    /// It remembers what entered the parent's timeline at or before this journal position.
    At(Seq),
    /// Nobody knows: it is taken to remember nothing.
    Unknown,
}

/// Why a branch exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The first branch of a thread.
    Start,
    /// A restore: what it does not remember is fenced, different calls are blocked.
    Restore,
    /// A person said `acrfence fork`: what it does not remember is fenced, different calls run.
    Fork,
}

/// How sure we are that a restore took place (DESIGN.md §8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grade {
    /// Only the words of the conversation suggest it.
    Suspect,
    /// Somebody said so, ids prove it, or the kernel did it.
    Certain,
}

/// A point in an agent's time that a person or a hook named, or at which its processes were saved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The agent.
    pub agent: AgentName,
    /// Its name, unique within the agent (the latest of that name counts).
    pub name: String,
    /// Thread it was taken in; none for all threads of the agent.
    pub thread: Option<ThreadId>,
    /// When it was taken.
    pub at: Timestamp,
    /// Up to where it remembers, where that is not all before it: calls after this position were
    /// running then, or their answers could not have been read yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub through: Option<Seq>,
    /// The image of the agent's processes that was made; none for a point that somebody named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
}

/// An image of an agent's processes (CRIU's dump).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// The life that was saved.
    pub incarnation: u32,
    /// Processes of that life.
    pub processes: Vec<Saved>,
    /// Directory of the image, where the program that made it told; a hint.
    pub dir: Option<String>,
}

/// A process in an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// Its pid in the innermost of its pid namespaces.
    pub pid: u32,
    /// Its start time (nanoseconds since boot).
    pub start_ns: u64,
    /// File name of its executable.
    pub program: String,
}
