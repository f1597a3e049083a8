//! What a branch remembers, and what it does not.

use serde::{Deserialize, Serialize};

use super::Lineage;
use crate::words::{BranchId, Cause, EffectId, ForkPoint, Seq};

/// Where an effect was executed: all that lineage needs to know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Executed {
    /// The effect.
    pub id: EffectId,
    /// The branch it was executed in.
    pub branch: BranchId,
}

/// Why an effect is in a branch's fenced set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Forgotten {
    /// The branch does not remember the call at all.
    Call,
    /// It remembers the call, but its true outcome never reached it.
    Outcome,
}

impl Lineage {
    /// Whether `effect` is in the fenced set of `branch`, and why: it happened outside, the branch
    /// does not remember its outcome, and it was not replayed into the branch yet (DESIGN.md §2).
    ///
    /// A restored branch forgets all that its thread ever did outside, in whatever timeline,
    /// except what its own timeline holds. So chains, rewinds behind a rewind and twin restores of
    /// one checkpoint need no rules of their own.
    pub fn fenced(&self, branch: BranchId, effect: Executed) -> Option<Forgotten> {
        match self.position(branch, effect) {
            Some(entered) => {
                let lost = self.lost.get(&effect.id);
                lost.is_some_and(|lost| *lost > entered)
                    .then_some(Forgotten::Outcome)
            }
            None => self
                .happened_before(branch, effect)
                .then_some(Forgotten::Call),
        }
    }

    /// Whether the branch, when it opened, knew nothing of this effect. Unlike [`Self::fenced`] this
    /// does not change when the effect is replayed: what was spent stays spent.
    pub fn forgotten_at_opening(&self, branch: BranchId, effect: Executed) -> bool {
        effect.branch != branch
            && self.remembered_at_opening(branch, effect).is_none()
            && self.happened_before(branch, effect)
    }

    /// Position at which `effect` entered the timeline of `branch`: where it was executed or, after
    /// a replay, where it was replayed. None when the timeline does not hold it.
    pub fn position(&self, branch: BranchId, effect: Executed) -> Option<Seq> {
        if let Some(&seq) = self.entered.get(&(branch, effect.id)) {
            return Some(seq);
        }
        if effect.branch == branch {
            return Some(effect.id.0);
        }
        self.remembered_at_opening(branch, effect)
    }

    /// Whether the branch can have a fenced set: it is not the first of its thread.
    pub fn is_restored(&self, branch: BranchId) -> bool {
        self.branches
            .get(&branch)
            .is_some_and(|b| b.cause != Cause::Start)
    }

    /// The branch and those it came from, youngest first.
    pub fn ancestors(&self, branch: BranchId) -> impl Iterator<Item = BranchId> {
        std::iter::successors(Some(branch), |id| self.branches.get(id)?.parent)
    }

    fn remembered_at_opening(&self, branch: BranchId, effect: Executed) -> Option<Seq> {
        let opened = self.branches.get(&branch)?;
        let ForkPoint::At(fork) = opened.fork_point else {
            return None;
        };
        // Parents are older than their children, so this ends.
        self.position(opened.parent?, effect)
            .filter(|&entered| entered <= fork)
    }

    /// Whether the branch could have forgotten the effect: it was executed in a timeline that was
    /// there before. That is all that happened before the branch opened, and also what an old process
    /// goes on to do in the timeline that was left.
    fn happened_before(&self, branch: BranchId, effect: Executed) -> bool {
        self.is_restored(branch) && effect.branch < branch
    }
}
