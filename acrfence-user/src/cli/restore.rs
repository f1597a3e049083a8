//! `acrfence checkpoint`, `restored`, `fork`, `holds`, `approve`, `deny`, `resolve`.

use std::io::Read as _;

use anyhow::Context as _;
use clap::{Args, ValueEnum};

use super::Global;
use super::output::{json, line, short, table, time};
use crate::control::{
    self, CheckpointTaken, Client, DecideHold, EffectDetail, HeldCall, Opened, TakeCheckpoint,
};
use crate::effect::HoldDecision;
use crate::words::{AgentName, EffectId, HoldId, ThreadId};

#[derive(Debug, Args)]
pub(super) struct Checkpoint {
    /// The agent.
    agent: AgentName,
    /// Name of the checkpoint; made from the time when absent.
    name: Option<String>,
    /// Only for this thread.
    #[arg(long)]
    thread: Option<ThreadId>,
}

#[derive(Debug, Args)]
pub(super) struct Restored {
    /// The agent.
    agent: AgentName,
    /// Only this thread; all of the agent's when absent.
    #[arg(long)]
    thread: Option<ThreadId>,
    /// Up to where it remembers: an effect (e17, included), the name of a checkpoint, or a time
    /// (2031-02-03T09:12:04Z). When absent nobody knows, and everything is taken as forgotten.
    #[arg(long, value_name = "EFFECT|CHECKPOINT|TIME")]
    to: Option<String>,
    /// A note for the tree.
    #[arg(long, default_value = "")]
    note: String,
}

#[derive(Debug, Args)]
pub(super) struct Fork {
    /// The agent.
    agent: AgentName,
    /// Only this thread; all of the agent's when absent.
    #[arg(long)]
    thread: Option<ThreadId>,
    /// A note for the tree.
    #[arg(long, default_value = "")]
    note: String,
}

#[derive(Debug, Args)]
pub(super) struct Approve {
    /// The hold, like h9.
    id: HoldId,
    /// What the held call is.
    #[arg(long = "as", value_enum)]
    decision: ApproveAs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ApproveAs {
    /// The same as the earlier effect: answer it from the log.
    Replay,
    /// A new action: send it.
    Forward,
}

#[derive(Debug, Args)]
pub(super) struct Deny {
    /// The hold, like h9.
    id: HoldId,
}

#[derive(Debug, Args)]
pub(super) struct Resolve {
    /// The effect, like e17.
    id: EffectId,
    /// It happened; this file (`-` for standard input) holds what the other side answered, and equal
    /// calls get it.
    #[arg(
        long,
        value_name = "RESPONSE",
        conflicts_with = "did_not_happen",
        required_unless_present = "did_not_happen"
    )]
    happened: Option<String>,
    /// It did not happen; an equal call may be sent.
    #[arg(long)]
    did_not_happen: bool,
}

pub(super) async fn checkpoint(
    client: &Client,
    global: &Global,
    args: Checkpoint,
) -> anyhow::Result<()> {
    let wanted = TakeCheckpoint {
        name: args.name,
        thread: args.thread,
    };
    let taken: CheckpointTaken = client
        .post(&format!("/v1/agents/{}/checkpoints", args.agent), &wanted)
        .await?;
    if global.json {
        return json(&taken);
    }
    line(&format!(
        "Checkpoint `{}` of agent `{}` is at record {}.",
        taken.name, taken.agent, taken.position
    ))
}

pub(super) async fn restored(
    client: &Client,
    global: &Global,
    args: Restored,
) -> anyhow::Result<()> {
    let unknown = args.to.is_none();
    let wanted = control::Restored {
        thread: args.thread,
        to: args.to,
        note: args.note,
    };
    let opened: Opened = client
        .post(&format!("/v1/agents/{}/restored", args.agent), &wanted)
        .await?;
    if global.json {
        return json(&opened);
    }
    line(&format!(
        "Agent `{}` goes on in branch {}. {} it did before {} fenced: equal calls are answered from the log, different ones wait for `acrfence fork {}`.",
        opened.agent,
        opened.branch,
        match opened.fenced {
            1 => "1 effect".to_owned(),
            n => format!("{n} effects"),
        },
        if opened.fenced == 1 { "is" } else { "are" },
        opened.agent
    ))?;
    if unknown {
        line("No point was given (--to), so nothing is taken as remembered.")?;
    }
    Ok(())
}

