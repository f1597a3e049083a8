//! Claude Code: sessions are files of JSON lines, which the paper's attack cuts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::{Agent, CHAIN, Restore, Setting, find, json_lines};
use crate::process::Ended;
use crate::scenario::Scenario;
use crate::testbed::Transport;

const FIRST: &str = "11111111-1111-4111-8111-111111111111";
const SECOND: &str = "22222222-2222-4222-8222-222222222222";
const LATER: [&str; 3] = [
    SECOND,
    "33333333-3333-4333-8333-333333333333",
    "44444444-4444-4444-8444-444444444444",
];

pub(super) fn live(setting: &Setting<'_>, restore: Restore) -> Result<Vec<Ended>> {
    let first = || claude(setting, setting.scenario.prompt(), &["--session-id", FIRST]);
    let resume = |session: &[&str]| -> Result<Ended> {
        let arguments = [&["--resume"], session].concat();
        setting.run(
            "the resumed agent",
            claude(setting, setting.again(), &arguments)?,
        )
    };
    if restore == Restore::Killed {
        // The session is written some time after the call is on its way.
        setting.run_until_killed("the agent", first()?, || {
            let lines = session(setting.home).and_then(|file| json_lines(&file));
            lines.is_ok_and(|lines| lines.iter().any(|line| acts(line, setting.scenario)))
        })?;
        return Ok(vec![resume(&[FIRST])?]);
    }
    let ended = setting.run("the agent", first()?)?;
    match restore {
        Restore::CutChain => return chain(setting, ended),
        Restore::ToolCrash => {
            let mut lives = vec![ended];
            while lives.last().is_some_and(|life| !life.ok()) && lives.len() <= CHAIN as usize {
                lives.push(resume(&[FIRST])?);
            }
            return Ok(lives);
        }
        Restore::Periodic => {
            let mut lives = vec![ended];
            for session in &LATER[..2] {
                setting.tick();
                let words = setting.scenario.prompt();
                let command = claude(setting, words, &["--session-id", session])?;
                lives.push(setting.run("the next one", command)?);
            }
            return Ok(lives);
        }
        Restore::Compacted | Restore::CompactedBadly => {
            let to_compact = claude(setting, "/compact", &["--resume", FIRST])?;
            let compacted = setting.run("the agent that compacts", to_compact)?;
            let words = match restore {
                Restore::Compacted => Scenario::Redirected.again(setting.wording),
                _ => "continue",
            };
            let command = claude(setting, words, &["--resume", FIRST])?;
            return Ok(vec![
                ended,
                compacted,
                setting.run("the agent after it", command)?,
            ]);
        }
        _ => {}
    }
    if restore == Restore::None {
        return Ok(vec![ended]);
    }
    let file = session(setting.home)?;
    let lines = json_lines(&file)?;
    let act = lines
        .iter()
        .position(|line| acts(line, setting.scenario))
        .with_context(|| format!("the session shows no action; it ended so: {ended:?}"))?;
    let again = match restore {
        Restore::Cut => {
            resume_cut(&file, &lines[..act], SECOND)?;
            resume(&[SECOND])?
        }
        Restore::CutAfter => {
            let result = lines[act..]
                .iter()
                .position(|line| line["message"]["content"][0]["type"] == "tool_result")
                .context("the session shows no result of the action")?;
            resume_cut(&file, &lines[..=act + result], SECOND)?;
            resume(&[SECOND])?
        }
        Restore::RewindFork => {
            let before = lines[..act].iter().rev();
            let at = before
                .filter(|line| matches!(line["type"].as_str(), Some("user" | "assistant")))
                .find_map(|line| line["uuid"].as_str())
                .context("the session shows nothing before the action")?;
            resume(&[FIRST, "--resume-session-at", at, "--fork-session"])?
        }
        Restore::WholeHistory => resume(&[FIRST])?,
        Restore::AskedAgain => {
            let arguments = ["--resume", FIRST];
            let command = claude(setting, setting.scenario.prompt(), &arguments)?;
            setting.run("the resumed agent", command)?
        }
        other => bail!("Claude Code has no restore of the kind {other:?}"),
    };
    Ok(vec![ended, again])
}

