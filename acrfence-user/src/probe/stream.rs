//! Empties the ring buffer: every record goes into the process table and out to whoever listens.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use acrfence_common::WAKE_EVERY_NS;
use aya::maps::{MapData, RingBuf};
use parking_lot::Mutex;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, broadcast};

use super::event::{Execution, ProbeEvent, What};
use super::kernel_log::KernelLog;
use super::proc::{ProcDir, split_texts};
use super::table::Process;
use super::{Probe, ProbeError};
use crate::words::{ProcessIdentity, Timestamp};

/// The kernel's side of the events.
pub struct Drain {
    ring: Mutex<RingBuf<MapData>>,
    log: Mutex<Option<KernelLog>>,
    /// Somebody stopped before the ring was empty; the kernel does not wake us for the rest.
    rest: Notify,
    /// Cgroup → path, the latest ones. The kernel uses no number twice.
    cgroups: moka::sync::Cache<u64, String>,
}

impl Drain {
    pub(super) fn new(ring: RingBuf<MapData>, log: Option<KernelLog>) -> Self {
        Self {
            ring: Mutex::new(ring),
            log: Mutex::new(log),
            rest: Notify::new(),
            cgroups: moka::sync::Cache::new(MOST_CGROUPS),
        }
    }
}

/// Receives what happens.
pub struct Events {
    feed: broadcast::Receiver<Arc<ProbeEvent>>,
}

/// What a receiver gets.
#[derive(Clone, Debug, PartialEq)]
pub enum Received {
    /// Something happened.
    Event(Arc<ProbeEvent>),
    /// The receiver was too slow for this many. The process table has them all the same.
    Missed(u64),
}

impl Events {
    pub(super) fn new(feed: broadcast::Receiver<Arc<ProbeEvent>>) -> Self {
        Self { feed }
    }

    /// The next; none when the probe is gone.
    pub async fn next(&mut self) -> Option<Received> {
        match self.feed.recv().await {
            Ok(event) => Some(Received::Event(event)),
            Err(broadcast::error::RecvError::Lagged(count)) => Some(Received::Missed(count)),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }

    /// What is there, at least one; none when the probe is gone. Reports come many at a time, and most
    /// that look at them have something to do that does for all of them.
    pub async fn next_ones(&mut self) -> Option<Vec<Received>> {
        let mut all = vec![self.next().await?];
        while all.len() < MOST_TOGETHER
            && let Some(more) = self.try_next()
        {
            all.push(more);
        }
        Some(all)
    }

    /// The next, if it is there already.
    pub fn try_next(&mut self) -> Option<Received> {
        match self.feed.try_recv() {
            Ok(event) => Some(Received::Event(event)),
            Err(broadcast::error::TryRecvError::Lagged(count)) => Some(Received::Missed(count)),
            Err(_) => None,
        }
    }
}

impl Probe {
    /// Empties the ring buffer whenever the kernel fills it, for ever. Must run somewhere for
    /// [`Self::events`] to yield anything; the look-ups bring themselves up to date.
    pub async fn run(&self) -> io::Result<()> {
        let ring = watch(self.drain.ring.lock().as_fd())?;
        let log = match self.drain.log.lock().as_ref() {
            Some(log) => Some(watch(log.as_fd())?),
            None => None,
        };
        let mut sweep = tokio::time::interval(SWEEP);
        sweep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        // Until when we come back by ourselves: most of what follows a report does not wake us.
        let mut until = Instant::now() + LINGER;
        let mut back = tokio::time::interval(COME_BACK);
        back.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let is_lingering = Instant::now() < until;
            tokio::select! {
                ready = ring.readable() => {
                    // Cleared before reading: what comes in meanwhile wakes us again.
                    ready?.clear_ready();
                    self.drain();
                    until = Instant::now() + LINGER;
                    back.reset();
                }
                _ = back.tick(), if is_lingering => {
                    if self.drain() {
                        until = Instant::now() + LINGER;
                    }
                }
                () = self.drain.rest.notified() => {
                    tokio::task::yield_now().await;
                    self.drain();
                    until = Instant::now() + LINGER;
                }
                ready = readable(log.as_ref()) => {
                    ready?.clear_ready();
                    if let Some(log) = self.drain.log.lock().as_mut() {
                        log.flush();
                    }
                }
                _ = sweep.tick() => {
                    if let Err(error) = self.sweep() {
                        tracing::warn!(%error, "processes that ended could not be cleared away");
                    }
                }
            }
        }
    }

