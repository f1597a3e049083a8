//! Builds what the evaluation needs and hands over to it.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::build::{self, succeed, target_dir, workspace};
use crate::environment;
use crate::toolchain::is_root;

/// What to run.
#[derive(clap::Args)]
pub struct Options {
    /// Agents to install first, by the names of the folders in `tests/agents`; what cannot be
    /// installed is reported as not run.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "NAMES",
        default_value = "all"
    )]
    install: Vec<String>,
    /// Arguments of the evaluation itself, after `--`; `-- --help` tells which.
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// Installs and builds, and becomes the evaluation.
pub fn run(options: &Options) -> Result<()> {
    ensure!(
        is_root(),
        "the evaluation loads programs into the kernel and needs root: run `sudo -E cargo xtask eval`"
    );
    environment::run(&environment::Options::with_agents(options.install.clone()))?;
    build::run(&build::Options::default())?;
    succeed(Command::new(env!("CARGO")).current_dir(workspace()).args([
        "build",
        "--quiet",
        "--package",
        "acrfence-tests",
        "--bins",
    ]))?;
    let mut eval = Command::new(target_dir().join("debug/acrfence-eval"));
    eval.current_dir(workspace()).args(&options.arguments);
    // Takes this process's place, so that an interrupt reaches the evaluation alone.
    Err(eval.exec()).context("cannot start the evaluation")
}
