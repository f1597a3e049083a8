//! A restore that nobody tells: the agent's own model requests show what it remembers.

use std::path::PathBuf;
use std::process::Command;

use acrfence_tests::authority::Authority;
use acrfence_tests::bank::Bank;
use acrfence_tests::client::{bare_python, trusting};
use acrfence_tests::fence::Fence;
use acrfence_tests::process::{Ended, Running, run};
use anyhow::{Context as _, Result};
use serde_json::Value;

/// No other signal than the conversation, and nobody waits for a person.
const ONLY_THE_CONVERSATION: &str = "[fence]\nhold_timeout = \"1s\"\non_restart = \"nothing\"\n";

/// A bank, a model, an agent whose memory is a file, and perhaps a fence.
struct World {
    authority: Authority,
    bank: Bank,
    model: Running,
    model_url: String,
    fence: Fence,
}

impl World {
    fn new(config: &str) -> Result<Self> {
        let authority = Authority::new()?;
        let bank = Bank::start(&authority)?;
        let fence = Fence::start_with(&[&authority.root()], config)?;
        let mut model = Running::start("the model", &mut bare_python("scripted_model.py", &[])?)?;
        let model_url = format!("http://127.0.0.1:{}", model.wait_for("ready")?);
        Ok(Self {
            authority,
            bank,
            model,
            model_url,
            fence,
        })
    }

    fn history(&self) -> PathBuf {
        self.fence.place().scratch().join("history.json")
    }

    fn agent(&self, more: &[&str]) -> Result<Command> {
        let (history, bank) = (self.history(), self.bank.url(""));
        let history = history.to_string_lossy().into_owned();
        let mut arguments = vec![
            "--history",
            &history,
            "--model",
            &self.model_url,
            "--bank",
            &bank,
        ];
        arguments.extend(more);
        bare_python("thinker.py", &arguments)
    }

    /// A life of the agent to its end.
    fn live(&self, more: &[&str]) -> Result<Ended> {
        let ended = self.fence.run("thinker", &self.agent(more)?)?;
        anyhow::ensure!(ended.ok(), "the agent ended badly: {ended:?}");
        Ok(ended)
    }

    fn live_without_the_fence(&self, more: &[&str]) -> Result<Ended> {
        let agent = self.agent(more)?;
        run("thinker", &mut trusting(agent, &self.authority.root()))
    }

    /// Puts the history back to its first `messages` messages.
    fn cut(&self, messages: usize) -> Result<()> {
        let text = std::fs::read_to_string(self.history())?;
        let mut all: Vec<Value> = serde_json::from_str(&text)?;
        all.truncate(messages);
        Ok(std::fs::write(
            self.history(),
            serde_json::to_string(&all)?,
        )?)
    }

    /// Branches that restores opened: grade and note.
    fn restores(&self) -> Result<Vec<(String, String)>> {
        let tree = self.fence.ask(&["tree", "thinker"])?;
        let threads = tree[0]["threads"].as_array().context("a tree of threads")?;
        let branches = threads.iter().filter_map(|t| t["branches"].as_array());
        let text = |branch: &Value, field: &str| branch[field].as_str().unwrap_or("?").to_owned();
        Ok(branches
            .flatten()
            .map(|b| &b["branch"])
            .filter(|b| b["cause"] == "restore")
            .map(|b| (text(b, "grade"), text(b, "note")))
            .collect())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // A model that cannot be killed dies with this process.
        let _ = self.model.kill();
    }
}

/// The answer that the agent got to its last payment.
fn last_result(ended: &Ended) -> Option<&str> {
    ended
        .stdout
        .lines()
        .rfind(|line| line.starts_with("result"))
}

#[test]
fn without_the_fence_a_history_that_was_cut_pays_again() -> Result<()> {
    let world = World::new("")?;
    assert!(
        world
            .live_without_the_fence(&["--say", "pay alice 100"])?
            .ok()
    );
    world.cut(3)?;
    assert!(world.live_without_the_fence(&[])?.ok());
    assert_eq!(world.bank.payments(), 2);
    Ok(())
}

