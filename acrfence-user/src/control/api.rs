//! What goes over the control socket. Field names are stable (`docs/control-api.md`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::daemon::{OpaqueCount, TroubleNotice};
use crate::effect::{EffectRow, HoldDecision};
use crate::lineage::AgentTree;
use crate::words::{
    AgentName, BranchId, Effect, EffectId, Field, HoldId, Likeness, Opaque, ProcessIdentity, Ran,
    Response, Seq, ThreadId, Timestamp,
};

/// `GET /v1/status`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Version of the daemon.
    pub version: String,
    /// Its process id.
    pub pid: u32,
    /// Since when it runs.
    pub since: Timestamp,
    /// `enforce` or `observe`.
    pub mode: String,
    /// Position of the last record of the effect log.
    pub log_head: Seq,
    /// Calls that are running.
    pub running: usize,
    /// Effects in doubt, waiting for a person.
    pub in_doubt: usize,
    /// Held calls, waiting for a person.
    pub holds: usize,
    /// What waits for a person, oldest first: the first of each kind, at most 100.
    pub waiting: Vec<Waiting>,
    /// Agents that are running.
    pub agents: Vec<AgentStatus>,
    /// Events the kernel side lost, by kind and cause; empty when none were.
    pub drops: Vec<Drop>,
    /// What keeps the daemon from doing all it should, in sentences.
    pub problems: Vec<String>,
    /// The exec gate since the daemon started; none when it does not work.
    #[serde(default)]
    pub gate: Option<GateCounts>,
    /// Recent troubles on connections, newest last.
    pub troubles: Vec<TroubleNotice>,
}

/// Processes that stood at the exec gate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateCounts {
    /// By what was done with them: `command`, `stdio`, `environment`, `handed_over`, `nothing`.
    pub gated: BTreeMap<String, u64>,
    /// Those that could not be gated, by why: they ran and are not fenced, or were killed, as
    /// `gate.ungated` says.
    pub ungated: BTreeMap<String, u64>,
    /// Whether what must not run and cannot be stopped is denied before its exec (LSM); otherwise it is
    /// killed before its first instruction.
    #[serde(default)]
    pub denies: bool,
}

/// Something that waits for a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// `in_doubt` (an effect) or `hold` (a call).
    pub kind: String,
    /// Id of the effect or the hold.
    pub id: String,
    /// The agent.
    pub agent: AgentName,
    /// What it does.
    pub key: String,
    /// Why it waits.
    pub why: String,
    /// Since when.
    pub since: Timestamp,
    /// What to run, once it is known what happened or what is wanted.
    pub next: Vec<String>,
}

/// `POST /v1/log/rotate-key`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyRotated {
    /// Id of the key that seals from now on.
    pub key: String,
    /// The key file, of which a copy must be kept elsewhere.
    pub key_file: String,
}

/// An agent in `GET /v1/agents`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AgentStatus {
    /// Its name.
    pub name: AgentName,
    /// Whether it runs.
    pub running: bool,
    /// Which life this is, or was.
    pub incarnation: u32,
    /// Its root process.
    pub root: ProcessIdentity,
    /// Real user id of the root process.
    pub uid: u32,
    /// Executable of the root process.
    pub exe: String,
    /// Argument vector of the root process.
    pub argv: Vec<String>,
    /// When this life began.
    pub since: Timestamp,
    /// Why it ended; empty while it runs.
    pub ended: String,
    /// Processes in its tree now.
    pub processes: usize,
    /// The line of work its calls belong to.
    pub thread: Option<ThreadId>,
    /// The branch its calls belong to.
    pub branch: Option<BranchId>,
    /// `start`, `restore` or `fork`.
    pub branch_cause: String,
    /// `certain` or `suspect`.
    pub branch_grade: String,
    /// Connections that were open before the attach: not fenced.
    pub open_before: Vec<OpenConnection>,
    /// Traffic that was passed on without being understood: not fenced.
    pub not_fenced: Vec<OpaqueCount>,
    /// Programs that no rule of the exec gate names and that ended since the daemon started: not
    /// fenced, but for what they send over TLS.
    #[serde(default)]
    pub commands: u64,
}

/// `GET /v1/opaque` and `GET /v1/commands`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OpaqueQuery {
    /// Only this agent's.
    pub agent: Option<AgentName>,
    /// Only those at or after this time.
    pub since: Option<Timestamp>,
    /// The newest so many; 50 when absent, at most 10,000.
    pub limit: Option<usize>,
}

