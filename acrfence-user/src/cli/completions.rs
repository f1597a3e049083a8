//! `acrfence completions`.

use clap::{Args, CommandFactory as _};

#[derive(Debug, Args)]
pub(super) struct Completions {
    /// Which shell.
    shell: clap_complete::Shell,
}

pub(super) fn run(args: Completions) -> anyhow::Result<()> {
    clap_complete::generate(
        args.shell,
        &mut super::Cli::command(),
        "acrfence",
        &mut std::io::stdout(),
    );
    Ok(())
}
