//! Lineage from the conversation: an agent's own model requests carry exactly what it remembers.
//!
//! Pure: no clock, no I/O, no async. DESIGN.md §8, 2; `docs/lineage.md`. The caller, in order:
//!
//! 1. [`recognise`]s a request and reads it with [`read_request`];
//! 2. asks [`Conversations::observe_request`], opens what [`Observed::needs`] says (a thread, a branch
//!    whose fenced set is [`Observed::absent`]), [`Observed::bind`]s, journals the [`Delta`] and
//!    [`Conversations::apply`]s it, all before the request is sent on and with no other change to the
//!    conversations in between;
//! 3. feeds the reply to a [`ReplyReader`] and does the same with [`Conversations::observe_reply`]
//!    whenever a call became whole, and at the end, before the agent sees it;
//! 4. for every tool call asks [`Conversations::place`] before the verdict, and
//!    [`Conversations::attach_effect`] once it has an [`EffectId`](crate::words::EffectId), also when
//!    an earlier effect is replayed.
//!
//! Applying all deltas in order rebuilds the same memory; [`ThreadMemory`] is a thread's snapshot.

mod again;
mod align;
mod append;
mod attach;
mod child;
mod conclude;
mod draft;
mod finding;
mod format;
#[doc(hidden)]
pub mod fuzz;
mod history;
mod ids;
mod index;
mod judge;
mod line;
mod mark;
mod memory;
mod observe;
mod outcome;
mod place;
mod read;
mod rewind;
mod session;
mod state;
mod suspect;
mod view;
mod words;

#[cfg(test)]
mod tests;

pub use again::{Alike, Done, Order, again};
pub use append::append_words;
pub use attach::{CallSeen, Placement};
pub use finding::{Attachment, Confidence, Evidence, Finding, Lost, Rewind, Shown};
pub use format::{Format, ModelTraffic, may_be_model, recognise};
pub use history::{Brought, Called, From, Piece, Reply, Said, Turned, What};
pub use ids::ProviderId;
pub use mark::{Kind as MarkKind, Mark, Marker};
pub use memory::{
    Absence, Asked, CallMemory, Delta, ResultMemory, Strand, StrandMemory, ThreadMemory, Tie,
    TurnMemory, TurnNo, decode_change, encode_change,
};
pub use observe::{Exchange, Known, Needs, Observed, Outcomes, Seen};
pub use outcome::shows_outcome;
pub use read::{
    LARGEST_BODY, ReplyReader, Unreadable, read_request, read_response, values_of_body,
};
pub use session::Session;
pub use state::{Bounds, Conversations};
