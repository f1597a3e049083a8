//! [`Processes`] as the probe sees them.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::Processes;
use crate::probe::{Events, Membership, Probe, Received, Standing, What};
use crate::words::{AgentName, ExitStatus, Origin, ProcessIdentity};

/// Tells which agent, and which life of it, an index of the probe stands for.
pub type AgentOf = Arc<dyn Fn(u32) -> Option<(AgentName, u32)> + Send + Sync>;

/// The processes of a probe.
pub struct Watched {
    probe: Arc<Probe>,
    agent_of: AgentOf,
    waiting: Mutex<HashMap<ProcessIdentity, Vec<oneshot::Sender<ExitStatus>>>>,
}

impl Watched {
    /// Watches the probe's processes. [`Self::run`] must run somewhere, and so must
    /// [`Probe::run`].
    pub fn new(probe: Arc<Probe>, agent_of: AgentOf) -> Self {
        Self {
            probe,
            agent_of,
            waiting: Mutex::default(),
        }
    }

    /// Tells ends to those who wait for them, for as long as the probe lives.
    pub async fn run(&self, mut events: Events) {
        while let Some(received) = events.next().await {
            match received {
                Received::Event(event) => {
                    if let What::Exited { status } = event.what {
                        self.tell(event.process, status);
                    }
                }
                Received::Missed(_) => {
                    let waiting: Vec<ProcessIdentity> =
                        self.waiting.lock().keys().copied().collect();
                    for process in waiting {
                        self.tell_if_ended(process);
                    }
                }
            }
        }
    }

    fn tell(&self, process: ProcessIdentity, status: ExitStatus) {
        for waiting in self.waiting.lock().remove(&process).unwrap_or_default() {
            // Whoever waited may have gone.
            let _ = waiting.send(status);
        }
    }

    fn tell_if_ended(&self, process: ProcessIdentity) {
        let ended = self
            .probe
            .process(process)
            .and_then(|process| process.exited);
        if let Some((_, status)) = ended {
            self.tell(process, status);
        }
    }
}

impl Processes for Watched {
    fn origin(&self, identity: ProcessIdentity) -> Option<Origin> {
        let process = self.probe.process(identity)?;
        let (agent, incarnation) = (self.agent_of)(process.agent)?;
        Some(Origin {
            agent,
            incarnation,
            process: identity,
            exe: process.exe,
            argv: process.argv,
            cwd: process.cwd,
            uid: process.uid,
            connection: None,
            gaps: self.probe.gaps(process.agent),
        })
    }

    fn identify(&self, pid: u32) -> Option<ProcessIdentity> {
        match self.probe.membership(pid) {
            Ok(Membership::Inside { process, .. }) => Some(process),
            Ok(_) => None,
            Err(error) => {
                tracing::error!("it cannot be told whether a process is tracked: {error}");
                None
            }
        }
    }

    fn parent(&self, process: ProcessIdentity) -> Option<ProcessIdentity> {
        self.probe.parent_of(process)
    }

    fn passed(&self, process: ProcessIdentity, done: u32) {
        if let Err(error) = self.probe.gate_passed(process, done) {
            tracing::error!("the kernel was not told that a process left the gate: {error}");
        }
    }

    fn at_gate(&self) -> Vec<Standing> {
        self.probe.at_gate().unwrap_or_else(|error| {
            tracing::error!("it cannot be told who stands at the gate: {error}");
            Vec::new()
        })
    }

    fn ended(&self, process: ProcessIdentity) -> oneshot::Receiver<ExitStatus> {
        let (sender, receiver) = oneshot::channel();
        self.waiting.lock().entry(process).or_default().push(sender);
        // It may have ended just before.
        self.tell_if_ended(process);
        receiver
    }
}
