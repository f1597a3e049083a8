//! Lineage: places every call in a thread and a branch, and says what a branch does not remember.
//!
//! Pure. The state is a fold over the journal ([`Lineage::apply`]); every question is answered from
//! it. The one rule that everything stands on is [`Lineage::fenced`].

pub mod conversation;
mod dumps;
mod fold;
mod shown;
mod target;
mod timeline;
mod tree;

#[cfg(test)]
mod tests;

pub use dumps::ImageSeen;
pub use fold::{AgentLine, Life, Lineage};
pub use target::{RestoreTarget, TargetError};
pub use timeline::{Executed, Fenced};
pub use tree::{AgentTree, BranchTree, ThreadTree};
