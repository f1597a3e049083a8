//! What a branch remembers, and what it does not.

use serde::{Deserialize, Serialize};

use super::Lineage;
use crate::words::{
    Absent, AgentName, BranchId, Cause, EffectId, Forgotten, ForkPoint, Grade, Seq,
};

/// Where an effect was executed: all that lineage needs to know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Executed {
    /// The effect.
    pub id: EffectId,
    /// The branch it was executed in.
    pub branch: BranchId,
}

/// An effect is in a branch's fenced set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fenced {
    /// What the branch does not remember of it.
    pub forgotten: Forgotten,
    /// How sure that is.
    pub grade: Grade,
    /// Why the branch exists: in a fork, different calls run. [`Cause::Start`] where no restore is
    /// involved and only an outcome got lost.
    pub cause: Cause,
}

impl Fenced {
    /// The outcome did not reach the agent, though nothing was restored.
    pub const LOST: Self = Self {
        forgotten: Forgotten::Outcome,
        grade: Grade::Certain,
        cause: Cause::Start,
    };
}

impl Lineage {
    /// Whether `effect` is in the fenced set of `branch`, and why: it happened outside, the branch
    /// does not remember its outcome, and it was not replayed into the branch yet (DESIGN.md §2).
    ///
    /// A restored branch forgets all that its thread ever did outside, in whatever timeline,
    /// except what its own timeline holds. So chains, rewinds behind a rewind and twin restores of
    /// one checkpoint need no rules of their own. A branch that a conversation opened has its fenced
    /// set by name ([`Branch::absent`](crate::words::Branch::absent)).
    pub fn fenced(&self, branch: BranchId, effect: Executed) -> Option<Fenced> {
        match self.position(branch, effect) {
            Some(entered) => {
                let lost = self.lost.get(&effect.id);
                lost.is_some_and(|lost| *lost > entered)
                    .then_some(Fenced::LOST)
            }
            None => self.forgotten(branch, effect),
        }
    }

    /// The same for a call of another thread of the agent, as far as the agent as a whole was
    /// restored: `branch` is the newest of the effect's thread that such a restore opened.
    ///
    /// What was replayed anywhere since is consumed.
    pub fn fenced_elsewhere(&self, branch: BranchId, effect: Executed) -> Option<Fenced> {
        let fenced = self.fenced(branch, effect)?;
        let consumed = self.last_entered.get(&effect.id);
        consumed
            .is_none_or(|entered| *entered < branch.0)
            .then_some(fenced)
    }

    /// Whether a branch was opened without this effect and neither got it replayed nor showed since
    /// that it knows it.
    pub fn lacks(&self, branch: BranchId, effect: EffectId) -> bool {
        let named = self.branches.get(&branch).and_then(|b| b.absent.as_ref());
        let place = (branch, effect);
        named.is_some_and(|absent| absent.iter().any(|a| a.effect == effect))
            && !self.entered.contains_key(&place)
            && !self.shown.contains_key(&place)
    }

    /// Whether a branch is only suspected not to know this effect, and neither got it replayed nor showed
    /// since that it knows it.
    pub fn is_suspected(&self, branch: BranchId, effect: EffectId) -> bool {
        let named = self.branches.get(&branch).and_then(|b| b.absent.as_ref());
        let suspected = |a: &Absent| a.effect == effect && a.grade == Grade::Suspect;
        named.is_some_and(|absent| absent.iter().any(suspected)) && self.lacks(branch, effect)
    }

    /// Whether the outcome of an effect got lost and was not replayed since, in whatever thread.
    pub fn is_lost(&self, effect: EffectId) -> bool {
        let entered = self.last_entered.get(&effect).copied().unwrap_or(effect.0);
        self.lost.get(&effect).is_some_and(|lost| *lost > entered)
    }

    /// Whether the branch, when it opened, knew nothing of this effect. Unlike [`Self::fenced`] this
    /// does not change when the effect is replayed: what was spent stays spent.
    pub fn forgotten_at_opening(&self, branch: BranchId, effect: Executed) -> bool {
        effect.branch != branch
            && self.remembered_at_opening(branch, effect).is_none()
            && self.forgotten(branch, effect).is_some()
    }

    /// Position at which `effect` entered the timeline of `branch`: where it was executed, where it
    /// was replayed, or where its conversation showed that it knows. None when the timeline does not
    /// hold it.
    pub fn position(&self, branch: BranchId, effect: Executed) -> Option<Seq> {
        let place = (branch, effect.id);
        let entered = self.entered.get(&place).max(self.shown.get(&place));
        if let Some(&seq) = entered {
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

    /// Whether the agent as a whole was ever restored, so that what one of its threads forgot counts
    /// for the others.
    pub fn is_restored_whole(&self, agent: &AgentName) -> bool {
        self.agents.get(agent).is_some_and(|line| line.restored)
    }

    /// The branch and those it came from, youngest first.
    pub fn ancestors(&self, branch: BranchId) -> impl Iterator<Item = BranchId> {
        std::iter::successors(Some(branch), |id| self.branches.get(id)?.parent)
    }

    fn remembered_at_opening(&self, branch: BranchId, effect: Executed) -> Option<Seq> {
        let opened = self.branches.get(&branch)?;
        // Parents are older than their children, so this ends.
        let held = || self.position(opened.parent?, effect);
        match (&opened.absent, opened.fork_point) {
            (Some(absent), _) => {
                let is_absent = absent.iter().any(|a| a.effect == effect.id);
                // The conversation shows the rest of what was there before.
                (!is_absent && effect.id.0 < branch.0).then(|| held().unwrap_or(effect.id.0))
            }
            (None, ForkPoint::At(fork)) => held().filter(|&entered| entered <= fork),
            (None, ForkPoint::Unknown) => None,
        }
    }

    /// Why the branch does not remember an effect that is not in its timeline; none when it never
    /// could have.
    fn forgotten(&self, branch: BranchId, effect: Executed) -> Option<Fenced> {
        let opened = self.branches.get(&branch)?;
        match (opened.cause, &opened.absent) {
            (Cause::Start, _) => None,
            // It forgot what its parent forgot.
            (Cause::Fork, _) => Some(Fenced {
                cause: Cause::Fork,
                ..self.fenced(opened.parent?, effect)?
            }),
            (Cause::Restore, Some(absent)) => {
                let absent = absent.iter().find(|a| a.effect == effect.id)?;
                Some(Fenced {
                    forgotten: absent.forgotten,
                    grade: absent.grade,
                    cause: Cause::Restore,
                })
            }
            // That is all that happened before the branch opened, and also what an old process goes
            // on to do in the timeline that was left.
            (Cause::Restore, None) => (effect.branch < branch).then_some(Fenced {
                forgotten: Forgotten::Call,
                grade: opened.grade,
                cause: Cause::Restore,
            }),
        }
    }
}
