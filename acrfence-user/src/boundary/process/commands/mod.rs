//! Commands that policy names: which are gated, and what it takes to record, replay or refuse one.

mod rules;
mod sql;
mod words;

pub use rules::{Rule, Rules, RulesError};
