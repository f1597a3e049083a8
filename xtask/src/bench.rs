//! Measures, in a release build. Every benchmark prints the floor it measured in the same run.

use std::process::Command;

use anyhow::Result;

use crate::build::{self, workspace};

/// What to measure.
#[derive(clap::Args)]
pub struct Options {
    /// Which benchmark.
    #[arg(value_enum)]
    what: What,
    /// Arguments of the benchmark itself, after `--`.
    #[arg(last = true)]
    arguments: Vec<String>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum What {
    /// The effect log: appends beside raw append + fdatasync, look-ups, start-up, rebuild.
    Log,
    /// The comparison of two calls.
    Compare,
    /// The exec gate: starting programs with a daemon and without. Needs root.
    Gate,
}

/// Builds what the benchmark embeds, then runs it.
pub fn run(options: &Options) -> Result<()> {
    build::run(&build::Options::default())?;
    let bench = match options.what {
        What::Log => "effect_log",
        What::Compare => "compare",
        What::Gate => "gate",
    };
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
