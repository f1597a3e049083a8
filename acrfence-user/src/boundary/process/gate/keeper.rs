//! The gatekeeper: one decision a process.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::hands::Hands;
use super::subject::{Stop, Subject};
use crate::boundary::process::commands::{self, Rules};
use crate::boundary::process::inject::{Direction, GateError, Held, Interposed, Kind, Place};
use crate::boundary::process::stdio::{self, Ends, Session, Sink, Source};
use crate::boundary::{Arbiter, Trouble, TroubleKind};
use crate::probe::{ExitStatus, GateOutcome, GateQueue, GateWhy, Gated, Standing};
use crate::words::{Origin, ProcessIdentity};

/// What the gate needs to know of processes, and says of them. The probe stands behind it.
pub trait Processes: Send + Sync + 'static {
    /// Whose calls those of a process are; none when it is tracked no more.
    fn origin(&self, process: ProcessIdentity) -> Option<Origin>;

    /// The process that has this pid now, when it is tracked.
    fn identify(&self, pid: u32) -> Option<ProcessIdentity>;

    /// The tracked process that started a process.
    fn parent(&self, process: ProcessIdentity) -> Option<ProcessIdentity>;

    /// A process is about to leave the gate, and is not stopped again for `done`
    /// ([`GateWhy`] bits).
    fn passed(&self, process: ProcessIdentity, done: u32);

    /// Everybody who stands at the gate.
    fn at_gate(&self) -> Vec<Standing>;

    /// Tells how a process ends, once it does. Counts from the call: an end right after it is
    /// told.
    fn ended(&self, process: ProcessIdentity) -> oneshot::Receiver<ExitStatus>;
}

/// How the gate works.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which commands are gated.
    pub rules: Rules,
    /// Variables for programs whose environment lacks the marker. Those that a program has stay.
    pub variables: Vec<(String, String)>,
    /// Files that a program must see for the variables to make sense.
    pub files: Vec<PathBuf>,
    /// This program: started as `acrfence mcp`, it hands its pipes over by itself.
    pub program: PathBuf,
    /// Variables of a command that are part of what it means; `LC_*` stands for all that start so.
    pub kept: Vec<String>,
    /// What becomes of a process of interest that cannot be gated.
    pub ungated: Ungated,
    /// How long a process may stand at the gate without being decided about.
    pub bound: Duration,
    /// Bounds of the relays.
    pub stdio: stdio::Limits,
    /// How much of a command's output is kept.
    pub record: usize,
    /// Threads that work on processes.
    pub hands: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            rules: Rules::shipped(),
            variables: Vec::new(),
            files: Vec::new(),
            program: PathBuf::from("/proc/self/exe"),
            kept: Vec::new(),
            ungated: Ungated::default(),
            bound: Duration::from_secs(2),
            stdio: stdio::Limits::default(),
            record: 1 << 20,
            hands: 4,
        }
    }
}

/// What becomes of a process of interest that cannot be gated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ungated {
    /// It runs and counts as not fenced.
    #[default]
    LetRun,
    /// It is killed.
    Refuse,
}

/// How many processes were gated for what, and how many could not be and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// By what was done: `command`, `stdio`, `environment`, `nothing`.
    pub gated: BTreeMap<&'static str, u64>,
    /// By why it could not be.
    pub ungated: BTreeMap<&'static str, u64>,
}

/// The door of the gate.
pub struct Gatekeeper {
    keeper: Arc<Keeper>,
}

/// What everybody at the gate shares.
pub(crate) struct Keeper {
    arbiter: Arc<dyn Arbiter>,
    processes: Arc<dyn Processes>,
    settings: Settings,
    hands: Hands,
    runtime: Handle,
    counts: Mutex<Counts>,
    /// Processes that are being decided about, and since when each stands at the gate: it may come
    /// again, with its next program, before everything about its last visit is done.
    deciding: Mutex<HashMap<ProcessIdentity, u64>>,
    /// Processes that handed the pipes of a server over which they start.
    handed: Mutex<HashSet<ProcessIdentity>>,
}

