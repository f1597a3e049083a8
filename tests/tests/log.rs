//! The effect log of a running daemon: keys that change, and what is not to be read in it.

use std::fs;
use std::time::{Duration, Instant};

use acrfence_tests::authority::Authority;
use acrfence_tests::bank::{Bank, order, rewritten_order};
use acrfence_tests::client::Client;
use acrfence_tests::fence::Fence;
use acrfence_tests::process::run;
use anyhow::{Context as _, Result, ensure};

const TRANSFERS: &str = "/v1/transfers";

#[test]
fn a_key_that_was_rotated_seals_what_comes_and_the_old_one_opens_what_was() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let mut fence = Fence::start(&authority)?;
    let pay = |fence: &Fence, to: &str| -> Result<u16> {
        let order = Client::Curl.post(&bank.url(TRANSFERS), &order(to, 100)?)?;
        Ok(Client::Curl.answer(&fence.run("buyer", &order)?)?.status)
    };
    assert_eq!(pay(&fence, "alice")?, 201);
    let key_file = fence.place().scratch().join("elsewhere/key");
    let before = fs::read_to_string(&key_file)?;
    fence.say(&["log", "rotate-key"])?;
    let after = fs::read_to_string(&key_file)?;
    assert_eq!(after.lines().count(), before.lines().count() + 1);
    assert_eq!(pay(&fence, "bob")?, 201);
    let check = |fence: &Fence| -> Result<()> {
        let effects = fence.effects("buyer")?;
        for (effect, name) in effects.iter().zip(["alice", "bob"]) {
            let id = effect["id"].as_str().context("an id")?;
            let shown = fence.say(&["show", id])?;
            assert!(shown.contains(name), "{shown}");
        }
        fence.say(&["log", "verify"]).map(drop)
    };
    check(&fence)?;
    fence.kill()?;
    fence.start_again()?;
    check(&fence)?;

    // Without the old key, nobody may take the log for whole.
    fence.kill()?;
    let newest: Vec<&str> = after
        .lines()
        .filter(|line| !before.contains(line))
        .collect();
    fs::write(&key_file, newest.join("\n"))?;
    let refused = run("a daemon without the old key", &mut fence.place().daemon()?)?;
    assert!(
        !refused.ok() && refused.stderr.contains("key"),
        "{refused:?}"
    );
    fs::write(&key_file, &after)?;
    fence.start_again()?;
    check(&fence)
}

#[test]
fn a_header_that_policy_hides_is_in_no_record_and_still_compared() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let config = "[log]\nredact = { headers = [\"x-internal-*\"] }\n";
    let fence = Fence::start_with(&[&authority.root()], config)?;
    let pay = |body: &str, header: &str| -> Result<(u16, String)> {
        let mut order = Client::Curl.post(&bank.url(TRANSFERS), body)?;
        order.args(["--header", header]);
        let answer = Client::Curl.answer(&fence.run("buyer", &order)?)?;
        Ok((answer.status, answer.body))
    };
    let first = pay(&order("alice", 100)?, "X-Internal-Note: hush-4711")?;
    assert_eq!(first.0, 201, "{first:?}");
    let everything = fence.say(&["log", "export", "--decrypt"])?;
    assert!(everything.to_lowercase().contains("x-internal-note"));
    assert!(!everything.contains("hush-4711"));
    fence.say(&["restored", "buyer"])?;
    let again = pay(
        &rewritten_order("alice", 100)?,
        "X-Internal-Note: hush-4711",
    )?;
    assert_eq!(again, first);
    assert_eq!(bank.payments(), 1);
    Ok(())
}

#[test]
fn stats_tell_how_the_log_and_its_index_are() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let mut fence = Fence::start(&authority)?;
    let order = Client::Curl.post(&bank.url(TRANSFERS), &order("alice", 100)?)?;
    fence.run("buyer", &order)?;
    fence.kill()?;
    fence.start_again()?;
    let deadline = Instant::now() + Duration::from_secs(30);
    let stats = loop {
        let stats = fence.ask(&["log", "stats"])?.remove(0);
        if stats["read_ahead"] == true {
            break stats;
        }
        ensure!(
            Instant::now() < deadline,
            "it reads ahead for ever: {stats}"
        );
    };
    assert_eq!(stats["index_rebuilds"], 0, "{stats}");
    assert_eq!(
        (&stats["prepared"], &stats["in_doubt"]),
        (&0.into(), &0.into()),
        "{stats}"
    );
    let shown = fence.say(&["log", "stats"])?;
    assert!(shown.contains("facts waiting, read ahead"), "{shown}");
    Ok(())
}
