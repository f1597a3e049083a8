//! What the end-to-end tests and the demo stand on: throw-away services with a certificate
//! authority of their own, drivers for unmodified clients, and a daemon that leaves nothing behind.
//!
//! Nothing here reaches into the daemon: it is built, started and asked the way a person would.

pub mod agents;
pub mod approval;
pub mod attached;
pub mod authority;
pub mod bank;
pub mod cgroup;
pub mod client;
pub mod cloud;
pub mod container;
pub mod criu;
pub mod door;
pub mod evaluation;
pub mod fence;
pub mod ledger;
pub mod mcp;
pub mod model;
pub mod odd;
pub mod orders;
pub mod pace;
pub mod postgres;
pub mod process;
pub mod repository;
pub mod scenario;
pub mod screen;
pub mod server;
pub mod story;
pub mod testbed;
pub mod watch;
pub mod wire;

/// How often to repeat what only sometimes goes wrong: `few` times, or ten times as often when
/// `cargo xtask test --full` asks for it.
pub fn rounds(few: usize) -> usize {
    let full = std::env::var_os("ACRFENCE_FULL").is_some_and(|value| value == "1");
    if full { few * 10 } else { few }
}