    /// Takes in everything the kernel has reported so far. Tells whether that was anything.
    pub fn drain(&self) -> bool {
        let boot = boot_time();
        let mut ring = self.drain.ring.lock();
        // Bounded, so that a storm of events cannot hold a look-up up for ever.
        for taken in 0..MOST_AT_ONCE {
            let Some(record) = ring.next() else {
                return taken > 0;
            };
            let Some(mut event) = self.decoder.decode(&record, boot) else {
                tracing::error!(
                    bytes = record.len(),
                    "the kernel reported something unknown; are hooks of another version in place?"
                );
                continue;
            };
            drop(record);
            match &mut event.what {
                What::Executed(execution) => self.complete(event.process, execution),
                What::Born { parent } => {
                    let parent = *parent;
                    self.read_stranger(&event, parent);
                }
                _ => {}
            }
            self.table.lock().apply(&event);
            // Fails when nobody listens.
            let _ = self.feed.send(Arc::new(event));
        }
        self.drain.rest.notify_one();
        true
    }

    /// What is known of a process, up to date with everything it did before this call.
    pub fn process(&self, identity: ProcessIdentity) -> Option<Process> {
        self.drain();
        let known = self.table.lock().get(identity).cloned();
        let Some(mut process) = known else {
            let tracked = self.maps.tracked.get(&identity.tgid).ok().flatten()?;
            if tracked.start_ns != identity.start_ns {
                return None;
            }
            let process = self.read_process(identity, tracked.agent)?;
            self.table.lock().insert(process.clone());
            return Some(process);
        };
        if process.exited.is_none()
            && let Some(cwd) = link(ProcDir::of(identity).ok().as_ref(), "cwd")
        {
            self.table.lock().moved(identity, cwd.clone());
            process.cwd = cwd;
        }
        Some(process)
    }

    /// The process that made a process of an agent, also where only `/proc` still tells.
    pub fn parent_of(&self, identity: ProcessIdentity) -> Option<ProcessIdentity> {
        self.drain();
        let known = self.table.lock().get(identity).and_then(|p| p.parent);
        if known.is_some() {
            return known;
        }
        let stat = ProcDir::of(identity).ok()?.stat().ok()?;
        let parent = self.maps.tracked.get(&stat.parent).ok().flatten()?;
        // Whoever has the pid of its parent now may have been born after it.
        (parent.start_ns <= identity.start_ns).then_some(ProcessIdentity {
            tgid: stat.parent,
            start_ns: parent.start_ns,
        })
    }

    /// The same also of a process that belongs to no agent, as `/proc` tells it now.
    pub fn any_process(&self, identity: ProcessIdentity) -> Option<Process> {
        self.process(identity)
            .or_else(|| self.read_process(identity, 0))
    }

    /// Every process of an agent, oldest first: those that run, and for a while those that ended.
    pub fn processes(&self, agent: u32) -> Vec<Process> {
        self.drain();
        self.table.lock().of_agent(agent)
    }

    /// Reads everything about a running process.
    pub(super) fn read_process(&self, identity: ProcessIdentity, agent: u32) -> Option<Process> {
        let dir = ProcDir::of(identity).ok()?;
        let stat = dir.stat().ok()?;
        let argv = dir.read("cmdline", MOST_ARGUMENTS).unwrap_or_default();
        let env = dir.read("environ", MOST_ENVIRONMENT).unwrap_or_default();
        Some(Process {
            identity,
            agent,
            parent: None,
            exe: link(Some(&dir), "exe").unwrap_or(stat.name),
            argv_truncated: argv.len() as u64 == MOST_ARGUMENTS,
            argv: split_texts(&argv),
            cwd: link(Some(&dir), "cwd").unwrap_or_default(),
            uid: dir.uid().unwrap_or_default(),
            cgroup: dir.cgroup().unwrap_or_default(),
            env_truncated: env.len() as u64 == MOST_ENVIRONMENT,
            env: self.decoder.environment(&env),
            seen: wall_clock(),
            exited: None,
        })
    }

    /// Reads a newborn whose parent is not in the table (its start was reported to a daemon that
    /// is gone): it cannot inherit what nobody knows.
    fn read_stranger(&self, event: &ProbeEvent, parent: ProcessIdentity) {
        if self.table.lock().get(parent).is_some() {
            return;
        }
        if let Some(agent) = event.agent
            && let Some(mut process) = self.read_process(event.process, agent)
        {
            process.parent = Some(parent);
            self.table.lock().insert(process);
        }
    }

