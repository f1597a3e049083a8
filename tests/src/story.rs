//! The story that `cargo xtask demo` tells: what happens to a restored agent without the fence, and
//! with it. Every number in it is read from the services' own books.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use serde_json::Value;

use crate::approval::Approval;
use crate::authority::Authority;
use crate::bank::Bank;
use crate::client::{bare_python, trusting};
use crate::fence::{Fence, Place};
use crate::process::Running;
use crate::screen::{Screen, Tone};

/// What was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// Payments in the ledger of a bank whose restored customer has no fence.
    pub payments_without_fence: usize,
    /// Payments in the ledger after the same story with the fence.
    pub payments_with_fence: usize,
    /// Whether the restored agent got, word for word, the answer of the payment it forgot.
    pub answer_replayed: bool,
    /// Whether a different payment after a restore was refused and left no trace at the bank.
    pub diverged_blocked: bool,
    /// Payments in the ledger after that payment was allowed by a fork.
    pub payments_after_fork: usize,
    /// Whether a spent approval was refused for another customer, whose data is still there.
    pub credential_refused: bool,
    /// Customers deleted without the fence, by one approval.
    pub deletions_without_fence: usize,
    /// Customers deleted with the fence, by one approval.
    pub deletions_with_fence: usize,
    /// How long the story took.
    pub seconds: f64,
}

impl Measured {
    /// Whether the fence held what it promises.
    pub fn as_promised(&self) -> bool {
        self.payments_without_fence == 2
            && self.payments_with_fence == 1
            && self.answer_replayed
            && self.diverged_blocked
            && self.payments_after_fork == 2
            && self.credential_refused
            && self.deletions_without_fence == 2
            && self.deletions_with_fence == 1
    }
}

/// Tells it, on `screen`, in `fence`, whose daemon must trust `authority`.
pub fn tell(screen: &Screen, fence: &Fence, authority: &Authority) -> Result<Measured> {
    let began = Instant::now();
    let root = authority.root();
    let unfenced = Teller {
        screen,
        fence: None,
        root: &root,
        place: fence.place(),
    };
    let fenced = Teller {
        fence: Some(fence),
        ..unfenced
    };

    screen.chapter(
        "1",
        "Without the fence: an agent pays, dies, and is restored",
    );
    let bank = Bank::start(authority)?;
    let rent = Task::pay(&bank, "buyer-unfenced", "alice", 100);
    let mut life = unfenced.first_life(&rent)?;
    unfenced.acts(&mut life, &rent, |_| KILLED)?;
    let mut life = unfenced.next_life(&rent, life)?;
    unfenced.acts(&mut life, &rent, |_| "")?;
    drop(life);
    let payments_without_fence = bank.payments();
    screen.result(
        payments_without_fence == 1,
        "the rent was paid once",
        &format!("the rent was paid {payments_without_fence} times"),
    );

    screen.chapter("2", "With the fence: the same agent, the same fate");
    let bank = Bank::start(authority)?;
    let rent = Task::pay(&bank, "buyer", "alice", 100);
    let mut life = fenced.first_life(&rent)?;
    let first = fenced.acts(&mut life, &rent, |_| KILLED)?;
    let mut life = fenced.next_life(&rent, life)?;
    let second = fenced.acts(&mut life, &rent, |got| {
        if *got == first && bank.payments() == 1 {
            "the recorded answer; nothing was sent"
        } else {
            ""
        }
    })?;
    let payments_with_fence = bank.payments();
    let answer_replayed = first == second;
    screen.result(
        payments_with_fence == 1 && answer_replayed,
        "the rent was paid once, and the agent knows it",
        &format!("the rent was paid {payments_with_fence} times"),
    );

    screen.chapter(
        "3",
        "Restored once more, the agent wants to pay another sum",
    );
    let dearer = Task::pay(&bank, "buyer", "alice", 250);
    let mut life = fenced.next_life(&dearer, life)?;
    let got = fenced.acts(&mut life, &dearer, |_| "")?;
    let diverged_blocked = got.is("diverged") && bank.payments() == payments_with_fence;
    screen.result(
        diverged_blocked,
        "stopped, since it is not what was done; a person decides",
        "it went through",
    );
    if diverged_blocked {
        fenced.person(&["fork", "buyer"])?;
        life.tell("try again")?;
        fenced.acts(&mut life, &dearer, |_| "")?;
    }
    drop(life);
    let payments_after_fork = bank.payments();
    screen.result(
        diverged_blocked && payments_after_fork == 2,
        "allowed by a fork, it was paid",
        &format!("the bank booked {payments_after_fork} payments"),
    );

    screen.chapter(
        "4",
        "A single-use approval that was spent comes back with a restore",
    );
    let desk = Approval::start(authority, 0)?;
    let (_, deletions_without_fence) = resurrection(&unfenced, &desk, "support-unfenced")?;
    screen.result(
        deletions_without_fence == 1,
        "one approval deleted one customer",
        &format!("without the fence, one approval deleted {deletions_without_fence} customers"),
    );
    let desk = Approval::start(authority, 0)?;
    let (got, deletions_with_fence) = resurrection(&fenced, &desk, "support")?;
    let credential_refused = got.is("credential_consumed") && deletions_with_fence == 1;
    screen.result(
        credential_refused,
        "with the fence, one approval deleted one customer",
        &format!("one approval deleted {deletions_with_fence} customers"),
    );

    for question in [&["effects"][..], &["tree", "buyer"], &["tree", "support"]] {
        screen.shell(&format!("acrfence {}", question.join(" ")));
        screen.block(&fence.say(question)?);
    }

    Ok(Measured {
        payments_without_fence,
        payments_with_fence,
        answer_replayed,
        diverged_blocked,
        payments_after_fork,
        credential_refused,
        deletions_without_fence,
        deletions_with_fence,
        seconds: (began.elapsed().as_secs_f64() * 10.0).round() / 10.0,
    })
}

