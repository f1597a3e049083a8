//! MCP over streamable HTTP, through the official Python client of either generation.

use acrfence_tests::approval::Approval;
use acrfence_tests::authority::Authority;
use acrfence_tests::bank::{Bank, reference};
use acrfence_tests::client::python;
use acrfence_tests::fence::Fence;
use anyhow::{Result, ensure};
use serde_json::{Value, json};

/// Calls tools as `name`, in one life, one after the other.
fn call(
    fence: &Fence,
    name: &str,
    environment: &str,
    url: &str,
    calls: &[(&str, Value)],
) -> Result<Vec<Value>> {
    let mut arguments = vec![url.to_owned()];
    for (tool, wish) in calls {
        arguments.extend([(*tool).to_owned(), wish.to_string()]);
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ended = fence.run(name, &python(environment, "call_tool.py", &arguments)?)?;
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

fn pays_once(environment: &str, path: &str) -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let fence = Fence::start(&authority)?;
    let url = bank.url(path);
    let balance = ("check_balance", json!({}));
    let first = call(&fence, "buyer", environment, &url, &[transfer(100)?])?;
    assert_eq!(first[0]["structured"]["id"], "tr_000001", "{first:?}");

    fence.say(&["restored", "buyer"])?;
    // A call before it gives it another JSON-RPC id; the client would not take a recorded one.
    let calls = [balance, transfer(250)?, transfer(100)?];
    let second = call(&fence, "buyer", environment, &url, &calls)?;
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
    let third = call(&fence, "buyer", environment, &url, &[transfer(250)?])?;
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
    pays_once("python-mcp1", "/mcp")
}

#[test]
fn answers_in_json() -> Result<()> {
    pays_once("python-mcp1", "/mcp-json")
}

#[test]
fn the_revision_without_sessions() -> Result<()> {
    pays_once("python-mcp2", "/mcp")
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
