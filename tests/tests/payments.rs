//! Two payments without the fence, one with it: unmodified clients over HTTP.

use acrfence_tests::approval::Approval;
use acrfence_tests::authority::Authority;
use acrfence_tests::bank::{Bank, CLOSED_ACCOUNT, Options, order, rewritten_order};
use acrfence_tests::client::{Answer, Client, answers, bare_python, plain, post_all};
use acrfence_tests::fence::Fence;
use acrfence_tests::process::Running;
use acrfence_tests::rounds;
use anyhow::Result;
use serde_json::Value;

const TRANSFERS: &str = "/v1/transfers";

/// Pays as `buyer` in a life of its own.
fn pay(fence: &Fence, client: Client, url: &str, body: &str) -> Result<Answer> {
    client.answer(&fence.run("buyer", &client.post(url, body)?)?)
}

fn pays_once(client: Client, version: &str) -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let fence = Fence::start(&authority)?;
    let url = bank.url(TRANSFERS);

    let first = pay(&fence, client, &url, &order("alice", 100)?)?;
    assert_eq!((first.status, first.http.as_str()), (201, version));
    assert_eq!((bank.payments(), bank.requests()), (1, 1));

    fence.say(&["restored", "buyer"])?;
    let second = pay(&fence, client, &url, &rewritten_order("alice", 100)?)?;
    assert_eq!(second, first);
    // Nothing was sent.
    assert_eq!((bank.payments(), bank.requests()), (1, 1));

    let effects = fence.effects("buyer")?;
    assert_eq!(effects.len(), 1, "{effects:?}");
    assert_eq!(effects[0]["status"], "completed");
    assert_eq!(effects[0]["code"], 201);
    assert_eq!(effects[0]["host"], "localhost");
    Ok(())
}

#[test]
fn requests_pays_once() -> Result<()> {
    pays_once(Client::Requests, "1.1")
}

#[test]
fn httpx_pays_once() -> Result<()> {
    pays_once(Client::Httpx, "1.1")
}

#[test]
fn curl_pays_once_over_http2() -> Result<()> {
    pays_once(Client::Curl, "2")
}

#[test]
fn fetch_pays_once() -> Result<()> {
    pays_once(Client::Fetch, "1.1")
}

#[test]
fn an_address_instead_of_a_name_is_fenced() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let fence = Fence::start(&authority)?;
    let url = bank.url(TRANSFERS).replace("localhost", "127.0.0.1");
    let first = pay(&fence, Client::Curl, &url, &order("alice", 100)?)?;
    assert_eq!(first.status, 201);
    fence.say(&["restored", "buyer"])?;
    let second = pay(&fence, Client::Curl, &url, &rewritten_order("alice", 100)?)?;
    assert_eq!(second, first);
    assert_eq!(bank.payments(), 1);
    Ok(())
}

/// A client tries the addresses of a name one after the other. Through the fence the first one always
/// seems to be there, so the fence has to do what the client would have done.
#[test]
fn a_service_on_one_address_of_its_name_is_reached() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start_with(
        &authority,
        Options {
            only_v4: true,
            ..Options::default()
        },
    )?;
    let fence = Fence::start(&authority)?;
    let body = order("alice", 100)?;
    let mut command = Client::Curl.post(&bank.url(TRANSFERS), &body)?;
    let both = format!("localhost:{}:[::1],127.0.0.1", bank.port());
    command.args(["--resolve", &both]);
    let got = Client::Curl.answer(&fence.run("buyer", &command)?)?;
    assert_eq!(got.status, 201, "{}", got.body);
    assert_eq!(bank.payments(), 1);
    Ok(())
}

#[test]
fn http_in_the_clear_is_fenced() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start_with(
        &authority,
        Options {
            clear: true,
            ..Options::default()
        },
    )?;
    let fence = Fence::start(&authority)?;
    let url = bank.url(TRANSFERS);
    let first = pay(&fence, Client::Requests, &url, &order("alice", 100)?)?;
    assert_eq!(first.status, 201);
    fence.say(&["restored", "buyer"])?;
    let body = rewritten_order("alice", 100)?;
    assert_eq!(pay(&fence, Client::Requests, &url, &body)?, first);
    assert_eq!(bank.payments(), 1);
    Ok(())
}

#[test]
fn no_restore_no_fence() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let fence = Fence::start(&authority)?;
    let twice = [order("alice", 100)?, rewritten_order("alice", 100)?];
    let command = post_all(&bank.url(TRANSFERS), &[&twice[0], &twice[1]])?;
    let got = answers(&fence.run("buyer", &command)?)?;
    assert_eq!([got[0].status, got[1].status], [201, 201]);
    assert_eq!(bank.payments(), 2);
    assert_eq!(fence.effects("buyer")?.len(), 2);
    Ok(())
}

