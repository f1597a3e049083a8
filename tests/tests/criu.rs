//! Agents whose processes are saved and restored with CRIU. Nobody tells the daemon anything.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use acrfence_tests::authority::Authority;
use acrfence_tests::bank::Bank;
use acrfence_tests::client::{bare_python, trusting};
use acrfence_tests::criu;
use acrfence_tests::fence::Fence;
use acrfence_tests::orders::{self, answer, ask, begin_to_ask};
use acrfence_tests::process::Running;
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

const NAME: &str = "saved";

/// Nothing else that would tell of a restore, and nobody waits for a person.
const ONLY_THE_KERNEL: &str = "[fence]\nhold_timeout = \"1s\"\non_restart = \"nothing\"\n";

/// A bank, a fence, and an agent that lives in its process alone.
struct World {
    /// Ends what is left of a restored agent that has no control group of a fence to die with.
    restored: Option<u32>,
    agent: Option<Running>,
    pid: u32,
    bank: Bank,
    fence: Fence,
    authority: Authority,
}

impl World {
    fn new(config: &str) -> Result<Self> {
        // Restored processes lose their parent when CRIU is done.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        let authority = Authority::new()?;
        let bank = Bank::start(&authority)?;
        let fence = Fence::start_with(&[&authority.root()], config)?;
        let world = Self {
            restored: None,
            agent: None,
            pid: 0,
            bank,
            fence,
            authority,
        };
        world.pipes("agent")?;
        Ok(world)
    }

    /// A world with a fenced agent.
    fn fenced(config: &str) -> Result<Self> {
        let mut world = Self::new(config)?;
        let mut command = world.fence.launch(NAME, &world.command()?)?;
        world.start(&mut command)?;
        Ok(world)
    }

    fn command(&self) -> Result<Command> {
        let pipes = self.dir("agent");
        let log = self.fence.place().scratch().join("agent.log");
        let bank = self.bank.url("");
        let words = [
            &bank,
            &pipes.to_string_lossy() as &str,
            &log.to_string_lossy(),
        ];
        bare_python("saved.py", &words)
    }

    fn start(&mut self, command: &mut Command) -> Result<()> {
        // CRIU saves no process whose session began outside of its pid namespace, and these tests may run in
        // a container.
        // SAFETY: setsid is async-signal-safe and touches nothing of this process.
        unsafe {
            command.pre_exec(|| {
                rustix::process::setsid()?;
                Ok(())
            });
        }
        let agent = Running::start(NAME, command)?;
        // `acrfence run` becomes the agent.
        self.pid = agent.id();
        self.agent = Some(agent);
        // Its first answer: it is there.
        ensure!(self.ask("recall")? == "nothing");
        Ok(())
    }

    fn dir(&self, name: &str) -> PathBuf {
        self.fence.place().scratch().join(name)
    }

    fn pipes(&self, name: &str) -> Result<()> {
        let dir = self.dir(name);
        orders::pipes(&dir)
    }

    fn ask(&self, order: &str) -> Result<String> {
        ask(&self.dir("agent"), order)
    }

    fn dump(&self, images: &str, more: &[&str]) -> Result<()> {
        let group = self.fence.place().cgroup();
        criu::dump(self.pid, &self.dir(images), more, |c| group.enter(c))
    }

    fn restore(&mut self, images: &str, more: &[&str]) -> Result<()> {
        let group = self.fence.place().cgroup();
        criu::restore(&self.dir(images), more, |c| group.enter(c))?;
        self.restored = Some(self.pid);
        Ok(())
    }

    /// `kill -9` of the agent, whoever its parent is now, and waits until its pid is free.
    fn kill(&mut self) -> Result<()> {
        if let Some(mut agent) = self.agent.take() {
            return agent.kill();
        }
        self.restored = None;
        end(self.pid)
    }

    /// The parent was killed by a dump; its pid is free once it was waited for.
    fn saved_and_gone(&mut self) -> Result<()> {
        let agent = self.agent.take().context("no agent")?;
        let ended = agent.finish()?;
        ensure!(ended.signal == Some(9), "{ended:?}");
        Ok(())
    }

