//! `acrfence effects --opaque` and `--commands`.

use super::Global;
use super::effects::query;
use super::output::{json, short, table, time};
use crate::control::{Client, OpaqueQuery, OpaqueRow, RanRow};
use crate::words::{ExitStatus, RanEnd};

pub(super) async fn list(
    client: &Client,
    global: &Global,
    asked: &OpaqueQuery,
) -> anyhow::Result<()> {
    let path = format!("/v1/opaque?{}", query(asked)?);
    let rows: Vec<OpaqueRow> = client.get(&path).await?;
    if global.json {
        return rows.iter().try_for_each(json);
    }
    let rows = rows
        .iter()
        .map(|OpaqueRow { position, seen }| {
            let digest = seen.digest.map(|d| d.to_string()).unwrap_or_default();
            vec![
                position.to_string(),
                time(seen.at),
                seen.origin.agent.to_string(),
                format!(
                    "{} {}",
                    seen.origin.process.tgid,
                    seen.origin.exe.rsplit('/').next().unwrap_or_default()
                ),
                seen.class.as_str().into(),
                seen.step.as_str().into(),
                short(&seen.peer, 50),
                seen.sent.to_string(),
                seen.received.to_string(),
                digest.get(..12).unwrap_or_default().into(),
                short(&seen.why, 60),
            ]
        })
        .collect();
    table(
        &[
            "RECORD", "AT", "AGENT", "PROCESS", "KIND", "", "PEER", "SENT", "RECEIVED", "SHA256",
            "WHY",
        ],
        rows,
        "Nothing was seen that is not fenced.",
    )
}

pub(super) async fn commands(
    client: &Client,
    global: &Global,
    asked: &OpaqueQuery,
) -> anyhow::Result<()> {
    let path = format!("/v1/commands?{}", query(asked)?);
    let rows: Vec<RanRow> = client.get(&path).await?;
    if global.json {
        return rows.iter().try_for_each(json);
    }
    let rows = rows
        .iter()
        .map(|RanRow { position, ran }| {
            let parent = ran.parent.map(|parent| parent.tgid.to_string());
            vec![
                position.to_string(),
                time(ran.began),
                ran.origin.agent.to_string(),
                ran.origin.process.tgid.to_string(),
                parent.unwrap_or_default(),
                end(ran.end),
                short(&ran.origin.cwd, 40),
                short(&ran.origin.argv.join(" "), 80),
            ]
        })
        .collect();
    table(
        &[
            "RECORD", "BEGAN", "AGENT", "PID", "PARENT", "ENDED", "IN", "COMMAND",
        ],
        rows,
        "No program ended that no rule names.",
    )
}

fn end(end: RanEnd) -> String {
    match end {
        RanEnd::Exited(ExitStatus::Code(code)) => code.to_string(),
        RanEnd::Exited(ExitStatus::Signal(signal)) => format!("signal {signal}"),
        RanEnd::Exited(ExitStatus::Unknown) => "?".into(),
        RanEnd::Replaced => "became another".into(),
        RanEnd::Running => "still ran".into(),
    }
}
