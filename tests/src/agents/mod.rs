//! Real agents, unmodified, from their first life through a restore to the end of the next one.

mod claude_code;
mod codex;
mod framework;
mod plain_python;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::client::{installed, plain, trusting};
use crate::fence::Fence;
use crate::model::Model;
use crate::model::relay::Api;
use crate::process::{Ended, PATIENCE, Running};
use crate::scenario::{Scenario, Wording};
use crate::testbed::{Testbed, Transport};
use crate::watch;

/// An agent, or a framework with a small program of ours.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
#[value(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "names of products")]
pub enum Agent {
    ClaudeCode,
    Codex,
    #[serde(rename = "langgraph")]
    #[value(name = "langgraph")]
    LangGraph,
    GoogleAdk,
    #[serde(rename = "openai-agents")]
    #[value(name = "openai-agents")]
    OpenAiAgents,
    LlamaIndexWorkflows,
    #[serde(rename = "crewai")]
    #[value(name = "crewai")]
    CrewAi,
    #[serde(rename = "autogen")]
    #[value(name = "autogen")]
    AutoGen,
    AiSdk,
    PydanticAi,
    PlainPython,
}

/// How an agent comes to forget.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    clap::ValueEnum,
)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Restore {
    /// It does not: one life, one task.
    None,
    /// Its session file is cut before the action, and resumed.
    Cut,
    /// Its session file is cut after the action's result, and resumed: the paper's baseline.
    CutAfter,
    /// It is killed while the action is on its way, and resumed.
    Killed,
    /// Claude Code's own way back: `--resume-session-at` and `--fork-session`.
    RewindFork,
    /// It resumes with its whole history; nothing is forgotten.
    WholeHistory,
    /// It resumes with its whole history, and the user asks for the same again.
    AskedAgain,
    /// LangGraph: an older checkpoint is invoked.
    TimeTravel,
    /// LangGraph: a crash with `durability="exit"`, which saves nothing before the end.
    ExitCrash,
    /// LangGraph: a node acts and then asks a person; it runs again from its beginning once they
    /// answered, in the same process.
    Interrupt,
    /// LangGraph: killed in the tool, resumed at the newest checkpoint with the very same call.
    Newest,
    /// The framework's own state of before the action is loaded again, in the same process.
    Rewind,
    /// The same, in a new process.
    Reload,
    /// `Cut`, three times in a row.
    CutChain,
    /// A malicious server kills it after the action and before the answer, three times; it is resumed
    /// each time.
    ToolCrash,
    /// A timer starts it three times with the same words, each time in a new session.
    Periodic,
    /// Its history is shortened by its own means, with a summary that tells what was done; then it is
    /// asked for something else.
    Compacted,
    /// The same with a summary that takes the action for one that is still to be done.
    CompactedBadly,
    /// Its process is saved with CRIU before the action, killed after it, and restored.
    Criu,
    /// The same, saved after the action: nothing is forgotten.
    CriuAfter,
}

impl Restore {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Cut => "cut",
            Self::CutAfter => "cut_after",
            Self::Killed => "killed",
            Self::RewindFork => "rewind_fork",
            Self::WholeHistory => "whole_history",
            Self::AskedAgain => "asked_again",
            Self::TimeTravel => "time_travel",
            Self::ExitCrash => "exit_crash",
            Self::Interrupt => "interrupt",
            Self::Newest => "newest",
            Self::Rewind => "rewind",
            Self::Reload => "reload",
            Self::CutChain => "cut_chain",
            Self::ToolCrash => "tool_crash",
            Self::Periodic => "periodic",
            Self::Compacted => "compacted",
            Self::CompactedBadly => "compacted_badly",
            Self::Criu => "criu",
            Self::CriuAfter => "criu_after",
        }
    }
}