impl Gatekeeper {
    /// A gatekeeper whose relays run on the runtime it is made in.
    pub fn new(
        arbiter: Arc<dyn Arbiter>,
        processes: Arc<dyn Processes>,
        settings: Settings,
    ) -> io::Result<Self> {
        let hands = Hands::new(settings.hands)?;
        Ok(Self {
            keeper: Arc::new(Keeper {
                arbiter,
                processes,
                settings,
                hands,
                runtime: Handle::current(),
                counts: Mutex::default(),
                deciding: Mutex::default(),
                handed: Mutex::default(),
            }),
        })
    }

    /// Takes a process that the kernel found to be of interest. Returns at once.
    pub fn take(&self, gated: Gated) {
        match gated.outcome {
            GateOutcome::Stopped => {
                let stop = Stop {
                    process: gated.process,
                    since_ns: gated.at_ns,
                };
                self.attend(stop, Some(gated.parent), gated.why);
            }
            GateOutcome::Traced => self.keeper.runs(gated, TRACED),
            GateOutcome::JobControl => self.keeper.job(gated),
            GateOutcome::Killed => self.keeper.count_ungated("killed_without_daemon"),
            GateOutcome::Passed => self.keeper.count_ungated("passed_without_daemon"),
        }
    }

    /// Takes everybody who stands at the gate already: whom a daemon before this one left there.
    pub fn take_over(&self) {
        for standing in self.keeper.processes.at_gate() {
            let stop = Stop {
                process: standing.process,
                since_ns: standing.since_ns,
            };
            self.attend(stop, None, standing.why);
        }
    }

    /// Lets nobody stand at the gate longer than the bound without being decided about. Runs for
    /// ever.
    pub async fn watch(&self) {
        let bound = self.keeper.settings.bound;
        let mut tick = tokio::time::interval(bound.max(Duration::from_millis(10)) / 2);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let now = boot_clock();
            for standing in self.keeper.processes.at_gate() {
                let age = Duration::from_nanos(now.saturating_sub(standing.since_ns));
                let deciding = self.keeper.deciding.lock().get(&standing.process).copied();
                if age > bound && deciding != Some(standing.since_ns) {
                    self.keeper.overdue(standing);
                }
            }
        }
    }

    /// What was gated and what could not be.
    pub fn counts(&self) -> Counts {
        self.keeper.counts.lock().clone()
    }

    pub(super) fn keeper(&self) -> &Arc<Keeper> {
        &self.keeper
    }

    fn attend(&self, stop: Stop, parent: Option<ProcessIdentity>, why: u32) {
        let keeper = self.keeper.clone();
        if keeper.deciding.lock().insert(stop.process, stop.since_ns) == Some(stop.since_ns) {
            return;
        }
        self.keeper
            .hands
            .start(move || keeper.attend(stop, parent, why));
    }
}

impl Keeper {
    pub(crate) fn arbiter(&self) -> &Arc<dyn Arbiter> {
        &self.arbiter
    }