/// Traffic that was seen and not fenced.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OpaqueRow {
    /// Position of the record.
    pub position: Seq,
    /// What was seen.
    #[serde(flatten)]
    pub seen: Opaque,
}

/// A program that ran and is no effect.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RanRow {
    /// Position of the record.
    pub position: Seq,
    /// What ran.
    #[serde(flatten)]
    pub ran: Ran,
}

/// A connection that was open before an agent was attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenConnection {
    /// The process that holds it.
    pub pid: u32,
    /// Its own address.
    pub local: String,
    /// The other side.
    pub peer: String,
    /// Whether it was closed (`--cut`), so that it comes back through the hook.
    pub cut: bool,
}

/// Lost events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drop {
    /// Kind of event.
    pub kind: String,
    /// Why they were lost.
    pub cause: String,
    /// How many.
    pub count: u64,
}

/// `POST /v1/agents`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attach {
    /// The root process.
    pub pid: u32,
    /// Name of the agent; the executable's name when absent.
    #[serde(default)]
    pub name: Option<AgentName>,
    /// Whether the caller is about to become the agent (`acrfence run`).
    #[serde(default)]
    pub launch: bool,
    /// What the caller is about to become, for a launch.
    #[serde(default)]
    pub command: Vec<String>,
    /// Close connections that are open already.
    #[serde(default)]
    pub cut: bool,
}

/// Answer to [`Attach`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Attached {
    /// Name of the agent.
    pub name: AgentName,
    /// Which life.
    pub incarnation: u32,
    /// Its root process.
    pub root: ProcessIdentity,
    /// Processes in its tree.
    pub processes: usize,
    /// The branch its calls belong to.
    pub branch: BranchId,
    /// What a person should know (a restart that is taken for a restore, …), in sentences.
    pub notes: Vec<String>,
    /// Connections that were open already: not fenced.
    pub open_before: Vec<OpenConnection>,
    /// Variables that make runtimes trust the CA, for a launched agent.
    pub environment: Vec<(String, String)>,
}

/// `GET /v1/self`: the agent whose process asks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Myself {
    /// Its name.
    pub agent: AgentName,
}

/// `POST /v1/agents/NAME/checkpoints`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TakeCheckpoint {
    /// Its name; made from the time when absent.
    pub name: Option<String>,
    /// Only for this thread.
    pub thread: Option<ThreadId>,
}

/// Answer to [`TakeCheckpoint`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CheckpointTaken {
    /// The agent.
    pub agent: AgentName,
    /// Its name.
    pub name: String,
    /// Its position in the journal.
    pub position: Seq,
}

/// `POST /v1/agents/NAME/restored`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Restored {
    /// Only this thread; all of the agent's when absent.
    pub thread: Option<ThreadId>,
    /// An effect id, the name of a checkpoint, or a time (RFC 3339). Absent: nobody knows, everything
    /// is taken as forgotten.
    pub to: Option<String>,
    /// For the tree.
    pub note: String,
}

/// `POST /v1/agents/NAME/fork`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fork {
    /// Only this thread; all of the agent's when absent.
    pub thread: Option<ThreadId>,
    /// For the tree.
    pub note: String,
}

/// Answer to [`Restored`] and [`Fork`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Opened {
    /// The agent.
    pub agent: AgentName,
    /// The thread.
    pub thread: ThreadId,
    /// The new branch.
    pub branch: BranchId,
    /// The branch that was left.
    pub parent: Option<BranchId>,
    /// Effects that the new branch does not remember.
    pub fenced: usize,
}

/// `GET /v1/agents/NAME/tree`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tree {
    /// Lives, threads, branches, fork points.
    #[serde(flatten)]
    pub tree: AgentTree,
    /// Its effects, oldest first (at most 1000).
    pub effects: Vec<TreeEffect>,
}

/// An effect in a tree.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TreeEffect {
    /// The effect.
    #[serde(flatten)]
    pub row: EffectRow,
    /// Whether the branch that goes on now is fenced against it.
    pub fenced: bool,
}

/// `GET /v1/effects/ID`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EffectDetail {
    /// The effect, with its bodies.
    #[serde(flatten)]
    pub effect: Effect,
    /// Branches it was replayed into, by itself or with its outer effect.
    pub replayed_into: Vec<BranchId>,
    /// Effects that were made inside it while it ran, oldest first.
    #[serde(default)]
    pub children: Vec<EffectRow>,
}

