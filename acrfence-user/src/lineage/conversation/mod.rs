//! Lineage from the conversation: an agent's own model requests carry exactly what it remembers.
//!
//! Pure: no clock, no I/O, no async. The caller reads requests and replies with [`read_request`] and
//! [`ReplyReader`], asks [`Conversations`] what they tell, journals the [`Delta`]s it gets, and
//! applies them. Applying all deltas in order rebuilds the same memory. DESIGN.md §8, 2.

mod align;

mod attach;
mod child;
mod conclude;
mod draft;
mod finding;
mod format;
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

pub use attach::{CallSeen, Placement};
pub use finding::{Attachment, Confidence, Evidence, Finding, Lost, Rewind, Shown};
pub use format::{Format, ModelTraffic, recognise};
pub use history::{Brought, Called, From, Piece, Reply, Said, Turned, What};
pub use ids::ProviderId;
pub use mark::{Kind as MarkKind, Mark, Marker};
pub use memory::{
    Absence, Asked, CallMemory, Delta, ResultMemory, Strand, StrandMemory, ThreadMemory, Tie,
    TurnMemory, TurnNo,
};
pub use observe::{Exchange, Known, Needs, Observed, Outcomes, Seen};
pub use outcome::shows_outcome;
pub use read::{
    LARGEST_BODY, ReplyReader, Unreadable, read_request, read_response, values_of_body,
};
pub use session::Session;
pub use state::{Bounds, Conversations};