#[test]
fn a_history_that_was_cut_is_a_certain_restore() -> Result<()> {
    let world = World::new(ONLY_THE_CONVERSATION)?;
    let first = world.live(&["--say", "pay alice 100"])?;
    assert_eq!(world.bank.payments(), 1);
    // Back to after the balance was read. Nobody says so.
    for round in 1..=3 {
        world.cut(3)?;
        let again = world.live(&[])?;
        assert_eq!(last_result(&again), last_result(&first), "round {round}");
        assert!(again.stdout.contains("\ndone"), "{again:?}");
        // The balance and the payment, once.
        assert_eq!(
            (world.bank.payments(), world.bank.requests()),
            (1, 2),
            "round {round}"
        );
        let restores = world.restores()?;
        assert_eq!(restores.len(), round, "{restores:?}");
        assert_eq!(restores[round - 1].0, "certain", "{restores:?}");
    }
    Ok(())
}

#[test]
fn a_restart_of_the_daemon_forgets_no_conversation() -> Result<()> {
    let mut world = World::new(ONLY_THE_CONVERSATION)?;
    let first = world.live(&["--say", "pay alice 100"])?;
    world.fence.kill()?;
    world.fence.start_again()?;
    world.cut(3)?;
    let again = world.live(&[])?;
    assert_eq!(last_result(&again), last_result(&first));
    assert_eq!(world.bank.payments(), 1);
    world.fence.kill()?;
    world.fence.start_again()?;
    world.cut(3)?;
    world.live(&[])?;
    assert_eq!(world.bank.payments(), 1);
    Ok(())
}

#[test]
fn a_different_payment_after_a_cut_needs_a_fork() -> Result<()> {
    let world = World::new(ONLY_THE_CONVERSATION)?;
    world.live(&["--say", "pay alice 100"])?;
    world.cut(3)?;
    let other = world.live(&["--say", "pay alice 900"])?;
    let refused = last_result(&other).context("no result")?;
    assert!(
        refused.starts_with("result 409") && refused.contains("acrfence fork thinker"),
        "{refused}"
    );
    assert_eq!(world.bank.payments(), 1);
    world.fence.say(&["fork", "thinker"])?;
    let allowed = world.live(&["--say", "pay alice 900"])?;
    assert!(
        last_result(&allowed).is_some_and(|r| r.starts_with("result 201")),
        "{allowed:?}"
    );
    assert_eq!(world.bank.payments(), 2);
    Ok(())
}

#[test]
fn an_agent_that_remembers_its_payment_and_pays_again_means_it() -> Result<()> {
    // Also where a restart alone would be suspicious.
    for config in [ONLY_THE_CONVERSATION, "[fence]\nhold_timeout = \"1s\"\n"] {
        let world = World::new(config)?;
        world.live(&["--say", "pay alice 100"])?;
        let again = world.live(&["--say", "Please pay alice 100 once more"])?;
        assert!(
            last_result(&again).is_some_and(|r| r.starts_with("result 201")),
            "{again:?}"
        );
        assert_eq!(world.bank.payments(), 2);
    }
    Ok(())
}

#[test]
fn a_cut_to_before_the_first_call_is_held_for_a_person() -> Result<()> {
    let world = World::new(ONLY_THE_CONVERSATION)?;
    let first = world.live(&["--say", "pay alice 100"])?;
    world.cut(1)?;
    let held = world.live(&[])?;
    let refused = last_result(&held).context("no result")?;
    assert!(refused.starts_with("result 409"), "{refused}");
    assert_eq!(world.bank.payments(), 1);
    assert_eq!(world.restores()?[0].0, "suspect");
    let holds = world.fence.ask(&["holds"])?;
    let hold = holds[0]["id"].as_str().context("a hold without an id")?;
    world.fence.say(&["approve", hold, "--as", "replay"])?;
    world.cut(1)?;
    let again = world.live(&[])?;
    assert_eq!(last_result(&again), last_result(&first));
    assert_eq!(world.bank.payments(), 1);
    Ok(())
}

