//! Traffic that cannot be fenced: written down, counted, and refused after a restore where policy
//! wants it so.
//!
//! Refused is what goes through the hook. An agent counts as restored while a branch in force for its
//! calls was opened by a certain restore and nobody forked it; a suspected one refuses nothing, as
//! different calls run there too.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::now;
use super::pipeline::Pipeline;
use crate::boundary::sniff::{SPEAKS_FIRST, server_speaks_first};
use crate::boundary::{OpaqueFlow, Trouble, TroubleKind};
use crate::effect::Event;
use crate::policy::{Mode, OpaqueTo, Opaqueness, class_of};
use crate::words::{
    AgentName, BranchId, Cause, Grade, Opaque, OpaqueStep, Refusal, RefusalCode, ThreadId,
};

/// A look costs microseconds.
const TAKEN_IN: Duration = Duration::from_secs(5);

/// Flows that go on, each with the state of things that it took in last.
#[derive(Default)]
pub(super) struct Flows {
    looked: Mutex<HashMap<u64, u64>>,
    next: AtomicU64,
    moved: Notify,
}

/// A flow's place among them, for as long as it goes on.
struct FlowPlace<'a> {
    flows: &'a Flows,
    number: u64,
}

impl Flows {
    fn enter(&self) -> FlowPlace<'_> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.looked.lock().insert(number, 0);
        let flows = self;
        FlowPlace { flows, number }
    }

    async fn have_looked(&self, at: u64) {
        loop {
            let mut moved = std::pin::pin!(self.moved.notified());
            // From now on no notice is missed.
            moved.as_mut().enable();
            if self.looked.lock().values().all(|looked| *looked >= at) {
                return;
            }
            moved.await;
        }
    }
}

impl FlowPlace<'_> {
    fn looked(&self, at: u64) {
        self.flows.looked.lock().insert(self.number, at);
        self.flows.moved.notify_waiters();
    }
}

impl Drop for FlowPlace<'_> {
    fn drop(&mut self) {
        self.flows.looked.lock().remove(&self.number);
        self.flows.moved.notify_waiters();
    }
}

impl Pipeline {
    /// Decides whether opaque bytes may flow.
    pub(super) async fn let_through(&self, flow: &OpaqueFlow) -> Result<(), Refusal> {
        if self.config().fence.mode == Mode::Observe {
            return Ok(());
        }
        let Some(who) = self.denied(flow).await else {
            return Ok(());
        };
        let refusal = refusal(flow, &who);
        // An agent that is merely silent may go on with HTTP; the boundary says so when it does not.
        if flow.why != SPEAKS_FIRST || server_speaks_first(flow.peer.port()) {
            self.note_flow(flow, OpaqueStep::Refused);
            self.tell(flow, format!("{} {}", refusal.title, refusal.detail));
        }
        Err(refusal)
    }

    /// Takes in that bytes begin to flow.
    pub(super) fn flow_began(&self, flow: &OpaqueFlow) {
        self.note_flow(flow, OpaqueStep::Began);
    }

    /// Waits until a flow that goes on must not any more.
    pub(super) async fn until_denied(&self, flow: &OpaqueFlow) {
        let place = self.0.flows.enter();
        let mut changed = self.0.changed.subscribe();
        loop {
            let seen = *changed.borrow_and_update();
            if self.config().fence.mode == Mode::Enforce
                && let Some(who) = self.denied(flow).await
            {
                self.note_flow(flow, OpaqueStep::Refused);
                let refusal = refusal(flow, &who);
                self.tell(
                    flow,
                    format!(
                        "A connection that was open was ended. {} {}",
                        refusal.title, refusal.detail
                    ),
                );
                return;
            }
            place.looked(seen);
            if changed.changed().await.is_err() {
                // Nothing changes any more.
                return std::future::pending().await;
            }
        }
    }

    /// Waits until every flow that goes on has taken in what was written down so far: those that may not go on
    /// have ended then. Whoever is told that an agent was restored relies on it.
    pub(super) async fn flows_took_it_in(&self) {
        self.0.touch();
        let now = *self.0.changed.borrow();
        if tokio::time::timeout(TAKEN_IN, self.0.flows.have_looked(now))
            .await
            .is_err()
        {
            tracing::error!(
                "connections that are not fenced did not take in within {TAKEN_IN:?} that a branch was opened"
            );
        }
    }

    /// Takes in that a flow ended.
    pub(super) fn flow_ended(&self, flow: OpaqueFlow) {
        if flow.began {
            self.note_flow(&flow, OpaqueStep::Ended);
        }
    }