pub(super) async fn fork(client: &Client, global: &Global, args: Fork) -> anyhow::Result<()> {
    let wanted = control::Fork {
        thread: args.thread,
        note: args.note,
    };
    let opened: Opened = client
        .post(&format!("/v1/agents/{}/fork", args.agent), &wanted)
        .await?;
    if global.json {
        return json(&opened);
    }
    line(&format!(
        "Agent `{}` goes on in branch {}: different calls run, equal ones are still answered from the log, spent credentials stay spent.",
        opened.agent, opened.branch
    ))
}

pub(super) async fn holds(client: &Client, global: &Global) -> anyhow::Result<()> {
    let holds: Vec<HeldCall> = client.get("/v1/holds").await?;
    if global.json {
        return holds.iter().try_for_each(json);
    }
    let rows = holds
        .iter()
        .map(|h| {
            vec![
                h.id.to_string(),
                time(h.at),
                h.agent.to_string(),
                h.branch.to_string(),
                h.effect.to_string(),
                short(&h.key, 60),
                h.why.clone(),
            ]
        })
        .collect();
    table(
        &["HOLD", "SINCE", "AGENT", "BRANCH", "EFFECT", "WHAT", "WHY"],
        rows,
        "No call waits for a person.",
    )
}

pub(super) async fn approve(client: &Client, global: &Global, args: Approve) -> anyhow::Result<()> {
    let decision = match args.decision {
        ApproveAs::Replay => HoldDecision::Replay,
        ApproveAs::Forward => HoldDecision::Forward,
    };
    decide(client, global, args.id, decision).await
}

pub(super) async fn deny(client: &Client, global: &Global, args: Deny) -> anyhow::Result<()> {
    decide(client, global, args.id, HoldDecision::Deny).await
}

async fn decide(
    client: &Client,
    global: &Global,
    id: HoldId,
    decision: HoldDecision,
) -> anyhow::Result<()> {
    let hold: HeldCall = client
        .post(&format!("/v1/holds/{id}"), &DecideHold { decision })
        .await?;
    if global.json {
        return json(&hold);
    }
    line(&match decision {
        HoldDecision::Replay => format!(
            "{id}: this call, or the next equal one, is answered with what {} got.",
            hold.effect
        ),
        HoldDecision::Forward => {
            format!("{id}: this call, or the next equal one, is sent as a new action, once.")
        }
        HoldDecision::Deny => format!(
            "{id}: this call and equal ones are refused in branch {}.",
            hold.branch
        ),
    })
}

pub(super) async fn resolve(client: &Client, global: &Global, args: Resolve) -> anyhow::Result<()> {
    let wanted = match args.happened {
        None => control::Resolve::DidNotHappen,
        Some(file) => {
            let body = read_text(&file)?;
            // A response as `acrfence show --json` prints it, or just its body.
            match serde_json::from_str(&body) {
                Ok(response) => control::Resolve::Happened(response),
                Err(_) => control::Resolve::HappenedWith { body },
            }
        }
    };
    let detail: EffectDetail = client
        .post(&format!("/v1/effects/{}/resolve", args.id), &wanted)
        .await?;
    if global.json {
        return json(&detail);
    }
    line(&format!(
        "{} is {} now.",
        detail.effect.id, detail.effect.status
    ))
}

fn read_text(file: &str) -> anyhow::Result<String> {
    if file == "-" {
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .context("cannot read standard input")?;
        return Ok(text);
    }
    std::fs::read_to_string(file).with_context(|| format!("cannot read the response from `{file}`"))
}
