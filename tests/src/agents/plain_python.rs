//! A program around a model, as people write it without any framework: its conversation is in its process
//! and nowhere else, so that whoever saves its process saves it all.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use super::{Agent, Restore, Setting, framework};
use crate::criu;
use crate::orders;
use crate::process::{Ended, Running};

pub(super) fn live(setting: &Setting<'_>, restore: Restore) -> Result<Vec<Ended>> {
    let driver = |part| framework::driver(Agent::PlainPython, setting, restore, part);
    match restore {
        Restore::None => Ok(vec![setting.run("the agent", driver("first")?)?]),
        Restore::Criu | Restore::CriuAfter => saved(setting, restore, driver("told")?),
        other => bail!("a plain program has no restore of the kind {other:?}"),
    }
}

/// Saves the agent while it waits for its user, lets it act, kills it and restores what was saved.
fn saved(setting: &Setting<'_>, restore: Restore, command: Command) -> Result<Vec<Ended>> {
    // Restored processes lose their parent when CRIU is done, and are this process's children then.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let pipes = setting.home.join("told");
    orders::pipes(&pipes)?;
    let images = setting.home.join("images");
    let mut command = setting.fenced(command)?;
    // CRIU saves no process whose session began outside of its pid namespace, and this may be a container.
    // SAFETY: setsid is async-signal-safe and touches nothing of this process.
    unsafe {
        command.pre_exec(|| {
            rustix::process::setsid()?;
            Ok(())
        });
    }
    // `acrfence run` becomes the agent, so both have this pid.
    let mut life = Running::start("the agent", &mut command)?;
    let pid = life.id();
    if let Err(why) = orders::answer(&orders::begin_to_ask(&pipes, None)) {
        life.kill()?;
        let ended = life.finish()?;
        let said = format!("{}\n{}\n{}", ended.stdout, ended.stderr, log(setting));
        return Err(why.context(format!("the agent did not come up: {said}")));
    }
    let mut said = Vec::new();
    let mut tell = |words: &str| -> Result<()> {
        let asked = orders::begin_to_ask(&pipes, Some(words));
        let limit = Instant::now() + setting.patience;
        loop {
            // One that is dead answers no more, however long its model may take.
            let over = Instant::now() >= limit || !is_alive(pid);
            if let Ok(answer) = asked.recv_timeout(Duration::from_secs(1)) {
                said.push(answer?);
                return Ok(());
            }
            ensure!(!over, "the agent does not answer: {}", log(setting));
        }
    };
    if let Some(opening) = setting.scenario.opening() {
        tell(opening)?;
    }
    if restore == Restore::Criu {
        save(setting, pid, &images)?;
    }
    tell(setting.scenario.prompt())?;
    if restore == Restore::CriuAfter {
        save(setting, pid, &images)?;
    }
    life.kill()?;
    drop(life);
    let again = match restore {
        Restore::Criu if !setting.scenario.redirects() => setting.scenario.prompt(),
        _ => setting.again(),
    };
    criu::restore(&images, &[], |command| enter(setting, command))?;
    let restored = Restored { pid: Some(pid) };
    tell(again)?;
    // The end of its orders is the end of its task.
    tell("")?;
    let (code, signal) = restored.end()?;
    Ok(vec![Ended {
        code,
        signal,
        stdout: said.join("\n"),
        stderr: log(setting),
    }])
}

/// Whether a process is there and has not ended.
fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| state != 'Z')
}

/// What it wrote, since its own output is nobody's: pipes to others cannot be saved.
fn log(setting: &Setting<'_>) -> String {
    fs::read_to_string(setting.home.join("agent.log")).unwrap_or_default()
}

fn save(setting: &Setting<'_>, pid: u32, images: &Path) -> Result<()> {
    criu::dump(pid, images, &["--leave-running"], |command| {
        enter(setting, command)
    })
}

/// Where the daemon looks, if there is one.
fn enter(setting: &Setting<'_>, command: &mut Command) -> Result<()> {
    match setting.fence {
        Some((fence, _)) => fence.place().cgroup().enter(command),
        None => Ok(()),
    }
}

/// A process that CRIU restored. Dropping it kills it.
struct Restored {
    pid: Option<u32>,
}

impl Restored {
    /// Waits until it ends by itself; its code, or the signal that ended it.
    fn end(mut self) -> Result<(Option<i32>, Option<i32>)> {
        let pid = self.pid.take().context("it ended before")?;
        let ended = waitpid(number(pid), WaitOptions::empty())?;
        let (_, status) = ended.context("nothing was waited for")?;
        ensure!(
            status.exited() || status.signaled(),
            "the restored process did not end"
        );
        Ok((status.exit_status(), status.terminating_signal()))
    }
}

impl Drop for Restored {
    fn drop(&mut self) {
        if let Some(pid) = self.pid.and_then(number) {
            // It may be gone already.
            let _ = kill_process(pid, Signal::KILL);
            let _ = waitpid(Some(pid), WaitOptions::empty());
        }
    }
}

fn number(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}