    /// Adds to the report of a program start what did not fit into it, from `/proc` if the process is
    /// still there: the kernel woke us for that.
    fn complete(&self, identity: ProcessIdentity, execution: &mut Execution) {
        let number = execution.cgroup_id;
        execution.cgroup = self.drain.cgroups.get(&number);
        let is_whole = execution.cgroup.is_some()
            && execution.cwd.is_some()
            && execution.exe.is_some()
            && !execution.argv_truncated
            && !execution.env_truncated;
        if is_whole {
            return;
        }
        let Ok(dir) = ProcDir::of(identity) else {
            return;
        };
        if execution.cgroup.is_none() {
            execution.cgroup = dir.cgroup().ok();
            if let Some(path) = execution.cgroup.clone() {
                self.drain.cgroups.insert(number, path);
            }
        }
        if execution.cwd.is_none() {
            execution.cwd = link(Some(&dir), "cwd");
        }
        if execution.exe.is_none() {
            execution.exe = link(Some(&dir), "exe");
        }
        let whole = |name, limit| {
            let bytes = dir.read(name, limit).ok()?;
            ((bytes.len() as u64) < limit && !bytes.is_empty()).then_some(bytes)
        };
        if execution.argv_truncated
            && let Some(bytes) = whole("cmdline", MOST_ARGUMENTS)
        {
            execution.argv = split_texts(&bytes);
            execution.argv_truncated = false;
        }
        if execution.env_truncated
            && let Some(bytes) = whole("environ", MOST_ENVIRONMENT)
        {
            execution.env = self.decoder.environment(&bytes);
            execution.env_truncated = false;
        }
    }

    /// Clears away what is left of processes that ended without the kernel telling us: entries
    /// that came too late for the exit hook, totals of channels, and claims that nobody made.
    pub(super) fn sweep(&self) -> Result<(), ProbeError> {
        self.clear_ended()?;
        self.clear_claims()?;
        self.gather_traffic()
    }
}

/// Wall clock time.
pub(super) fn wall_clock() -> Timestamp {
    Timestamp(clock(nix::time::ClockId::CLOCK_REALTIME))
}

/// Nanoseconds since boot, as the kernel programs count them.
pub(super) fn since_boot() -> u64 {
    clock(nix::time::ClockId::CLOCK_BOOTTIME)
}

/// Records taken in by one look-up at most.
const MOST_AT_ONCE: usize = 10_000;
/// Reports handed out together at most: whoever takes them can be stopped in between.
const MOST_TOGETHER: usize = 1000;
/// How long we come back by ourselves after the last report, and how often.
const LINGER: Duration = Duration::from_nanos(2 * WAKE_EVERY_NS);
const COME_BACK: Duration = Duration::from_millis(10);
/// Paths of cgroups remembered.
const MOST_CGROUPS: u64 = 4096;
const SWEEP: Duration = Duration::from_secs(10);
const MOST_ARGUMENTS: u64 = 64 << 10;
const MOST_ENVIRONMENT: u64 = 1 << 20;

/// Wall clock minus time since boot.
fn boot_time() -> u64 {
    clock(nix::time::ClockId::CLOCK_REALTIME).saturating_sub(since_boot())
}

fn clock(id: nix::time::ClockId) -> u64 {
    let Ok(time) = nix::time::clock_gettime(id) else {
        return 0;
    };
    let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec()).unwrap_or(0)
}

fn link(dir: Option<&ProcDir>, name: &str) -> Option<String> {
    let target = dir?.read_link(name).ok()?;
    Some(target.to_string_lossy().into_owned())
}

/// A descriptor that wakes us when the kernel has something to say.
fn watch(fd: std::os::fd::BorrowedFd<'_>) -> io::Result<AsyncFd<OwnedFd>> {
    let fd = fd.try_clone_to_owned()?;
    // SAFETY: an `OwnedFd` stays open and the same for as long as it lives.
    unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.map_err(Into::into)
}

async fn readable(
    fd: Option<&AsyncFd<OwnedFd>>,
) -> io::Result<tokio::io::unix::AsyncFdReadyGuard<'_, OwnedFd>> {
    match fd {
        Some(fd) => fd.readable().await,
        None => std::future::pending().await,
    }
}
