//! Calls MCP tools with the official Rust SDK.
//!
//! Arguments: `LIFECYCLE URL TOOL ARGUMENTS [TOOL ARGUMENTS …]`, where LIFECYCLE is `initialize` (the
//! SDK's default) or `discover` (the revision without sessions). All calls go over one client. Prints a
//! JSON line for each, as `programs/call_tool.py` does.

use anyhow::{Context as _, Result, bail};
use rmcp::model::{CallToolRequestParams, ProtocolVersion};
use rmcp::service::{ClientLifecycleMode, ClientServiceExt as _};
use rmcp::transport::StreamableHttpClientTransport;
use serde_json::{Value, json};

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(talk(std::env::args().skip(1).collect()))
}

async fn talk(arguments: Vec<String>) -> Result<()> {
    let (lifecycle, arguments) = arguments.split_first().context("which lifecycle?")?;
    let (url, calls) = arguments.split_first().context("which URL?")?;
    let lifecycle = match lifecycle.as_str() {
        "initialize" => ClientLifecycleMode::Initialize,
        "discover" => ClientLifecycleMode::Discover {
            preferred_versions: vec![ProtocolVersion::V_2026_07_28],
        },
        other => bail!("there is no lifecycle {other}"),
    };
    let transport = StreamableHttpClientTransport::from_uri(url.as_str());
    let client = ().serve_with_lifecycle(transport, lifecycle).await?;
    let greeting = client.peer_info();
    let protocol = greeting.map(|server| json!(server.protocol_version));
    for call in calls.chunks_exact(2) {
        let mut wish = CallToolRequestParams::new(call[0].clone());
        wish.arguments = serde_json::from_str(&call[1])?;
        let result = client.call_tool(wish).await?;
        let text: Vec<String> = result
            .content
            .iter()
            .filter_map(|part| Some(part.as_text()?.text.clone()))
            .collect();
        let line: Value = json!({
            "protocol": protocol,
            "is_error": result.is_error.unwrap_or_default(),
            "text": text.join("\n"),
            "structured": result.structured_content,
        });
        println!("{line}");
    }
    client.cancel().await?;
    Ok(())
}
