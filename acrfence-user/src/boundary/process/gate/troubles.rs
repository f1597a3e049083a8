//! Processes of interest that could not be stopped or changed: let run or killed, counted, reported.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::keeper::Keeper;
use super::settings::Ungated;
use super::subject::{Stop, Subject, quoted};
use super::terminal;
use crate::boundary::process::commands::Witnessed;
use crate::boundary::process::inject::GateError;
use crate::boundary::process::pinned::Process;
use crate::boundary::{Trouble, TroubleKind, Unasked};
use crate::probe::{GateCause, GateWhy, Gated, Standing};
use crate::words::{ExitStatus, ProcessIdentity};

/// Why processes of interest run: a word to count by, and what a person is told.
pub(super) const TRACED: (&str, &str) = (
    "traced",
    "a process cannot be gated because another program traces it; end the debugger, or wrap the program with \
     `acrfence mcp -- …`",
);
const TYPED: &str = "typed into an interactive shell";
const REFUSED_TRACED: &str = "it cannot be gated because another program traces it, and policy `gate.ungated` says `refuse`; \
     end the debugger";

impl Keeper {
    /// A process that stands at the gate cannot be gated.
    pub(crate) fn ungated(&self, subject: Subject, error: &GateError, what: Ungated) {
        self.count_ungated(error.word());
        if matches!(error, GateError::Gone { .. }) {
            return self.left(subject.stop);
        }
        self.report(
            subject.stop.process,
            &format!("{error} ({})", subject.command_line(&*self.arbiter)),
            what,
        );
        match what {
            Ungated::LetRun => self.let_run(subject),
            Ungated::Refuse => self.kill(subject),
        }
    }

    /// An interactive shell runs a program that policy names, perhaps as one of the gated commands.
    pub(super) fn job(self: &Arc<Self>, gated: Gated) {
        let keeper = self.clone();
        self.hands.start(move || {
            let stop = Stop {
                process: gated.process,
                since_ns: gated.at_ns,
            };
            let status = keeper.processes.ended(gated.process);
            // It runs, and may be gone or another program by now.
            let found = Subject::look(stop).ok().and_then(|subject| {
                let rules = &keeper.settings.rules;
                let argv = rules.command_line(&subject.argv, &subject.started, &subject.file)?;
                Some((subject, argv))
            });
            let runtime = keeper.runtime.clone();
            runtime.spawn(async move { keeper.job_found(gated, found, status).await });
        });
    }

    async fn job_found(
        &self,
        gated: Gated,
        found: Option<(Subject, Vec<String>)>,
        mut status: oneshot::Receiver<ExitStatus>,
    ) {
        let argv = match &found {
            Some((_, argv)) => argv.clone(),
            None => {
                // The kernel tells of its program before it tells of its end.
                let ended = (&mut status).await;
                let (tell, told) = oneshot::channel();
                // The receiver is ours.
                let _ = tell.send(ended.unwrap_or(ExitStatus::Unknown));
                status = told;
                let origin = self.processes.origin(gated.process);
                let argv = origin.map_or_else(Vec::new, |origin| origin.argv);
                self.settings.rules.as_meant(argv)
            }
        };
        let rules = &self.settings.rules;
        // The kernel knew it by its file, which is known no more: what it was is not known either.
        let is_known = argv.first().is_some_and(|program| rules.know(program));
        let rule = rules.gating(&argv);
        if is_known && rule.is_none_or(|rule| rule.only_reads(&argv, None)) {
            return;
        }
        self.count_ungated("job_control");
        let recorded = match self.processes.origin(gated.process) {
            Some(origin) => {
                let witnessed = match found {
                    Some((subject, argv)) => {
                        Witnessed::running(self, subject, argv, origin, status)
                    }
                    None => Witnessed::gone(argv.clone(), origin, status),
                };
                witnessed.begin(self).await
            }
            None => None,
        };
        match recorded {
            Some(recorded) => recorded.follow(self.settings.record).await,
            None => {
                let detail = format!(
                    "it was {TYPED}, where it cannot be gated; `sh -c '…; exit $?'` or a script is fenced"
                );
                self.unasked(&gated, Some(argv), false, TYPED, detail);
            }
        }
    }

    /// The kernel refused to let a process run that nobody could be asked about.
    pub(super) fn refused(self: &Arc<Self>, gated: Gated) {
        let Some(refusal) = gated.refusal.clone() else {
            return;
        };
        match refusal.cause {
            GateCause::Unserved => self.count_ungated("killed_without_daemon"),
            GateCause::Traced => {
                self.count_ungated("traced_and_refused");
                let argv = Some(self.settings.rules.as_meant(refusal.argv));
                self.unasked(&gated, argv, true, "traced", REFUSED_TRACED.to_owned());
            }
            GateCause::Job => {
                self.count_ungated("job_control_and_refused");
                let keeper = self.clone();
                let argv = self.settings.rules.as_meant(refusal.argv);
                self.hands.start(move || keeper.refused_job(&gated, argv));
            }
        }
    }

    fn refused_job(&self, gated: &Gated, argv: Vec<String>) {
        let Some(origin) = self.processes.origin(gated.process) else {
            return;
        };
        let agent = &origin.agent;
        let detail = match self.settings.ungated {
            Ungated::Refuse => format!(
                "it was {TYPED}, where it cannot be gated, and policy `gate.ungated` says `refuse`; \
                 `sh -c '…; exit $?'` or a script is gated"
            ),
            Ungated::LetRun => format!(
                "`{agent}` was restored, and what is {TYPED} cannot be compared with what was done before. \
                 `sh -c '…; exit $?'` or a script is compared and answered. `acrfence fork {agent}`, in a terminal that is \
                 not the agent's, lets such commands run again. (Policy `after_restore.interactive`)"
            ),
        };
        // The person at the terminal sees only that something was killed or not permitted.
        let said = format!("ACRFence: `{}` was not run: {detail}", quoted(&argv));
        if let Err(error) = terminal::say(gated.parent, &said) {
            tracing::debug!(pid = gated.parent.tgid, %error, "nothing was said at a terminal");
        }
        self.unasked(gated, Some(argv), true, TYPED, detail);
    }

    fn unasked(
        &self,
        gated: &Gated,
        argv: Option<Vec<String>>,
        refused: bool,
        why: &'static str,
        detail: String,
    ) {
        let Some(mut origin) = self.processes.origin(gated.process) else {
            return;
        };
        if let Some(argv) = argv.filter(|argv| !argv.is_empty()) {
            origin.argv = argv;
        }
        self.arbiter.unasked(Unasked {
            origin,
            refused,
            why,
            detail,
        });
    }

    /// A process of interest runs and could not be stopped.
    pub(super) fn runs(&self, gated: Gated, (word, why): (&'static str, &str)) {
        self.count_ungated(word);
        let what = self.settings.ungated;
        let matters = gated.why & !GateWhy::ENVIRONMENT != 0;
        if !matters {
            return;
        }
        self.report(gated.process, why, what);
        if what == Ungated::Refuse
            && let Ok(process) = Process::open_identity(gated.process)
        {
            let _ = process.signal(libc::SIGKILL);
        }
    }

    /// A process stands at the gate, and nobody decides about it.
    pub(super) fn overdue(&self, standing: Standing) {
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
        if let Ok(process) = Process::open_identity(standing.process) {
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
}
