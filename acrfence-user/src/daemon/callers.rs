//! Whose connection the boundary accepted.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, Weak};

use super::kernel::{Claimed, LifeIndex, ProcessFacts};
use super::service::Daemon;
use crate::boundary::{Caller, Callers};
use crate::words::{Origin, ProcessIdentity};

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
        daemon.caller(claimed)
    }

    fn caller_in(&self, netns: u64, from: SocketAddr) -> Option<Caller> {
        let daemon = self.0.get()?.upgrade()?;
        let claimed = daemon.kernel.claim_in(netns, from)?;
        daemon.caller(claimed)
    }
}

impl Daemon {
    fn caller(&self, claimed: Claimed) -> Option<Caller> {
        let life = self.begun(claimed.life, claimed.process)?;
        Some(Caller {
            origin: self.origin(claimed.process, life)?,
            original: claimed.original,
        })
    }

    /// What is known of a process, without the secrets among its arguments.
    pub(super) fn facts(&self, process: ProcessIdentity) -> ProcessFacts {
        let mut facts = self.kernel.facts(process);
        self.pipeline.take_secrets_off(&mut facts.argv);
        facts
    }

    /// What is known of a process of an agent; none where it belongs to none.
    pub(super) fn origin(&self, process: ProcessIdentity, life: LifeIndex) -> Option<Origin> {
        let (agent, incarnation) = self.agent_of(life)?;
        let facts = self.facts(process);
        Some(Origin {
            agent,
            incarnation,
            process,
            exe: facts.exe,
            argv: facts.argv,
            cwd: facts.cwd,
            uid: facts.uid,
            connection: None,
            gaps: facts.gaps,
        })
    }
}
