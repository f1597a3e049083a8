//! MCP over streamable HTTP, through unmodified clients: the official SDKs of Python (either generation),
//! TypeScript and Rust, and fastmcp.

use acrfence_tests::approval::Approval;
use acrfence_tests::authority::Authority;
use acrfence_tests::bank::{Bank, Options, reference};
use acrfence_tests::client::{mcp_client, node_packages, plain, python};
use acrfence_tests::fence::Fence;
use acrfence_tests::process::Running;
use anyhow::{Result, ensure};
use serde_json::{Value, json};

/// Calls tools as `name`, in one life, one after the other.
fn call(
    fence: &Fence,
    name: &str,
    client: &str,
    url: &str,
    calls: &[(&str, Value)],
) -> Result<Vec<Value>> {
    let mut arguments = vec![url.to_owned()];
    for (tool, wish) in calls {
        arguments.extend([(*tool).to_owned(), wish.to_string()]);
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ended = fence.run(name, &mcp_client(client, &arguments)?)?;
    ensure!(ended.ok(), "{}\n{}", ended.stdout, ended.stderr);
    ended
        .stdout
        .lines()
        .map(|line| Ok(serde_json::from_str(line)?))
        .collect()
}

fn transfer(amount: u64) -> Result<(&'static str, Value)> {
    let wish = json!({"to": "alice", "amount": amount, "ref": reference()?});
    Ok(("transfer", wish))
}

fn pays_once(client: &str, path: &str, protocol: &str) -> Result<()> {
    let authority = Authority::new()?;
    let options = Options {
        // The SDK of Rust is built without TLS here.
        clear: client.starts_with("rmcp"),
        ..Options::default()
    };
    let bank = Bank::start_with(&authority, options)?;
    let fence = Fence::start(&authority)?;
    let url = bank.url(path);
    let balance = ("check_balance", json!({}));
    let first = call(&fence, "buyer", client, &url, &[transfer(100)?])?;
    assert_eq!(first[0]["structured"]["id"], "tr_000001", "{first:?}");
    assert_eq!(first[0]["protocol"], protocol, "{first:?}");

    fence.say(&["restored", "buyer"])?;
    // A call before it gives it another JSON-RPC id; the client would not take a recorded one.
    let calls = [balance, transfer(250)?, transfer(100)?];
    let second = call(&fence, "buyer", client, &url, &calls)?;
    // Another amount is a tool error that the model can read, not a broken transport.
    assert_eq!(second[1]["is_error"], true, "{second:?}");
    let text = second[1]["text"].as_str().unwrap_or_default();
    assert!(text.contains("acrfence fork"), "{text}");
    assert_eq!(
        second[2]["structured"], first[0]["structured"],
        "{second:?}"
    );
    assert_eq!(second[2]["is_error"], false);
    assert_eq!(bank.payments(), 1);

    // Restored once more, it may take another path when a person says so.
    fence.say(&["restored", "buyer"])?;
    fence.say(&["fork", "buyer"])?;
    let third = call(&fence, "buyer", client, &url, &[transfer(250)?])?;
    assert_eq!(third[0]["structured"]["id"], "tr_000002", "{third:?}");
    assert_eq!(bank.payments(), 2);
    // Nobody vouches for what the server says of its tools, so `check_balance` may be among the effects.
    let effects = fence.ask(&["effects", "--agent", "buyer", "--tool", "transfer"])?;
    let transports: Vec<&Value> = effects.iter().map(|effect| &effect["transport"]).collect();
    assert_eq!(transports, ["mcp", "mcp"], "{effects:?}");
    Ok(())
}

#[test]
fn answers_as_event_streams() -> Result<()> {
    pays_once("python-mcp1", "/mcp", "2025-11-25")
}

#[test]
fn answers_in_json() -> Result<()> {
    pays_once("python-mcp1", "/mcp-json", "2025-11-25")
}

#[test]
fn the_revision_without_sessions() -> Result<()> {
    pays_once("python-mcp2", "/mcp", "2026-07-28")
}

#[test]
fn the_typescript_sdk_pays_once() -> Result<()> {
    pays_once("node-mcp", "/mcp", "2025-11-25")
}

#[test]
fn fastmcp_pays_once() -> Result<()> {
    pays_once("python-fastmcp", "/mcp", "2026-07-28")
}

#[test]
fn the_rust_sdk_pays_once() -> Result<()> {
    pays_once("rmcp-initialize", "/mcp", "2025-11-25")
}

#[test]
fn the_rust_sdk_pays_once_without_sessions() -> Result<()> {
    pays_once("rmcp-discover", "/mcp", "2026-07-28")
}

/// Servers as people have them, each with a client of its own kind.
fn pays_a_real_server_once(environment: &str) -> Result<()> {
    let mut bank = Running::start("a bank", &mut python(environment, "mcp_bank.py", &[])?)?;
    let url = format!("http://127.0.0.1:{}/mcp", bank.wait_for("port ")?);
    let fence = Fence::start_with(&[], "")?;
    let buyer = |calls: &[(&str, Value)]| call(&fence, "buyer", environment, &url, calls);
    let first = buyer(&[transfer(100)?])?;
    assert!(text(&first[0]).contains("tr_000001"), "{first:?}");
    let paid = bank.wait_for("paid ")?;
    assert!(paid.starts_with("alice 100 "), "{paid}");

    fence.say(&["restored", "buyer"])?;
    let second = buyer(&[transfer(250)?, transfer(100)?])?;
    assert_eq!(second[0]["is_error"], true, "{second:?}");
    assert!(text(&second[0]).contains("acrfence fork"), "{second:?}");
    assert_eq!(second[1]["text"], first[0]["text"], "{second:?}");

    fence.say(&["fork", "buyer"])?;
    let third = buyer(&[transfer(250)?])?;
    assert!(text(&third[0]).contains("tr_000002"), "{third:?}");
    // The next that the bank booked: it never heard of what came between.
    let paid = bank.wait_for("paid ")?;
    assert!(paid.starts_with("alice 250 "), "{paid}");
    Ok(())
}

fn text(result: &Value) -> &str {
    result["text"].as_str().unwrap_or_default()
}

#[test]
fn a_server_of_the_first_python_sdk_is_paid_once() -> Result<()> {
    pays_a_real_server_once("python-mcp1")
}

#[test]
fn a_server_of_the_second_python_sdk_is_paid_once() -> Result<()> {
    pays_a_real_server_once("python-mcp2")
}

#[test]
fn a_server_of_fastmcp_is_paid_once() -> Result<()> {
    pays_a_real_server_once("python-fastmcp")
}

/// The TypeScript SDK's own example server. It does nothing that could be counted, but `get-env` tells
/// one life of it from another.
#[test]
fn server_everything_is_answered_for() -> Result<()> {
    let packages = node_packages("node-mcp")?;
    let program =
        packages.join("node_modules/@modelcontextprotocol/server-everything/dist/index.js");
    // It takes no port of the system's choice.
    let port = std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port();
    let start = |life: &str| -> Result<Running> {
        let mut node = plain("node");
        node.arg(&program)
            .arg("streamableHttp")
            .env("PORT", port.to_string())
            .env("LIFE", life);
        // What says that it listens goes to its other stream.
        let mut shell = plain("/bin/sh");
        shell.args(["-c", "exec \"$@\" 2>&1", "sh"]);
        shell.arg(node.get_program()).args(node.get_args());
        for (name, value) in node.get_envs() {
            shell.env(name, value.unwrap_or_default());
        }
        let mut server = Running::start("server-everything", &mut shell)?;
        server.wait_for("MCP Streamable HTTP Server listening")?;
        Ok(server)
    };
    let fence = Fence::start_with(&[], "")?;
    let url = format!("http://127.0.0.1:{port}/mcp");
    let agent = |calls: &[(&str, Value)]| call(&fence, "agent", "node-mcp", &url, calls);
    let look = || ("get-env", json!({}));
    let sum = |b: u64| ("get-sum", json!({"a": 1, "b": b}));
    let mut server = start("one")?;
    let first = agent(&[look(), sum(2)])?;
    assert!(text(&first[0]).contains("\"LIFE\": \"one\""), "{first:?}");
    assert!(text(&first[1]).contains('3'), "{first:?}");
    server.kill()?;

    fence.say(&["restored", "agent"])?;
    let _server = start("two")?;
    let second = agent(&[sum(3), sum(2), look(), look()])?;
    assert_eq!(second[0]["is_error"], true, "{second:?}");
    assert!(text(&second[0]).contains("acrfence fork"), "{second:?}");
    assert_eq!(second[1]["text"], first[1]["text"]);
    // The server that runs now was not asked; for the second, which is a new action, it is.
    assert_eq!(second[2]["text"], first[0]["text"]);
    let new = text(&second[3]);
    assert!(new.contains("\"LIFE\": \"two\""), "{new}");
    Ok(())
}

#[test]
fn a_spent_approval_stays_spent() -> Result<()> {
    let authority = Authority::new()?;
    let desk = Approval::start(&authority, 0)?;
    let fence = Fence::start(&authority)?;
    let url = desk.url("/mcp");
    let support = |calls: &[(&str, Value)]| call(&fence, "support", "python-mcp2", &url, calls);
    let wish = json!({"operation": "delete_customer_data", "target": "4711"});
    let approved = support(&[("request_approval", wish)])?;
    let token = approved[0]["structured"]["token"].clone();
    assert!(token.is_string(), "{approved:?}");
    fence.say(&["checkpoint", "support", "approved"])?;
    let delete = |customer: &str| {
        (
            "delete_customer_data",
            json!({"token": token, "customer_id": customer}),
        )
    };
    let deleted = support(&[delete("4711")])?;
    assert_eq!(deleted[0]["is_error"], false, "{deleted:?}");

    fence.say(&["restored", "support", "--to", "approved"])?;
    let got = support(&[delete("4712"), delete("4711")])?;
    assert_eq!(got[0]["is_error"], true, "{got:?}");
    let text = got[0]["text"].as_str().unwrap_or_default();
    assert!(text.contains("already spent"), "{text}");
    assert_eq!(got[1]["structured"], deleted[0]["structured"]);
    assert_eq!(desk.deleted(), ["4711"]);
    Ok(())
}
