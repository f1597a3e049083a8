//! The bench itself, without a daemon: what the other tests take for granted must be so.

use acrfence_tests::approval::Approval;
use acrfence_tests::authority::Authority;
use acrfence_tests::bank::{Bank, CLOSED_ACCOUNT, order, rewritten_order};
use acrfence_tests::client::{Client, bare_python, python, trusting};
use acrfence_tests::process::{Running, run};
use anyhow::Result;
use serde_json::{Value, json};

fn pays_twice(client: Client, version: &str) -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let url = bank.url("/v1/transfers");
    let pay = |body: &str| {
        let command = client.post(&url, body)?;
        client.answer(&run("a client", &mut trusting(command, &authority.root()))?)
    };
    let body = order("alice", 100)?;
    let first = pay(&body)?;
    assert_eq!((first.status, first.http.as_str()), (201, version));
    // The bank's own protection works, and is of no use against a new reference.
    assert_eq!(pay(&body)?.status, 200);
    assert_eq!(bank.payments(), 1);
    assert_eq!(pay(&rewritten_order("alice", 100)?)?.status, 201);
    assert_eq!(bank.payments(), 2);
    assert_eq!(pay(&order(CLOSED_ACCOUNT, 100)?)?.status, 422);
    assert_eq!(bank.payments(), 2);
    Ok(())
}

#[test]
fn requests_pays_twice() -> Result<()> {
    pays_twice(Client::Requests, "1.1")
}

#[test]
fn httpx_pays_twice() -> Result<()> {
    pays_twice(Client::Httpx, "1.1")
}

#[test]
fn curl_pays_twice_over_http2() -> Result<()> {
    pays_twice(Client::Curl, "2")
}

#[test]
fn fetch_pays_twice() -> Result<()> {
    pays_twice(Client::Fetch, "1.1")
}

fn tools_work(environment: &str, path: &str, revision: &str) -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let first = json!({"to": "alice", "amount": 100, "ref": "1"}).to_string();
    let second = json!({"to": "alice", "amount": 100, "ref": "2"}).to_string();
    let command = python(
        environment,
        "call_tool.py",
        &[
            &bank.url(path),
            "check_balance",
            "{}",
            "transfer",
            &first,
            "transfer",
            &second,
        ],
    )?;
    let ended = run("an MCP client", &mut trusting(command, &authority.root()))?;
    assert!(ended.ok(), "{}\n{}", ended.stdout, ended.stderr);
    let answers: Vec<Value> = ended
        .stdout
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    assert_eq!(answers.len(), 3);
    assert_eq!(answers[0]["protocol"], revision);
    assert_eq!(answers[0]["structured"]["balance"], 10_000);
    assert_eq!(answers[2]["structured"]["id"], "tr_000002");
    assert_eq!(bank.payments(), 2);
    Ok(())
}

#[test]
fn mcp_with_sessions_and_event_streams() -> Result<()> {
    tools_work("python-mcp1", "/mcp", "2025-11-25")
}

#[test]
fn mcp_without_sessions_in_json() -> Result<()> {
    tools_work("python-mcp1", "/mcp-json", "2025-11-25")
}

#[test]
fn mcp_of_2026() -> Result<()> {
    tools_work("python-mcp2", "/mcp", "2026-07-28")
}

#[test]
fn an_agent_that_is_killed_after_paying_pays_again() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let memory = tempfile::tempdir()?;
    let state = memory.path().join("state.json");
    let state = state.to_string_lossy();
    let service = bank.url("");
    let arguments = [
        "--state",
        &state,
        "--service",
        &service,
        "--do",
        "pay",
        "--to",
        "alice",
        "--amount",
        "100",
    ];

    let mut first = bare_python("agent.py", &[&arguments[..], &["--mood", "1"]].concat())?;
    first = trusting(first, &authority.root());
    let mut life = Running::start("the agent", &mut first)?;
    life.wait_for("checkpoint")?;
    life.tell("go on")?;
    let first_request = life.wait_for("request")?;
    assert!(life.wait_for("answer")?.starts_with("201 "));
    life.kill()?;

    let mut second = bare_python("agent.py", &[&arguments[..], &["--mood", "2"]].concat())?;
    second = trusting(second, &authority.root());
    let mut life = Running::start("the restored agent", &mut second)?;
    assert_eq!(life.wait_for("restored")?, "act");
    let second_request = life.wait_for("request")?;
    assert!(life.wait_for("answer")?.starts_with("201 "));
    life.tell("go on")?;
    life.wait_for("done")?;

    assert_eq!(bank.payments(), 2);
    let keys = |text: &str| -> Result<Vec<String>> {
        let object: Value = serde_json::from_str(text)?;
        let mut keys: Vec<String> = object
            .as_object()
            .into_iter()
            .flat_map(|o| o.keys().cloned())
            .collect();
        keys.sort_by_key(|key| text.find(&format!("\"{key}\"")));
        Ok(keys)
    };
    assert_ne!(keys(&first_request)?, keys(&second_request)?);
    Ok(())
}

#[test]
fn a_spent_approval_is_good_for_another_customer() -> Result<()> {
    let authority = Authority::new()?;
    let approval = Approval::start(&authority, 0)?;
    let memory = tempfile::tempdir()?;
    let state = memory.path().join("state.json");
    let state = state.to_string_lossy();
    let service = approval.url("");
    for customer in ["4711", "4712"] {
        let mut command = bare_python(
            "agent.py",
            &[
                "--state",
                &state,
                "--service",
                &service,
                "--do",
                "delete",
                "--to",
                customer,
            ],
        )?;
        command = trusting(command, &authority.root());
        let mut life = Running::start("the agent", &mut command)?;
        if customer == "4711" {
            life.wait_for("checkpoint")?;
            life.tell("go on")?;
        }
        assert!(life.wait_for("answer")?.starts_with("200 "));
        life.kill()?;
    }
    assert_eq!(approval.deleted(), ["4711", "4712"]);
    Ok(())
}

#[test]
fn every_process_of_a_family_is_seen_with_its_own_address() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let url = bank.url("/v1/connection");
    for kind in ["grandchild", "double-fork", "thread"] {
        let command = bare_python("family.py", &[kind, &url])?;
        let ended = run(kind, &mut trusting(command, &authority.root()))?;
        assert!(ended.ok(), "{kind}: {}", ended.stderr);
        let report: Value = serde_json::from_str(&ended.stdout)?;
        assert_eq!(report["redirected"], false, "{kind}");
        assert!(report["orphan"].as_bool().unwrap_or(true), "{kind}");
    }
    assert_eq!(bank.requests(), 3);
    Ok(())
}
