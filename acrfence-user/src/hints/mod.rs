//! What agents keep about themselves: session files, checkpoint tables. Hints, never needed.
//!
//! A rewind that only words suggest becomes certain when the agent's own store shows it too
//! (DESIGN.md §8; `docs/lineage.md`). Reading is [`read`]'s, at the edge, from one process and within
//! bounds; what the bytes say is read by pure parsers into a [`Story`]; what follows from a story is
//! [`confirm`]'s alone. A store can only make its agent's fence tighter: it raises suspect to certain,
//! never lowers anything, and opens no branch.

mod claude_code;
mod codex;
mod langgraph;
mod reach;
mod read;
mod sqlite;
mod story;
mod wal;

pub use read::{TIME, read};
pub use story::{Confirmed, Forgotten, Keeper, Step, Story, Tied, Wanted, confirm};
