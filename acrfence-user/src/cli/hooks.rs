//! `acrfence hooks`: lets an agent that has hooks say when it was resumed.
//!
//! A hook runs inside the agent's tree. It may say that the agent was restored, which only ever
//! tightens the fence; what the resumed agent still remembers, its next model request shows.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use clap::{Args, Subcommand, ValueEnum};
use serde::Deserialize;

use super::Global;
use super::mcp::files::{difference, rewrite};
use super::mcp::jsonc::{Node, Value};
use super::output::line;
use crate::control::{self, Client, Myself, Opened};

/// Let an agent's own hooks say when it was resumed.
#[derive(Debug, Args)]
pub(super) struct Hooks {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Put the hook into an agent's settings.
    Install(Change),
    /// Take it out again.
    Uninstall(Change),
    /// What the hook runs: reads the agent's event from standard input.
    #[command(hide = true)]
    Event(Event),
}

/// Agents with hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Agent {
    /// Claude Code: `SessionStart` of a session that is resumed.
    Claude,
}

#[derive(Debug, Args)]
struct Change {
    /// Whose settings.
    #[arg(value_enum)]
    agent: Agent,
    /// The settings; without it those of this user (~/.claude/settings.json).
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Only show what would change.
    #[arg(long)]
    dry_run: bool,
    /// Program that the hook shall run.
    #[arg(long, value_name = "PATH", default_value_os_t = super::mcp::this_program())]
    program: PathBuf,
}

#[derive(Debug, Args)]
struct Event {
    /// Whose event.
    #[arg(value_enum)]
    agent: Agent,
}

/// Ends every command that a hook of ours runs.
const OURS: &str = "hooks event claude";

impl Hooks {
    pub(super) async fn run(self, client: &Client, global: &Global) -> anyhow::Result<()> {
        match self.action {
            Action::Install(change) => change.install(global),
            Action::Uninstall(change) => change.uninstall(),
            Action::Event(event) => {
                // An agent must not stumble over its fence's hook: what it says is a hint.
                if let Err(e) = event.tell(client).await {
                    tracing::debug!("the hook said nothing: {e:#}");
                }
                Ok(())
            }
        }
    }
}

impl Change {
    fn path(&self) -> anyhow::Result<PathBuf> {
        if let Some(file) = &self.file {
            return Ok(file.clone());
        }
        let home =
            std::env::var_os("HOME").context("HOME is not set; name the file with --file")?;
        let Agent::Claude = self.agent;
        Ok(PathBuf::from(home).join(".claude/settings.json"))
    }

    fn install(&self, global: &Global) -> anyhow::Result<()> {
        let path = self.path()?;
        let mut command = format!("\"{}\"", self.program.display());
        if global.run_dir != Path::new("/run/acrfence") {
            command.push_str(&format!(" --run-dir \"{}\"", global.run_dir.display()));
        }
        command.push_str(&format!(" {OURS}"));
        if !path.exists() {
            let text = format!("{{{}}}\n", section(&command));
            line(&difference(&path, "", &text))?;
            if !self.dry_run {
                if let Some(dir) = path.parent() {
                    std::fs::create_dir_all(dir)
                        .with_context(|| format!("{} cannot be made", dir.display()))?;
                }
                std::fs::write(&path, text)
                    .with_context(|| format!("{} cannot be written", path.display()))?;
            }
            return Ok(());
        }
        self.change(&path, |text| with_hook(text, &command))
    }

    fn uninstall(&self) -> anyhow::Result<()> {
        let path = self.path()?;
        self.change(&path, without_hook)
    }

    fn change(
        &self,
        path: &Path,
        edit: impl FnOnce(&str) -> anyhow::Result<String>,
    ) -> anyhow::Result<()> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("{} cannot be read", path.display()))?;
        let changed =
            edit(&text).with_context(|| format!("{} was left as it is", path.display()))?;
        if changed == text {
            return line(&format!("{}: nothing to change.", path.display()));
        }
        line(difference(path, &text, &changed).trim_end())?;
        if !self.dry_run {
            let backup = rewrite(path, &text, &changed)?;
            line(&format!("What it was is kept in {}.", backup.display()))?;
        }
        Ok(())
    }
}

#[derive(Deserialize)]
struct SessionStart {
    #[serde(default)]
    source: String,
    #[serde(default)]
    session_id: String,
}