#[test]
fn a_word_from_a_person_makes_a_suspicion_certain() -> Result<()> {
    let world = World::new(ONLY_THE_CONVERSATION)?;
    let first = world.live(&["--say", "pay alice 100"])?;
    world.cut(1)?;
    world.fence.say(&["restored", "thinker"])?;
    let again = world.live(&[])?;
    assert_eq!(last_result(&again), last_result(&first));
    assert_eq!(world.bank.payments(), 1);
    Ok(())
}

/// Starts a life and kills it at a step.
fn dies(world: &World, more: &[&str], step: &str) -> Result<()> {
    let arguments = [more, &["--die-after", step]].concat();
    let command = world.agent(&arguments)?;
    let mut life = Running::start("thinker", &mut world.fence.launch("thinker", &command)?)?;
    life.wait_for(&format!("step {step}"))?;
    life.kill()
}

#[test]
fn killed_in_the_tool_and_resumed_before_it_the_call_itself_tells() -> Result<()> {
    let world = World::new(ONLY_THE_CONVERSATION)?;
    dies(&world, &["--say", "pay alice 100"], "sent")?;
    assert_eq!(world.bank.payments(), 1);
    // The saved history ends with the model's call; the agent carries it out again, and only then
    // asks the model.
    let again = world.live(&[])?;
    assert!(
        last_result(&again).is_some_and(|r| r.starts_with("result 201")),
        "{again:?}"
    );
    assert_eq!((world.bank.payments(), world.bank.requests()), (1, 2));
    Ok(())
}

#[test]
fn a_history_that_says_aborted_is_fenced() -> Result<()> {
    let world = World::new(ONLY_THE_CONVERSATION)?;
    dies(&world, &["--say", "pay alice 100"], "sent")?;
    let again = world.live(&["--aborted", "--say", "Try again: pay alice 100"])?;
    assert!(
        last_result(&again).is_some_and(|r| r.starts_with("result 201")),
        "{again:?}"
    );
    // The balance is looked at once more; nothing else is sent.
    assert_eq!((world.bank.payments(), world.bank.requests()), (1, 3));
    assert_eq!(world.restores()?[0].0, "certain");
    Ok(())
}

#[test]
fn a_restart_without_its_conversation_is_held_as_before() -> Result<()> {
    let world = World::new("[fence]\nhold_timeout = \"1s\"\n")?;
    world.live(&["--say", "pay alice 100"])?;
    std::fs::remove_file(world.history())?;
    // Other words, so that only the restart is suspicious.
    let again = world.live(&["--say", "It is the first of the month. pay alice 100"])?;
    assert!(
        last_result(&again).is_some_and(|r| r.starts_with("result 409")),
        "{again:?}"
    );
    assert_eq!(world.bank.payments(), 1);
    Ok(())
}

/// What a program does beside its conversation is explained by no model request.
#[test]
fn an_errand_that_no_conversation_explains_is_held_after_a_restart() -> Result<()> {
    let world = World::new("[fence]\nhold_timeout = \"1s\"\n")?;
    world.live(&["--say", "pay alice 100", "--errand", "bob"])?;
    assert_eq!(world.bank.payments(), 2);
    let again = world.live(&["--say", "Anything else?", "--errand", "bob"])?;
    let errand = again.stdout.lines().find(|line| line.starts_with("errand"));
    assert!(
        errand.is_some_and(|line| line.starts_with("errand 409")),
        "{again:?}"
    );
    assert_eq!(world.bank.payments(), 2);
    Ok(())
}

