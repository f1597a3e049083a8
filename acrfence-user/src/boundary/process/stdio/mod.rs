//! The relay between an agent and a program that it talks to over pipes.
//!
//! Until the agent's first line proves to be JSON-RPC, and for ever when it does not, bytes are
//! moved and nothing else. From then on every `tools/call` is admitted before the server gets it,
//! and its answer settled before the agent gets that.

mod classify;
mod flow;
mod inbound;
mod lines;
mod outbound;
mod relay;
mod to_agent;
mod to_server;

#[cfg(test)]
mod tests;

pub use classify::{Class, classify};
pub use flow::{Broken, Sink, Source};
pub use lines::{Line, Lines};
pub use relay::{Ends, Limits, Session, Summary, relay};
