//! Chores of this repository: `cargo xtask build`, …

mod agents;
mod arm;
mod bench;
mod build;
mod criu;
mod debian;
mod demo;
mod environment;
mod eval;
mod judge;
mod kernels;
mod licences;
mod local_model;
mod test;
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
    /// Check that library and binary compile for aarch64.
    Aarch64,
    /// Measure, beside the floor of the same machine in the same run.
    Bench(bench::Options),
    /// Build the kernel programs, then the `acrfence` binary that carries them.
    Build(build::Options),
    /// Tell the story of a restored agent, without the fence and with it.
    Demo(demo::Options),
    /// Install the clients that the end-to-end tests talk through.
    Environment(environment::Options),
    /// Run real agents through restores, with and without the fence, and count what was done.
    Eval(eval::Options),
    /// Run tests inside other kernels, in software emulation.
    Kernels(kernels::Options),
    /// Check that every dependency may be shipped.
    Licences(licences::Options),
    /// Run every check that a change must pass.
    Test(test::Options),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().chore {
        Chore::Aarch64 => arm::set_up().and_then(|cross| arm::check(&cross)),
        Chore::Bench(options) => bench::run(&options),
        Chore::Build(options) => build::run(&options),
        Chore::Demo(options) => demo::run(&options),
        Chore::Environment(options) => environment::run(&options),
        Chore::Eval(options) => eval::run(&options),
        Chore::Kernels(options) => kernels::run(&options),
        Chore::Licences(options) => licences::run(&options),
        Chore::Test(options) => test::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cargo xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
