//! `acrfence mcp`: the relay that a configuration can name where exec cannot be gated, and the
//! change of configurations that puts it there.

mod codex;
pub(super) mod files;
pub(super) mod jsonc;
mod start;
mod wrap;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use serde::Serialize;

use super::Global;
use files::{Change, Configuration};
use wrap::{Relay, State};

/// Start a stdio MCP server behind the fence, or put that into configurations.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "An agent that is attached to or launched by ACRFence needs none of this: its stdio servers are gated at exec. \
                  Use it where `acrfence doctor` says that ptrace is refused."
)]
pub struct Mcp {
    #[command(subcommand)]
    action: Option<Action>,

    #[command(flatten)]
    start: Start,
}

#[derive(Debug, Args)]
struct Start {
    /// Socket on which the daemon takes pipes over, where it is not `relay.sock` in its directory.
    #[arg(long, value_name = "PATH", env = "ACRFENCE_RELAY_SOCKET")]
    socket: Option<PathBuf>,

    /// What to do where the daemon cannot be reached, or tracks no agent here.
    #[arg(long, value_enum, default_value_t = Unfenced::Refuse, value_name = "WHAT")]
    unfenced: Unfenced,

    /// Written by `mcp wrap` where a configuration named no arguments; changes nothing here.
    #[arg(long, hide = true)]
    added_args: bool,

    /// The server and its arguments.
    #[arg(last = true, required = true, value_name = "SERVER")]
    server: Vec<OsString>,
}

/// What to do with a server that cannot be fenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Unfenced {
    /// Do not start it.
    Refuse,
    /// Start it all the same.
    Run,
}

/// Where the daemon takes pipes over, in its directory.
pub const DOOR: &str = "relay.sock";

#[derive(Debug, Subcommand)]
enum Action {
    /// Put `acrfence mcp --` in front of every stdio server in configurations.
    Wrap(Wrap),
    /// Take it away again; the text is then what it was, byte for byte.
    Unwrap(Unwrap),
    /// List the servers in configurations and whether they are wrapped.
    Status(Status),
}

#[derive(Debug, Args)]
struct Wrap {
    #[command(flatten)]
    files: Files,

    /// Only show what would change.
    #[arg(long)]
    dry_run: bool,

    /// Socket that the relay shall use, where it is not the usual one.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Program that the configurations shall name.
    #[arg(long, value_name = "PATH", default_value_os_t = this_program())]
    program: PathBuf,
}

#[derive(Debug, Args)]
struct Unwrap {
    #[command(flatten)]
    files: Files,

    /// Only show what would change.
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Args)]
struct Status {
    #[command(flatten)]
    files: Files,
}

#[derive(Debug, Args)]
struct Files {
    /// Configurations; without any, those of Claude Code, Claude Desktop, Cursor, Visual Studio
    /// Code, Windsurf, Gemini CLI and Codex, of this user and of the project in this directory.
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// A line of `mcp status --json`.
#[derive(Serialize)]
struct Line<'a> {
    file: &'a Path,
    server: &'a str,
    state: State,
}

impl Mcp {
    /// Does what was asked; the exit status is the server's where one was started.
    pub fn run(self, global: &Global) -> anyhow::Result<ExitCode> {
        match self.action {
            None => self.start.run(global),
            Some(Action::Wrap(wrap)) => wrap.run(),
            Some(Action::Unwrap(unwrap)) => unwrap.run(),
            Some(Action::Status(status)) => status.run(global.json),
        }
    }
}

impl Wrap {
    fn run(self) -> anyhow::Result<ExitCode> {
        let Some(program) = self.program.to_str() else {
            bail!("the path of acrfence is not UTF-8; name another one with --program");
        };
        if self.program.file_name().and_then(|name| name.to_str()) != Some("acrfence") {
            bail!(
                "the program that configurations name must be called acrfence, so that `mcp unwrap` knows it; name one with --program"
            );
        }
        let mut options = Vec::new();
        if let Some(socket) = &self.socket {
            let socket = socket
                .to_str()
                .context("the path of the socket is not UTF-8")?;
            options.extend(["--socket".to_owned(), socket.to_owned()]);
        }
        let relay = Relay {
            program: program.to_owned(),
            options,
        };
        self.files.each(|file| {
            let change = file.wrap(&relay, !self.dry_run)?;
            show(&file.path, &change, "wrapped", self.dry_run);
            Ok(())
        })
    }
}

impl Unwrap {
    fn run(self) -> anyhow::Result<ExitCode> {
        self.files.each(|file| {
            let change = file.unwrap(!self.dry_run)?;
            show(&file.path, &change, "unwrapped", self.dry_run);
            Ok(())
        })
    }
}

impl Status {
    fn run(self, json: bool) -> anyhow::Result<ExitCode> {
        self.files.each(|file| {
            if !json {
                println!("{}", file.path.display());
            }
            for (server, state) in file.servers() {
                if json {
                    let line = Line {
                        file: &file.path,
                        server,
                        state,
                    };
                    println!("{}", serde_json::to_string(&line)?);
                } else {
                    println!("  {server}: {}", in_words(state));
                }
            }
            Ok(())
        })
    }
}

impl Files {
    /// Does something with each file; one that fails does not keep it from the others.
    fn each(
        &self,
        mut with: impl FnMut(&Configuration) -> anyhow::Result<()>,
    ) -> anyhow::Result<ExitCode> {
        let files = if self.files.is_empty() {
            let home = std::env::var_os("HOME").map(PathBuf::from);
            let here = std::env::current_dir().context("there is no current directory")?;
            let found = files::known(home.as_deref(), &here);
            if found.is_empty() {
                bail!("no configuration was found for this user or in this directory; name one");
            }
            found
        } else {
            self.files.clone()
        };
        let mut code = ExitCode::SUCCESS;
        for file in files {
            let done = Configuration::read(&file).and_then(|file| with(&file));
            if let Err(error) = done {
                eprintln!("acrfence: {error:#}");
                code = ExitCode::FAILURE;
            }
        }
        Ok(code)
    }
}

fn show(path: &Path, change: &Change, done: &str, is_dry: bool) {
    if change.servers.is_empty() {
        println!("{}: nothing to do", path.display());
        return;
    }
    print!("{}", change.diff);
    let would = if is_dry { "would be " } else { "" };
    println!(
        "{}: {would}{done}: {}",
        path.display(),
        change.servers.join(", ")
    );
    if let Some(backup) = &change.backup {
        println!("what it was is kept in {}", backup.display());
    }
}

fn in_words(state: State) -> &'static str {
    match state {
        State::Wrapped => "wrapped",
        State::Unwrapped => "not wrapped",
        State::Remote => "reached over HTTP (nothing to wrap)",
        State::Odd => "not understood, left alone",
    }
}

pub(super) fn this_program() -> PathBuf {
    std::env::current_exe().unwrap_or_else(|_| PathBuf::from("acrfence"))
}