#[test]
fn each_effect_answers_once_in_a_timeline() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let fence = Fence::start(&authority)?;
    let url = bank.url(TRANSFERS);
    let first = pay(&fence, Client::Requests, &url, &order("alice", 100)?)?;
    fence.say(&["restored", "buyer"])?;
    // The first makes up for the forgotten payment; the second means another one.
    let again = [
        rewritten_order("alice", 100)?,
        rewritten_order("alice", 100)?,
    ];
    let command = post_all(&url, &[&again[0], &again[1]])?;
    let got = answers(&fence.run("buyer", &command)?)?;
    assert_eq!(got[0], first);
    assert_eq!(got[1].status, 201);
    assert_ne!(got[1], first);
    assert_eq!(bank.payments(), 2);
    Ok(())
}

#[test]
fn restores_of_restores_pay_once() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let fence = Fence::start(&authority)?;
    let url = bank.url(TRANSFERS);
    let first = pay(&fence, Client::Requests, &url, &order("alice", 100)?)?;
    for life in 2..5 {
        fence.say(&["restored", "buyer"])?;
        let body = rewritten_order("alice", 100)?;
        assert_eq!(
            pay(&fence, Client::Requests, &url, &body)?,
            first,
            "life {life}"
        );
    }
    assert_eq!(bank.payments(), 1);
    Ok(())
}

#[test]
fn what_was_refused_may_be_tried_again() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let fence = Fence::start(&authority)?;
    let url = bank.url(TRANSFERS);
    let body = order(CLOSED_ACCOUNT, 100)?;
    assert_eq!(pay(&fence, Client::Requests, &url, &body)?.status, 422);
    assert_eq!(fence.effects("buyer")?[0]["status"], "failed");
    fence.say(&["restored", "buyer"])?;
    let body = order("alice", 100)?;
    assert_eq!(pay(&fence, Client::Requests, &url, &body)?.status, 201);
    assert_eq!(bank.payments(), 1);
    Ok(())
}

#[test]
fn another_amount_is_stopped_until_a_fork() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let fence = Fence::start(&authority)?;
    let url = bank.url(TRANSFERS);
    let first = pay(&fence, Client::Requests, &url, &order("alice", 100)?)?;
    fence.say(&["restored", "buyer"])?;

    let dearer = rewritten_order("alice", 250)?;
    let stopped = pay(&fence, Client::Requests, &url, &dearer)?;
    assert_eq!(stopped.status, 409);
    let problem: Value = serde_json::from_str(&stopped.body)?;
    let effect = fence.effects("buyer")?[0]["id"].clone();
    let effect = effect.as_str().unwrap_or_default();
    // An agent, or whoever reads its log, learns what was done, what differs and what to do next.
    for part in [effect, "amount", "100", "250", "acrfence fork"] {
        assert!(
            problem.to_string().contains(part),
            "{part} is not in {problem}"
        );
    }
    assert_eq!((bank.payments(), bank.requests()), (1, 1));

    fence.say(&["fork", "buyer"])?;
    // A fork allows other things, not the same thing again.
    let both = [
        rewritten_order("alice", 250)?,
        rewritten_order("alice", 100)?,
    ];
    let got = answers(&fence.run("buyer", &post_all(&url, &[&both[0], &both[1]])?)?)?;
    assert_eq!(got[0].status, 201);
    assert_eq!(got[1], first);
    assert_eq!(bank.payments(), 2);
    Ok(())
}

#[test]
fn a_restore_to_a_checkpoint_remembers_what_came_before_it() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let fence = Fence::start(&authority)?;
    let url = bank.url(TRANSFERS);
    pay(&fence, Client::Requests, &url, &order("alice", 100)?)?;
    fence.say(&["checkpoint", "buyer", "after-the-first"])?;
    fence.say(&["restored", "buyer", "--to", "after-the-first"])?;
    // It knows of its payment and means a second one.
    let body = rewritten_order("alice", 100)?;
    assert_eq!(pay(&fence, Client::Requests, &url, &body)?.status, 201);
    assert_eq!(bank.payments(), 2);
    assert_eq!(fence.effects("buyer")?.len(), 2);
    // Restored there again, it knows of the first and has forgotten the second.
    fence.say(&["restored", "buyer", "--to", "after-the-first"])?;
    let body = rewritten_order("alice", 100)?;
    let answer = pay(&fence, Client::Requests, &url, &body)?;
    let second = &bank.ledger()[1].order.reference;
    assert!(answer.body.contains(second), "{}", answer.body);
    assert_eq!(bank.payments(), 2);
    Ok(())
}

