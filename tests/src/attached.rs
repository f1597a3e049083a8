//! Agents that were started without a word about ACRFence, and attached to while they ran.

use std::process::Command;

use anyhow::{Context as _, Result};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::client::{bare_python, python};
use crate::fence::Fence;
use crate::process::Running;

/// An agent that does what it is told, line by line.
pub struct Attached(Running);

/// What a shell tool gives the model.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Ran {
    /// Exit status.
    pub status: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// What an MCP client gives the model.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Told {
    /// Whether it is an error.
    pub is_error: bool,
    /// The text.
    pub text: String,
}

impl Attached {
    /// Starts a command that says `ready`, in the control group of `fence` but without it.
    pub fn start(fence: &Fence, mut command: Command) -> Result<Self> {
        fence.place().cgroup().enter(&mut command)?;
        let mut running = Running::start("an agent", &mut command)?;
        running.wait_for("ready")?;
        Ok(Self(running))
    }

    /// Starts it, and attaches to it as `name`.
    pub fn attach(fence: &Fence, name: &str, command: Command) -> Result<Self> {
        let agent = Self::start(fence, command)?;
        fence.say(&["attach", &agent.0.id().to_string(), "--name", name])?;
        Ok(agent)
    }

    /// An agent with a shell tool.
    pub fn with_shell(fence: &Fence, name: &str) -> Result<Self> {
        Self::attach(fence, name, bare_python("shell_agent.py", &[])?)
    }

    /// Lets it use its shell tool.
    pub fn sh(&mut self, command: &str) -> Result<Ran> {
        self.ask(&json!(command))
    }

    /// Lets it call a tool of its MCP server.
    pub fn tool(&mut self, tool: &str, arguments: Value) -> Result<Told> {
        self.ask(&json!({"tool": tool, "arguments": arguments}))
    }

    /// Lets it call a tool, and does not wait.
    pub fn call(&mut self, tool: &str, arguments: Value) -> Result<()> {
        let call = json!({"tool": tool, "arguments": arguments});
        self.0.tell(&call.to_string())
    }

    fn ask<T: serde::de::DeserializeOwned>(&mut self, what: &Value) -> Result<T> {
        self.0.tell(&what.to_string())?;
        let answer = self.0.wait_for("answer ")?;
        serde_json::from_str(&answer).with_context(|| format!("it said: {answer}"))
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// `kill -9`.
    pub fn kill(mut self) -> Result<()> {
        self.0.kill()
    }
}

/// The command of an agent with a stdio server, in a Python environment of `tests/clients`.
pub fn stdio_agent(environment: &str, server: &Command) -> Result<Command> {
    let mut command = python(environment, "stdio_agent.py", &[])?;
    command.arg(server.get_program()).args(server.get_args());
    Ok(command)
}