    /// Branches that restores opened, oldest first.
    fn restores(&self) -> Result<Vec<Value>> {
        let tree = self.fence.ask(&["tree", NAME])?;
        let threads = tree[0]["threads"].as_array().context("a tree of threads")?;
        let branches = threads.iter().filter_map(|t| t["branches"].as_array());
        Ok(branches
            .flatten()
            .map(|b| b["branch"].clone())
            .filter(|b| b["cause"] == "restore")
            .collect())
    }

    fn assert_restored_from(&self, images: &str, times: usize) -> Result<()> {
        let restores = self.restores()?;
        assert_eq!(restores.len(), times, "{restores:?}");
        let dir = self.dir(images);
        for restore in &restores {
            assert_eq!(restore["grade"], "certain", "{restore}");
            let note = restore["note"].as_str().unwrap_or_default();
            let named = format!("`criu-dump:{}`", dir.display());
            assert!(note.contains(&named) && note.contains("by criu"), "{note}");
            assert!(restore["fork_point"]["at"].is_u64(), "{restore}");
        }
        Ok(())
    }

    fn incarnation(&self) -> Result<Value> {
        let agents = self.fence.ask(&["agents"])?;
        let agent = agents.iter().find(|a| a["name"] == NAME);
        agent.cloned().context("the agent is not known")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if self.restored.is_some() {
            // It may be gone already.
            let _ = end(self.pid);
        }
    }
}

/// Ends a restored process and waits for it. Whoever loses its parent is this process's child.
fn end(pid: u32) -> Result<()> {
    use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.context("no pid")?;
    kill_process(pid, Signal::KILL)?;
    waitpid(Some(pid), WaitOptions::empty())?;
    Ok(())
}

#[test]
fn without_the_fence_a_restored_process_pays_again() -> Result<()> {
    let mut world = World::new("")?;
    let mut command = trusting(world.command()?, &world.authority.root());
    world.fence.place().cgroup().enter(&mut command)?;
    world.start(&mut command)?;
    world.ask("remember blue")?;
    world.dump("images", &[])?;
    world.saved_and_gone()?;
    for life in 1..=2 {
        world.restore("images", &[])?;
        assert_eq!(world.ask("recall")?, "blue");
        let answer = world.ask("pay alice 100")?;
        assert!(answer.starts_with("201"), "{answer}");
        assert_eq!(world.bank.payments(), life);
        world.kill()?;
    }
    Ok(())
}

#[test]
fn an_image_that_is_restored_three_times_pays_once() -> Result<()> {
    let mut world = World::fenced(ONLY_THE_KERNEL)?;
    world.ask("balance")?;
    world.dump("images", &[])?;
    world.saved_and_gone()?;
    let mut first = String::new();
    for life in 1..=3 {
        world.restore("images", &[])?;
        let answer = world.ask("pay alice 100")?;
        if life == 1 {
            assert!(answer.starts_with("201"), "{answer}");
            first = answer;
        } else {
            assert_eq!(answer, first);
        }
        assert_eq!(world.bank.payments(), 1);
        world.assert_restored_from("images", life)?;
        let incarnation = world.incarnation()?;
        assert_eq!(incarnation["incarnation"], life + 1, "{incarnation}");
        assert_eq!(incarnation["running"], true, "{incarnation}");
        world.kill()?;
    }
    Ok(())
}

#[test]
fn an_agent_that_was_saved_while_it_went_on_pays_once() -> Result<()> {
    let mut world = World::fenced(ONLY_THE_KERNEL)?;
    world.dump("images", &["--leave-running"])?;
    let first = world.ask("pay alice 100")?;
    assert!(first.starts_with("201"), "{first}");
    for life in 1..=3 {
        world.kill()?;
        world.restore("images", &[])?;
        assert_eq!(world.ask("pay alice 100")?, first);
        assert_eq!(world.bank.payments(), 1);
        world.assert_restored_from("images", life)?;
    }
    // It has caught up, and what it does now is new.
    let answer = world.ask("pay alice 900")?;
    assert!(answer.starts_with("201"), "{answer}");
    assert_eq!(world.bank.payments(), 2);
    // What it means otherwise than before is stopped until a person says that it may be.
    world.kill()?;
    world.restore("images", &[])?;
    let refused = world.ask("pay bob 30")?;
    assert!(
        refused.starts_with("409") && refused.contains("acrfence fork"),
        "{refused}"
    );
    world.fence.say(&["fork", NAME])?;
    let answer = world.ask("pay bob 30")?;
    assert!(answer.starts_with("201"), "{answer}");
    assert_eq!(world.bank.payments(), 3);
    Ok(())
}

