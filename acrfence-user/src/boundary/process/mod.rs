//! The process boundary: what an agent does through stdio MCP servers and commands (DESIGN.md §5).

pub mod commands;
pub mod gate;
pub mod handover;
pub mod inject;
pub mod pinned;
pub mod stdio;

pub(crate) use gate::quoted;
