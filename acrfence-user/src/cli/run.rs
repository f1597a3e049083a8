//! `acrfence run`.

use std::os::unix::process::CommandExt as _;

use anyhow::Context as _;
use clap::Args;

use super::{Global, on_runtime};
use crate::control::{self, Client};
use crate::words::AgentName;

#[derive(Debug, Args)]
pub(super) struct Run {
    /// Name of the agent; the command's name when absent. The same name again is the next life of
    /// the same agent.
    #[arg(long)]
    name: Option<AgentName>,
    /// The command and its arguments.
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

/// Has this very process attached, then becomes the command: so it runs as the calling user, in the
/// caller's terminal and environment, and is behind the fence from its first instruction.
pub(super) fn run(global: &Global, args: Run) -> anyhow::Result<()> {
    let [program, rest @ ..] = args.command.as_slice() else {
        anyhow::bail!("name a command to run: `acrfence run -- CMD ARGS…`");
    };
    let base = program.rsplit('/').next().unwrap_or(program);
    let name = match args.name {
        Some(name) => name,
        None => base
            .parse()
            .map_err(|e| anyhow::anyhow!("{e}; give a name with --name"))?,
    };
    let wanted = control::Attach {
        pid: std::process::id(),
        name: Some(name),
        launch: true,
        command: args.command.clone(),
        cut: false,
    };
    let client = Client::new(&global.run_dir);
    let mut attached: Option<control::Attached> = None;
    on_runtime(async {
        attached = Some(client.post("/v1/agents", &wanted).await?);
        Ok(())
    })?;
    let attached = attached.context("the daemon did not answer")?;
    for note in &attached.notes {
        eprintln!("acrfence: {note}");
    }
    let failed = std::process::Command::new(program)
        .args(rest)
        .envs(attached.environment)
        .exec();
    Err(anyhow::Error::new(failed).context(format!("cannot run `{program}`")))
}
