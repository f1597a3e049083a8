//! What is left when something is killed in the middle.

use acrfence_tests::authority::Authority;
use acrfence_tests::bank::{Bank, order, rewritten_order};
use acrfence_tests::client::{Client, bare_python, plain};
use acrfence_tests::fence::Fence;
use acrfence_tests::process::{Running, run};
use anyhow::{Context as _, Result};
use serde_json::Value;

const TRANSFERS: &str = "/v1/transfers";

/// Long enough to be waited for by a person, short enough for a test.
const SHORT_HOLD: &str = "[fence]\nhold_timeout = \"1s\"\n";

/// Starts a payment whose answer the bank withholds, and returns when the bank has booked it.
fn paying(fence: &Fence, bank: &Bank) -> Result<Running> {
    bank.hold_answers();
    let client = Client::Requests.post(&bank.url(TRANSFERS), &order("alice", 100)?)?;
    let life = Running::start("buyer", &mut fence.launch("buyer", &client)?)?;
    bank.wait_for_orders(1)?;
    Ok(life)
}

fn only_effect(fence: &Fence) -> Result<(String, String)> {
    let effects = fence.effects("buyer")?;
    assert_eq!(effects.len(), 1, "{effects:?}");
    let text = |field: &str| effects[0][field].as_str().map(String::from);
    Ok((
        text("id").context("an effect without an id")?,
        text("status").context("an effect without a status")?,
    ))
}

#[test]
fn a_daemon_killed_before_the_answer_leaves_the_payment_in_doubt() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let mut fence = Fence::start_with(&[&authority.root()], SHORT_HOLD)?;
    let url = bank.url(TRANSFERS);
    let life = paying(&fence, &bank)?;
    fence.kill()?;
    assert!(!life.finish()?.ok());
    bank.release_answers();
    fence.start_again()?;
    let (effect, status) = only_effect(&fence)?;
    assert_eq!(status, "in_doubt");

    // The same payment again is held, not sent, until a person says what became of the first.
    fence.say(&["restored", "buyer"])?;
    let again = Client::Requests.post(&url, &rewritten_order("alice", 100)?)?;
    let held = Client::Requests.answer(&fence.run("buyer", &again)?)?;
    assert_eq!(held.status, 409, "{}", held.body);
    let problem: Value = serde_json::from_str(&held.body)?;
    for part in [effect.as_str(), "acrfence resolve"] {
        assert!(
            problem.to_string().contains(part),
            "{part} is not in {problem}"
        );
    }
    assert_eq!((bank.payments(), bank.requests()), (1, 1));

    // The ledger tells that it happened; from now on the answer that a person found is given.
    let answer = fence.place().scratch().join("answer.json");
    std::fs::write(&answer, r#"{"id": "tr_000001", "status": "booked"}"#)?;
    fence.say(&["resolve", &effect, "--happened", &answer.to_string_lossy()])?;
    fence.say(&["restored", "buyer"])?;
    let third = Client::Requests.post(&url, &rewritten_order("alice", 100)?)?;
    let answered = Client::Requests.answer(&fence.run("buyer", &third)?)?;
    assert!(answered.body.contains("tr_000001"), "{}", answered.body);
    assert_eq!(bank.payments(), 1);
    Ok(())
}

#[test]
fn a_payment_in_doubt_that_did_not_happen_may_be_sent() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let mut fence = Fence::start_with(&[&authority.root()], SHORT_HOLD)?;
    let life = paying(&fence, &bank)?;
    fence.kill()?;
    drop(life);
    bank.release_answers();
    fence.start_again()?;
    let (effect, _) = only_effect(&fence)?;
    fence.say(&["restored", "buyer"])?;
    fence.say(&["resolve", &effect, "--did-not-happen"])?;
    let url = bank.url(TRANSFERS);
    let again = Client::Requests.post(&url, &rewritten_order("alice", 100)?)?;
    assert_eq!(
        Client::Requests
            .answer(&fence.run("buyer", &again)?)?
            .status,
        201
    );
    assert_eq!(bank.payments(), 2);
    Ok(())
}

#[test]
fn an_agent_killed_before_the_answer_loses_no_outcome() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let fence = Fence::start(&authority)?;
    let mut life = paying(&fence, &bank)?;
    life.kill()?;
    bank.release_answers();
    // The restored agent's call waits for the outcome if it is not there yet.
    fence.say(&["restored", "buyer"])?;
    let url = bank.url(TRANSFERS);
    let again = Client::Requests.post(&url, &rewritten_order("alice", 100)?)?;
    let answer = Client::Requests.answer(&fence.run("buyer", &again)?)?;
    assert_eq!(answer.status, 201);
    let first = &bank.ledger()[0].order.reference;
    assert!(answer.body.contains(first), "{}", answer.body);
    assert_eq!(bank.payments(), 1);
    assert_eq!(only_effect(&fence)?.1, "completed");
    Ok(())
}

