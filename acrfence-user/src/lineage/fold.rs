//! The fold over the journal.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::effect::Event;
use crate::words::{
    AgentName, Branch, BranchId, Cause, Checkpoint, EffectId, Grade, Incarnation, Resolution, Seq,
    Thread, ThreadId,
};

/// What the journal tells of agents, threads, branches and what entered their timelines.
///
/// Effects themselves are not kept here (there may be millions); a question about one is asked with
/// an [`Executed`](super::Executed).
#[derive(Clone, Debug, Default)]
pub struct Lineage {
    pub(super) agents: BTreeMap<AgentName, AgentLine>,
    pub(super) threads: BTreeMap<ThreadId, ThreadLine>,
    pub(super) branches: BTreeMap<BranchId, Branch>,
    /// Replays: where an effect entered a branch's timeline again.
    pub(super) entered: HashMap<(BranchId, EffectId), Seq>,
    /// Replays into a branch that had not forgotten the effect.
    pub(super) again: BTreeSet<(BranchId, EffectId)>,
    /// Effects whose true outcome the conversation of a branch showed after all.
    pub(super) shown: HashMap<(BranchId, EffectId), Seq>,
    /// The last position at which an effect was replayed, into whatever branch.
    pub(super) last_entered: HashMap<EffectId, Seq>,
    /// Effects whose true outcome never reached the agent that caused them, with the position at which
    /// that was last said.
    pub(super) lost: BTreeMap<EffectId, Seq>,
    pub(super) checkpoints: BTreeMap<AgentName, Vec<(Seq, Checkpoint)>>,
}

/// An agent over all its lives.
#[derive(Clone, Debug)]
pub struct AgentLine {
    /// Its lives, oldest first.
    pub lives: Vec<Life>,
    /// Its lines of work, oldest first. The first is the one that calls belong to when no
    /// conversation tells.
    pub threads: Vec<ThreadId>,
    /// Whether it was restored as a whole: some thread has a branch that is wide.
    pub(super) restored: bool,
}

/// One life of an agent.
#[derive(Clone, Debug)]
pub struct Life {
    /// Position at which it began.
    pub began: Seq,
    /// What began.
    pub incarnation: Incarnation,
    /// Position at which it ended, and why.
    pub ended: Option<(Seq, String)>,
}

#[derive(Clone, Debug)]
pub(super) struct ThreadLine {
    pub(super) thread: Thread,
    /// Oldest first; the last is the one that new calls belong to.
    pub(super) branches: Vec<BranchId>,
    /// The newest of them that a restore from outside opened, or a fork of such.
    pub(super) wide: Option<BranchId>,
    /// The newest of them that such a restore itself opened.
    pub(super) restored: Option<BranchId>,
}

impl Lineage {
    /// Takes in one record. Records that place nothing are ignored.
    pub fn apply(&mut self, seq: Seq, event: &Event) {
        match event {
            Event::IncarnationBegan(incarnation) => {
                let life = Life {
                    began: seq,
                    incarnation: incarnation.clone(),
                    ended: None,
                };
                self.agents
                    .entry(incarnation.agent.clone())
                    .or_insert_with(|| AgentLine {
                        lives: Vec::new(),
                        threads: Vec::new(),
                        restored: false,
                    })
                    .lives
                    .push(life);
            }
            Event::IncarnationEnded {
                agent, number, why, ..
            } => {
                let lives = self.agents.get_mut(agent).map(|line| &mut line.lives);
                if let Some(life) = lives.and_then(|lives| {
                    lives
                        .iter_mut()
                        .find(|life| life.incarnation.number == *number)
                }) {
                    life.ended.get_or_insert((seq, why.clone()));
                }
            }
            Event::ThreadOpened(thread) => {
                let thread = Thread {
                    id: ThreadId(seq),
                    ..thread.clone()
                };
                if let Some(line) = self.agents.get_mut(&thread.agent) {
                    line.threads.push(thread.id);
                }
                self.threads.insert(
                    thread.id,
                    ThreadLine {
                        thread,
                        branches: Vec::new(),
                        wide: None,
                        restored: None,
                    },
                );
            }
            Event::BranchOpened(branch) => {
                let branch = Branch {
                    id: BranchId(seq),
                    ..branch.clone()
                };
                if let Some(thread) = self.threads.get_mut(&branch.thread) {
                    thread.branches.push(branch.id);
                    if branch.wide {
                        thread.wide = Some(branch.id);
                        if branch.cause == Cause::Restore {
                            thread.restored = Some(branch.id);
                        }
                        for line in self.agents.values_mut() {
                            line.restored |= line.threads.contains(&branch.thread);
                        }
                    }
                    self.branches.insert(branch.id, branch);
                }
            }
            Event::CheckpointTaken(checkpoint) => {
                self.checkpoints
                    .entry(checkpoint.agent.clone())
                    .or_default()
                    .push((seq, checkpoint.clone()));
            }
            Event::Replayed {
                effect,
                branch,
                why,
                ..
            } => {
                if why.is_some() {
                    self.again.insert((*branch, *effect));
                }
                self.entered.insert((*branch, *effect), seq);
                self.last_entered.insert(*effect, seq);
            }
            Event::Remembered {
                branch, effects, ..
            } => {
                let shown = effects.iter().map(|effect| ((*branch, *effect), seq));
                self.shown.extend(shown);
            }
            Event::Corroborated {
                branch,
                effects,
                why,
                ..
            } => {
                if let Some(branch) = self.branches.get_mut(branch) {
                    corroborate(branch, effects, why);
                }
            }
            Event::Conversed { thread, agent, .. } => {
                if let Some(line) = self.agents.get_mut(agent)
                    && !line.threads.contains(thread)
                    && let Some(known) = self.threads.get(thread)
                {
                    line.threads.push(*thread);
                    line.restored |= known.wide.is_some();
                }
            }
            Event::OutcomeLost { effect, .. }
            | Event::Resolved {
                effect,
                resolution: Resolution::Happened(_),
                ..
            } => {
                self.lost.insert(*effect, seq);
            }
            _ => {}
        }
    }

