//! `acrfence tree`: threads, branches, fork points, effects and what is fenced, so that a person sees at
//! once what happened.

use std::fmt::Write as _;

use clap::Args;

use super::Global;
use super::output::{json, line, short, time};
use crate::control::{self, Client, TreeEffect};
use crate::lineage::BranchTree;
use crate::words::{
    Absent, AgentName, Cause, EffectId, Forgotten, ForkPoint, Grade, IncarnationCause, Status,
};

#[derive(Debug, Args)]
pub(super) struct Tree {
    /// Name of the agent.
    agent: AgentName,
    /// As a graph for Graphviz, for reports.
    #[arg(long, conflicts_with = "mermaid")]
    dot: bool,
    /// As a Mermaid flowchart, for reports in Markdown.
    #[arg(long)]
    mermaid: bool,
}

pub(super) async fn tree(client: &Client, global: &Global, args: Tree) -> anyhow::Result<()> {
    let tree: control::Tree = client
        .get(&format!("/v1/agents/{}/tree", args.agent))
        .await?;
    if global.json {
        return json(&tree);
    }
    let text = if args.dot {
        dot(&tree)
    } else if args.mermaid {
        mermaid(&tree)
    } else {
        drawn(&tree)
    };
    line(text.trim_end())
}

/// For a person.
fn drawn(tree: &control::Tree) -> String {
    let mut out = format!("{}\n", tree.tree.agent);
    for (life, ended) in &tree.tree.lives {
        let cause = match life.cause {
            IncarnationCause::Attach => "attached",
            IncarnationCause::Launch => "launched",
            IncarnationCause::Restore => "restored process",
        };
        let ended = ended
            .as_ref()
            .map_or_else(|| "running".to_owned(), |why| format!("ended: {why}"));
        let _ = writeln!(
            out,
            "  life {} · {cause} {} · pid {} · {ended}",
            life.number,
            time(life.at),
            life.root.tgid
        );
    }
    for thread in &tree.tree.threads {
        let _ = writeln!(
            out,
            "  thread {} ({})",
            thread.thread.id, thread.thread.title
        );
        for branch in &thread.branches {
            draw_branch(tree, branch, &mut out);
        }
    }
    out
}

fn draw_branch(tree: &control::Tree, branch: &BranchTree, out: &mut String) {
    let b = &branch.branch;
    let current = if branch.current { "  ◀ now" } else { "" };
    let _ = writeln!(
        out,
        "  └─ {} · {} · {} · {}{current}",
        b.id,
        origin(tree, branch),
        time(b.at),
        short(&b.note, 60)
    );
    for entry in entries(tree, branch) {
        let _ = writeln!(out, "  │    {entry}");
    }
}

