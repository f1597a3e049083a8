//! Builds the demo and hands over to it.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::build::{self, succeed, target_dir, workspace};
use crate::toolchain::is_root;

/// How the story is told.
#[derive(clap::Args)]
pub struct Options {
    /// End with a line of JSON that says what was measured.
    #[arg(long)]
    json: bool,
}

/// Builds what the demo needs and becomes it.
pub fn run(options: &Options) -> Result<()> {
    ensure!(
        is_root(),
        "the demo loads programs into the kernel and needs root: run `sudo -E cargo xtask demo`"
    );
    build::run(&build::Options::default())?;
    succeed(Command::new(env!("CARGO")).current_dir(workspace()).args([
        "build",
        "--quiet",
        "--package",
        "acrfence-tests",
        "--bin",
        "acrfence-demo",
    ]))?;
    let mut demo = Command::new(target_dir().join("debug/acrfence-demo"));
    if options.json {
        demo.arg("--json");
    }
    // Takes this process's place, so that an interrupt reaches the demo alone, which cleans up.
    Err(demo.exec()).context("cannot start the demo")
}
