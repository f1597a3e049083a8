//! Whose connection the boundary accepted.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, Weak};

use super::service::Daemon;
use crate::boundary::{Caller, Callers};
use crate::words::Origin;

/// Looks callers up in the kernel's table and the lineage. The boundary is opened before the daemon
/// is whole (the kernel must know its port); until [`Self::serve`], and after the daemon is gone,
/// every connection is dropped.
#[derive(Default)]
pub(super) struct AgentCallers(OnceLock<Weak<Daemon>>);

impl AgentCallers {
    pub(super) fn serve(&self, daemon: Arc<Daemon>) {
        // A second daemon behind one boundary cannot be: it is made in one place, once.
        let _ = self.0.set(Arc::downgrade(&daemon));
    }
}

impl Callers for AgentCallers {
    fn caller(&self, from: SocketAddr) -> Option<Caller> {
        let daemon = self.0.get()?.upgrade()?;
        let claimed = daemon.kernel.claim(from)?;
        let life = daemon.begun(claimed.life, claimed.process)?;
        let (agent, incarnation) = daemon.agent_of(life)?;
        let facts = daemon.kernel.facts(claimed.process);
        let origin = Origin {
            agent,
            incarnation,
            process: claimed.process,
            exe: facts.exe,
            argv: facts.argv,
            cwd: facts.cwd,
            uid: facts.uid,
            connection: None,
            gaps: facts.gaps,
        };
        Some(Caller {
            origin,
            original: claimed.original,
        })
    }
}
