//! `acrfence effects --opaque`.

use super::Global;
use super::effects::query;
use super::output::{json, short, table, time};
use crate::control::{Client, OpaqueQuery, OpaqueRow};

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