    pub(crate) fn processes(&self) -> &Arc<dyn Processes> {
        &self.processes
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// A process has handed a server's pipes over: the server's exec is not gated for them.
    pub(super) fn handed_over(&self, process: ProcessIdentity) {
        self.handed.lock().insert(process);
    }

    /// Its relay has ended.
    pub(super) fn taken_back(&self, process: ProcessIdentity) {
        self.handed.lock().remove(&process);
    }

    pub(crate) fn hands(&self) -> &Hands {
        &self.hands
    }

    /// Decides about a process, on one of the hands.
    fn attend(self: Arc<Self>, stop: Stop, parent: Option<ProcessIdentity>, why: u32) {
        let subject = match Subject::look(stop) {
            Ok(subject) => subject,
            Err(error) => {
                tracing::debug!(pid = stop.process.tgid, %error, "a process at the gate cannot be seen");
                self.count_ungated("gone");
                self.left(stop);
                return;
            }
        };
        if why & GateWhy::COMMAND != 0
            && let Some(argv) =
                self.settings
                    .rules
                    .command_line(&subject.argv, &subject.started, &subject.file)
            && let Some(rule) = self.settings.rules.gating(&argv)
        {
            self.count("command");
            let rule = rule.clone();
            let runtime = self.runtime.clone();
            runtime.spawn(commands::attend(self, subject, rule, argv));
            return;
        }
        let is_handed_over = parent.is_some_and(|parent| self.handed.lock().contains(&parent));
        if why & GateWhy::STDIO != 0
            && subject.has_pipes()
            && !is_handed_over
            && !subject.runs(&self.settings.program)
        {
            return self.relay(subject, parent);
        }
        if why & GateWhy::ENVIRONMENT != 0 {
            return self.only_equip(subject);
        }
        self.count("nothing");
        self.let_run(subject);
    }

    /// Puts our pipes in the place of a program's own.
    fn relay(self: Arc<Self>, subject: Subject, parent: Option<ProcessIdentity>) {
        let relayed = self.interpose(&subject, parent);
        match relayed {
            Ok((ends, session)) => {
                self.count("stdio");
                self.left(subject.stop);
                drop(subject);
                self.runtime.spawn(stdio::relay(ends, session));
            }
            Err(error) => self.ungated(subject, &error, self.settings.ungated),
        }
    }

    fn interpose(
        &self,
        subject: &Subject,
        parent: Option<ProcessIdentity>,
    ) -> Result<(Ends, Session), GateError> {
        let pid = subject.stop.process.tgid.cast_signed();
        let failed = |what: &'static str, error: &io::Error| GateError::Failed {
            pid,
            what,
            why: nix::errno::Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)),
        };
        // Whoever started the program talks to it, unless it is of no agent or gone.
        let origin = parent
            .and_then(|parent| self.processes.origin(parent))
            .or_else(|| self.processes.origin(subject.stop.process))
            .ok_or(GateError::Gone { pid })?;
        let [input, output, error] = &subject.standard;
        let (Some(from), Some(to)) = (&input.copy, &output.copy) else {
            return Err(GateError::Gone { pid });
        };
        let is_one = input.identity == output.identity && input.kind == Kind::Socket;
        let mut numbers = vec![1];
        if is_one {
            numbers.insert(0, 0);
        }
        if error.identity == output.identity {
            numbers.push(2);
        }
        let direction = if is_one {
            Direction::Both
        } else {
            Direction::Out
        };
        let mut places = vec![Place {
            numbers: &numbers,
            now: to,
            kind: output.kind,
            direction,
        }];
        if !is_one {
            places.push(Place {
                numbers: &[0],
                now: from,
                kind: input.kind,
                direction: Direction::In,
            });
        }

        // Everything that can fail without touching the process comes first.
        let _runtime = self.runtime.enter();
        let copy = |fd: &OwnedFd| fd.try_clone();
        let agent_in = copy(from)
            .and_then(Source::shared)
            .map_err(|e| failed("opening its input", &e))?;
        let agent_out = copy(to)
            .and_then(Sink::shared)
            .map_err(|e| failed("opening its output", &e))?;

        let mut held = Held::seize(&subject.process)?;
        let made = held.interpose(&places);
        let ours = match made {
            Ok(ours) => ours,
            Err(error) => {
                held.stand()?;
                return Err(error);
            }
        };
        self.equip(subject, &mut held);
        let ends = ends(ours, agent_in, agent_out, is_one).map_err(|e| failed("epoll", &e))?;
        self.processes.passed(subject.stop.process, GateWhy::STDIO);
        held.release()?;
        let session = Session {
            arbiter: self.arbiter.clone(),
            origin,
            inside: Some(subject.stop.process),
            server: subject.command_line(),
            limits: self.settings.stdio.clone(),
        };
        Ok((ends, session))
    }

    fn only_equip(&self, subject: Subject) {
        let result = (|| {
            let mut held = Held::seize(&subject.process)?;
            self.equip(&subject, &mut held);
            self.processes.passed(subject.stop.process, 0);
            held.release()
        })();
        match result {
            Ok(()) => {
                self.count("environment");
                self.left(subject.stop);
            }
            // Its calls are fenced or refused for want of trust, so it may run.
            Err(error) => self.ungated(subject, &error, Ungated::LetRun),
        }
    }

    /// Adds the variables to a held process that lacks them. Without the files that they name, it
    /// gets the marker alone.
    pub(crate) fn equip(&self, subject: &Subject, held: &mut Held<'_>) {
        const MARKER: &str = "ACRFENCE";
        if self.settings.variables.is_empty()
            || subject.has_variable(MARKER)
            || held.is_privileged()
        {
            return;
        }
        let sees = self.settings.files.iter().all(|file| subject.sees(file));
        let marker = if sees { "1" } else { "0" };
        let mut variables = vec![format!("{MARKER}={marker}")];
        if sees {
            variables.extend(
                self.settings
                    .variables
                    .iter()
                    .filter(|(name, _)| !subject.has_variable(name))
                    .map(|(name, value)| format!("{name}={value}")),
            );
        }
        let variables: Vec<&[u8]> = variables.iter().map(String::as_bytes).collect();
        if let Err(error) = held.add_environment(&variables) {
            tracing::warn!("{error}");
            self.count_ungated(error.word());
        }
    }

    /// The part of a command's environment that policy keeps.
    pub(crate) fn kept_environment(&self, subject: &Subject) -> Vec<(String, String)> {
        let keeps = |name: &str| {
            self.settings
                .kept
                .iter()
                .any(|kept| match kept.strip_suffix('*') {
                    Some(start) => name.starts_with(start),
                    None => kept == name,
                })
        };
        subject
            .environment
            .iter()
            .filter(|(name, _)| keeps(name))
            .cloned()
            .collect()
    }

    /// Lets a process run as it is.
    pub(crate) fn let_run(&self, subject: Subject) {
        self.processes.passed(subject.stop.process, 0);
        // It may have ended at the gate.
        let _ = subject.process.signal(libc::SIGCONT);
        self.left(subject.stop);
    }

    /// Kills a process.
    pub(crate) fn kill(&self, subject: Subject) {
        let _ = subject.process.signal(libc::SIGKILL);
        self.left(subject.stop);
    }

    /// Ends a process before it began.
    pub(crate) async fn end(self: &Arc<Self>, subject: Subject, status: u8) {
        let stop = subject.stop;
        let (subject, ended) = match self
            .hands
            .run(move || {
                let ended = Held::seize(&subject.process).and_then(|held| held.exit(status));
                (subject, ended)
            })
            .await
        {
            Some(done) => done,
            None => return self.left(stop),
        };
        match ended {
            Ok(()) | Err(GateError::Gone { .. }) => self.left(stop),
            // It must not run, whatever keeps us from ending it gracefully.
            Err(error) => self.ungated(subject, &error, Ungated::Refuse),
        }
    }

    /// A process that stands at the gate cannot be gated.
    pub(crate) fn ungated(&self, subject: Subject, error: &GateError, what: Ungated) {
        self.count_ungated(error.word());
        if matches!(error, GateError::Gone { .. }) {
            return self.left(subject.stop);
        }
        self.report(
            subject.stop.process,
            &format!("{error} ({})", subject.command_line()),
            what,
        );
        match what {
            Ungated::LetRun => self.let_run(subject),
            Ungated::Refuse => self.kill(subject),
        }
    }

    /// An interactive shell runs a program that policy names, perhaps as one of the gated commands.
    fn job(self: &Arc<Self>, gated: Gated) {
        let keeper = self.clone();
        self.hands.start(move || {
            let stop = Stop {
                process: gated.process,
                since_ns: gated.at_ns,
            };
            let rules = &keeper.settings.rules;
            // It runs, and may be gone or another program by now. Then it is taken for a command.
            let is_harmless = Subject::look(stop).is_ok_and(|subject| {
                rules
                    .command_line(&subject.argv, &subject.started, &subject.file)
                    .is_some_and(|argv| rules.gating(&argv).is_none())
            });
            if !is_harmless {
                keeper.runs(gated, JOB);
            }
        });
    }

    /// A process of interest runs and could not be stopped.
    fn runs(&self, gated: Gated, (word, why): (&'static str, &str)) {
        self.count_ungated(word);
        let what = self.settings.ungated;
        let matters = gated.why & !GateWhy::ENVIRONMENT != 0;
        if !matters {
            return;
        }
        self.report(gated.process, why, what);
        if what == Ungated::Refuse
            && let Ok(process) =
                crate::boundary::process::pinned::Process::open_identity(gated.process)
        {
            let _ = process.signal(libc::SIGKILL);
        }
    }

    /// A process stands at the gate, and nobody decides about it.
    fn overdue(&self, standing: Standing) {
        self.count_ungated("overdue");
        tracing::warn!(
            pid = standing.process.tgid,
            "a process stood at the gate longer than it may"
        );
        let matters = standing.why & !GateWhy::ENVIRONMENT != 0;
        let signal = match self.settings.ungated {
            Ungated::Refuse if matters => libc::SIGKILL,
            _ => libc::SIGCONT,
        };
        self.processes.passed(standing.process, 0);
        if let Ok(process) =
            crate::boundary::process::pinned::Process::open_identity(standing.process)
        {
            let _ = process.signal(signal);
        }
    }

    fn report(&self, process: ProcessIdentity, why: &str, what: Ungated) {
        let done = match what {
            Ungated::LetRun => "it runs and is not fenced",
            Ungated::Refuse => "it was killed",
        };
        let Some(origin) = self.processes.origin(process) else {
            return;
        };
        self.arbiter.trouble(Trouble {
            origin,
            kind: TroubleKind::NotGated,
            detail: format!("{why}: {done}"),
        });
    }

    /// Nothing is decided any more about a process that stood at the gate.
    pub(crate) fn left(&self, stop: Stop) {
        let mut deciding = self.deciding.lock();
        if deciding.get(&stop.process) == Some(&stop.since_ns) {
            deciding.remove(&stop.process);
        }
    }

    pub(super) fn count(&self, what: &'static str) {
        *self.counts.lock().gated.entry(what).or_default() += 1;
    }

    fn count_ungated(&self, why: &'static str) {
        *self.counts.lock().ungated.entry(why).or_default() += 1;
    }
}

