//! Programs that an agent runs and no rule names: written down when they end, with what became of
//! them. None of it is fenced.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::now;
use super::observing::Observer;
use super::pipeline::Pipeline;
use crate::effect::Event;
use crate::probe::{Execution, ProbeEvent};
use crate::words::{
    ExitStatus, Origin, ProcessIdentity, Ran, RanEnd, Request, Timestamp, ToolCall,
};

/// Most processes remembered as carrying out a command that is an effect. Each is forgotten at its
/// end; only ends that the kernel's reports lost leave any behind.
const MOST_DECIDED: usize = 20_000;

/// Commands that are effects: their programs are not written down a second time.
#[derive(Default)]
pub(super) struct Decided(Mutex<HashMap<ProcessIdentity, Vec<String>>>);

impl Decided {
    /// Takes in that a call is an effect. A command is decided before its first instruction, so before
    /// it ends.
    pub(super) fn effect(&self, call: &ToolCall) {
        if let Request::Exec(command) = &call.request {
            let mut all = self.0.lock();
            if all.len() >= MOST_DECIDED {
                all.clear();
            }
            all.insert(call.origin.process, command.argv.clone());
        }
    }

    /// Whether what a process ran was an effect. The same process may have run something else before.
    fn was_effect(&self, process: ProcessIdentity, argv: &[String]) -> bool {
        let all = self.0.lock();
        all.get(&process)
            .is_some_and(|decided| is_command_line(decided, argv))
    }

    fn forget(&self, process: ProcessIdentity) {
        self.0.lock().remove(&process);
    }
}

/// Whether a process with these arguments runs that command line. A command line begins with the
/// program as it was started; a process may have any name there, and for a script it begins with the
/// interpreter.
fn is_command_line(command: &[String], argv: &[String]) -> bool {
    let Some(at) = argv.len().checked_sub(command.len()) else {
        return false;
    };
    argv.get(at + 1..) == command.get(1..) && (at == 0 || argv.get(at) == command.first())
}

/// A program that runs.
pub(super) struct Running {
    origin: Origin,
    parent: Option<ProcessIdentity>,
    began: Timestamp,
}

impl Observer {
    /// A process began a program.
    pub(super) fn executed(&mut self, event: &ProbeEvent, execution: &Execution) {
        let Some(origin) = self.started(event, execution) else {
            return;
        };
        let running = Running {
            origin,
            parent: self.probe.parent_of(event.process),
            began: event.at,
        };
        if let Some(before) = self.running.insert(event.process, running) {
            self.note_ran(before, RanEnd::Replaced, event.at);
        }
    }

    /// The process as it was when it began the program; it may have gone on to another meanwhile.
    fn started(&mut self, event: &ProbeEvent, execution: &Execution) -> Option<Origin> {
        let life = event.agent?;
        let mut argv = execution.argv.clone();
        self.daemon.pipeline.take_secrets_off(&mut argv);
        let (Some(exe), Some(cwd)) = (&execution.exe, &execution.cwd) else {
            let known = self.daemon.origin(event.process, life)?;
            let is_known = !known.exe.is_empty() && known.exe != "?";
            return Some(Origin {
                exe: if is_known {
                    known.exe
                } else {
                    execution.filename.clone()
                },
                argv,
                ..known
            });
        };
        let (agent, incarnation) = self.daemon.agent_of(life)?;
        Some(Origin {
            agent,
            incarnation,
            process: event.process,
            exe: exe.clone(),
            argv,
            cwd: cwd.clone(),
            uid: execution.uid,
            connection: None,
            gaps: self.gaps_of(life),
        })
    }

    /// Asking the kernel takes longer than all the rest.
    fn gaps_of(&mut self, life: u32) -> String {
        let probe = &self.probe;
        let known = self.gaps.entry(life);
        known.or_insert_with(|| probe.gaps(life)).clone()
    }

    /// A process ended.
    pub(super) fn exited(&mut self, event: &ProbeEvent, status: ExitStatus) {
        if let Some(running) = self.running.remove(&event.process) {
            self.note_ran(running, RanEnd::Exited(status), event.at);
        }
        self.daemon.pipeline.decided().forget(event.process);
    }

    /// Nobody looks any more: what runs on is written down as that.
    pub(super) fn leave(&mut self) {
        let at = now();
        for (_, running) in std::mem::take(&mut self.running) {
            self.note_ran(running, RanEnd::Running, at);
        }
    }

    fn note_ran(&self, running: Running, end: RanEnd, at: Timestamp) {
        let pipeline = &self.daemon.pipeline;
        let origin = &running.origin;
        if pipeline.decided().was_effect(origin.process, &origin.argv) {
            return;
        }
        pipeline.note_ran(Ran {
            origin: running.origin,
            parent: running.parent,
            began: running.began,
            end,
            at,
        });
    }
}

impl Pipeline {
    /// Commands that are effects.
    pub(super) fn decided(&self) -> &Decided {
        &self.0.decided
    }

    /// Counts a program that no rule names and writes it down. Nothing waits for the disk.
    fn note_ran(&self, ran: Ran) {
        self.0.notices.ran(&ran.origin.agent);
        self.0.log.note(Event::Ran(Box::new(ran)));
    }
}

#[cfg(test)]
mod tests {
    use super::is_command_line;

    #[test]
    fn a_command_line_is_found_behind_its_interpreter_and_not_behind_who_starts_it() {
        let is = |command: &str, argv: &str| {
            let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
            is_command_line(&words(command), &words(argv))
        };
        assert!(is("/usr/bin/git push main", "git push main"));
        assert!(is("./deploy now", "/bin/sh ./deploy now"));
        assert!(!is("/usr/bin/git push main", "env git push main"));
        assert!(!is("/usr/bin/git push main", "git push other"));
        assert!(!is("/usr/bin/git push main", "git push"));
        assert!(is("psql", "psql"));
    }
}
