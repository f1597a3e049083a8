//! What became of a payment in doubt is found out by policy, at the bank itself, and the bank's own
//! books say that nothing was paid twice.

use std::process::Command;

use acrfence_tests::authority::Authority;
use acrfence_tests::bank::{Bank, order, reference, rewritten_order};
use acrfence_tests::client::{Answer, Client, python};
use acrfence_tests::fence::Fence;
use acrfence_tests::process::Running;
use anyhow::{Result, ensure};
use serde_json::{Value, json};

const TRANSFERS: &str = "/v1/transfers";

fn policy(in_doubt: &str) -> String {
    format!(
        "[fence]\nhold_timeout = \"1s\"\n[[rule]]\nmatch = {{ path = \"{TRANSFERS}\", method = \"POST\" }}\nas = \"effect\"\n{in_doubt}\n"
    )
}

const QUERY: &str = r#"[rule.in_doubt.query]
url = "/v1/transfers?reference={body:/reference}"
happened = { status = 200, json = "/transfers/0/reference", is = "{body:/reference}" }
did_not_happen = { status = 200, json = "/transfers", is = "[]" }
response = "/transfers/0"
settled_after = "0s""#;

/// A payment that the bank booked, and whose answer died with the daemon.
fn doubtful(authority: &Authority, bank: &Bank, in_doubt: &str) -> Result<Fence> {
    let mut fence = Fence::start_with(&[&authority.root()], &policy(in_doubt))?;
    bank.hold_answers();
    let client = Client::Requests.post(&bank.url(TRANSFERS), &order("alice", 100)?)?;
    let life = Running::start("buyer", &mut fence.launch("buyer", &client)?)?;
    bank.wait_for_orders(1)?;
    fence.kill()?;
    assert!(!life.finish()?.ok());
    bank.release_answers();
    fence.start_again()?;
    assert_eq!(fence.effects("buyer")?[0]["status"], "in_doubt");
    Ok(fence)
}

/// The restored agent pays again, in other words.
fn pay_again(fence: &Fence, bank: &Bank, client: Client) -> Result<Answer> {
    fence.say(&["restored", "buyer"])?;
    let again = client.post(&bank.url(TRANSFERS), &rewritten_order("alice", 100)?)?;
    client.answer(&fence.run("buyer", &again)?)
}

#[test]
fn the_bank_is_asked_and_says_that_it_was_paid() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let fence = doubtful(&authority, &bank, QUERY)?;
    let status = fence.say(&["status"])?;
    assert!(
        status.contains("in doubt") && status.contains("acrfence resolve e"),
        "{status}"
    );
    for client in [Client::Requests, Client::Curl] {
        let answer = pay_again(&fence, &bank, client)?;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let told: Value = serde_json::from_str(&answer.body)?;
        assert_eq!(told["id"], "tr_000001");
        assert_eq!(bank.payments(), 1);
    }
    // One order and one question; the second time was answered from the record.
    assert_eq!(bank.requests(), 2);
    assert_eq!(fence.effects("buyer")?[0]["status"], "completed");
    // The log tells what was asked and said.
    let kinds = |kind: &str| -> Result<usize> {
        let lines = fence.say(&["log", "export", "--decrypt", "--kind", kind])?;
        Ok(lines.lines().count())
    };
    assert_eq!(
        (kinds("asked")?, kinds("answered")?, kinds("resolved")?),
        (1, 1, 1)
    );
    Ok(())
}

#[test]
fn the_bank_is_asked_and_says_that_it_was_not_paid() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    // Another bank has the books of the order: this one knows nothing of it.
    let other = QUERY.replace(
        "{body:/reference}\"\nhappened",
        "{body:/reference}x\"\nhappened",
    );
    let fence = doubtful(&authority, &bank, &other)?;
    let answer = pay_again(&fence, &bank, Client::Curl)?;
    assert_eq!(answer.status, 201, "{}", answer.body);
    let statuses: Vec<Value> = fence
        .effects("buyer")?
        .iter()
        .map(|effect| effect["status"].clone())
        .collect();
    assert_eq!(statuses, ["failed", "completed"]);
    Ok(())
}