/// The name that the fence gets for the point at which an agent saves its state.
const CHECKPOINT: &str = "planned";

/// Why the agent forgets.
const KILLED: &str = "killed before it can note it down";

/// What an agent is asked to do.
struct Task {
    agent: &'static str,
    words: String,
    arguments: Vec<String>,
}

impl Task {
    fn pay(bank: &Bank, agent: &'static str, to: &str, amount: u64) -> Self {
        Self {
            agent,
            words: format!("pays {to} {amount} EUR"),
            arguments: ["--service", &bank.url(""), "--do", "pay", "--to", to]
                .into_iter()
                .map(String::from)
                .chain(["--amount".into(), amount.to_string()])
                .collect(),
        }
    }

    fn delete(desk: &Approval, agent: &'static str, customer: &str) -> Self {
        Self {
            agent,
            words: format!("deletes customer {customer}"),
            arguments: [
                "--service",
                &desk.url(""),
                "--do",
                "delete",
                "--to",
                customer,
            ]
            .map(String::from)
            .into(),
        }
    }
}

/// What the agent got back.
#[derive(Clone, Debug, PartialEq)]
struct Got {
    status: u16,
    body: Value,
}

impl Got {
    /// Whether it is a refusal of that kind.
    fn is(&self, code: &str) -> bool {
        self.status == 409 && self.body["code"] == code
    }

    /// What a refusal says, without what a person may read in the agent's log.
    fn reasons(&self) -> Vec<String> {
        let text = |value: &Value| value.as_str().map(String::from);
        let differences = self.body["fields"].as_array().into_iter().flatten();
        text(&self.body["title"])
            .into_iter()
            .chain(differences.filter(|d| d["class"] != "volatile").map(|d| {
                let [path, recorded, restored] = ["path", "recorded", "restored"]
                    .map(|name| text(&d[name]).unwrap_or_else(|| "nothing".into()));
                format!("{path}: {recorded} → {restored}")
            }))
            .collect()
    }
}

/// Tells of agents with or without a fence around them.
#[derive(Clone, Copy)]
struct Teller<'a> {
    screen: &'a Screen,
    fence: Option<&'a Fence>,
    root: &'a Path,
    place: &'a Place,
}

