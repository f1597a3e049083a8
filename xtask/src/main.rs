//! Chores of this repository: `cargo xtask build`, …

mod build;
mod toolchain;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Chores of the ACRFence repository.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Build the kernel programs, then the `acrfence` binary that carries them.
    Build(build::Options),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().chore {
        Chore::Build(options) => build::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cargo xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
