//! `acrfence run`.

use std::os::unix::process::CommandExt as _;

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;

use super::{Global, on_runtime};
use crate::boundary::tls::private;
use crate::control::{self, CaInfo, Client};
use crate::words::AgentName;

#[derive(Debug, Args)]
pub(super) struct Run {
    /// Name of the agent; the command's name when absent. The same name again is the next life of
    /// the same agent.
    #[arg(long)]
    name: Option<AgentName>,
    /// Let programs that read none of the variables trust the CA as well: the agent gets a mount
    /// namespace of its own, in which the system's bundle of roots, and those of the Python
    /// environments that are found, hold the CA besides. Nothing changes outside, and what the agent
    /// mounts is not seen there. As another user than root this takes a user namespace: `sudo` does not
    /// work in it.
    #[arg(long)]
    private_trust: bool,
    /// A further file of roots (PEM) that is to hold the CA there; may be given several times.
    #[arg(long = "trust-file", value_name = "FILE", requires = "private_trust")]
    trust_files: Vec<PathBuf>,
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
    if args.private_trust {
        let mut ca: Option<CaInfo> = None;
        on_runtime(async {
            ca = Some(client.get("/v1/ca").await?);
            Ok(())
        })?;
        let ca = ca.context("the daemon did not answer")?;
        // Before the attach: what is done here is not the agent's.
        trust_privately(&ca, &global.run_dir, &args.command, &args.trust_files)?;
    }
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

/// Moves this process into a mount namespace whose bundles of roots hold the CA. Where that cannot be, it
/// is said, and the variables are all that there is.
fn trust_privately(
    ca: &CaInfo,
    stage: &Path,
    command: &[String],
    named: &[PathBuf],
) -> anyhow::Result<()> {
    let certificate = std::fs::read_to_string(&ca.certificate)
        .with_context(|| format!("cannot read the CA's certificate {}", ca.certificate))?;
    let found = private::bundles(&private::Surroundings::of_this_process(command));
    let mut files = found.files;
    for file in named {
        let file = std::fs::canonicalize(file)
            .with_context(|| format!("`--trust-file {}` cannot be used", file.display()))?;
        if !files.contains(&file) {
            files.push(file);
        }
    }
    let arranged = match private::arrange(&certificate, stage, &files) {
        Ok(arranged) => arranged,
        Err(e) => {
            eprintln!(
                "acrfence: no private trust: {e}. Programs that read none of the variables do not trust the CA, and their \
                 connections fail; `acrfence ca install` reaches them"
            );
            return Ok(());
        }
    };
    for (file, why) in &arranged.left {
        eprintln!(
            "acrfence: {} is as it is outside ({why}); programs that trust only what it holds cannot connect",
            file.display()
        );
    }
    if found.more {
        eprintln!(
            "acrfence: there are more Python environments than are looked at; name the bundles that matter with --trust-file"
        );
    }
    Ok(())
}