/// `POST /v1/holds/ID`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecideHold {
    /// `replay`, `forward` or `deny`.
    pub decision: HoldDecision,
}

/// A hold in `GET /v1/holds`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HeldCall {
    /// Its id.
    pub id: HoldId,
    /// The agent.
    pub agent: AgentName,
    /// The branch it came from.
    pub branch: BranchId,
    /// What it would do.
    pub key: String,
    /// The effect it may be the same as.
    pub effect: EffectId,
    /// Why it waits.
    pub why: String,
    /// Since when.
    pub at: Timestamp,
}

/// `GET /v1/report`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// What the fence found, oldest first.
    pub items: Vec<Found>,
    /// Where the next page begins; none when this is the last.
    pub next: Option<Seq>,
}

/// A call that the fence stopped, or in observe mode would have.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Found {
    /// Position of the record.
    pub position: Seq,
    /// When.
    pub at: Timestamp,
    /// The agent.
    pub agent: AgentName,
    /// The branch it came from.
    pub branch: BranchId,
    /// What it is looked up by.
    pub key: crate::words::ToolKey,
    /// Which rule found it.
    pub code: crate::words::RefusalCode,
    /// One sentence.
    pub title: String,
    /// The earlier effect, where there is one.
    pub effect: Option<EffectId>,
    /// The differences, where a comparison was made.
    pub fields: Vec<Field>,
    /// Whether it was stopped. If not, it was sent.
    pub stopped: bool,
}

/// `POST /v1/effects/ID/resolve`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resolve {
    /// It happened, and this is what equivalent calls get.
    Happened(Response),
    /// It happened; the answer is made from this body (JSON for HTTP with status 200, the text of
    /// a tool result for MCP, standard output for a command).
    HappenedWith {
        /// The body.
        body: String,
    },
    /// It did not happen.
    DidNotHappen,
}

/// `GET /v1/ca`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CaInfo {
    /// PEM file of the CA certificate.
    pub certificate: String,
    /// PEM file of the CA and the system's roots together.
    pub bundle: String,
    /// The same in Java's form (JKS).
    #[serde(default)]
    pub java: String,
    /// SHA-256 of the certificate.
    pub fingerprint: String,
    /// Variables that make runtimes trust it.
    pub environment: Vec<(String, String)>,
}

/// What every error looks like.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ApiError {
    /// One sentence: what is wrong and what to do.
    pub error: String,
    /// Which kind.
    pub code: ErrorCode,
}

/// Kinds of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The request does not read (400).
    BadRequest,
    /// The peer may not do this (403).
    Forbidden,
    /// There is no such thing (404).
    NotFound,
    /// It is not in a state that allows it (409).
    Conflict,
    /// The daemon cannot do it now (503).
    Unavailable,
}

/// `POST /v1/log/gc`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CollectGarbage {
    /// What was written before this time may go.
    pub older_than: Option<Timestamp>,
    /// The oldest may go until the log is no larger than this.
    pub max_bytes: Option<u64>,
}

/// `GET /v1/log/stats`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LogStats {
    /// Position of the last durable record.
    pub last: Seq,
    /// Position that the anchor names.
    pub anchored: Seq,
    /// Why the anchor is not being written, if it is not.
    pub anchor_trouble: Option<String>,
    /// Why no more records are taken, if none are.
    pub stopped: Option<String>,
    /// Segments of the journal.
    pub segments: u64,
    /// Effects that are running.
    pub prepared: u64,
    /// Effects in doubt.
    pub in_doubt: u64,
    /// Effects that failed.
    pub failed: u64,
    /// Observations that found no room.
    pub notes_dropped: u64,
    /// Bytes of the index on disk.
    pub index_bytes: u64,
    /// Facts that are not in the index yet; answers have them all the same.
    pub index_waiting: u64,
    /// Times that the index was rebuilt since the start.
    pub index_rebuilds: u64,
    /// Whether what look-ups of calls need has been read into memory since the start, as far as policy's
    /// `index_cache` has room for it.
    pub read_ahead: bool,
}

/// A call that was decided against an effect, in `GET /v1/effects/ID/explain`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Explained {
    /// Position of the record.
    pub position: Seq,
    /// When the call was decided.
    pub at: Timestamp,
    /// What became of it.
    pub verdict: String,
    /// How it compares to the effect.
    pub likeness: Likeness,
    /// The comparison in words.
    pub words: String,
    /// Every difference with its class and evidence.
    pub fields: Vec<Field>,
}
