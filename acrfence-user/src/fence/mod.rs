//! The fence: decides what happens to a call. Pure: values in, a decision out.

mod decide;
mod key;
mod outcome;
mod refusal;
pub mod token;

#[cfg(test)]
mod tests;

pub use decide::{
    Candidate, CompactedRule, Decision, HoldReason, Rules, Situation, Spent, SuspectRule,
    Unmatched, decide,
};
pub use key::tool_key;
pub use outcome::{asks_for_input, outcome_of, status_of};
pub use refusal::{Earlier, refusal};
