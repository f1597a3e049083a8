//! Processes of interest that could not be stopped or changed: let run or killed, counted, reported.

use std::sync::Arc;

use super::keeper::Keeper;
use super::settings::Ungated;
use super::subject::{Stop, Subject};
use crate::boundary::process::inject::GateError;
use crate::boundary::process::pinned::Process;
use crate::boundary::{Trouble, TroubleKind};
use crate::probe::{GateWhy, Gated, Standing};
use crate::words::ProcessIdentity;

/// Why processes of interest run: a word to count by, and what a person is told.
pub(super) const TRACED: (&str, &str) = (
    "traced",
    "a process cannot be gated because another program traces it; end the debugger, or wrap the program with \
     `acrfence mcp -- …`",
);
const JOB: (&str, &str) = (
    "job_control",
    "a command that policy names was typed into an interactive shell, which would take the gate for Ctrl-Z; let the \
     agent run it with `bash -c`",
);

impl Keeper {
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
    pub(super) fn job(self: &Arc<Self>, gated: Gated) {
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
