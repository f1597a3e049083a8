//! What the operator wants: `/etc/acrfence/config.toml`, read into values and rules.
//!
//! Reading is strict: an unknown key or a bad value is an error with line and column, and a file
//! that does not read never replaces one that did.

mod classify;
mod config;
#[doc(hidden)]
pub mod fuzz;
mod in_doubt;
mod inquire;
mod opaque;
mod places;
mod rule;
mod template;
mod units;

#[cfg(test)]
mod tests;

pub use classify::{Kind, ToolHints, Treatment};
pub use config::{
    AnalyzerKind, AnalyzerPolicy, BoundaryPolicy, Config, ConfigError, DaemonDown, FencePolicy,
    GatePolicy, LogPolicy, Mode, OnRestart, ProbePolicy, Redact, RestoredConnections,
    UpstreamPolicy,
};
pub use in_doubt::{InDoubt, Query, Resend, Statuses, Tells};
pub use inquire::{Finding, Plan};
pub use opaque::{AfterRestore, ClassRule, OpaqueTo, Opaqueness, class_of};
pub use rule::{Matcher, Rule, RuleKind};
pub use template::Template;
pub use units::{Duration, Size};