#[test]
fn the_image_tells_which_of_several_dumps_it_is() -> Result<()> {
    let mut world = World::fenced(ONLY_THE_KERNEL)?;
    world.dump("early", &["--leave-running"])?;
    let paid = world.ask("pay alice 100")?;
    // The answer must have been read for certain when the second one is made.
    std::thread::sleep(std::time::Duration::from_millis(300));
    world.dump("late", &["--leave-running"])?;
    world.kill()?;
    world.restore("late", &[])?;
    // It remembers that payment, and means another one.
    let second = world.ask("pay alice 100")?;
    assert!(second.starts_with("201") && second != paid, "{second}");
    assert_eq!(world.bank.payments(), 2);
    world.kill()?;
    world.restore("early", &[])?;
    // It remembers neither.
    let mut again = [world.ask("pay alice 100")?, world.ask("pay alice 100")?];
    let mut before = [paid, second];
    again.sort();
    before.sort();
    assert_eq!(again, before);
    assert_eq!(world.bank.payments(), 2);
    Ok(())
}

#[test]
fn a_restored_tree_of_processes_is_one_life() -> Result<()> {
    let mut world = World::fenced(ONLY_THE_KERNEL)?;
    world.pipes("child")?;
    let child = world.dir("child");
    let below = world.ask(&format!("child {}", child.display()))?;
    assert_eq!(ask(&child, "recall")?, "nothing");
    world.dump("images", &["--leave-running"])?;
    let first = ask(&child, "pay alice 100")?;
    assert!(first.starts_with("201"), "{first}");
    // The whole tree.
    world.agent.take().context("no agent")?.kill()?;
    end(below.parse()?)?;
    world.restore("images", &[])?;
    let other = world.ask("pay bob 7")?;
    assert!(other.starts_with("409"), "{other}");
    assert_eq!(ask(&child, "pay alice 100")?, first);
    assert_eq!(world.bank.payments(), 1);
    world.assert_restored_from("images", 1)?;
    let incarnation = world.incarnation()?;
    assert_eq!(incarnation["incarnation"], 2, "{incarnation}");
    assert_eq!(incarnation["processes"], 2, "{incarnation}");
    Ok(())
}

#[test]
fn a_restore_while_no_daemon_runs_is_taken_in_by_the_next() -> Result<()> {
    let mut world = World::fenced(ONLY_THE_KERNEL)?;
    world.dump("images", &["--leave-running"])?;
    let first = world.ask("pay alice 100")?;
    world.fence.kill()?;
    world.kill()?;
    world.restore("images", &[])?;
    let refused = world.ask("pay alice 100")?;
    assert!(refused.starts_with("error"), "{refused}");
    world.fence.start_again()?;
    assert_eq!(world.ask("pay alice 100")?, first);
    assert_eq!(world.bank.payments(), 1);
    assert_eq!(world.restores()?.len(), 1);
    Ok(())
}

