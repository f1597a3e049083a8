//! Who may see and change what (DESIGN.md §9): a person sees the agents of their own user, root sees all,
//! and no process of an agent decides about its fence.

use super::api_errors::{forbidden, unknown_agent};
use super::kernel::Membership;
use super::service::Daemon;
use crate::control::{ApiError, Peer};
use crate::effect::EffectRow;
use crate::words::AgentName;

impl Daemon {
    /// Whether this peer may change something about the agent: its user or root, and never a process
    /// of a tracked tree (DESIGN.md §9: an agent must not be able to approve its own fork).
    pub(super) fn check_changes(&self, peer: Peer, agent: &AgentName) -> Result<(), ApiError> {
        self.check_sees(peer, agent)?;
        self.check_outside(peer)
    }

    /// Refuses peers that are processes of a tracked tree.
    pub(super) fn check_outside(&self, peer: Peer) -> Result<(), ApiError> {
        if self.is_inside(peer) {
            return Err(forbidden(
                "this comes from inside a tracked agent, and an agent may not decide about its own fence; run it from another terminal",
            ));
        }
        Ok(())
    }

    /// Whether the peer belongs to a tracked tree, or cannot be told not to.
    pub(super) fn is_inside(&self, peer: Peer) -> bool {
        // A peer that is gone cannot be looked up: it may have been anybody.
        peer.pid == 0 || self.kernel.membership(peer.pid) != Membership::Outside
    }

    pub(super) fn check_sees(&self, peer: Peer, agent: &AgentName) -> Result<(), ApiError> {
        let known = self
            .pipeline
            .with_lineage(|lineage| lineage.agent(agent).is_some());
        if known && self.may_see(peer, agent) {
            Ok(())
        } else {
            Err(unknown_agent(agent))
        }
    }

    pub(super) fn may_see(&self, peer: Peer, agent: &AgentName) -> bool {
        peer.is_root()
            || self.pipeline.with_lineage(|lineage| {
                lineage.agent(agent).is_some_and(|line| {
                    line.lives
                        .iter()
                        .all(|life| life.incarnation.uid == peer.uid)
                })
            })
    }

    pub(super) fn mine(&self, peer: Peer, rows: Vec<EffectRow>) -> Vec<EffectRow> {
        rows.into_iter()
            .filter(|row| self.may_see(peer, &row.agent))
            .collect()
    }
}