#[test]
fn a_spent_approval_stays_spent() -> Result<()> {
    let authority = Authority::new()?;
    let desk = Approval::start(&authority, 0)?;
    let fence = Fence::start(&authority)?;
    let service = desk.url("");
    let state = fence.place().scratch().join("state.json");
    let state = state.to_string_lossy();
    let deletes = |customer: &str| -> Result<Running> {
        let command = bare_python(
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
        Running::start("support", &mut fence.launch("support", &command)?)
    };
    let mut life = deletes("4711")?;
    life.wait_for("checkpoint")?;
    fence.say(&["checkpoint", "support", "approved"])?;
    life.tell("go on")?;
    assert!(life.wait_for("answer")?.starts_with("200 "));
    life.kill()?;

    fence.say(&["restored", "support", "--to", "approved"])?;
    let mut life = deletes("4712")?;
    let answer = life.wait_for("answer 409")?;
    assert!(answer.contains("credential_consumed"), "{answer}");
    assert_eq!(desk.deleted(), ["4711"]);
    // Not in a fork either: another path does not bring an approval back.
    fence.say(&["fork", "support"])?;
    life.tell("try again")?;
    let answer = life.wait_for("answer 409")?;
    assert!(answer.contains("credential_consumed"), "{answer}");
    assert_eq!(desk.deleted(), ["4711"]);
    life.kill()?;

    // For the customer it was spent on, the agent gets the answer it forgot.
    fence.say(&["restored", "support", "--to", "approved"])?;
    let mut life = deletes("4711")?;
    assert!(life.wait_for("answer")?.starts_with("200 "));
    assert_eq!(desk.deleted(), ["4711"]);
    Ok(())
}

#[test]
fn a_restart_that_nobody_explained_is_held_for_a_person() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let fence = Fence::start_with(&[&authority.root()], "[fence]\nhold_timeout = \"1s\"\n")?;
    let state = fence.place().scratch().join("state.json");
    let (state, service) = (state.to_string_lossy(), bank.url(""));
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
    let agent = bare_python("agent.py", &arguments)?;
    let mut life = Running::start("buyer", &mut fence.launch("buyer", &agent)?)?;
    life.wait_for("checkpoint")?;
    life.tell("go on")?;
    let first = life.wait_for("answer 201")?;
    life.kill()?;

    let mut life = Running::start("buyer", &mut fence.launch("buyer", &agent)?)?;
    let held = life.wait_for("answer 409")?;
    let holds = fence.ask(&["holds"])?;
    assert_eq!(holds.len(), 1, "{holds:?}");
    let hold = holds[0]["id"].as_str().unwrap_or_default();
    assert!(held.contains(hold), "{hold} is not in {held}");
    assert_eq!(bank.payments(), 1);

    fence.say(&["approve", hold, "--as", "replay"])?;
    life.tell("try again")?;
    assert_eq!(life.wait_for("answer 201")?, first);
    assert_eq!(bank.payments(), 1);
    Ok(())
}

#[test]
fn observing_stops_nothing_and_tells_what_it_would_have_done() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let fence = Fence::start_with(&[&authority.root()], "[fence]\nmode = \"observe\"\n")?;
    let url = bank.url(TRANSFERS);
    pay(&fence, Client::Requests, &url, &order("alice", 100)?)?;
    fence.say(&["restored", "buyer"])?;
    let body = rewritten_order("alice", 100)?;
    assert_eq!(pay(&fence, Client::Requests, &url, &body)?.status, 201);
    assert_eq!(bank.payments(), 2);
    assert_eq!(fence.effects("buyer")?.len(), 2);
    assert!(fence.say(&["status"])?.contains("observe"));
    // An audit finds the duplicate that happened.
    let report = fence.ask(&["report", "buyer", "--happened"])?;
    assert_eq!(report.len(), 1, "{report:?}");
    assert_eq!(
        (report[0]["code"].as_str(), &report[0]["stopped"]),
        (Some("duplicate"), &Value::Bool(false))
    );
    assert!(fence.say(&["report"])?.contains("1 duplicate and 0 uses"));
    Ok(())
}

/// What a person or a hook says counts from the moment at which the old life is over, and not from
/// the moment at which the daemon came to hear of it.
#[test]
fn a_told_restore_is_never_taken_for_an_untold_one() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let fence = Fence::start(&authority)?;
    let url = bank.url(TRANSFERS);
    pay(&fence, Client::Requests, &url, &order("alice", 100)?)?;
    let lives = rounds(20);
    for _ in 0..lives {
        fence.say(&["restored", "buyer"])?;
        let ended = fence.run("buyer", &plain("true"))?;
        assert!(ended.ok(), "{}", ended.stderr);
        assert_eq!(ended.stderr, "");
    }
    let mut expected = vec!["start"];
    expected.extend(std::iter::repeat_n("restore", lives));
    assert_eq!(fence.branches("buyer")?, expected);
    Ok(())
}