impl Event {
    async fn tell(&self, client: &Client) -> anyhow::Result<()> {
        let Agent::Claude = self.agent;
        let mut text = String::new();
        std::io::stdin().take(1 << 20).read_to_string(&mut text)?;
        let event: SessionStart = serde_json::from_str(&text).context("this is no event")?;
        if event.source != "resume" {
            return Ok(());
        }
        let me: Myself = client.get("/v1/self").await?;
        let session: String = event
            .session_id
            .chars()
            .filter(|c| !c.is_control())
            .take(64)
            .collect();
        let wanted = control::Restored {
            note: format!("a hook said that session {session} was resumed"),
            ..Default::default()
        };
        let _: Opened = client
            .post(&format!("/v1/agents/{}/restored", me.agent), &wanted)
            .await?;
        Ok(())
    }
}

fn entry(command: &str) -> String {
    let command = serde_json::Value::from(command);
    format!(r#"{{"matcher": "resume", "hooks": [{{"type": "command", "command": {command}}}]}}"#)
}

fn list(command: &str) -> String {
    format!(r#""SessionStart": [{}]"#, entry(command))
}

fn section(command: &str) -> String {
    format!(r#""hooks": {{{}}}"#, list(command))
}

/// The settings with the hook, and otherwise as they were.
fn with_hook(text: &str, command: &str) -> anyhow::Result<String> {
    let root = Node::read(text)?;
    ensure!(
        matches!(root.value, Value::Object(_)),
        "it is no JSON object"
    );
    if command_of_hook(&root).is_some() {
        return Ok(text.to_owned());
    }
    let put = |into: &Node, is_empty: bool, what: String| {
        let at = into.span.start + 1;
        let comma = if is_empty { "" } else { ", " };
        format!("{}{what}{comma}{}", &text[..at], &text[at..])
    };
    let Some(hooks) = root.get("hooks") else {
        return Ok(put(&root, root.members().is_empty(), section(command)));
    };
    ensure!(
        matches!(hooks.value, Value::Object(_)),
        "`hooks` is no JSON object"
    );
    let Some(starts) = hooks.get("SessionStart") else {
        return Ok(put(hooks, hooks.members().is_empty(), list(command)));
    };
    let Some(items) = starts.as_array() else {
        bail!("`hooks.SessionStart` is no list");
    };
    Ok(put(starts, items.is_empty(), entry(command)))
}

/// The settings without the hook: byte for byte what they were, but that an empty section goes too.
fn without_hook(text: &str) -> anyhow::Result<String> {
    let root = Node::read(text)?;
    let Some(command) = command_of_hook(&root) else {
        return Ok(text.to_owned());
    };
    for what in [section(&command), list(&command), entry(&command)] {
        for put in [format!("{what}, "), what] {
            if text.contains(&put) {
                return Ok(text.replacen(&put, "", 1));
            }
        }
    }
    bail!("the hook was changed by hand; take it out by hand (`{command}`)")
}

fn command_of_hook(root: &Node) -> Option<String> {
    let starts = root.get("hooks")?.get("SessionStart")?.as_array()?;
    let hooks = starts
        .iter()
        .filter_map(|start| start.get("hooks")?.as_array());
    hooks
        .flatten()
        .filter_map(|hook| hook.get("command")?.as_str())
        .find(|command| command.ends_with(OURS))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMAND: &str = "\"/usr/bin/acrfence\" hooks event claude";

    #[test]
    fn a_hook_goes_in_once_and_comes_out_again() {
        for text in [
            "{}",
            "{\n  // mine\n  \"model\": \"x\"\n}\n",
            r#"{"hooks": {}}"#,
            r#"{"hooks": {"Stop": []}, "a": 1}"#,
            r#"{"hooks": {"SessionStart": []}}"#,
            r#"{"hooks": {"SessionStart": [{"hooks": [{"type": "command", "command": "date"}]}]}}"#,
        ] {
            let with = with_hook(text, COMMAND).unwrap();
            let read = Node::read(&with).unwrap();
            assert_eq!(command_of_hook(&read).as_deref(), Some(COMMAND), "{with}");
            assert_eq!(with_hook(&with, COMMAND).unwrap(), with);
            let was_empty = text.starts_with(r#"{"hooks": {}"#) || text.contains(": []}}");
            let expected = if was_empty { "{}" } else { text };
            assert_eq!(without_hook(&with).unwrap(), expected);
        }
    }

    #[test]
    fn what_is_no_settings_file_is_left_alone() {
        for text in [
            "[]",
            "{",
            r#"{"hooks": 1}"#,
            r#"{"hooks": {"SessionStart": {}}}"#,
        ] {
            assert!(with_hook(text, COMMAND).is_err(), "{text}");
        }
    }
}
