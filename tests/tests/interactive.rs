//! What is typed into an interactive shell of an agent: it cannot be stopped to be decided about, and still
//! happens once.

use std::time::Instant;

use acrfence_tests::attached::Attached;
use acrfence_tests::authority::Authority;
use acrfence_tests::client::bare_python;
use acrfence_tests::fence::Fence;
use acrfence_tests::process::PATIENCE;
use acrfence_tests::repository::Repository;
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

const PUSH: &str = "git push --force ../remote main";

fn typist(fence: &Fence) -> Result<Attached> {
    Attached::attach(fence, "coder", bare_python("typist.py", &[])?)
}

/// The agent's effects, once all of them have ended.
fn ended(fence: &Fence, count: usize) -> Result<Vec<Value>> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let effects = fence.effects("coder")?;
        let is_over = |effect: &&Value| effect["status"] != "prepared";
        if effects.iter().filter(is_over).count() >= count {
            return Ok(effects);
        }
        ensure!(Instant::now() < deadline, "not {count}: {effects:#?}");
    }
}

/// Types until something stands on the screen that nobody typed.
fn until_told(agent: &mut Attached) -> Result<String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let screen = agent.sh("true")?.stdout;
        if screen.contains("ACRFence: ") {
            return Ok(screen);
        }
        ensure!(Instant::now() < deadline, "nothing was said");
    }
}

#[test]
fn a_push_that_is_typed_happens_once() -> Result<()> {
    let fence = Fence::start(&Authority::new()?)?;
    let repository = Repository::new()?;
    let mut agent = typist(&fence)?;
    let first = agent.sh(&repository.works_and(PUSH))?;
    assert_eq!((first.status, repository.pushes()), (0, 1), "{first:?}");
    assert!(!first.stdout.contains("Stopped"), "{first:?}");
    let effects = ended(&fence, 1)?;
    assert_eq!(effects[0]["status"], "completed", "{effects:#?}");
    agent.kill()?;

    let mut agent = typist(&fence)?;
    fence.say(&["restored", "coder"])?;
    let again = agent.sh(&repository.works_and(PUSH))?;
    assert!([126, 137].contains(&again.status), "{again:?}");
    assert_eq!(repository.pushes(), 1, "{again:?}");
    let told = if again.stdout.contains("ACRFence: ") {
        again.stdout
    } else {
        until_told(&mut agent)?
    };
    assert!(
        told.contains("`git push --force ../remote main` was not run")
            && told.contains("acrfence fork coder"),
        "{told}"
    );
    // What is none of the fence's business runs.
    let log = agent.sh("git log --oneline | cat; git status --short")?;
    assert_eq!(log.status, 0, "{log:?}");
    assert!(log.stdout.contains("start"), "{log:?}");
    let shown = fence.say(&["status"])?;
    assert!(shown.contains("REFUSED coder: git push"), "{shown}");
    let seen = fence.ask(&["effects", "--opaque", "--agent", "coder"])?;
    let seen = seen.iter().find(|seen| seen["class"] == "command");
    let seen = seen.context("it is in the log")?;
    assert_eq!(seen["step"], "refused", "{seen}");
    assert_eq!(seen["peer"], PUSH, "{seen}");

    // Not typed it is compared: the same was done, and what it said went to a terminal.
    let asked = agent.sh(&format!("sh -c '{PUSH}; exit $?'"))?;
    assert_eq!(asked.status, 126, "{asked:?}");
    assert_eq!(repository.pushes(), 1, "{asked:?}");
    let other = agent.sh("sh -c 'git push --force ../remote main:release; exit $?'")?;
    assert_eq!((other.status, repository.pushes()), (126, 1), "{other:?}");
    assert!(other.stdout.contains("acrfence fork coder"), "{other:?}");

    fence.say(&["fork", "coder"])?;
    let meant = agent.sh("git push --force ../remote main:release")?;
    assert_eq!((meant.status, repository.pushes()), (0, 2), "{meant:?}");
    Ok(())
}

#[test]
fn a_push_that_was_typed_is_not_made_again_by_a_tool() -> Result<()> {
    let fence = Fence::start(&Authority::new()?)?;
    let repository = Repository::new()?;
    let mut agent = typist(&fence)?;
    let first = agent.sh(&repository.works_and(PUSH))?;
    assert_eq!((first.status, repository.pushes()), (0, 1), "{first:?}");
    ended(&fence, 1)?;
    agent.kill()?;

    let mut agent = Attached::with_shell(&fence, "coder")?;
    fence.say(&["restored", "coder"])?;
    let again = agent.sh(&repository.works_and(PUSH))?;
    assert_eq!((again.status, repository.pushes()), (126, 1), "{again:?}");
    Ok(())
}

#[test]
fn policy_lets_typed_commands_run_and_they_are_recorded() -> Result<()> {
    let authority = Authority::new()?;
    let fence = Fence::start_with(
        &[&authority.root()],
        "[after_restore]\ninteractive = \"allow\"",
    )?;
    let repository = Repository::new()?;
    let mut agent = typist(&fence)?;
    agent.sh(&repository.works_and(PUSH))?;
    ended(&fence, 1)?;
    fence.say(&["restored", "coder"])?;
    let again = agent.sh(&repository.works_and(PUSH))?;
    assert_eq!((again.status, repository.pushes()), (0, 2), "{again:?}");
    ended(&fence, 2)?;
    let shown = fence.say(&["status"])?;
    assert!(
        shown.contains("could not be stopped at exec: job control"),
        "{shown}"
    );
    Ok(())
}
