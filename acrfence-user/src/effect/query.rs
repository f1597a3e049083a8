//! Questions to the effect log and their answers.

use serde::{Deserialize, Serialize};

use crate::words::{
    AgentName, BranchId, EffectId, Fingerprint, ProcessIdentity, Seq, Status, ThreadId, Timestamp,
    ToolKey, Transport,
};

/// Which effects to list. Fields that are set must all match.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EffectFilter {
    /// Only this agent's.
    pub agent: Option<AgentName>,
    /// Only this thread's.
    pub thread: Option<ThreadId>,
    /// Only those executed in this branch.
    pub branch: Option<BranchId>,
    /// Only those whose tool key contains this text.
    pub tool: Option<String>,
    /// Only those sent to this host (name without port).
    pub host: Option<String>,
    /// Only those with this status.
    pub status: Option<Status>,
    /// Only those of this process id.
    pub pid: Option<u32>,
    /// Only those that presented or were issued this credential.
    pub credential: Option<Fingerprint>,
    /// Only those at or after this time.
    pub since: Option<Timestamp>,
    /// Only those before this time.
    pub until: Option<Timestamp>,
    /// Only those whose request or response contains this text.
    pub text: Option<String>,
    /// Oldest first instead of newest first.
    pub oldest_first: bool,
    /// Start after this position (`next` of the page before).
    pub after: Option<Seq>,
    /// At most this many (default 50, at most 1000).
    pub limit: Option<usize>,
}

/// A page of answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Page<T> {
    /// The answers.
    pub items: Vec<T>,
    /// Give this as `after` for the next page; none at the end.
    pub next: Option<Seq>,
}

/// An effect in a list: no bodies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EffectRow {
    /// Its id.
    pub id: EffectId,
    /// When it was prepared.
    pub at: Timestamp,
    /// When it ended.
    pub ended: Option<Timestamp>,
    /// The agent.
    pub agent: AgentName,
    /// The thread.
    pub thread: ThreadId,
    /// The branch it was executed in.
    pub branch: BranchId,
    /// The outer effect, for nested boundaries.
    pub parent: Option<EffectId>,
    /// Further outer effects, where several ran and any of them may have caused it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub co_parents: Vec<EffectId>,
    /// The process.
    pub process: ProcessIdentity,
    /// How it crossed the boundary.
    pub transport: Transport,
    /// What it is looked up by.
    pub key: ToolKey,
    /// Host it was sent to (HTTP, MCP over HTTP); empty otherwise.
    pub host: String,
    /// Where it is in its life.
    pub status: Status,
    /// HTTP status or exit status, where there is one.
    pub code: Option<i32>,
    /// Why it failed or is in doubt; empty otherwise.
    pub why: String,
    /// Why its process context may be incomplete; empty normally.
    pub gaps: String,
}

impl EffectRow {
    /// The outer effects that it belongs to; none for one that stands by itself.
    pub fn outer(&self) -> impl Iterator<Item = EffectId> + '_ {
        self.parent
            .into_iter()
            .chain(self.co_parents.iter().copied())
    }
}

/// A possible twin of a new call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CandidateRow {
    /// Its id.
    pub id: EffectId,
    /// The branch it was executed in.
    pub branch: BranchId,
    /// Where it is in its life.
    pub status: Status,
}

/// What is known of a credential.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CredentialHistory {
    /// Threads that were seen to issue it, with the position of the first time.
    pub issued: Vec<(ThreadId, Seq)>,
    /// Effects that presented it, oldest first, with their status.
    pub presented: Vec<(EffectId, Status)>,
}
