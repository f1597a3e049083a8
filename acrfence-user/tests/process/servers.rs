//! Real stdio MCP servers say byte for byte the same with the gate as without.
//!
//! Installs them, from PyPI and npm, into a cache directory of the user:
//! `cargo test --test process -- --ignored real_servers`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::fence::Puppet;
use crate::gate::Gate;

/// A bank, written for whichever of the Python SDKs is there.
const BANK: &str = r#"
try:
    from mcp.server.fastmcp import FastMCP, Context
except ImportError:
    try:
        from fastmcp import FastMCP, Context
    except ImportError:
        from mcp.server import MCPServer as FastMCP
        from mcp.server.mcpserver import Context
server = FastMCP("bank")

@server.tool()
def pay(to: str, amount: float) -> str:
    """Pays."""
    return f"paid {amount} to {to} é ☃"

@server.tool()
def fail() -> str:
    """Fails."""
    raise ValueError("no such account")

@server.tool()
def big(size: int) -> str:
    """Says much."""
    return "x" * size

@server.tool()
async def slow(ctx: Context) -> str:
    """Tells its progress."""
    for step in range(3):
        await ctx.report_progress(step, 3)
    return "done"

server.run()
"#;

/// In the agent: has a conversation, gives all the server said, and its exit status.
const TALK: &str = r#"
import json
def talk(argv, lines):
    p = subprocess.Popen(argv, stdin=-1, stdout=-1, stderr=-3)
    out = b""
    for line in lines:
        p.stdin.write(line.encode() + b"\n")
        p.stdin.flush()
        asked = json.loads(line).get("id")
        while asked is not None:
            got = p.stdout.readline()
            out += got
            if not got or (json.loads(got).get("id") == asked and "method" not in json.loads(got)):
                break
    p.stdin.close()
    out += p.stdout.read()
    return [out.decode(), p.wait(timeout=60)]
"#;

fn cache() -> PathBuf {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))
        .unwrap();
    let cache = base.join("acrfence-test-servers");
    std::fs::create_dir_all(&cache).unwrap();
    cache
}

fn must(command: &mut Command) {
    let done = command.output().unwrap();
    assert!(
        done.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&done.stderr)
    );
}

/// A Python with a package in an environment of its own.
fn python(package: &str) -> PathBuf {
    let place = cache().join(package.replace(['=', '*'], "-"));
    let python = place.join("bin/python");
    if !place.join("complete").exists() {
        must(Command::new("python3").args(["-m", "venv"]).arg(&place));
        must(Command::new(&python).args(["-m", "pip", "-q", "install", package]));
        std::fs::write(place.join("complete"), "").unwrap();
    }
    python
}

/// The programs of npm packages.
fn node(package: &str) -> PathBuf {
    let place = cache().join("node");
    std::fs::create_dir_all(&place).unwrap();
    if !place.join("node_modules").join(package).exists() {
        must(
            Command::new("npm")
                .args(["install", "--silent", package])
                .current_dir(&place),
        );
    }
    let name = package.rsplit('/').next().unwrap();
    place.join("node_modules/.bin").join(format!("mcp-{name}"))
}

fn call(id: u32, name: &str, arguments: &serde_json::Value) -> String {
    serde_json::json!({
        "jsonrpc": "2.0", "id": id, "method": "tools/call",
        "params": {"name": name, "arguments": arguments, "_meta": {"progressToken": id}},
    })
    .to_string()
}

/// The same conversation with the gate and without, from the same agent.
fn same_with_and_without(argv: &[&str], calls: &[String]) {
    let gate = Gate::new();
    let mut agent: Puppet = gate.agent();
    agent.ok(&format!("exec({TALK:?}, globals()) or 1"));
    let mut lines = vec![
        r#"{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#.to_owned(),
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#.to_owned(),
        r#"{"jsonrpc":"2.0","id":"t","method":"tools/list"}"#.to_owned(),
    ];
    lines.extend_from_slice(calls);
    let talk = format!(
        "talk({}, {})",
        serde_json::to_string(argv).unwrap(),
        serde_json::to_string(&lines).unwrap()
    );
    gate.probe.gate_agent(1, 0).unwrap();
    let without = agent.ok(&talk);
    assert_eq!(gate.gated("stdio"), 0);
    gate.probe
        .gate_agent(1, acrfence_user::probe::GateWhy::ALL)
        .unwrap();
    let with = agent.ok(&talk);
    assert_eq!(without[1], 0, "{argv:?}");
    assert!(without[0].as_str().unwrap().matches('\n').count() > calls.len());
    assert!(with == without, "{argv:?}:\n{with}\n{without}");
    assert_eq!(gate.gated("stdio"), 1, "{argv:?}");
    assert!(gate.ungated().is_empty(), "{:?}", gate.ungated());
    let seen = gate.block_on(gate.judge.ended(calls.len()));
    assert_eq!(seen.len(), calls.len());
}

#[test]
#[ignore = "installs servers from PyPI"]
fn real_servers_in_python() {
    let folder = tempfile::tempdir().unwrap();
    let bank = folder.path().join("bank.py");
    std::fs::write(&bank, BANK).unwrap();
    let calls = [
        call(1, "pay", &serde_json::json!({"to": "bob", "amount": 5.5})),
        call(2, "fail", &serde_json::json!({})),
        call(3, "big", &serde_json::json!({"size": 3_000_000})),
        call(4, "slow", &serde_json::json!({})),
        call(5, "nothing", &serde_json::json!({})),
    ];
    for package in ["mcp==1.30.*", "mcp==2.3.*", "fastmcp==4.2.*"] {
        let python = python(package);
        same_with_and_without(&[python.to_str().unwrap(), bank.to_str().unwrap()], &calls);
    }
}

#[test]
#[ignore = "installs servers from npm"]
fn real_servers_in_typescript() {
    let everything = node("@modelcontextprotocol/server-everything");
    let calls = [
        call(1, "echo", &serde_json::json!({"message": "hello ☃"})),
        call(2, "get-sum", &serde_json::json!({"a": 2, "b": 3})),
        call(3, "get-tiny-image", &serde_json::json!({})),
        call(
            4,
            "trigger-long-running-operation",
            &serde_json::json!({"duration": 1, "steps": 3}),
        ),
        call(5, "echo", &serde_json::json!({"wrong": 1})),
    ];
    same_with_and_without(&[everything.to_str().unwrap()], &calls);

    let files = node("@modelcontextprotocol/server-filesystem");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.txt");
    let calls = [
        call(
            1,
            "write_file",
            &serde_json::json!({"path": path, "content": "é\n".repeat(100_000)}),
        ),
        call(2, "read_text_file", &serde_json::json!({"path": path})),
        call(
            3,
            "read_text_file",
            &serde_json::json!({"path": "/etc/passwd"}),
        ),
        call(
            4,
            "list_directory",
            &serde_json::json!({"path": folder.path()}),
        ),
    ];
    same_with_and_without(
        &[files.to_str().unwrap(), folder.path().to_str().unwrap()],
        &calls,
    );
}
