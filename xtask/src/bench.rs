//! Measures speed, in a release build, and how right the comparison is. Every benchmark of speed prints
//! the floor it measured in the same run.

use std::process::Command;

use anyhow::Result;

use crate::build::{self, workspace};
use crate::judge;

/// What to measure.
#[derive(clap::Args)]
pub struct Options {
    /// Which benchmark.
    #[arg(value_enum)]
    what: What,
    #[command(flatten)]
    judge: judge::JudgeOptions,
    /// Arguments of the benchmark itself (of `acrfence judge`), after `--`.
    #[arg(last = true)]
    arguments: Vec<String>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum What {
    /// The effect log: appends beside raw append + fdatasync, look-ups, start-up, rebuild.
    Log,
    /// The comparison of two calls: how fast it is.
    Compare,
    /// The comparison of two calls: how right it is, with a real small model and beside simpler
    /// methods. Downloads the model and a server for it into the cache.
    Judge,
    /// The exec gate: starting programs with a daemon and without. Needs root.
    Gate,
}

/// Builds what the benchmark embeds, then runs it.
pub fn run(options: &Options) -> Result<()> {
    let bench = match options.what {
        What::Log => "effect_log",
        What::Compare => "compare",
        What::Judge => return judge::run(&options.judge, &options.arguments),
        What::Gate => "gate",
    };
    build::run(&build::Options::default())?;
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .current_dir(workspace())
        .args([
            "bench",
            "--package",
            "acrfence-user",
            "--bench",
            bench,
            "--",
        ])
        .args(&options.arguments);
    build::succeed(&mut cargo)
}
