//! Equivalent or not? (DESIGN.md §10)
//!
//! [`compare`] is pure: it decodes what the wire hides, aligns the two calls by path, and gives
//! every difference a class with its evidence. [`Llm`] may afterwards settle what stayed *prose*.
//! [`credential`] finds secrets in calls, [`harvest`] tells the effect log what a message told.

pub mod baseline;
mod compare;
pub mod credential;
mod decode;
mod evidence;
mod explain;
pub mod fuzz;
pub mod harvest;
pub mod judge;
mod llm;
mod naming;
mod normal;
mod notes;
pub mod pairs;
mod prose;
pub mod report;
pub mod shape;
mod text;
mod value;

pub use compare::Opened;
pub use evidence::{Evidence, Note, NoteKind, Nothing, Provenance, ToolSchema, Transcript};
pub use explain::{explain, headline, line};
pub use harvest::value_hash;
pub use llm::{Llm, LlmHealth, LlmSettings, Settled};

use crate::words::{Comparison, Request, Response};

/// Whether `restored` means the same effect as `recorded`, which was answered with `answer`.
///
/// Pure. Both requests must be in the same form: if the recorded one went through
/// [`credential::redact`], so must the restored one, with the same key.
pub fn compare(
    recorded: &Request,
    answer: Option<&Response>,
    restored: &Request,
    evidence: &Evidence<'_>,
) -> Comparison {
    examine(recorded, answer, restored, evidence).comparison
}

/// [`compare`], together with the texts that only a reader of prose could settle.
pub fn examine(
    recorded: &Request,
    answer: Option<&Response>,
    restored: &Request,
    evidence: &Evidence<'_>,
) -> Examination {
    compare::examine(
        &Opened::new(recorded),
        answer,
        &Opened::new(restored),
        evidence,
    )
}

/// [`examine`] for calls that are compared with many: an [`Opened`] call is decoded once.
pub fn examine_opened(
    recorded: &Opened<'_>,
    answer: Option<&Response>,
    restored: &Opened<'_>,
    evidence: &Evidence<'_>,
) -> Examination {
    compare::examine(recorded, answer, restored, evidence)
}

/// What a text of a server (an answer, a help page) says about a field. For a [`Provenance`] that
/// keeps such texts; only those of the compared call's own server may be asked.
pub fn notes_about(text: &str, field: &str) -> Vec<Note> {
    notes::of_text(text, field)
}

/// The texts of an answer in which [`notes_about`] may find something.
pub fn answer_texts(answer: &Response) -> Vec<String> {
    harvest::texts(answer)
}

/// A comparison and what it left open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Examination {
    /// The answer so far.
    pub comparison: Comparison,
    /// Texts that may say the same in other words. All other differences are decided.
    pub residue: Vec<Residue>,
    /// Whether the caller made the request anew: it orders something, and the reference or idempotency
    /// key that it made up for that is another one. A clock, a signature, a trace, the id of a JSON-RPC
    /// message or a token that changed says nothing of the kind.
    pub made_anew: bool,
}

/// One text that may say the same in other words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Residue {
    /// Index into [`Comparison::fields`].
    pub field: usize,
    /// Text in the recorded call, whole.
    pub recorded: String,
    /// Text in the restored call, whole.
    pub restored: String,
}
