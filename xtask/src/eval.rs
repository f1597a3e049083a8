//! Builds what the evaluation needs and hands over to it.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::build::{self, succeed, target_dir, workspace};
use crate::environment;
use crate::local_model::{LocalModel, Uses};
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
    /// Use a small real model instead of the scripted one, served on this machine: the largest that can
    /// be had, or this one. Downloads the model and a server for it into the cache. (For a model that is
    /// served elsewhere, see `-- --help`.)
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "")]
    local_model: Option<String>,
    /// Threads of that model.
    #[arg(long, value_name = "N", default_value_t = 2)]
    threads: usize,
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
    if let Some(wanted) = &options.local_model {
        let wanted = (!wanted.is_empty()).then_some(wanted.as_str());
        let model = LocalModel::start(wanted, options.threads, Uses::Agents)?;
        eprintln!("the model is {}, at {}", model.name, model.url);
        eval.args(["--model-url", &model.url, "--model-name", model.name]);
        return succeed(&mut eval);
    }
    // Takes this process's place, so that an interrupt reaches the evaluation alone.
    Err(eval.exec()).context("cannot start the evaluation")
}
