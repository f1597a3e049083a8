//! The effect log: what happened, durably.
//!
//! The journal is the truth; the index (sled) answers questions and can be rebuilt from it. Both
//! stand behind [`EffectLog`], so that a shared store could (DESIGN.md §11).

mod event;
#[doc(hidden)]
pub mod fuzz;
#[doc(hidden)]
pub mod index;
#[doc(hidden)]
pub mod journal;
#[cfg(test)]
pub(crate) mod model;
mod query;
#[cfg(test)]
mod samples;
mod store;
#[cfg(test)]
mod tests;

pub use event::{Event, Harvest, HoldDecision, Prepared};
pub use query::{CandidateRow, CredentialHistory, EffectFilter, EffectRow, Page};

pub use journal::Fault;
pub use store::{
    Content, ExportFilter, GcKeep, GcPolicy, GcReport, OpenReport, Phase, Progress, Store,
    StoreConfig, StoreStats, Verification, usual_key_file,
};

use crate::words::{Effect, EffectId, Fingerprint, Seq, ThreadId, ToolKey};

/// Why the log could not do something. Every message says what to do next.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// No room for the record, or for the outcome it must be able to take later. Nothing was written.
    #[error(
        "the effect log has no room left ({detail}); free space under the state directory, new effects are refused until then"
    )]
    Full {
        /// How much is missing and where.
        detail: String,
    },
    /// A write or sync failed: what the disk holds is unknown, so the log takes nothing more.
    #[error(
        "the effect log could not reach the disk ({detail}); it takes no more records until the daemon is restarted on a healthy disk"
    )]
    Stopped {
        /// The first error.
        detail: String,
    },
    /// What was read is not what was written.
    #[error("the effect log is damaged at {place}: {detail}; run `acrfence log verify`")]
    Corrupt {
        /// Segment and offset, or index tree and key.
        place: String,
        /// What is wrong.
        detail: String,
    },
    /// It is not the newest one known: restored from a backup or a snapshot, or its anchor is gone.
    /// Enforcing with it would let effects happen twice.
    #[error(
        "the effect log was rolled back ({detail}); put the newest journal and its anchor back, or, when they are lost, accept that with `acrfence log accept-rollback`"
    )]
    RolledBack {
        /// What does not fit.
        detail: String,
    },
    /// It cannot be opened as it is.
    #[error("{0}")]
    Unusable(String),
}

/// The promises of DESIGN.md §7, whatever stands behind them.
///
/// Reading methods see everything appended before them, also what the index has not taken in yet.
#[async_trait::async_trait]
pub trait EffectLog: Send + Sync + 'static {
    /// Writes `event` and returns its position once it is on disk.
    ///
    /// For [`Event::Prepared`], room for the outcome is reserved first; an outcome therefore does
    /// not fail with [`LogError::Full`].
    ///
    /// Dropping the returned future does not take the record back. A *prepared* record whose writer
    /// went away before it was answered was not sent, and is settled as failed by the log itself.
    async fn append(&self, event: Event) -> Result<Seq, LogError>;

    /// Writes `event` in order with the others without waiting for the disk. For what may be lost
    /// in a crash without breaking a promise (observations), and for outcomes noted while dropping.
    fn note(&self, event: Event);

    /// One effect, with its bodies.
    fn effect(&self, id: EffectId) -> Result<Option<Effect>, LogError>;

    /// A page of effects, newest first unless the filter says otherwise.
    fn effects(&self, filter: &EffectFilter) -> Result<Page<EffectRow>, LogError>;

    /// Effects of `thread` under `key` with an id below `before`, oldest first: what a new call
    /// could be the same as. Failed effects are left out.
    fn candidates(
        &self,
        thread: ThreadId,
        key: &ToolKey,
        before: Seq,
    ) -> Result<Vec<CandidateRow>, LogError>;

    /// Where a credential was issued and who presented it.
    fn credential(&self, fingerprint: Fingerprint) -> Result<CredentialHistory, LogError>;

    /// The position at which a value (by its keyed hash, see [`Harvest`]) was first seen in `thread`.
    fn first_seen(&self, thread: ThreadId, value: u64) -> Result<Option<Seq>, LogError>;

    /// Everything that lineage and holds are folded from at start, in order: incarnations, threads,
    /// branches, checkpoints, replays, holds, resolutions, lost outcomes. Of replays and resolutions
    /// the call and the response are left out (they are placeholders): a fold does not look at them.
    fn lineage_events(&self) -> Result<Vec<(Seq, Event)>, LogError>;

    /// Calls that were not let through (or, in observe mode, would not have been), in order: at most
    /// `limit` of those behind `after`.
    fn refusals(&self, after: Seq, limit: usize) -> Result<Vec<(Seq, Event)>, LogError>;

    /// What was decided against an effect and said of it, in order: replays, refusals, holds,
    /// questions and answers, resolutions.
    fn history(&self, effect: EffectId) -> Result<Vec<(Seq, Event)>, LogError>;

    /// Effects that records behind `after` began or changed, in order, and up to where that is all: each
    /// as it was then, or, for records of long ago, as it is now; a text is looked for in what is recorded
    /// now. `limit`, `after` and the order of the filter do not count.
    fn changes(&self, after: Seq, filter: &EffectFilter)
    -> Result<(Vec<EffectRow>, Seq), LogError>;

    /// Effects that are still `prepared`, oldest first: at start, those a dead daemon left.
    fn unsettled(&self) -> Result<Vec<EffectId>, LogError>;

    /// Position of the last record that is on disk.
    fn head(&self) -> Seq;

    /// That position, and a channel that reports each later one once it is on disk.
    fn follow(&self) -> (Seq, tokio::sync::broadcast::Receiver<Seq>);
}