impl Agent {
    /// The folder of its driver and its installation.
    pub fn name(self) -> &'static str {
        match self {
            Self::ClaudeCode => "claude-code",
            Self::Codex => "codex",
            Self::LangGraph => "langgraph",
            Self::GoogleAdk => "google-adk",
            Self::OpenAiAgents => "openai-agents",
            Self::LlamaIndexWorkflows => "llama-index-workflows",
            Self::CrewAi => "crewai",
            Self::AutoGen => "autogen",
            Self::AiSdk => "ai-sdk",
            Self::PydanticAi => "pydantic-ai",
            Self::PlainPython => "plain-python",
        }
    }

    /// Where it is installed, or why it is not.
    pub fn home(self) -> Result<PathBuf> {
        let folder = installed()?.join("agents").join(self.name());
        if let Ok(reason) = fs::read_to_string(folder.join("skipped.txt")) {
            anyhow::bail!("{}", reason.trim());
        }
        ensure!(
            folder.join("installed.txt").is_file(),
            "not installed: `cargo xtask environment --agents {}` does it",
            self.name()
        );
        Ok(folder)
    }

    /// Its version, as it is locked in what is installed under `clients`.
    pub fn version(self, clients: &Path) -> Result<String> {
        let lock = clients
            .join("agents")
            .join(self.name())
            .join("installed.txt");
        let text =
            fs::read_to_string(&lock).with_context(|| format!("reading {}", lock.display()))?;
        let package = match self {
            Self::ClaudeCode => "@anthropic-ai/claude-code",
            Self::Codex => "@openai/codex",
            Self::AiSdk => "ai",
            Self::AutoGen => "autogen-agentchat",
            Self::PydanticAi => "pydantic-ai-slim",
            // What it reaches model and service with; it is a program of our own.
            Self::PlainPython => "httpx",
            other => other.name(),
        };
        if let Ok(lock) = serde_json::from_str::<serde_json::Value>(&text) {
            let version = &lock["packages"][format!("node_modules/{package}")]["version"];
            return Ok(version.as_str().unwrap_or("unknown").into());
        }
        let begin = format!("{package}==");
        let line = text.lines().find_map(|line| line.strip_prefix(&begin));
        let version = line.and_then(|rest| rest.split_whitespace().next());
        Ok(version.unwrap_or("unknown").into())
    }

    /// Restores that it has.
    pub fn restores(self) -> &'static [Restore] {
        use Restore::*;
        match self {
            Self::ClaudeCode => &[
                None,
                Cut,
                CutAfter,
                Killed,
                RewindFork,
                WholeHistory,
                AskedAgain,
                CutChain,
                ToolCrash,
                Periodic,
                Compacted,
                CompactedBadly,
            ],
            Self::Codex => &[
                None,
                Cut,
                CutAfter,
                Killed,
                WholeHistory,
                AskedAgain,
                CutChain,
                ToolCrash,
                Periodic,
            ],
            Self::LangGraph => &[None, TimeTravel, ExitCrash, Newest, Interrupt],
            Self::GoogleAdk
            | Self::OpenAiAgents
            | Self::LlamaIndexWorkflows
            | Self::CrewAi
            | Self::AutoGen
            | Self::AiSdk
            | Self::PydanticAi => &[None, Rewind, Reload],
            Self::PlainPython => &[None, Criu, CriuAfter],
        }
    }

    /// Ways to the service that it, or our program around it, has.
    pub fn transports(self) -> &'static [Transport] {
        use Transport::*;
        match self {
            Self::ClaudeCode | Self::Codex => &[McpHttp, McpStdio, Shell],
            Self::LangGraph | Self::OpenAiAgents | Self::AiSdk | Self::PydanticAi => {
                &[Rest, McpHttp, McpStdio, Shell]
            }
            // Its agents get no tools of a stdio server here.
            Self::CrewAi => &[Rest, McpHttp, Shell],
            // The MCP client of AutoGen 0.7.5 does not import with the `mcp` 2 that it resolves to.
            Self::GoogleAdk | Self::LlamaIndexWorkflows | Self::AutoGen | Self::PlainPython => {
                &[Rest, Shell]
            }
        }
    }

    /// The API that it speaks to its model here, if that is one of those that a real model can be named for.
    pub fn speaks(self) -> Option<Api> {
        match self {
            Self::ClaudeCode | Self::PydanticAi => Some(Api::Anthropic),
            Self::LlamaIndexWorkflows => Some(Api::Ollama),
            Self::GoogleAdk => None,
            _ => Some(Api::Openai),
        }
    }

    /// Whether it answers a server that asks before it acts, in the way of MCP 2026-07-28.
    pub fn answers_questions(self) -> bool {
        matches!(self, Self::PydanticAi)
    }

    /// Lives through `restore` in `setting`.
    pub fn live(self, setting: &Setting<'_>, restore: Restore) -> Result<Lived> {
        let began = Instant::now();
        let lives = match self {
            Self::ClaudeCode => claude_code::live(setting, restore),
            Self::Codex => codex::live(setting, restore),
            Self::PlainPython => plain_python::live(setting, restore),
            framework => framework::live(framework, setting, restore),
        }?;
        let finished = lives.last().is_some_and(|life| life.ok());
        Ok(Lived {
            lives,
            finished,
            seconds: began.elapsed().as_secs_f64(),
        })
    }
}

/// What came of an agent's lives.
#[derive(Clone, Debug)]
pub struct Lived {
    /// How each life ended that was not killed.
    pub lives: Vec<Ended>,
    /// Whether the last one ended its task.
    pub finished: bool,
    /// How long they all took together.
    pub seconds: f64,
}

impl Lived {
    /// Of an agent whose model did not order the action, so that there was nothing to be restored.
    pub(crate) fn without_an_action(why: &anyhow::Error) -> Self {
        Self {
            lives: vec![Ended {
                code: None,
                signal: None,
                stdout: String::new(),
                stderr: format!("{why:#}"),
            }],
            finished: false,
            seconds: 0.0,
        }
    }
}