    /// Counts an observation and writes it down.
    pub(super) fn note_opaque(&self, seen: Opaque) {
        self.0.notices.opaque(&seen);
        self.0.log.note(Event::Opaque(Box::new(seen)));
    }

    fn note_flow(&self, flow: &OpaqueFlow, step: OpaqueStep) {
        let ended = step == OpaqueStep::Ended;
        self.note_opaque(Opaque {
            origin: flow.origin.clone(),
            class: class_of(&flow.why, flow.peer.port()),
            peer: flow.peer.to_string(),
            why: flow.why.clone(),
            step,
            sent: flow.sent,
            received: flow.received,
            digest: flow.digest.filter(|_| ended),
            digested: if ended { flow.sent } else { 0 },
            at: now(),
        });
    }

    fn tell(&self, flow: &OpaqueFlow, detail: String) {
        let trouble = Trouble {
            origin: flow.origin.clone(),
            kind: TroubleKind::OpaqueDenied,
            detail,
        };
        tracing::warn!(agent = %trouble.origin.agent, pid = trouble.origin.process.tgid, "{}", trouble.detail);
        self.0.notices.trouble(trouble);
    }

    /// Who denies this flow now, if anybody does.
    async fn denied(&self, flow: &OpaqueFlow) -> Option<String> {
        let who = {
            let config = self.config();
            if !config.after_restore.denies_anything() {
                return None;
            }
            let address = flow.peer.ip().to_string();
            let mut hosts = vec![address.as_str()];
            let sni = flow.origin.connection.as_ref().and_then(|c| c.sni.as_ref());
            hosts.extend(sni.map(String::as_str));
            let (verdict, who) = config.after_restore.decide(&OpaqueTo {
                class: class_of(&flow.why, flow.peer.port()),
                hosts: &hosts,
                port: flow.peer.port(),
            });
            if verdict == Opaqueness::Allow {
                return None;
            }
            who
        };
        // What a call that was let through does while it runs was decided with it.
        if self.0.nesting.around(flow.origin.process).is_some() {
            return None;
        }
        self.is_restored_now(&flow.origin.agent)
            .await
            .then_some(who)
    }

    /// Whether a branch that is in force for an agent's calls was opened by a certain restore, and
    /// nobody forked it.
    pub(super) async fn is_restored_now(&self, agent: &AgentName) -> bool {
        let threads: Vec<ThreadId> = self.with_lineage(|lineage| {
            let line = lineage.agent(agent);
            line.map_or_else(Vec::new, |line| line.threads.clone())
        });
        for thread in threads {
            let lines = self.lines(thread).await;
            let restored = self.with_lineage(|lineage| {
                let newest = lineage.wide(thread).map(|b| b.id);
                let newest = newest.or_else(|| {
                    let current = lineage.current(thread).map(|b| b.id);
                    current.filter(|_| lines.is_empty())
                });
                let in_force = newest.into_iter().chain(lines.iter().map(|(_, b)| *b));
                let is_restored = |branch: BranchId| {
                    lineage
                        .branch(branch)
                        .is_some_and(|b| b.cause == Cause::Restore && b.grade == Grade::Certain)
                };
                in_force.into_iter().any(is_restored)
            });
            if restored {
                return true;
            }
        }
        false
    }
}

fn refusal(flow: &OpaqueFlow, who: &str) -> Refusal {
    let agent = &flow.origin.agent;
    Refusal {
        code: RefusalCode::Policy,
        title: format!(
            "A connection to {} ({}) was refused: `{agent}` was restored, and what it sends there cannot be compared with what it did before.",
            flow.peer, flow.why
        ),
        detail: format!(
            "{who} says `deny`. `acrfence fork {agent}` lets it go on; a class with `opaque = \"allow\"` lets such connections through after every restore."
        ),
        effect: None,
        fields: Vec::new(),
        hold: None,
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn whoever_opens_a_branch_waits_until_every_flow_has_looked_or_ended() {
        let flows = Flows::default();
        assert!(flows.have_looked(7).now_or_never().is_some());
        let (first, second) = (flows.enter(), flows.enter());
        let mut waits = std::pin::pin!(flows.have_looked(7));
        assert!(waits.as_mut().now_or_never().is_none());
        first.looked(6);
        assert!(waits.as_mut().now_or_never().is_none());
        first.looked(7);
        assert!(waits.as_mut().now_or_never().is_none());
        drop(second);
        waits.await;
        assert!(flows.have_looked(8).now_or_never().is_none());
    }
}
