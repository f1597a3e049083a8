//! A program with pipes of its own gets ours in their place.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::keeper::Keeper;
use super::subject::Subject;
use crate::boundary::process::inject::{Direction, GateError, Held, Interposed, Kind, Place};
use crate::boundary::process::stdio::{self, Ends, Session, Sink, Source};
use crate::probe::GateWhy;
use crate::words::ProcessIdentity;

impl Keeper {
    /// Puts our pipes in the place of a program's own.
    pub(super) fn relay(self: Arc<Self>, subject: Subject, parent: Option<ProcessIdentity>) {
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
            server: subject.command_line(&*self.arbiter),
            limits: self.settings.stdio.clone(),
        };
        Ok((ends, session))
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
