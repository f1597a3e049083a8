//! `acrfence status`.

use super::Global;
use super::output::{count, json, line, short, table, time};
use crate::control::{Client, Status};
use crate::words::OpaqueClass;

/// So many things that wait are shown.
const SHOWN: usize = 10;

pub(super) async fn status(client: &Client, global: &Global) -> anyhow::Result<()> {
    let s: Status = client.get("/v1/status").await?;
    if global.json {
        return json(&s);
    }
    line(&format!(
        "acrfence {} · pid {} · since {} · {} · log at record {}",
        s.version,
        s.pid,
        time(s.since),
        s.mode,
        s.log_head
    ))?;
    for problem in &s.problems {
        line(&format!("! {problem}"))?;
    }
    if s.in_doubt > 0 {
        line(&format!(
            "! {} in doubt: find out what became of each",
            count(s.in_doubt, "effect")
        ))?;
    }
    if s.holds > 0 {
        line(&format!(
            "! {} for a person",
            count(s.holds, "call waits").replace("calls waits", "calls wait")
        ))?;
    }
    for w in s.waiting.iter().take(SHOWN) {
        line(&format!(
            "  {} {} {} {}: {}",
            w.id,
            time(w.since),
            w.agent,
            short(&w.key, 60),
            short(&w.why, 100)
        ))?;
        for next in &w.next {
            line(&format!("      {next}"))?;
        }
    }
    if s.in_doubt + s.holds > SHOWN.min(s.waiting.len()) {
        line("  … `acrfence effects --status in_doubt` and `acrfence holds` list all")?;
    }
    for drop in s.drops.iter().filter(|d| d.count > 0) {
        line(&format!(
            "! {} {} events were lost ({}): process context may be incomplete",
            drop.count, drop.kind, drop.cause
        ))?;
    }
    if let Some(gate) = &s.gate
        && !gate.gated.is_empty()
    {
        let of = |what: &str| gate.gated.get(what).copied().unwrap_or_default();
        line(&format!(
            "  at exec: {} with pipes relayed, {} decided as commands, {} given the CA",
            of("stdio"),
            of("command"),
            of("environment"),
        ))?;
    }
    if let Some(gate) = &s.gate {
        line(if gate.denies {
            "  at exec: what must not run and cannot be stopped is denied (LSM)"
        } else {
            "  at exec: what must not run and cannot be stopped is killed before it begins (no LSM)"
        })?;
    }
    let ungated = s.gate.iter().flat_map(|gate| &gate.ungated);
    // Who ended at the gate did nothing.
    for (why, n) in ungated.filter(|(why, _)| *why != "gone") {
        line(&format!(
            "! {n} could not be stopped at exec: {}",
            why.replace('_', " ")
        ))?;
    }
    line("")?;
    let rows = s
        .agents
        .iter()
        .map(|a| {
            vec![
                a.name.to_string(),
                a.root.tgid.to_string(),
                a.processes.to_string(),
                a.branch
                    .map(|b| format!("{b} ({})", a.branch_cause))
                    .unwrap_or_default(),
                short(&a.argv.join(" "), 60),
            ]
        })
        .collect();
    table(
        &["AGENT", "ROOT", "PROCS", "BRANCH", "COMMAND"],
        rows,
        "No agent is running.",
    )?;
    for agent in &s.agents {
        for c in agent.open_before.iter().filter(|c| !c.cut) {
            line(&format!(
                "NOT FENCED {}: pid {} has {} → {} open since before the attach",
                agent.name, c.pid, c.local, c.peer
            ))?;
        }
        if agent.commands > 0 {
            line(&format!(
                "NOT FENCED {}: {} that no rule names (`acrfence effects --commands`), but for what they sent over TLS",
                agent.name,
                count(agent.commands as usize, "program"),
            ))?;
        }
        for o in &agent.not_fenced {
            if o.class == OpaqueClass::Command {
                let what = |word: &str, times: u64| match times {
                    0 => Ok(()),
                    times => line(&format!(
                        "{word} {}: {}: {}",
                        agent.name,
                        o.peer,
                        count(times as usize, "time")
                    )),
                };
                what("NOT FENCED", o.flows)?;
                what("REFUSED", o.refused)?;
                continue;
            }
            if o.flows > 0 {
                line(&format!(
                    "NOT FENCED {}: {}, {}: {} ({} open), {} bytes sent, {} received",
                    agent.name,
                    o.class.as_str(),
                    o.peer,
                    count(o.flows as usize, "flow"),
                    o.open,
                    o.sent,
                    o.received
                ))?;
            }
            if o.refused > 0 {
                line(&format!(
                    "REFUSED {}: {}, {}: {}",
                    agent.name,
                    o.class.as_str(),
                    o.peer,
                    count(o.refused as usize, "time")
                ))?;
            }
        }
    }
    for t in &s.troubles {
        line(&format!(
            "{} {} pid {}: {}",
            time(t.at),
            t.agent,
            t.pid,
            t.detail
        ))?;
    }
    Ok(())
}
