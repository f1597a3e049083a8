//! The words of the design, as types.
//!
//! Everything here is plain data: no clock, no I/O, no async. Rooms talk to each other in these
//! types, and the journal keeps them (CBOR), so a field may be added (with `serde(default)`) but
//! never change its meaning.

mod body;
mod branch;
mod call;
mod command;
mod effect;
mod ids;
mod opaque;
mod origin;
mod verdict;

pub use body::{Body, Digest, Header};
pub use branch::{
    Absent, Branch, Cause, Checkpoint, Forgotten, ForkPoint, Grade, Image, Incarnation,
    IncarnationCause, Saved, Thread,
};
pub use call::{
    Ending, ExecRequest, ExecResponse, HttpRequest, HttpResponse, McpRequest, McpResponse, Request,
    Response, ToolCall, ToolKey, Transport,
};
pub use command::{ExitStatus, Ran, RanEnd};
pub use effect::{Effect, Fingerprint, Outcome, Resolution, Status};
pub use ids::{
    AgentName, BranchId, EffectId, HoldId, IdError, ProcessIdentity, Seq, ThreadId, Timestamp,
};
pub use opaque::{Opaque, OpaqueClass, OpaqueStep};
pub use origin::{Connection, Origin};
pub use verdict::{Comparison, Field, FieldClass, Likeness, Refusal, RefusalCode, Verdict};
