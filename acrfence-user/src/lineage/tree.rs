//! An agent's threads, branches and fork points, for people (`acrfence tree`).

use serde::{Deserialize, Serialize};

use super::Lineage;
use crate::words::{AgentName, Branch, EffectId, Incarnation, Seq, Thread};

/// All that `acrfence tree` shows but the effects.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgentTree {
    /// The agent.
    pub agent: AgentName,
    /// Its lives, oldest first, with the reason each ended.
    pub lives: Vec<(Incarnation, Option<String>)>,
    /// Its lines of work, oldest first.
    pub threads: Vec<ThreadTree>,
    /// Its checkpoints: the position up to which each remembers, and its name.
    pub checkpoints: Vec<(Seq, String)>,
}

/// One line of work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThreadTree {
    /// The thread.
    pub thread: Thread,
    /// Its branches, oldest first; the last is the one that goes on.
    pub branches: Vec<BranchTree>,
}

/// One timeline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BranchTree {
    /// The branch.
    pub branch: Branch,
    /// Whether new calls belong to it.
    pub current: bool,
    /// Effects that were replayed into it, with the position, oldest first.
    pub replayed: Vec<(Seq, EffectId)>,
    /// Those of them that it had not forgotten: their order was carried out again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub again: Vec<EffectId>,
}

impl Lineage {
    /// The tree of an agent; none when it is not known.
    pub fn tree(&self, agent: &AgentName) -> Option<AgentTree> {
        let line = self.agents.get(agent)?;
        let threads = line
            .threads
            .iter()
            .filter_map(|id| self.threads.get(id))
            .map(|line| ThreadTree {
                thread: line.thread.clone(),
                branches: line
                    .branches
                    .iter()
                    .filter_map(|id| self.branches.get(id))
                    .map(|branch| BranchTree {
                        branch: branch.clone(),
                        current: line.branches.last() == Some(&branch.id),
                        replayed: self.replayed_into(branch),
                        again: self.again_in(branch),
                    })
                    .collect(),
            })
            .collect();
        Some(AgentTree {
            agent: agent.clone(),
            lives: line
                .lives
                .iter()
                .map(|life| {
                    (
                        life.incarnation.clone(),
                        life.ended.as_ref().map(|(_, why)| why.clone()),
                    )
                })
                .collect(),
            threads,
            checkpoints: self
                .checkpoints(agent)
                .iter()
                .map(|(seq, c)| (c.through.map_or(*seq, |t| t.min(*seq)), c.name.clone()))
                .collect(),
        })
    }

    fn again_in(&self, branch: &Branch) -> Vec<EffectId> {
        let here = self.again.iter().filter(|(into, _)| *into == branch.id);
        here.map(|(_, effect)| *effect).collect()
    }

    fn replayed_into(&self, branch: &Branch) -> Vec<(Seq, EffectId)> {
        let mut entries: Vec<_> = self
            .entered
            .iter()
            .filter(|((into, _), _)| *into == branch.id)
            .map(|((_, effect), seq)| (*seq, *effect))
            .collect();
        entries.sort_unstable();
        entries
    }
}
