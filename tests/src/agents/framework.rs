//! Agents that are libraries: a small program of ours around each, in `tests/agents`, whose first
//! argument says what the next life is to do.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};
use serde_json::json;

use super::{Agent, Restore, Setting};
use crate::process::Ended;
use crate::testbed::Transport;

pub(super) fn live(agent: Agent, setting: &Setting<'_>, restore: Restore) -> Result<Vec<Ended>> {
    let life = |part: &str| driver(agent, setting, restore, part);
    let run = |part: &str| setting.run(part, life(part)?);
    Ok(match restore {
        Restore::None => vec![run("first")?],
        // One process that goes back in its own state.
        Restore::Rewind | Restore::Interrupt => vec![run("both")?],
        Restore::Reload | Restore::TimeTravel => vec![run("first")?, run("second")?],
        Restore::Newest | Restore::ExitCrash => {
            setting.run_until_killed("the first life", life("first")?, || true)?;
            vec![run("second")?]
        }
        other => bail!("{} has no restore of the kind {other:?}", agent.name()),
    })
}

/// The program around a library, for a part of its lives.
pub(super) fn driver(
    agent: Agent,
    setting: &Setting<'_>,
    restore: Restore,
    part: &str,
) -> Result<Command> {
    let home = agent.home()?;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("agents")
        .join(agent.name());
    let stdio: Vec<String> = match setting.testbed.transport() {
        Transport::McpStdio => setting.testbed.stdio_server()?,
        _ => Vec::new(),
    }
    .into_iter()
    .map(|word| word.to_string_lossy().into_owned())
    .collect();
    let task = json!({
        "part": part,
        "restore": restore.name(),
        "kind": setting.scenario.kind().name(),
        "act": setting.scenario.act(),
        "act_path": setting.scenario.act_path(),
        "opening": setting.scenario.opening(),
        "prompt": setting.scenario.prompt(),
        "again": setting.again(),
        "redirects": setting.scenario.redirects(),
        "model": setting.model.url(""),
        "service": setting.testbed.url(""),
        "transport": setting.testbed.transport().name(),
        "stdio": stdio,
        "refresh_token": setting.testbed.refresh_token(),
        "patience": if setting.scenario.times_out() { 4 } else { 60 },
        "home": setting.home,
    });
    let mut command;
    if folder.join("driver.mjs").is_file() {
        // Modules are found beside the program, so it is run from where they are installed.
        let program = home.join("driver.mjs");
        std::fs::copy(folder.join("driver.mjs"), &program)?;
        command = setting.command(Path::new("node"));
        command.arg(program);
    } else {
        command = setting.command(&home.join("bin/python"));
        command.arg("-B").arg(folder.join("driver.py"));
    }
    command.arg(task.to_string());
    Ok(command)
}