    /// All agents by name.
    pub fn agents(&self) -> impl Iterator<Item = (&AgentName, &AgentLine)> {
        self.agents.iter()
    }

    /// One agent.
    pub fn agent(&self, name: &AgentName) -> Option<&AgentLine> {
        self.agents.get(name)
    }

    /// A branch.
    pub fn branch(&self, id: BranchId) -> Option<&Branch> {
        self.branches.get(&id)
    }

    /// A thread.
    pub fn thread(&self, id: ThreadId) -> Option<&Thread> {
        self.threads.get(&id).map(|line| &line.thread)
    }

    /// The line of work that an agent's calls belong to when no conversation tells.
    pub fn main_thread(&self, agent: &AgentName) -> Option<ThreadId> {
        self.agents.get(agent)?.threads.first().copied()
    }

    /// The branch that a thread's new calls belong to.
    pub fn current(&self, thread: ThreadId) -> Option<&Branch> {
        self.branches
            .get(self.threads.get(&thread)?.branches.last()?)
    }

    /// The branch that the newest restore from outside opened in a thread.
    pub fn restored_from_outside(&self, thread: ThreadId) -> Option<&Branch> {
        self.branches.get(&self.threads.get(&thread)?.restored?)
    }

    /// That branch, or the newest fork of it.
    pub fn wide(&self, thread: ThreadId) -> Option<&Branch> {
        self.branches.get(&self.threads.get(&thread)?.wide?)
    }

    /// Branches that an effect was replayed into, oldest first.
    pub fn replays_of(&self, effect: EffectId) -> Vec<BranchId> {
        let mut branches: Vec<_> = self
            .entered
            .keys()
            .filter(|(_, replayed)| *replayed == effect)
            .map(|(branch, _)| *branch)
            .collect();
        branches.sort_unstable();
        branches
    }

    /// Effects whose true outcome never reached the agent that caused them.
    pub fn lost(&self) -> impl Iterator<Item = EffectId> {
        self.lost.keys().copied()
    }

    /// Checkpoints of an agent with their positions, oldest first.
    pub fn checkpoints(&self, agent: &AgentName) -> &[(Seq, Checkpoint)] {
        self.checkpoints.get(agent).map_or(&[], Vec::as_slice)
    }
}

/// Raises what a branch was only suspected to have forgotten. Nothing is lowered, and nothing added.
fn corroborate(branch: &mut Branch, effects: &[EffectId], why: &str) {
    let absent = branch.absent.iter_mut().flatten();
    let raised = absent
        .filter(|a| a.grade == Grade::Suspect && effects.contains(&a.effect))
        .map(|a| a.grade = Grade::Certain)
        .count();
    if raised > 0 {
        branch.grade = Grade::Certain;
        branch.note = format!("{}; certain because {why}", branch.note);
    }
}

impl AgentLine {
    /// Lives that go on. More than one when a saved process was restored beside the one it was saved
    /// from.
    pub fn running(&self) -> impl Iterator<Item = &Life> {
        self.lives.iter().filter(|life| life.ended.is_none())
    }

    /// The life that goes on; none when the agent is not running.
    pub fn living(&self) -> Option<&Life> {
        self.lives.last().filter(|life| life.ended.is_none())
    }
}
