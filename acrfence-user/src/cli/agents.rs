//! `acrfence attach`, `detach`, `agents`, `tree`.

use clap::Args;

use super::Global;
use super::output::{json, line, short, table, time};
use crate::control::{AgentStatus, Attached, Client, Tree, TreeEffect};
use crate::lineage::BranchTree;
use crate::words::{AgentName, Cause, ForkPoint, Grade, IncarnationCause, Status};

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

pub(super) async fn tree(client: &Client, global: &Global, args: Name) -> anyhow::Result<()> {
    let tree: Tree = client
        .get(&format!("/v1/agents/{}/tree", args.agent))
        .await?;
    if global.json {
        return json(&tree);
    }
    line(&format!("{}", tree.tree.agent))?;
    for (life, ended) in &tree.tree.lives {
        let cause = match life.cause {
            IncarnationCause::Attach => "attached",
            IncarnationCause::Launch => "launched",
            IncarnationCause::Restore => "restored process",
        };
        let ended = ended
            .as_ref()
            .map_or_else(|| "running".to_owned(), |why| format!("ended: {why}"));
        line(&format!(
            "  life {} · {cause} {} · pid {} · {ended}",
            life.number,
            time(life.at),
            life.root.tgid
        ))?;
    }
    for thread in &tree.tree.threads {
        line(&format!(
            "  thread {} ({})",
            thread.thread.id, thread.thread.title
        ))?;
        for branch in &thread.branches {
            draw_branch(&tree, branch)?;
        }
    }
    Ok(())
}

fn draw_branch(tree: &Tree, branch: &BranchTree) -> anyhow::Result<()> {
    let b = &branch.branch;
    let from = match (b.cause, b.parent, b.fork_point) {
        (Cause::Start, ..) => "start".to_owned(),
        (Cause::Restore, Some(parent), ForkPoint::At(seq)) => match checkpoint_at(tree, seq) {
            Some(name) => format!("restore of {parent} at checkpoint `{name}`"),
            None => format!("restore of {parent} at record {seq}"),
        },
        (Cause::Restore, Some(parent), ForkPoint::Unknown) => {
            format!("restore of {parent}, point unknown")
        }
        (Cause::Restore, None, _) => "restore".to_owned(),
        (Cause::Fork, parent, _) => format!(
            "fork of {}",
            parent.map_or_else(|| "?".into(), |p| p.to_string())
        ),
    };
    let grade = if b.grade == Grade::Suspect {
        ", suspected"
    } else {
        ""
    };
    let current = if branch.current { "  ◀ now" } else { "" };
    line(&format!(
        "  └─ {} · {from}{grade} · {} · {}{current}",
        b.id,
        time(b.at),
        short(&b.note, 60)
    ))?;
    // What entered this timeline, in order: executed here, or answered here from the log.
    let mut entries: Vec<(u64, String)> = Vec::new();
    for effect in tree.effects.iter().filter(|e| e.row.branch == b.id) {
        entries.push((effect.row.id.0.0, effect_line(effect)));
    }
    for (seq, id) in &branch.replayed {
        let key = tree
            .effects
            .iter()
            .find(|e| e.row.id == *id)
            .map(|e| e.row.key.to_string())
            .unwrap_or_default();
        entries.push((seq.0, format!("↺ {id} replayed · {key}")));
    }
    for (seq, name) in tree
        .tree
        .checkpoints
        .iter()
        .filter(|(seq, _)| branch_at(tree, b.thread, seq.0) == Some(b.id))
    {
        entries.push((seq.0, format!("⚑ checkpoint `{name}`")));
    }
    entries.sort();
    for (_, entry) in entries {
        line(&format!("  │    {entry}"))?;
    }
    Ok(())
}

fn branch_at(
    tree: &Tree,
    thread: crate::words::ThreadId,
    seq: u64,
) -> Option<crate::words::BranchId> {
    let thread = tree.tree.threads.iter().find(|t| t.thread.id == thread)?;
    thread
        .branches
        .iter()
        .map(|b| b.branch.id)
        .rfind(|id| id.0.0 <= seq)
}

fn checkpoint_at(tree: &Tree, seq: crate::words::Seq) -> Option<&str> {
    tree.tree
        .checkpoints
        .iter()
        .find(|(at, _)| *at == seq)
        .map(|(_, name)| name.as_str())
}

fn effect_line(effect: &TreeEffect) -> String {
    let row = &effect.row;
    let mark = match row.status {
        Status::Completed => "●",
        Status::Prepared => "◌",
        Status::Failed => "✗",
        Status::InDoubt => "?",
    };
    let code = row.code.map(|c| format!(" {c}")).unwrap_or_default();
    let fenced = if effect.fenced { "  [fenced]" } else { "" };
    format!(
        "{mark} {} {} · {}{code} · {}{fenced}",
        row.id,
        row.key,
        row.status,
        time(row.at)
    )
}