/// Why a branch is there and where it leaves its parent.
fn origin(tree: &control::Tree, branch: &BranchTree) -> String {
    let b = &branch.branch;
    let from = match (b.cause, b.parent, b.fork_point) {
        (Cause::Start, ..) => "start".to_owned(),
        (Cause::Restore, Some(parent), ForkPoint::At(seq)) => match checkpoint_at(tree, seq) {
            Some(name) => format!("restore of {parent} at checkpoint `{name}`"),
            None => format!("restore of {parent} at record {seq}"),
        },
        (Cause::Restore, Some(parent), ForkPoint::Unknown) if b.absent.is_some() => {
            format!("restore of {parent}")
        }
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
    format!("{from}{grade}")
}

/// What entered a branch's timeline, in order (executed there, or answered there from the log), after
/// what its conversation was seen not to remember.
fn entries(tree: &control::Tree, branch: &BranchTree) -> Vec<String> {
    let b = &branch.branch;
    let key_of = |id: EffectId| {
        let row = tree.effects.iter().find(|e| e.row.id == id);
        row.map(|e| e.row.key.to_string()).unwrap_or_default()
    };
    let absent = b.absent.iter().flatten();
    let forgot = absent.map(|a| format!("✂ {} · {}", forgotten(a), key_of(a.effect)));
    let mut entries: Vec<(u64, String)> = Vec::new();
    for effect in tree.effects.iter().filter(|e| e.row.branch == b.id) {
        entries.push((effect.row.id.0.0, effect_line(effect)));
    }
    for (seq, id) in &branch.replayed {
        let why = match branch.again.contains(id) {
            true => "replayed, its order was carried out again",
            false => "replayed",
        };
        entries.push((seq.0, format!("↺ {id} {why} · {}", key_of(*id))));
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
    forgot.chain(entries.into_iter().map(|(_, e)| e)).collect()
}

fn forgotten(absent: &Absent) -> String {
    let what = match absent.forgotten {
        Forgotten::Call => "is not remembered",
        Forgotten::Outcome => "is remembered without its outcome",
        Forgotten::Compacted => "is no longer shown",
        Forgotten::Done => "is done again",
    };
    let sure = match absent.grade {
        Grade::Certain => "",
        Grade::Suspect => ", it seems",
    };
    format!("{} {what}{sure}", absent.effect)
}

/// For Graphviz.
fn dot(tree: &control::Tree) -> String {
    let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
    let mut out = String::from("digraph acrfence {\n  node [shape=box, fontname=\"monospace\"];\n");
    for thread in &tree.tree.threads {
        let title = format!("{} {}", thread.thread.id, thread.thread.title);
        let _ = writeln!(out, "  subgraph \"cluster_{}\" {{", thread.thread.id);
        let _ = writeln!(out, "    label=\"{}\";", quoted(&title));
        for branch in &thread.branches {
            let style = if branch.current { ", penwidth=2" } else { "" };
            // Left-aligned lines.
            let label: String = label(tree, branch)
                .iter()
                .map(|line| format!("{}\\l", quoted(line)))
                .collect();
            let _ = writeln!(out, "    {} [label=\"{label}\"{style}];", branch.branch.id);
        }
        out.push_str("  }\n");
        for branch in &thread.branches {
            if let Some(parent) = branch.branch.parent {
                let point = quoted(&fork_point(branch));
                let _ = writeln!(
                    out,
                    "  {parent} -> {} [label=\"{point}\"];",
                    branch.branch.id
                );
            }
        }
    }
    out.push_str("}\n");
    out
}

/// For Mermaid.
fn mermaid(tree: &control::Tree) -> String {
    let quoted = |text: &str| {
        text.replace('&', "&amp;")
            .replace('"', "&quot;")
            .replace('<', "&lt;")
            .replace('>', "&gt;")
            .replace('`', "'")
    };
    let mut out = String::from("flowchart TD\n");
    for thread in &tree.tree.threads {
        let title = format!("{} {}", thread.thread.id, thread.thread.title);
        let _ = writeln!(
            out,
            "  subgraph {}[\"{}\"]",
            thread.thread.id,
            quoted(&title)
        );
        for branch in &thread.branches {
            let lines: Vec<String> = label(tree, branch).iter().map(|l| quoted(l)).collect();
            let _ = writeln!(out, "    {}[\"{}\"]", branch.branch.id, lines.join("<br/>"));
        }
        for branch in &thread.branches {
            if let Some(parent) = branch.branch.parent {
                let point = quoted(&fork_point(branch));
                let _ = writeln!(out, "    {parent} -->|\"{point}\"| {}", branch.branch.id);
            }
        }
        out.push_str("  end\n");
    }
    out
}

fn label(tree: &control::Tree, branch: &BranchTree) -> Vec<String> {
    let now = if branch.current { " (now)" } else { "" };
    let mut lines = vec![format!(
        "{} · {}{now}",
        branch.branch.id,
        origin(tree, branch)
    )];
    lines.extend(entries(tree, branch).iter().map(|e| short(e, 80)));
    lines
}

fn fork_point(branch: &BranchTree) -> String {
    match (branch.branch.cause, branch.branch.fork_point) {
        (Cause::Fork, _) => "fork".into(),
        (_, ForkPoint::At(seq)) => format!("record {seq}"),
        (_, ForkPoint::Unknown) => "unknown".into(),
    }
}

fn branch_at(
    tree: &control::Tree,
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

fn checkpoint_at(tree: &control::Tree, seq: crate::words::Seq) -> Option<&str> {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A payment that was forgotten and given again, as the daemon tells it.
    fn told() -> control::Tree {
        let at = "2031-02-03T09:12:04Z";
        let branch = |id: &str, cause: &str, more: serde_json::Value| {
            let mut branch = json!({
                "id": id, "thread": "t3", "parent": null, "fork_point": "unknown",
                "cause": cause, "grade": "certain", "note": "why \"so\"", "at": at,
            });
            if let (Some(branch), Some(more)) = (branch.as_object_mut(), more.as_object()) {
                branch.extend(more.clone());
            }
            branch
        };
        let absent = json!([{"effect": "e13", "forgotten": "call", "grade": "certain"}]);
        let rewound = json!({"parent": "b4", "fork_point": {"at": 12}, "absent": absent});
        serde_json::from_value(json!({
            "agent": "buyer",
            "lives": [],
            "threads": [{
                "thread": {"id": "t3", "agent": "buyer", "title": "a <session>", "at": at},
                "branches": [
                    {"branch": branch("b4", "start", json!({})), "current": false, "replayed": []},
                    {"branch": branch("b20", "restore", rewound), "current": true, "replayed": [[22, "e13"]]},
                ],
            }],
            "checkpoints": [],
            "effects": [{
                "id": "e13", "key": "POST bank.example/v1/transfers", "agent": "buyer",
                "incarnation": 1, "thread": "t3", "branch": "b4", "parent": null,
                "status": "completed", "at": at, "ended": at, "code": 201, "host": "bank.example",
                "process": {"tgid": 7, "start_ns": 1}, "size": 10, "why": "", "transport": "http",
                "gaps": "", "fenced": false,
            }],
        }))
        .unwrap()
    }

    #[test]
    fn a_person_sees_what_was_forgotten_and_given_again() {
        let text = drawn(&told());
        for part in [
            "b20 · restore of b4 at record 12",
            "✂ e13 is not remembered · POST bank.example",
            "↺ e13 replayed ·",
            "◀ now",
        ] {
            assert!(text.contains(part), "{part} is missing in:\n{text}");
        }
    }

    #[test]
    fn a_person_sees_that_an_order_was_carried_out_again() {
        let mut tree = told();
        let branch = &mut tree.tree.threads[0].branches[1];
        branch.again = branch.replayed.iter().map(|(_, id)| *id).collect();
        let text = drawn(&tree);
        let part = "↺ e13 replayed, its order was carried out again · POST bank.example";
        assert!(text.contains(part), "{part} is missing in:\n{text}");
    }

    #[test]
    fn graphs_quote_what_others_wrote() {
        let tree = told();
        let (dot, mermaid) = (dot(&tree), mermaid(&tree));
        assert!(dot.contains("b4 -> b20 [label=\"record 12\"]"), "{dot}");
        assert!(mermaid.contains("b4 -->|\"record 12\"| b20"), "{mermaid}");
        assert!(mermaid.contains("a &lt;session&gt;"), "{mermaid}");
        let open = dot.matches('{').count();
        assert_eq!(open, dot.matches('}').count());
    }
}
