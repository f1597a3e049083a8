//! The gatekeeper: one decision a process.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::hands::Hands;
use super::settings::{Counts, Settings, Ungated};
use super::subject::{Stop, Subject};
use super::troubles::TRACED;
use crate::boundary::Arbiter;
use crate::boundary::process::commands;
use crate::boundary::process::inject::{GateError, Held};
use crate::probe::{GateOutcome, GateWhy, Gated, Standing};
use crate::words::{ExitStatus, Origin, ProcessIdentity};

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

/// The door of the gate.
pub struct Gatekeeper {
    keeper: Arc<Keeper>,
}

/// What everybody at the gate shares.
pub(crate) struct Keeper {
    pub(super) arbiter: Arc<dyn Arbiter>,
    pub(super) processes: Arc<dyn Processes>,
    pub(super) settings: Settings,
    pub(super) hands: Hands,
    pub(super) runtime: Handle,
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
            GateOutcome::Refused | GateOutcome::Denied => self.keeper.refused(gated),
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

    pub(super) fn count_ungated(&self, why: &'static str) {
        *self.counts.lock().ungated.entry(why).or_default() += 1;
    }
}

fn boot_clock() -> u64 {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME)
        .map(|time| Duration::from(time).as_nanos())
        .map_or(0, |nanos| u64::try_from(nanos).unwrap_or(u64::MAX))
}
