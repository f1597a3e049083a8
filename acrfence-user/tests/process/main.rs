//! The process boundary against the running kernel. Needs root, and fails without.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on should fail at once"
)]

#[path = "../probe/fence.rs"]
#[allow(dead_code, reason = "what the probe's own tests need is more")]
#[allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "as in the probe's own tests"
)]
mod fence;
mod gate;
mod judge;

mod commands;
mod death;
mod deny;
mod handover;
mod races;
mod servers;
mod stdio;
mod typed;