/// A hook runs inside the agent, and says what a person could have said.
#[test]
fn a_hook_of_the_agent_says_that_it_was_resumed() -> Result<()> {
    let world = World::new(ONLY_THE_CONVERSATION)?;
    let first = world.live(&["--say", "pay alice 100"])?;
    world.cut(1)?;
    // What Claude Code gives its hooks; anything but a resumed session says nothing.
    for (source, is_restore) in [("startup", false), ("resume", true)] {
        let event = format!(r#"{{"session_id": "s1", "source": "{source}"}}"#);
        let acrfence = world.fence.place().cli(["hooks", "event", "claude"])?;
        let mut hook = acrfence_tests::client::plain("/bin/sh");
        hook.arg("-c")
            .arg(r#"printf %s "$1" | { shift; exec "$@"; }"#)
            .arg("hook")
            .arg(&event)
            .arg(acrfence.get_program())
            .args(acrfence.get_args());
        let ended = world.fence.run("thinker", &hook)?;
        anyhow::ensure!(ended.ok() && ended.stdout.is_empty(), "{ended:?}");
        assert_eq!(!world.restores()?.is_empty(), is_restore, "{source}");
    }
    let again = world.live(&[])?;
    assert_eq!(last_result(&again), last_result(&first));
    assert_eq!(world.bank.payments(), 1);
    Ok(())
}

impl World {
    /// What the model heard beside the conversation, in the last `requests` requests to it.
    fn heard(&mut self, requests: usize) -> Result<Vec<String>> {
        (0..requests)
            .map(|_| self.model.wait_for("heard "))
            .collect()
    }
}

#[test]
fn a_model_that_policy_names_is_told_what_was_done_and_need_not_run_into_the_fence() -> Result<()> {
    let inform = "[after_restore]\ninform = [\"127.0.0.1\"]\n";
    let mut world = World::new(&format!("{ONLY_THE_CONVERSATION}{inform}"))?;
    let first = world.live(&["--say", "pay alice 100"])?;
    // No restore, no note.
    assert_eq!(world.heard(3)?, ["nothing new"; 3]);
    for round in 1..=2 {
        world.cut(3)?;
        let again = world.live(&[])?;
        assert!(again.stdout.contains("\ndone"), "{again:?}");
        assert_eq!(
            last_result(&again),
            None,
            "round {round}: it called nothing"
        );
        let heard = world.heard(1)?;
        assert!(
            heard[0].contains("taken back to an earlier point")
                && heard[0].contains("/v1/transfers"),
            "{heard:?}"
        );
        assert!(heard[0].contains("(done)"), "{heard:?}");
    }
    assert_eq!(world.bank.payments(), 1);
    // Told once: the next request of the same branch is the agent's alone. It asks for another payment, which the
    // note says nothing of, and the fence goes on.
    let more = world.live(&["--say", "pay alice 100"])?;
    assert_eq!(world.heard(3)?, ["nothing new"; 3], "{more:?}");
    assert_eq!(last_result(&more), last_result(&first));
    assert_eq!(world.bank.payments(), 1);
    Ok(())
}

#[test]
fn a_model_that_policy_does_not_name_is_told_nothing() -> Result<()> {
    let inform = "[after_restore]\ninform = [\"*.example.com\"]\n";
    let mut world = World::new(&format!("{ONLY_THE_CONVERSATION}{inform}"))?;
    let first = world.live(&["--say", "pay alice 100"])?;
    world.cut(3)?;
    let again = world.live(&[])?;
    assert_eq!(world.heard(5)?, ["nothing new"; 5]);
    assert_eq!(last_result(&again), last_result(&first));
    assert_eq!(world.bank.payments(), 1);
    Ok(())
}

/// An agent whose step pays under a reference of its own, waits for a person, and runs again from its
/// beginning, as a LangGraph node does after `interrupt`. `meanwhile` is done while it waits.
fn interrupted(
    world: &mut World,
    meanwhile: impl FnOnce(&mut Fence) -> Result<()>,
) -> Result<Ended> {
    let command = world.agent(&["--say", "pay alice 100", "--twice"])?;
    let mut life = Running::start("thinker", &mut world.fence.launch("thinker", &command)?)?;
    life.wait_for("step interrupted")?;
    meanwhile(&mut world.fence)?;
    life.tell("yes")?;
    let ended = life.finish()?;
    anyhow::ensure!(ended.ok(), "the agent ended badly: {ended:?}");
    Ok(ended)
}

/// The payment's id, and what `explain` says of it.
fn explained(world: &World) -> Result<String> {
    let effects = world.fence.effects("thinker")?;
    let id = effects[0]["id"]
        .as_str()
        .context("an effect without an id")?;
    world.fence.say(&["explain", id])
}

#[test]
fn without_the_fence_a_step_that_runs_again_pays_again() -> Result<()> {
    let world = World::new("")?;
    let agent = world.agent(&["--say", "pay alice 100", "--twice"])?;
    let mut life = Running::start("thinker", &mut trusting(agent, &world.authority.root()))?;
    life.wait_for("step interrupted")?;
    life.tell("yes")?;
    assert!(life.finish()?.ok());
    assert_eq!(world.bank.payments(), 2);
    Ok(())
}

#[test]
fn a_step_that_runs_again_is_held_also_by_the_next_daemon() -> Result<()> {
    for restart in [false, true] {
        let mut world = World::new(ONLY_THE_CONVERSATION)?;
        let ended = interrupted(&mut world, |fence| {
            if restart {
                fence.kill()?;
                fence.start_again()?;
            }
            Ok(())
        })?;
        let refused = last_result(&ended).context("no result")?;
        assert!(
            refused.starts_with("result 409") && refused.contains("ordered this once"),
            "{refused}"
        );
        assert_eq!(world.bank.payments(), 1);
        let holds = world.fence.ask(&["holds"])?;
        let why = holds[0]["why"]
            .as_str()
            .context("a hold without a reason")?;
        assert!(why.contains("carries the same order out again"), "{why}");
        let explained = explained(&world)?;
        assert!(
            explained.contains("carries the same order out again"),
            "{explained}"
        );
    }
    Ok(())
}

#[test]
fn a_step_that_runs_again_gets_its_answer_again_where_policy_says_so() -> Result<()> {
    let config = format!("{ONLY_THE_CONVERSATION}suspect = \"replay\"\n");
    let mut world = World::new(&config)?;
    let ended = interrupted(&mut world, |_| Ok(()))?;
    let results: Vec<&str> = ended
        .stdout
        .lines()
        .filter(|l| l.starts_with("result 201"))
        .collect();
    assert_eq!(results.len(), 2, "{ended:?}");
    assert_eq!(results[0], results[1]);
    assert_eq!(world.bank.payments(), 1);
    // No restore: nothing else of the agent is fenced.
    assert!(world.restores()?.is_empty());
    let tree = world.fence.say(&["tree", "thinker"])?;
    assert!(
        tree.contains("replayed, its order was carried out again"),
        "{tree}"
    );
    let explained = explained(&world)?;
    assert!(
        explained.contains("replay: the model ordered it once"),
        "{explained}"
    );
    world.live(&["--say", "Please pay alice 100 once more"])?;
    assert_eq!(world.bank.payments(), 2);
    Ok(())
}

#[test]
fn observed_a_step_that_runs_again_is_a_duplicate_in_the_report() -> Result<()> {
    let mut world = World::new("[fence]\nmode = \"observe\"\non_restart = \"nothing\"\n")?;
    interrupted(&mut world, |_| Ok(()))?;
    assert_eq!(world.bank.payments(), 2);
    let report = world.fence.say(&["report", "thinker", "--happened"])?;
    assert!(report.contains("of them 1 duplicate and"), "{report}");
    assert!(
        report.contains("carries the same order out again"),
        "{report}"
    );
    Ok(())
}
