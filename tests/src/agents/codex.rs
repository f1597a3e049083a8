//! Codex: sessions are *rollouts*, files of JSON lines.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::{Agent, CHAIN, Restore, Setting, find, json_lines};
use crate::process::Ended;
use crate::scenario::Scenario;
use crate::testbed::Transport;

pub(super) fn live(setting: &Setting<'_>, restore: Restore) -> Result<Vec<Ended>> {
    let first = || codex(setting, &[setting.scenario.prompt()]);
    let resume = || -> Result<Ended> {
        let command = codex(setting, &["resume", "--last", setting.again()])?;
        setting.run("the resumed agent", command)
    };
    if restore == Restore::Killed {
        setting.run_until_killed("the agent", first()?, || {
            let lines = rollout(setting.home).and_then(|file| json_lines(&file));
            lines.is_ok_and(|lines| lines.iter().any(|line| acts(line, setting.scenario)))
        })?;
        return Ok(vec![resume()?]);
    }
    let ended = setting.run("the agent", first()?)?;
    match restore {
        Restore::CutChain => {
            let mut lives = vec![ended];
            for _ in 0..CHAIN {
                let file = rollout(setting.home)?;
                let lines = json_lines(&file)?;
                let act = lines.iter().position(|line| acts(line, setting.scenario));
                cut(&file, &lines[..act.context("the rollout shows no action")?])?;
                lives.push(resume()?);
            }
            return Ok(lives);
        }
        Restore::ToolCrash => {
            let mut lives = vec![ended];
            while lives.last().is_some_and(|life| !life.ok()) && lives.len() <= CHAIN as usize {
                lives.push(resume()?);
            }
            return Ok(lives);
        }
        Restore::Periodic => {
            let mut lives = vec![ended];
            for _ in 0..2 {
                setting.tick();
                lives.push(setting.run("the next one", first()?)?);
            }
            return Ok(lives);
        }
        _ => {}
    }
    if restore == Restore::None {
        return Ok(vec![ended]);
    }
    let file = rollout(setting.home).with_context(|| format!("it ended so: {ended:?}"))?;
    let lines = json_lines(&file)?;
    let act = lines
        .iter()
        .position(|line| acts(line, setting.scenario))
        .with_context(|| format!("the rollout shows no action; it ended so: {ended:?}"))?;
    match restore {
        Restore::Cut => cut(&file, &lines[..act])?,
        Restore::CutAfter => {
            let result = lines[act..]
                .iter()
                .position(|line| line["payload"]["type"] == "function_call_output")
                .context("the rollout shows no result of the action")?;
            cut(&file, &lines[..=act + result])?;
        }
        Restore::WholeHistory => {}
        Restore::AskedAgain => {
            let command = codex(setting, &["resume", "--last", setting.scenario.prompt()])?;
            return Ok(vec![ended, setting.run("the resumed agent", command)?]);
        }
        other => bail!("Codex has no restore of the kind {other:?}"),
    }
    Ok(vec![ended, resume()?])
}

fn codex(setting: &Setting<'_>, arguments: &[&str]) -> Result<Command> {
    let home = setting.home.join(".codex");
    fs::create_dir_all(&home)?;
    fs::write(home.join("config.toml"), config(setting)?)?;
    let program = Agent::Codex.home()?.join("node_modules/.bin/codex");
    let mut command = setting.command(&program);
    command
        .env("CODEX_HOME", &home)
        .env("MODEL_KEY", "none")
        .args(["exec", "--skip-git-repo-check", "--json"])
        .args(arguments);
    Ok(command)
}

fn config(setting: &Setting<'_>) -> Result<String> {
    let quoted = |text: &str| Value::from(text).to_string();
    let model = quoted(&setting.model.url("/v1"));
    let mut config = format!(
        r#"model = "scripted"
model_provider = "scripted"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.scripted]
name = "scripted"
base_url = {model}
wire_api = "responses"
env_key = "MODEL_KEY"
"#
    );
    let name = setting.scenario.kind().name();
    match setting.testbed.transport() {
        Transport::McpHttp => {
            let url = quoted(&setting.testbed.url("/mcp"));
            config += &format!("[mcp_servers.{name}]\nurl = {url}\n");
            config += "default_tools_approval_mode = \"approve\"\n";
        }
        Transport::McpStdio => {
            let server = setting.testbed.stdio_server()?;
            let words: Vec<_> = server.iter().map(|word| word.to_string_lossy()).collect();
            let command = quoted(&words[0]);
            let rest = json!(words[1..]);
            config += &format!("[mcp_servers.{name}]\ncommand = {command}\nargs = {rest}\n");
            config += "default_tools_approval_mode = \"approve\"\n";
        }
        Transport::Shell => {}
        Transport::Rest => bail!("Codex has no functions of its own to post with"),
    }
    Ok(config)
}

fn rollout(home: &Path) -> Result<PathBuf> {
    find(&home.join(".codex/sessions"), &|path| {
        path.extension().is_some_and(|ending| ending == "jsonl")
    })
}

/// Whether a line is the call of the irreversible tool.
fn acts(line: &Value, scenario: Scenario) -> bool {
    let payload = &line["payload"];
    if payload["type"] != "function_call" {
        return false;
    }
    let name = payload["name"].as_str().unwrap_or_default();
    let arguments = payload["arguments"].as_str().unwrap_or_default();
    name.ends_with(scenario.act()) || arguments.contains(scenario.act_path())
}

fn cut(file: &Path, lines: &[Value]) -> Result<()> {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(file, text).with_context(|| format!("writing {}", file.display()))
}