#[test]
fn a_bank_that_does_not_tell_leaves_it_to_a_person() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let nowhere = QUERY.replace("/v1/transfers?", "/v1/nowhere?");
    let fence = doubtful(&authority, &bank, &nowhere)?;
    let answer = pay_again(&fence, &bank, Client::Curl)?;
    assert_eq!(answer.status, 409, "{}", answer.body);
    assert_eq!(bank.payments(), 1);
    assert_eq!(fence.effects("buyer")?[0]["status"], "in_doubt");
    let status = fence.ask(&["status"])?;
    let kinds: Vec<&Value> = status[0]["waiting"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|waiting| &waiting["kind"])
        .collect();
    assert_eq!(kinds, ["in_doubt", "hold"]);
    Ok(())
}

#[test]
fn the_original_is_sent_again_under_its_own_reference() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let resend = "in_doubt = { resend = { key = \"{body:/reference}\" } }";
    let fence = doubtful(&authority, &bank, resend)?;
    let answer = pay_again(&fence, &bank, Client::Curl)?;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let told: Value = serde_json::from_str(&answer.body)?;
    // The bank itself says that it saw this very order before.
    assert_eq!(
        (&told["id"], &told["duplicate"]),
        (&"tr_000001".into(), &true.into())
    );
    assert_eq!((bank.payments(), bank.requests()), (1, 2));
    Ok(())
}

/// Over MCP, a tool of the same server is asked, in the session of the agent that calls again.
fn a_tool_is_asked(environment: &str, path: &str) -> Result<()> {
    const TOOL: &str = r#"[fence]
hold_timeout = "1s"
[[rule]]
match = { tool = "transfer" }
as = "effect"
[rule.in_doubt.query]
tool = "look_up"
arguments = { ref = "{argument:/ref}" }
happened = { json = "/found", is = "true" }
did_not_happen = { json = "/found", is = "false" }
response = "/transfer"
settled_after = "0s"
"#;
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let mut fence = Fence::start_with(&[&authority.root()], TOOL)?;
    let url = bank.url(path);
    let transfer = || -> Result<Command> {
        let wish = json!({"to": "alice", "amount": 100, "ref": reference()?});
        python(
            environment,
            "call_tool.py",
            &[&url, "transfer", &wish.to_string()],
        )
    };
    bank.hold_answers();
    let mut life = Running::start("buyer", &mut fence.launch("buyer", &transfer()?)?)?;
    bank.wait_for_orders(1)?;
    fence.kill()?;
    // A client that lost its event stream asks for it for as long as it has patience.
    life.kill()?;
    bank.release_answers();
    fence.start_again()?;
    assert_eq!(fence.effects("buyer")?[0]["status"], "in_doubt");

    fence.say(&["restored", "buyer"])?;
    let ended = fence.run("buyer", &transfer()?)?;
    ensure!(ended.ok(), "{}\n{}", ended.stdout, ended.stderr);
    let told: Value = serde_json::from_str(ended.stdout.trim())?;
    assert_eq!(told["is_error"], false, "{told}");
    assert_eq!(told["structured"]["id"], "tr_000001", "{told}");
    assert_eq!(bank.payments(), 1);
    let transfers = fence.ask(&["effects", "--agent", "buyer", "--tool", "transfer"])?;
    let of_it: Vec<&Value> = transfers.iter().map(|e| &e["status"]).collect();
    assert_eq!(of_it, ["completed"], "{transfers:?}");
    let asked = fence.say(&["log", "export", "--decrypt", "--kind", "asked"])?;
    assert_eq!(asked.lines().count(), 1, "{asked}");
    Ok(())
}

#[test]
fn a_tool_of_a_server_with_sessions_is_asked() -> Result<()> {
    a_tool_is_asked("python-mcp1", "/mcp")
}

#[test]
fn a_tool_of_a_server_that_answers_in_json_is_asked() -> Result<()> {
    a_tool_is_asked("python-mcp1", "/mcp-json")
}

#[test]
fn a_tool_of_a_server_without_sessions_is_asked() -> Result<()> {
    a_tool_is_asked("python-mcp2", "/mcp")
}
