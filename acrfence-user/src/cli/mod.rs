//! The command line.

mod agents;
mod ca;
mod completions;
mod daemon;
mod doctor;
mod effects;
mod hooks;
pub mod judge;
mod log;
pub mod mcp;
mod opaque;
mod output;
mod policy;
mod report;
mod restore;
mod run;
mod status;
mod tree;
mod warden;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::control::{Client, ClientError};

/// Keeps a restored AI agent from doing twice what it already did outside.
///
/// Start an agent with `acrfence run -- CMD`, or attach to a running one with `acrfence attach PID`.
/// After a restore say `acrfence restored AGENT`; equal calls are then answered from the effect log,
/// different ones wait for `acrfence fork AGENT`.
#[derive(Debug, Parser)]
#[command(
    name = "acrfence",
    version,
    max_term_width = 100,
    arg_required_else_help = true,
    disable_help_subcommand = true
)]
pub struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// Options of every command.
#[derive(Clone, Debug, Args)]
pub struct Global {
    /// Directory of the daemon's sockets.
    #[arg(
        long,
        global = true,
        env = "ACRFENCE_RUN_DIR",
        default_value = "/run/acrfence",
        value_name = "DIR",
        help_heading = "Global options"
    )]
    pub run_dir: PathBuf,
    /// Print JSON, one object a line.
    #[arg(long, global = true, help_heading = "Global options")]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a command as an agent behind the fence, as the user you are.
    Run(run::Run),
    /// Put a running process and all its descendants behind the fence.
    Attach(agents::Attach),
    /// Take an agent out of the fence; it goes on.
    Detach(agents::Name),
    /// Show what the daemon does, what waits for a person and what is not fenced.
    Status,
    /// List agents.
    Agents,
    /// List effects, newest first.
    Effects(effects::Effects),
    /// Show one effect with its request and response.
    Show(effects::Id),
    /// Explain, field by field, what was decided about calls that resemble an effect.
    Explain(effects::Id),
    /// Draw an agent's threads, branches, fork points and effects.
    Tree(tree::Tree),
    /// Name this point in an agent's time, to be restored to later.
    Checkpoint(restore::Checkpoint),
    /// Say that an agent was restored, and to where.
    Restored(restore::Restored),
    /// Let a restored agent take another path: different calls run, equal ones are still answered
    /// from the log, spent credentials stay spent.
    Fork(restore::Fork),
    /// List calls that wait for a person.
    Holds,
    /// Approve a held call.
    Approve(restore::Approve),
    /// Refuse a held call.
    Deny(restore::Deny),
    /// Say what became of an effect in doubt.
    Resolve(restore::Resolve),
    /// The local certificate authority.
    Ca(ca::Ca),
    /// Check the configuration, and ask what it makes of a call. Needs no daemon and no root.
    Policy(policy::Policy),
    /// Look after the effect log.
    Log(log::Log),
    Hooks(hooks::Hooks),
    Report(report::Report),
    /// Compare recorded and new calls from a file. Needs no daemon and no root.
    Judge(judge::JudgeArgs),
    /// Say what this machine gives and what is lost without it. Needs root, no daemon.
    Doctor(doctor::Doctor),
    Mcp(mcp::Mcp),
    /// Run the daemon.
    Daemon(daemon::Run),
    /// Print a completion script for a shell.
    Completions(completions::Completions),
    #[command(hide = true)]
    GateWarden(warden::GateWarden),
}

/// Runs the command line. Prints an error as one sentence; see `docs/cli.md` for exit statuses.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let Cli { global, command } = cli;
    let done = match command {
        // These leave the process or need a runtime of their own.
        Command::Run(args) => run::run(&global, args),
        Command::Daemon(args) => return daemon::run(&global, args),
        Command::Mcp(args) => match args.run(&global) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::GateWarden(args) => args.run(),
        Command::Completions(args) => completions::run(args),
        other => on_runtime(answer(global, other)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("acrfence: {e:#}");
            ExitCode::from(
                e.downcast_ref::<ClientError>()
                    .map_or(1, ClientError::exit_status),
            )
        }
    }
}

async fn answer(global: Global, command: Command) -> anyhow::Result<()> {
    let client = Client::new(&global.run_dir);
    match command {
        Command::Attach(args) => agents::attach(&client, &global, args).await,
        Command::Detach(args) => agents::detach(&client, &global, args).await,
        Command::Status => status::status(&client, &global).await,
        Command::Agents => agents::list(&client, &global).await,
        Command::Effects(args) => effects::list(&client, &global, args).await,
        Command::Show(args) => effects::show(&client, &global, args).await,
        Command::Explain(args) => effects::explain(&client, &global, args).await,
        Command::Tree(args) => tree::tree(&client, &global, args).await,
        Command::Report(args) => report::report(&client, &global, args).await,
        Command::Hooks(args) => args.run(&client, &global).await,
        Command::Checkpoint(args) => restore::checkpoint(&client, &global, args).await,
        Command::Restored(args) => restore::restored(&client, &global, args).await,
        Command::Fork(args) => restore::fork(&client, &global, args).await,
        Command::Holds => restore::holds(&client, &global).await,
        Command::Approve(args) => restore::approve(&client, &global, args).await,
        Command::Deny(args) => restore::deny(&client, &global, args).await,
        Command::Resolve(args) => restore::resolve(&client, &global, args).await,
        Command::Ca(args) => ca::run(&client, &global, args).await,
        Command::Judge(args) => {
            let args = judge::JudgeArgs {
                json: global.json,
                ..args
            };
            judge::run(args, &mut std::io::stdout().lock()).await
        }
        Command::Doctor(args) => doctor::run(&global, args).await,
        Command::Policy(args) => policy::run(&global, args),
        Command::Log(args) => log::run(&client, &global, args).await,
        Command::Run(_)
        | Command::Daemon(_)
        | Command::Completions(_)
        | Command::Mcp(_)
        | Command::GateWarden(_) => Ok(()),
    }
}

/// Runs a future to its end on a small runtime.
fn on_runtime(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(work)
}