#[test]
fn a_connection_that_was_restored_alive_is_said_and_cut() -> Result<()> {
    for (policy, goes_on) in [("cut", false), ("keep", true)] {
        let config = format!("{ONLY_THE_KERNEL}[probe]\nrestored_connections = \"{policy}\"\n");
        let mut world = World::new(&config)?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let peer = listener.local_addr()?;
        let echo = std::thread::spawn(move || -> Result<String> {
            let (mut stream, _) = listener.accept()?;
            let mut line = String::new();
            BufReader::new(stream.try_clone()?).read_line(&mut line)?;
            stream.write_all(line.as_bytes())?;
            Ok(line)
        });
        let mut command = trusting(world.command()?, &world.authority.root());
        world.fence.place().cgroup().enter(&mut command)?;
        world.start(&mut command)?;
        let kept = world.ask(&format!("keep 127.0.0.1 {}", peer.port()))?;
        assert_eq!(kept, "kept");
        let pid = world.pid.to_string();
        world.fence.say(&["attach", &pid, "--name", NAME])?;
        let alive = ["--tcp-established", "--network-lock", "skip"];
        world.dump("images", &alive)?;
        world.saved_and_gone()?;
        world.restore("images", &["--tcp-established"])?;
        let heard = world.ask("say")?;
        let status = world.fence.say(&["status"])?;
        let said = format!("to {peer} (tcp) was restored alive");
        assert!(status.contains(&said), "{policy}: {status}");
        if goes_on {
            assert_eq!(heard, "heard hello");
            assert!(status.contains("NOT FENCED"), "{status}");
        } else {
            assert!(heard != "heard hello", "{heard}");
            assert!(status.contains("was cut"), "{status}");
        }
        world.kill()?;
        let got = echo
            .join()
            .map_err(|_| anyhow::anyhow!("the echo panicked"))??;
        assert_eq!(got.is_empty(), !goes_on, "{got}");
    }
    Ok(())
}

/// The image has the call and not its outcome, whatever was saved of the connection.
#[test]
fn a_call_that_ran_when_the_process_was_saved_is_fenced() -> Result<()> {
    let mut world = World::fenced(ONLY_THE_KERNEL)?;
    world.bank.hold_answers();
    let agent = world.dir("agent");
    let asked = begin_to_ask(&agent, Some("pay alice 100"));
    world.bank.wait_for_orders(1)?;
    let alive = [
        "--leave-running",
        "--tcp-established",
        "--network-lock",
        "skip",
    ];
    world.dump("images", &alive)?;
    world.bank.release_answers();
    let first = answer(&asked)?;
    assert!(first.starts_with("201"), "{first}");
    world.kill()?;
    world.restore("images", &["--tcp-established"])?;
    // It was waiting for an answer that never comes.
    let broken = answer(&begin_to_ask(&agent, None))?;
    assert!(broken.starts_with("error"), "{broken}");
    assert_eq!(world.ask("pay alice 100")?, first);
    assert_eq!(world.bank.payments(), 1);
    Ok(())
}

#[test]
fn a_process_that_is_restored_into_another_pid_namespace_is_the_agent() -> Result<()> {
    let mut world = World::fenced(ONLY_THE_KERNEL)?;
    world.dump("images", &["--leave-running"])?;
    let first = world.ask("pay alice 100")?;
    world.kill()?;
    // The first process of a namespace must stay, or all in it end.
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
    command.args([
        "sh",
        "-c",
        "\"$@\" && echo restored && exec sleep infinity",
        "sh",
    ]);
    command.args(criu::restore_words(&world.dir("images"), &[])?);
    world.fence.place().cgroup().enter(&mut command)?;
    let mut namespace = Running::start("the namespace", &mut command)?;
    namespace.wait_for("restored")?;
    assert_eq!(world.ask("pay alice 100")?, first);
    assert_eq!(world.bank.payments(), 1);
    world.assert_restored_from("images", 1)?;
    let root = world.incarnation()?["root"]["tgid"].as_u64();
    assert_ne!(root, Some(world.pid.into()));
    Ok(())
}

#[test]
fn a_restore_out_of_the_daemon_s_sight_is_said_loudly() -> Result<()> {
    let mut world = World::fenced(ONLY_THE_KERNEL)?;
    world.dump("images", &[])?;
    world.saved_and_gone()?;
    criu::restore(&world.dir("images"), &[], |_| Ok(()))?;
    world.restored = Some(world.pid);
    assert_eq!(world.ask("recall")?, "nothing");
    let status = world.fence.say(&["status"])?;
    assert!(
        status.contains("NOT FENCED") && status.contains("--cgroup"),
        "{status}"
    );
    Ok(())
}
