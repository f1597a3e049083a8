//! Commands that policy names: which are gated, and what it takes to record, replay or refuse one.

mod answer;
mod capture;
mod input;
mod record;
mod rules;
mod run;
mod sql;
mod witness;
mod words;

pub use rules::{Rule, Rules, RulesError};

pub(crate) use run::attend;
pub(crate) use witness::Witnessed;