/// Where an agent lives, and what for.
pub struct Setting<'a> {
    /// What it is asked to do.
    pub scenario: Scenario,
    /// How openly a restored agent is sent astray.
    pub wording: Wording,
    /// The service.
    pub testbed: &'a Testbed,
    /// What it thinks with.
    pub model: &'a Model,
    /// Its home directory, empty at first.
    pub home: &'a Path,
    /// Under which name it runs behind the fence, if there is one.
    pub fence: Option<(&'a Fence, &'a str)>,
    /// How it comes behind the fence.
    pub joins: Joins,
    /// How long a life may take.
    pub patience: Duration,
}

/// How an agent comes behind the fence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Joins {
    /// It is started by `acrfence run`, which tells it what to trust.
    #[default]
    Launched,
    /// It runs already, without a word about a fence, and somebody attaches to it. What it starts after
    /// that is behind the fence.
    Attached,
}

impl Setting<'_> {
    /// Starts a life. Without a fence it trusts the testbed's authority by the variables that runtimes
    /// read; with one it gets what `acrfence run` gives.
    fn start(&self, name: &str, command: Command) -> Result<Running> {
        if let (Some((fence, agent)), Joins::Attached) = (self.fence, self.joins) {
            return attach(fence, agent, name, &command);
        }
        let mut life = Running::start(name, &mut self.fenced(command)?)?;
        life.close_stdin();
        Ok(life)
    }

    /// `command` as it is run with a fence, or without one.
    fn fenced(&self, command: Command) -> Result<Command> {
        match self.fence {
            Some((fence, agent)) => fence.launch(agent, &command),
            None => Ok(trusting(command, &self.testbed.authority().root())),
        }
    }

    /// A life to its end.
    fn run(&self, name: &str, command: Command) -> Result<Ended> {
        self.start(name, command)?.finish_in(self.patience)
    }

    /// A life that is killed, with all its processes, while its action is on its way: the effect has
    /// happened, and `noted` says that the agent's own files tell of the call.
    fn run_until_killed(
        &self,
        name: &str,
        command: Command,
        noted: impl Fn() -> bool,
    ) -> Result<()> {
        let mut hold = self.testbed.hold()?;
        let mut life = self.start(name, command)?;
        let killable = hold
            .wait(PATIENCE)
            .and_then(|()| watch::until(self.home, PATIENCE, noted));
        if let Err(why) = killable {
            drop(hold);
            let ended = life.finish()?;
            return Err(why.context(format!("{}\n{}", ended.stdout, ended.stderr)));
        }
        life.kill_tree()
    }

    /// What a restored agent is told.
    fn again(&self) -> &'static str {
        self.scenario.again(self.wording)
    }

    /// Waits for the next tick of a timer. Its period is longer than the daemon's windows, which such
    /// cells make short.
    fn tick(&self) {
        std::thread::sleep(TICK);
    }

    /// A command in the agent's home with a small environment.
    fn command(&self, program: &Path) -> Command {
        let mut command = plain(program);
        command.env("HOME", self.home).current_dir(self.home);
        command
    }
}

/// Starts a life as a process that runs when somebody attaches to it, and goes on as the agent.
fn attach(fence: &Fence, agent: &str, name: &str, command: &Command) -> Result<Running> {
    let mut waiting = plain("/bin/sh");
    waiting
        .args([
            "-c",
            "echo ready; read -r go; exec \"$@\" < /dev/null",
            "sh",
        ])
        .arg(command.get_program())
        .args(command.get_args());
    for (variable, value) in command.get_envs() {
        match value {
            Some(value) => waiting.env(variable, value),
            None => waiting.env_remove(variable),
        };
    }
    if let Some(dir) = command.get_current_dir() {
        waiting.current_dir(dir);
    }
    fence.place().cgroup().enter(&mut waiting)?;
    let mut life = Running::start(name, &mut waiting)?;
    life.wait_for("ready")?;
    fence.say(&["attach", &life.id().to_string(), "--name", agent])?;
    life.tell("go")?;
    life.close_stdin();
    Ok(life)
}

/// Period of a timer that starts an agent.
const TICK: Duration = Duration::from_secs(3);

/// How many times a restored agent is restored again in a chain.
pub const CHAIN: u32 = 3;

/// Lines of a JSON lines file.
fn json_lines(path: &Path) -> Result<Vec<serde_json::Value>> {
    fs::read_to_string(path)
        .with_context(|| format!("reading {}", path.display()))?
        .lines()
        .map(|line| serde_json::from_str(line).with_context(|| format!("{line} is no JSON")))
        .collect()
}

/// The one file under `directory` that `wanted` likes.
fn find(directory: &Path, wanted: &dyn Fn(&Path) -> bool) -> Result<PathBuf> {
    let mut open = vec![directory.to_path_buf()];
    while let Some(directory) = open.pop() {
        for entry in
            fs::read_dir(&directory).with_context(|| format!("reading {}", directory.display()))?
        {
            let path = entry?.path();
            if path.is_dir() {
                open.push(path);
            } else if wanted(&path) {
                return Ok(path);
            }
        }
    }
    anyhow::bail!("{} has no such file", directory.display())
}
