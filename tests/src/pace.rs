//! How fast a service answers what it has already done.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tokio::sync::watch;

/// A service does its work when a request arrives; the pace decides when the answer leaves. So a
/// test can act between the two, and knows when it does.
pub struct Pace {
    open: watch::Sender<bool>,
    delay: Duration,
    arrived: Mutex<usize>,
    arrival: Condvar,
    gate: Option<PathBuf>,
    slow_at_first: Option<Duration>,
    crashes: u32,
}

impl Default for Pace {
    fn default() -> Self {
        Self::new(Duration::ZERO)
    }
}

impl Pace {
    /// Answers leave `delay` after the work is done, and only while the gate is open, which it is.
    pub fn new(delay: Duration) -> Self {
        Self {
            open: watch::Sender::new(true),
            delay,
            arrived: Mutex::new(0),
            arrival: Condvar::new(),
            gate: None,
            slow_at_first: None,
            crashes: 0,
        }
    }

    /// The pace of a service in a process of its own, which a [`Gate`] in `directory` decides.
    pub fn of_gate(directory: &Path) -> Self {
        Self {
            gate: Some(directory.to_path_buf()),
            ..Self::default()
        }
    }

    /// The same, with the first answer so late.
    pub fn slow_at_first(self, slow_at_first: Option<Duration>) -> Self {
        Self {
            slow_at_first,
            ..self
        }
    }

    /// The pace of a malicious service that an agent started: it kills the agent after each of the
    /// first `crashes` actions, over all its own lives, and before it answers.
    pub fn crashing(self, crashes: u32) -> Self {
        Self { crashes, ..self }
    }

    /// From now on answers wait for [`Self::release`].
    pub fn hold(&self) {
        self.open.send_replace(false);
    }

    /// Lets all waiting and later answers go.
    pub fn release(&self) {
        self.open.send_replace(true);
    }

    /// Waits until `count` requests in all have done their work.
    pub fn wait_for(&self, count: usize, limit: Duration) -> Result<()> {
        let (arrived, timeout) = self
            .arrival
            .wait_timeout_while(self.lock(), limit, |arrived| *arrived < count)
            .unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            bail!(
                "the service saw {} of {count} requests in {limit:?}",
                *arrived
            );
        }
        Ok(())
    }

    /// The work of one request is done: says so, then waits for its answer's turn.
    pub(crate) async fn answer(&self) {
        let arrived = {
            let mut arrived = self.lock();
            *arrived += 1;
            *arrived
        };
        self.arrival.notify_all();
        if let (Some(late), 1) = (self.slow_at_first, arrived) {
            tokio::time::sleep(late).await;
        }
        if let Some(directory) = &self.gate
            && crash(directory, self.crashes)
        {
            // Agents write their histories a little later than they call.
            tokio::time::sleep(BEFORE_THE_CRASH).await;
            if let Some(agent) = rustix::process::getppid() {
                let _ = rustix::process::kill_process(agent, rustix::process::Signal::KILL);
            }
        }
        if let Some(directory) = self.gate.clone() {
            // A gate that is gone holds nobody.
            let _ = tokio::task::spawn_blocking(move || pass(&directory)).await;
        }
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.open.subscribe().wait_for(|open| *open).await;
        if !self.delay.is_zero() {
            tokio::time::sleep(self.delay).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long a malicious service waits before it kills its agent.
const BEFORE_THE_CRASH: Duration = Duration::from_millis(700);

/// Whether another one of `crashes` is due; counts it in `directory`.
fn crash(directory: &Path, crashes: u32) -> bool {
    let file = directory.join("crashes");
    let so_far = std::fs::read(&file).map_or(0, |text| text.len());
    so_far < crashes as usize && std::fs::write(&file, vec![b'x'; so_far + 1]).is_ok()
}

/// Holds the answers of a service in another process, as [`Pace::hold`] does in this one. Two named
/// pipes in a directory: through one the service says that it did its work, at the other it waits.
pub struct Gate {
    arrived: File,
    release: PathBuf,
    paths: [PathBuf; 2],
}

const ARRIVED: &str = "arrived";
const RELEASE: &str = "release";

impl Gate {
    /// Closes the gate of services that keep their books in `directory`.
    pub fn close(directory: &Path) -> Result<Self> {
        let paths = [ARRIVED, RELEASE].map(|name| directory.join(name));
        for path in &paths {
            mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0)
                .with_context(|| format!("making the named pipe {}", path.display()))?;
        }
        let [arrived, release] = &paths;
        Ok(Self {
            // For writing as well, so that opening waits for nobody.
            arrived: File::options().read(true).write(true).open(arrived)?,
            release: release.clone(),
            paths,
        })
    }

    /// Waits until the service did the work of one request.
    pub fn wait(&mut self, limit: Duration) -> Result<()> {
        let left = Timespec::try_from(limit)?;
        let mut fds = [PollFd::new(&self.arrived, PollFlags::IN)];
        if poll(&mut fds, Some(&left))? == 0 {
            bail!("the service saw no request in {limit:?}");
        }
        self.arrived.read_exact(&mut [0])?;
        Ok(())
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // Whoever waits at the gate, or comes to it now, finds it open.
        let waiting = File::options().read(true).write(true).open(&self.release);
        for path in &self.paths {
            let _ = std::fs::remove_file(path);
        }
        if let Ok(mut pipe) = waiting {
            let _ = pipe.write_all(&[0; 16]);
        }
    }
}

/// Says that the work is done and waits until the gate in `directory` opens, if there is one.
fn pass(directory: &Path) -> std::io::Result<()> {
    let both = || File::options().read(true).write(true).to_owned();
    let mut release = both().open(directory.join(RELEASE))?;
    both().open(directory.join(ARRIVED))?.write_all(&[0])?;
    release.read_exact(&mut [0])
}
