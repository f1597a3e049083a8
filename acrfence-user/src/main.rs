//! The `acrfence` program.

use std::process::ExitCode;

use acrfence_user::cli::{mcp::Mcp, warden::GateWarden};
use clap::{Parser, Subcommand};

/// Keeps a restored agent from doing twice what it already did outside.
#[derive(Parser)]
#[command(version)]
struct Acrfence {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Mcp(Mcp),
    #[command(hide = true)]
    GateWarden(GateWarden),
}

fn main() -> ExitCode {
    let done = match Acrfence::parse().command {
        Command::Mcp(mcp) => mcp.run(),
        Command::GateWarden(warden) => warden.run().map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| {
        eprintln!("acrfence: {error:#}");
        ExitCode::FAILURE
    })
}
