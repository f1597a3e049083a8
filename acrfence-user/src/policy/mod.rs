//! What the operator wants: `/etc/acrfence/config.toml`, read into values and rules.
//!
//! Reading is strict: an unknown key or a bad value is an error with line and column, and a file
//! that does not read never replaces one that did.

mod classify;
mod config;
mod rule;
mod units;

#[cfg(test)]
mod tests;

pub use classify::{Kind, ToolHints, Treatment};
pub use config::{
    AnalyzerKind, AnalyzerPolicy, BoundaryPolicy, Config, ConfigError, DaemonDown, FencePolicy,
    GatePolicy, LogPolicy, Mode, OnRestart, ProbePolicy, RestoredConnections, UpstreamPolicy,
};
pub use rule::{Matcher, Rule, RuleKind};
pub use units::{Duration, Size};