/// Cuts the session before the action and resumes it, and does so with what comes of that.
fn chain(setting: &Setting<'_>, first: Ended) -> Result<Vec<Ended>> {
    let mut file = session(setting.home)?;
    let mut lives = vec![first];
    for next in LATER {
        let lines = json_lines(&file)?;
        let act = lines
            .iter()
            .position(|line| acts(line, setting.scenario))
            .with_context(|| format!("the session shows no action; it ended so: {lives:?}"))?;
        file = resume_cut(&file, &lines[..act], next)?;
        let command = claude(setting, setting.again(), &["--resume", next])?;
        lives.push(setting.run("the resumed agent", command)?);
    }
    Ok(lives)
}

/// A command that does `prompt` and ends.
fn claude(setting: &Setting<'_>, prompt: &str, session: &[&str]) -> Result<Command> {
    let program = Agent::ClaudeCode.home()?.join("node_modules/.bin/claude");
    let mut command = setting.command(&program);
    command
        .env("ANTHROPIC_BASE_URL", setting.model.url(""))
        .env("ANTHROPIC_API_KEY", "sk-ant-none")
        .env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1")
        .env("DISABLE_AUTOUPDATER", "1")
        // In milliseconds, as its users set it.
        .envs((setting.scenario.times_out()).then_some(("MCP_TOOL_TIMEOUT", "4000")))
        // It refuses to go without permissions as root otherwise.
        .env("IS_SANDBOX", "1")
        .arg("--print")
        .args(session)
        .args(["--dangerously-skip-permissions", "--output-format", "json"])
        .args(["--strict-mcp-config", "--mcp-config"])
        .arg(servers(setting)?)
        .args(["--", prompt]);
    Ok(command)
}

fn servers(setting: &Setting<'_>) -> Result<PathBuf> {
    let name = setting.scenario.kind().name();
    let server = match setting.testbed.transport() {
        Transport::McpHttp => json!({"type": "http", "url": setting.testbed.url("/mcp")}),
        Transport::McpStdio => {
            let server = setting.testbed.stdio_server()?;
            let words: Vec<_> = server.iter().map(|word| word.to_string_lossy()).collect();
            json!({"type": "stdio", "command": words[0], "args": words[1..]})
        }
        Transport::Shell => Value::Null,
        Transport::Rest => bail!("Claude Code has no functions of its own to post with"),
    };
    let servers = match server {
        Value::Null => json!({}),
        server => json!({name: server}),
    };
    let path = setting.home.join("servers.json");
    fs::write(&path, json!({"mcpServers": servers}).to_string())?;
    Ok(path)
}

fn session(home: &Path) -> Result<PathBuf> {
    let wanted = format!("{FIRST}.jsonl");
    find(&home.join(".claude/projects"), &|path| {
        path.ends_with(&wanted)
    })
}

/// Whether a line is the call of the irreversible tool.
fn acts(line: &Value, scenario: Scenario) -> bool {
    let blocks = line["message"]["content"].as_array().into_iter().flatten();
    blocks
        .filter(|block| block["type"] == "tool_use")
        .any(|block| {
            let name = block["name"].as_str().unwrap_or_default();
            let command = block["input"]["command"].as_str().unwrap_or_default();
            name.ends_with(scenario.act()) || command.contains(scenario.act_path())
        })
}

/// Writes `lines` as a session of its own, called `id`.
fn resume_cut(file: &Path, lines: &[Value], id: &str) -> Result<PathBuf> {
    let mut text = String::new();
    for line in lines {
        let mut line = line.clone();
        if line.get("sessionId").is_some() {
            line["sessionId"] = id.into();
        }
        text += &line.to_string();
        text.push('\n');
    }
    let cut = file.with_file_name(format!("{id}.jsonl"));
    fs::write(&cut, text).with_context(|| format!("writing {}", cut.display()))?;
    Ok(cut)
}