#[test]
fn a_twin_waits_for_the_call_that_is_on_its_way() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let fence = Fence::start(&authority)?;
    let mut life = paying(&fence, &bank)?;
    life.kill()?;
    fence.say(&["restored", "buyer"])?;
    let url = bank.url(TRANSFERS);
    let again = Client::Requests.post(&url, &rewritten_order("alice", 100)?)?;
    let twin = Running::start("the twin", &mut fence.launch("buyer", &again)?)?;
    // It is held while the first is running; a read-only call beside it is not.
    let ledger = bare_python("connection.py", &[&bank.url("/v1/connection")])?;
    let beside = run("beside", &mut fence.launch("beside", &ledger)?)?;
    assert!(beside.ok(), "{}", beside.stderr);
    assert_eq!(only_effect(&fence)?.1, "prepared");
    assert_eq!(bank.payments(), 1);
    bank.release_answers();
    let answer = Client::Requests.answer(&twin.finish()?)?;
    assert_eq!(answer.status, 201);
    let first = &bank.ledger()[0].order.reference;
    assert!(answer.body.contains(first), "{}", answer.body);
    assert_eq!(bank.payments(), 1);
    Ok(())
}

#[test]
fn without_its_daemon_an_agent_is_cut_off_rather_than_unwatched() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let mut fence = Fence::start(&authority)?;
    let state = fence.place().scratch().join("state.json");
    let (state, service) = (state.to_string_lossy().into_owned(), bank.url(""));
    let agent = bare_python(
        "agent.py",
        &[
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
        ],
    )?;
    let mut life = Running::start("buyer", &mut fence.launch("buyer", &agent)?)?;
    life.wait_for("checkpoint")?;
    fence.kill()?;
    life.tell("go on")?;
    let ended = life.finish()?;
    assert!(!ended.ok(), "{}", ended.stdout);
    assert_eq!(bank.payments(), 0);

    // And what was known is known again when the daemon is back.
    fence.start_again()?;
    let mut life = Running::start("buyer", &mut fence.launch("buyer", &agent)?)?;
    assert_eq!(life.wait_for("restored")?, "act");
    assert!(life.wait_for("answer")?.starts_with("201 "));
    assert_eq!(bank.payments(), 1);
    Ok(())
}

#[test]
fn a_restart_of_the_daemon_forgets_nothing() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let mut fence = Fence::start(&authority)?;
    let url = bank.url(TRANSFERS);
    let body = order("alice", 100)?;
    let first =
        Client::Requests.answer(&fence.run("buyer", &Client::Requests.post(&url, &body)?)?)?;
    let before = fence.effects("buyer")?;
    fence.kill()?;
    fence.start_again()?;
    assert_eq!(fence.effects("buyer")?, before);
    fence.say(&["restored", "buyer"])?;
    let body = rewritten_order("alice", 100)?;
    let second =
        Client::Requests.answer(&fence.run("buyer", &Client::Requests.post(&url, &body)?)?)?;
    assert_eq!(second, first);
    assert_eq!(bank.payments(), 1);
    Ok(())
}

/// A tool call of a killed agent may outlive it; that must not keep the agent from starting again, nor
/// what is left from being fenced.
#[test]
fn what_a_killed_agent_left_behind_does_not_keep_it_from_starting() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let fence = Fence::start(&authority)?;
    bank.hold_answers();
    let client = Client::Curl.post(&bank.url(TRANSFERS), &order("alice", 100)?)?;
    let mut agent = plain("/bin/sh");
    agent
        .arg("-c")
        .arg(r#""$@" & echo started; wait"#)
        .arg("agent");
    agent.arg(client.get_program()).args(client.get_args());
    for (variable, value) in client.get_envs() {
        if let Some(value) = value {
            agent.env(variable, value);
        }
    }
    let mut life = Running::start("buyer", &mut fence.launch("buyer", &agent)?)?;
    life.wait_for("started")?;
    bank.wait_for_orders(1)?;
    life.kill()?;

    // The client lives on. The agent starts again, and means that payment: it gets its answer.
    let again = Client::Requests.post(&bank.url(TRANSFERS), &rewritten_order("alice", 100)?)?;
    fence.say(&["restored", "buyer"])?;
    let next = Running::start("buyer again", &mut fence.launch("buyer", &again)?)?;
    bank.release_answers();
    let answered = Client::Requests.answer(&next.finish()?)?;
    assert_eq!(answered.status, 201, "{}", answered.body);
    assert_eq!(bank.payments(), 1);
    let agents = fence.ask(&["agents"])?;
    assert_eq!(agents[0]["incarnation"], 2, "{agents:?}");
    Ok(())
}
