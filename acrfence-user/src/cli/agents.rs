//! `acrfence attach`, `detach`, `agents`.

use clap::Args;

use super::Global;
use super::output::{json, line, short, table, time};
use crate::control::{AgentStatus, Attached, Client};
use crate::words::AgentName;

#[derive(Debug, Args)]
pub(super) struct Attach {
    /// Process id of the agent's root process.
    pid: u32,
    /// Name of the agent; the executable's name when absent.
    #[arg(long)]
    name: Option<AgentName>,
    /// Close connections that are open already, so that they come back through the hook.
    #[arg(long)]
    cut: bool,
}

#[derive(Debug, Args)]
pub(super) struct Name {
    /// Name of the agent.
    agent: AgentName,
}

pub(super) async fn attach(client: &Client, global: &Global, args: Attach) -> anyhow::Result<()> {
    let wanted = crate::control::Attach {
        pid: args.pid,
        name: args.name,
        launch: false,
        command: Vec::new(),
        cut: args.cut,
    };
    let attached: Attached = client.post("/v1/agents", &wanted).await?;
    if global.json {
        return json(&attached);
    }
    let life = if attached.incarnation > 1 {
        format!(", life {}", attached.incarnation)
    } else {
        String::new()
    };
    line(&format!(
        "Agent `{}` is behind the fence: process {} and its tree ({} processes), branch {}{life}.",
        attached.name, args.pid, attached.processes, attached.branch
    ))?;
    for note in &attached.notes {
        line(note)?;
    }
    if !attached.open_before.is_empty() {
        let rows = attached
            .open_before
            .iter()
            .map(|c| {
                vec![
                    c.pid.to_string(),
                    c.local.clone(),
                    c.peer.clone(),
                    if c.cut { "closed" } else { "NOT FENCED" }.into(),
                ]
            })
            .collect();
        table(&["PID", "LOCAL", "PEER", ""], rows, "")?;
    }
    line("Its programs must trust the CA: `acrfence ca install` puts it into the system store.")
}

pub(super) async fn detach(client: &Client, global: &Global, args: Name) -> anyhow::Result<()> {
    let agent: AgentStatus = client.delete(&format!("/v1/agents/{}", args.agent)).await?;
    if global.json {
        return json(&agent);
    }
    line(&format!(
        "Agent `{}` is not behind the fence any more; its processes go on.",
        agent.name
    ))
}

pub(super) async fn list(client: &Client, global: &Global) -> anyhow::Result<()> {
    let agents: Vec<AgentStatus> = client.get("/v1/agents").await?;
    if global.json {
        return agents.iter().try_for_each(json);
    }
    let rows = agents
        .iter()
        .map(|a| {
            vec![
                a.name.to_string(),
                if a.running {
                    "running".into()
                } else {
                    format!("ended ({})", a.ended)
                },
                a.root.tgid.to_string(),
                a.processes.to_string(),
                a.incarnation.to_string(),
                a.branch
                    .map(|b| format!("{b} {}", branch_word(&a.branch_cause, &a.branch_grade)))
                    .unwrap_or_default(),
                time(a.since),
                short(&a.argv.join(" "), 50),
            ]
        })
        .collect();
    table(
        &[
            "AGENT", "STATE", "ROOT", "PROCS", "LIFE", "BRANCH", "SINCE", "COMMAND",
        ],
        rows,
        "No agent is known. `acrfence run -- CMD` starts one, `acrfence attach PID` takes a running one.",
    )
}

fn branch_word(cause: &str, grade: &str) -> String {
    match (cause, grade) {
        ("start", _) => "(not restored)".into(),
        (cause, "suspect") => format!("({cause}, suspected)"),
        (cause, _) => format!("({cause})"),
    }
}