impl Teller<'_> {
    /// Starts an agent that plans, saves its state and is about to act.
    fn first_life(&self, task: &Task) -> Result<Running> {
        let mut life = Running::start(task.agent, &mut self.command(task, 1)?)?;
        life.wait_for("checkpoint")?;
        self.person(&["checkpoint", task.agent, CHECKPOINT])?;
        life.tell("go on")?;
        Ok(life)
    }

    /// Kills the agent and restores it from the state it saved.
    fn next_life(&self, task: &Task, mut life: Running) -> Result<Running> {
        life.kill()?;
        self.person(&["restored", task.agent, "--to", CHECKPOINT])?;
        if self.fence.is_none() {
            self.screen.line(
                "person",
                "restores the agent from its checkpoint",
                Tone::Plain,
            );
        }
        let mood = u64::from(life.id());
        drop(life);
        let mut life = Running::start(task.agent, &mut self.command(task, mood)?)?;
        ensure!(
            life.wait_for("restored")? == "act",
            "the agent was not restored to where it acts"
        );
        Ok(life)
    }

    /// Lets the agent act, and tells what came of it.
    fn acts<'r>(
        &self,
        life: &mut Running,
        task: &Task,
        remark: impl FnOnce(&Got) -> &'r str,
    ) -> Result<Got> {
        let request: Value = serde_json::from_str(&life.wait_for("request")?)?;
        let answer = life.wait_for("answer")?;
        let (status, body) = answer.split_once(' ').context("the agent told no status")?;
        let got = Got {
            status: status.parse()?,
            body: serde_json::from_str(body).unwrap_or_else(|_| Value::from(body)),
        };
        let reference = match request["reference"].as_str() {
            Some(reference) => format!(", {}", shortened(reference, 8)),
            None => String::new(),
        };
        let id = got.body["id"].as_str().unwrap_or("");
        let mut line = format!("{}{reference} → {} {id}", task.words, got.status);
        let remark = remark(&got);
        if !remark.is_empty() {
            line = format!("{} ({remark})", line.trim_end());
        }
        self.screen.line("agent", &line, Tone::Plain);
        for line in got.reasons() {
            self.screen.line("", &line, Tone::Quoted);
        }
        Ok(got)
    }

    /// What a person, or a hook of the agent's framework, tells the fence.
    fn person(&self, arguments: &[&str]) -> Result<()> {
        let Some(fence) = self.fence else {
            return Ok(());
        };
        fence.say(arguments)?;
        let line = format!("acrfence {}", arguments.join(" "));
        self.screen.line("person", &line, Tone::Command);
        Ok(())
    }

    fn command(&self, task: &Task, mood: u64) -> Result<Command> {
        let state: PathBuf = self.place.scratch().join(format!("{}.json", task.agent));
        let (state, mood) = (state.to_string_lossy(), mood.to_string());
        let mut arguments = vec!["--state", &state, "--mood", &mood];
        arguments.extend(task.arguments.iter().map(String::as_str));
        let mut command = trusting(bare_python("agent.py", &arguments)?, self.root);
        match self.fence {
            Some(fence) => fence.launch(task.agent, &command),
            None => {
                // In the daemon's control group and yet no agent: it is not touched.
                self.place.cgroup().enter(&mut command)?;
                Ok(command)
            }
        }
    }
}

/// Spends an approval on one customer, restores the agent, and has it spend it on another.
fn resurrection(teller: &Teller, desk: &Approval, agent: &'static str) -> Result<(Got, usize)> {
    let meant = Task::delete(desk, agent, "4711");
    let mut life = teller.first_life(&meant)?;
    teller.acts(&mut life, &meant, |_| "")?;
    let other = Task::delete(desk, agent, "4712");
    let mut life = teller.next_life(&other, life)?;
    let got = teller.acts(&mut life, &other, |_| "with the approval for 4711")?;
    Ok((got, desk.deleted().len()))
}

fn shortened(text: &str, length: usize) -> String {
    let mut short: String = text.chars().take(length).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}
