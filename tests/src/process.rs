//! Child processes whose words can be waited for, and that never outlive their owner.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Longer than anything takes here on a busy machine; a test that reaches it has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A running child. Dropping it kills it.
pub struct Running {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    said: Vec<String>,
    stderr: Option<JoinHandle<String>>,
}

/// How a child ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Its exit code; none when a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// All it said on standard output.
    pub stdout: String,
    /// All it said on standard error.
    pub stderr: String,
}

impl Ended {
    /// Whether it ended with code 0.
    pub fn ok(&self) -> bool {
        self.code == Some(0)
    }
}

impl Running {
    /// Starts `command` with all three streams piped. It dies with the thread that starts it, so
    /// that an interrupted test run leaves nothing behind.
    pub fn start(name: impl Into<String>, command: &mut Command) -> Result<Self> {
        let name = name.into();
        // SAFETY: prctl is async-signal-safe and touches nothing of this process.
        unsafe {
            command.pre_exec(|| {
                rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
                Ok(())
            });
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {name} ({command:?})"))?;
        let (sender, lines) = channel();
        if let Some(stdout) = child.stdout.take() {
            std::thread::spawn(move || {
                let mut stdout = BufReader::new(stdout);
                let mut line = Vec::new();
                while stdout.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
                    let text = String::from_utf8_lossy(&line);
                    if sender.send(text.trim_end_matches('\n').to_owned()).is_err() {
                        break;
                    }
                    line.clear();
                }
            });
        }
        let stderr = child.stderr.take().map(|mut stderr| {
            std::thread::spawn(move || {
                let mut all = Vec::new();
                // What came before an error is worth having.
                let _ = stderr.read_to_end(&mut all);
                String::from_utf8_lossy(&all).into_owned()
            })
        });
        Ok(Self {
            name,
            stdin: child.stdin.take(),
            child,
            lines,
            said: Vec::new(),
            stderr,
        })
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a line that starts with `prefix` and returns what follows the prefix.
    pub fn wait_for(&mut self, prefix: &str) -> Result<String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    let found = line.strip_prefix(prefix).map(|rest| rest.trim().to_owned());
                    self.said.push(line);
                    if let Some(rest) = found {
                        return Ok(rest);
                    }
                }
                Err(RecvTimeoutError::Timeout) => bail!(
                    "{} did not say `{prefix}` in {PATIENCE:?}; it said: {:?}",
                    self.name,
                    self.said
                ),
                Err(RecvTimeoutError::Disconnected) => {
                    let ended = self.end(PATIENCE)?;
                    bail!(
                        "{} ended ({:?}, signal {:?}) before it said `{prefix}`.\nstdout:\n{}\nstderr:\n{}",
                        self.name,
                        ended.code,
                        ended.signal,
                        ended.stdout,
                        ended.stderr
                    );
                }
            }
        }
    }

    /// Writes a line to its standard input.
    pub fn tell(&mut self, line: &str) -> Result<()> {
        let name = &self.name;
        let Some(stdin) = self.stdin.as_mut() else {
            bail!("the standard input of {name} is closed already");
        };
        writeln!(stdin, "{line}").with_context(|| format!("telling {name} `{line}`"))
    }

    /// Closes its standard input.
    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// `kill -9`, and waits until it is gone.
    pub fn kill(&mut self) -> Result<()> {
        self.child
            .kill()
            .with_context(|| format!("killing {}", self.name))?;
        self.child.wait()?;
        Ok(())
    }

    /// `kill -9` of it and of everything that descends from it, also in sessions of their own, and
    /// waits until they are all gone: a machine that crashes spares nobody.
    pub fn kill_tree(&mut self) -> Result<()> {
        let mut open = vec![self.pidfd()?];
        for child in descendants(self.child.id())? {
            // One that ended meanwhile has nothing to be killed.
            let pid = i32::try_from(child).ok().and_then(Pid::from_raw);
            open.extend(pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()));
        }
        for process in &open {
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
        for process in &open {
            if !exited(process, PATIENCE)? {
                bail!("a process of {} outlived a kill", self.name);
            }
        }
        self.child.wait()?;
        Ok(())
    }

    /// Asks it to stop and waits; kills it when it does not.
    pub fn stop(&mut self) -> Result<()> {
        let pidfd = self.pidfd()?;
        pidfd_send_signal(&pidfd, Signal::TERM)?;
        if exited(&pidfd, Duration::from_secs(15))? {
            self.child.wait()?;
            Ok(())
        } else {
            self.kill()?;
            bail!("{} did not stop when asked to and was killed", self.name)
        }
    }

    /// Waits until it ended and its streams are closed.
    pub fn finish(self) -> Result<Ended> {
        self.finish_in(PATIENCE)
    }

    /// The same for what may take longer than everything else here.
    pub fn finish_in(mut self, limit: Duration) -> Result<Ended> {
        self.end(limit)
    }

    fn end(&mut self, limit: Duration) -> Result<Ended> {
        self.stdin = None;
        if !exited(&self.pidfd()?, limit)? {
            let said = std::mem::take(&mut self.said);
            bail!("{} did not end in {limit:?}; it said: {said:?}", self.name);
        }
        let status = self.child.wait()?;
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => self.said.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    bail!("a child of {} keeps its standard output open", self.name)
                }
            }
        }
        let stderr = self.stderr.take().map(|thread| thread.join());
        Ok(Ended {
            code: status.code(),
            signal: status.signal(),
            stdout: self.said.join("\n"),
            stderr: stderr.and_then(|text| text.ok()).unwrap_or_default(),
        })
    }

    fn pidfd(&self) -> Result<rustix::fd::OwnedFd> {
        // Not waited for yet, so the pid is still this child's.
        let pid = i32::try_from(self.child.id())
            .ok()
            .and_then(Pid::from_raw)
            .with_context(|| format!("{} has no pid", self.name))?;
        Ok(pidfd_open(pid, PidfdFlags::empty())?)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Errors mean that it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `command` to its end.
pub fn run(name: impl Into<String>, command: &mut Command) -> Result<Ended> {
    Running::start(name, command)?.finish()
}

/// Processes that descend from `root`, now.
fn descendants(root: u32) -> Result<Vec<u32>> {
    let mut parents = Vec::new();
    for entry in std::fs::read_dir("/proc").context("reading /proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // The name in parentheses may have anything in it; the parent is the second field after it.
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let after = stat.rsplit_once(") ").map(|(_, rest)| rest);
        let parent = after.and_then(|rest| rest.split(' ').nth(1)?.parse::<u32>().ok());
        parents.extend(parent.map(|parent| (pid, parent)));
    }
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        let children = parents.iter().filter(|(_, of)| *of == parent);
        found.extend(children.map(|(pid, _)| *pid));
        next += 1;
    }
    found.remove(0);
    Ok(found)
}

/// Waits until the process behind `pidfd` is gone; false when `limit` passed first.
fn exited(pidfd: &rustix::fd::OwnedFd, limit: Duration) -> Result<bool> {
    let deadline = Instant::now() + limit;
    loop {
        let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now()))?;
        let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
        match poll(&mut fds, Some(&left)) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e).context("waiting for a process to end"),
        }
    }
}