/// Why processes of interest run: a word to count by, and what a person is told.
const TRACED: (&str, &str) = (
    "traced",
    "a process cannot be gated because another program traces it; end the debugger, or wrap the program with \
     `acrfence mcp -- …`",
);
const JOB: (&str, &str) = (
    "job_control",
    "a command that policy names was typed into an interactive shell, which would take the gate for Ctrl-Z; let the \
     agent run it with `bash -c`",
);

/// A thread that takes processes from the kernel's queue to a gatekeeper.
#[derive(Debug)]
pub struct Serving {
    stop: Option<OwnedFd>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// Serves the gate until the answer is dropped.
pub fn serve(mut queue: GateQueue, gatekeeper: Arc<Gatekeeper>) -> io::Result<Serving> {
    let (stopped, stop) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
    let thread = std::thread::Builder::new()
        .name("gate".to_owned())
        .spawn(move || {
            loop {
                while let Some(gated) = queue.try_next() {
                    gatekeeper.take(gated);
                }
                let mut polled = [
                    PollFd::new(queue.as_fd(), PollFlags::POLLIN),
                    PollFd::new(stopped.as_fd(), PollFlags::POLLIN),
                ];
                match poll(&mut polled, PollTimeout::NONE) {
                    Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                    Err(error) => {
                        tracing::error!("the exec gate is served no more: {error}");
                        return;
                    }
                }
                if polled[1].revents().is_some_and(|found| !found.is_empty()) {
                    return;
                }
            }
        })?;
    Ok(Serving {
        stop: Some(stop),
        thread: Some(thread),
    })
}

impl Drop for Serving {
    fn drop(&mut self) {
        // The other end is told by closing this one.
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn ends(
    ours: Vec<Interposed>,
    agent_in: Source,
    agent_out: Sink,
    is_one: bool,
) -> io::Result<Ends> {
    let mut ours = ours.into_iter().map(|Interposed(end)| end);
    let missing = || io::Error::from(io::ErrorKind::NotFound);
    let first = ours.next().ok_or_else(missing)?;
    if is_one {
        let copy = first.try_clone()?;
        return Ok(Ends {
            agent_in: agent_in.half(),
            agent_out: agent_out.half(),
            server_in: Sink::ours(copy)?.half(),
            server_out: Source::ours(first)?.half(),
        });
    }
    Ok(Ends {
        agent_in,
        agent_out,
        server_out: Source::ours(first)?,
        server_in: Sink::ours(ours.next().ok_or_else(missing)?)?,
    })
}

fn boot_clock() -> u64 {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME)
        .map(|time| Duration::from(time).as_nanos())
        .map_or(0, |nanos| u64::try_from(nanos).unwrap_or(u64::MAX))
}
