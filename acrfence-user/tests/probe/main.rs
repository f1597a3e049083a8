//! The probe against the running kernel. Needs root, and fails without.
//!
//! Every test has a cgroup, a pin directory and listeners of its own, so they run side by side.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod connections;
mod drops;
mod exec;
mod fence;
mod redirect;
mod refusals;
mod restore;
mod takeover;
mod tree;
mod writes;
