//! `acrfence report`: what the fence found, for an audit.

use clap::Args;

use super::Global;
use super::output::{count, json, line, table, time};
use crate::control::{Client, Found, Report as Page};
use crate::words::{AgentName, RefusalCode, Seq};

/// List what the fence stopped, and what observe mode let through although it would have been stopped.
#[derive(Debug, Args)]
pub(super) struct Report {
    /// Only this agent's.
    agent: Option<AgentName>,
    /// Only what went through (observe mode): duplicates and authorisation mismatches that happened.
    #[arg(long)]
    happened: bool,
}

pub(super) async fn report(client: &Client, global: &Global, args: Report) -> anyhow::Result<()> {
    let mut found: Vec<Found> = Vec::new();
    let mut after = Seq(0);
    loop {
        let agent = args.agent.iter().map(|agent| format!("agent={agent}&"));
        let path = format!("/v1/report?{}after={after}", agent.collect::<String>());
        let page: Page = client.get(&path).await?;
        found.extend(
            page.items
                .into_iter()
                .filter(|f| !args.happened || !f.stopped),
        );
        match page.next {
            Some(next) => after = next,
            None => break,
        }
    }
    if global.json {
        return found.iter().try_for_each(json);
    }
    let (stopped, happened): (Vec<&Found>, Vec<&Found>) = found.iter().partition(|f| f.stopped);
    let rows = |found: &[&Found]| -> Vec<Vec<String>> {
        let row = |f: &&Found| {
            vec![
                time(f.at),
                f.agent.to_string(),
                f.key.to_string(),
                f.effect.map(|e| e.to_string()).unwrap_or_default(),
                f.title.clone(),
            ]
        };
        found.iter().map(row).collect()
    };
    let header = ["when", "agent", "call", "earlier", "what it was"];
    if !happened.is_empty() {
        let of = |code| happened.iter().filter(|f| f.code == code).count();
        line(&format!(
            "Sent although it would have been stopped (observe mode): {}, of them {} and {} of a spent credential.",
            happened.len(),
            count(of(RefusalCode::Duplicate), "duplicate"),
            count(of(RefusalCode::CredentialConsumed), "use")
        ))?;
        table(&header, rows(&happened), "")?;
    }
    if args.happened && happened.is_empty() {
        return line("Nothing went through that would have been stopped.");
    }
    if !args.happened {
        if !stopped.is_empty() {
            line(&format!("Stopped: {}.", stopped.len()))?;
        }
        table(
            &header,
            rows(&stopped),
            if happened.is_empty() {
                "Nothing was stopped."
            } else {
                ""
            },
        )?;
    }
    Ok(())
}
