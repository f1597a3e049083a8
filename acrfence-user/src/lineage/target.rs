//! Opening branches: restores, forks, restarts.

use serde::{Deserialize, Serialize};

use super::{Executed, Lineage};
use crate::effect::Event;
use crate::words::{
    Absent, AgentName, Branch, BranchId, Cause, Checkpoint, ForkPoint, Grade, Seq, Thread,
    ThreadId, Timestamp,
};

/// Up to where a restored agent remembers, as a person or a hook says it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RestoreTarget {
    /// Up to and including this effect.
    Effect(Executed),
    /// Up to this checkpoint.
    Checkpoint(String),
    /// Up to the checkpoint at this journal position, whatever its name.
    CheckpointAt(Seq),
    /// Up to this journal position (found from a time).
    Position(Seq),
    /// Nobody said: everything is taken as forgotten.
    Unknown,
}

/// Why a branch cannot be opened as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// No agent of that name was ever attached.
    #[error("no agent named `{0}` is known; `acrfence agents` lists them")]
    UnknownAgent(AgentName),
    /// The agent has no such thread.
    #[error("agent `{agent}` has no thread {thread}; `acrfence tree {agent}` shows its threads")]
    UnknownThread {
        /// The agent.
        agent: AgentName,
        /// The thread asked for.
        thread: ThreadId,
    },
    /// No checkpoint of that name.
    #[error("agent `{agent}` has no checkpoint named `{name}`; {known}")]
    UnknownCheckpoint {
        /// The agent.
        agent: AgentName,
        /// The name asked for.
        name: String,
        /// The names there are, in a clause.
        known: String,
    },
    /// The effect is not in the timeline that is being left.
    #[error(
        "{effect} is not in the timeline of branch {branch}, so it cannot be restored to; `acrfence tree` shows what is"
    )]
    NotInTimeline {
        /// The effect asked for.
        effect: crate::words::EffectId,
        /// The branch that goes on now.
        branch: BranchId,
    },
}

impl Lineage {
    /// The thread meant by an agent's name and, perhaps, a thread id.
    pub fn thread_of(
        &self,
        agent: &AgentName,
        thread: Option<ThreadId>,
    ) -> Result<ThreadId, TargetError> {
        let line = self
            .agents
            .get(agent)
            .ok_or_else(|| TargetError::UnknownAgent(agent.clone()))?;
        match thread {
            None => line
                .threads
                .first()
                .copied()
                .ok_or_else(|| TargetError::UnknownAgent(agent.clone())),
            Some(thread) if line.threads.contains(&thread) => Ok(thread),
            Some(thread) => Err(TargetError::UnknownThread {
                agent: agent.clone(),
                thread,
            }),
        }
    }

    /// The records that open the branches of a restore of the whole agent, one in each of its threads,
    /// the main one first. A checkpoint of one thread only is no point of the whole agent.
    pub fn restored_whole(
        &self,
        agent: &AgentName,
        target: &RestoreTarget,
        grade: Grade,
        note: &str,
        at: Timestamp,
    ) -> Result<Vec<Event>, TargetError> {
        self.thread_of(agent, None)?;
        let threads = &self.agents[agent].threads;
        // A point that one thread's timeline names is a position in all others.
        let named = match target {
            RestoreTarget::Effect(effect) => self.branch(effect.branch).map(|b| b.thread),
            _ => None,
        };
        let position = match (target, named) {
            (RestoreTarget::Effect(_), Some(thread)) => {
                match self.restored(agent, thread, target, grade, note, at)? {
                    Event::BranchOpened(Branch {
                        fork_point: ForkPoint::At(seq),
                        ..
                    }) => Some(RestoreTarget::Position(seq)),
                    _ => None,
                }
            }
            _ => None,
        };
        threads
            .iter()
            .map(|&thread| {
                let here = match &position {
                    Some(position) if named != Some(thread) => position,
                    _ => target,
                };
                self.restored(agent, thread, here, grade, note, at)
            })
            .collect()
    }

    /// The record that opens a restored branch of `thread`.
    pub fn restored(
        &self,
        agent: &AgentName,
        thread: ThreadId,
        target: &RestoreTarget,
        grade: Grade,
        note: &str,
        at: Timestamp,
    ) -> Result<Event, TargetError> {
        let current = self
            .current(thread)
            .ok_or_else(|| TargetError::UnknownAgent(agent.clone()))?;
        let (parent, fork_point) = match target {
            RestoreTarget::Unknown => (current.id, ForkPoint::Unknown),
            RestoreTarget::Position(seq) => (self.current_at(thread, *seq), ForkPoint::At(*seq)),
            RestoreTarget::Effect(effect) => {
                let held = |branch| {
                    self.position(branch, *effect)
                        .map(|seq| (branch, ForkPoint::At(seq)))
                };
                held(current.id).or_else(|| held(effect.branch)).ok_or(
                    TargetError::NotInTimeline {
                        effect: effect.id,
                        branch: current.id,
                    },
                )?
            }
            RestoreTarget::Checkpoint(name) => {
                let named = |(_, c): &&(Seq, Checkpoint)| {
                    &c.name == name && c.thread.is_none_or(|t| t == thread)
                };
                let found = self.checkpoints(agent).iter().rev().find(named);
                self.at_checkpoint(agent, thread, found, name)?
            }
            RestoreTarget::CheckpointAt(position) => {
                let mut all = self.checkpoints(agent).iter();
                let found = all.find(|(seq, _)| seq == position);
                self.at_checkpoint(agent, thread, found, &position.to_string())?
            }
        };
        let mut event = open(
            thread,
            Some(parent),
            fork_point,
            Cause::Restore,
            grade,
            note,
            at,
        );
        if let Event::BranchOpened(branch) = &mut event {
            branch.wide = true;
        }
        Ok(event)
    }

    /// The timeline that a thread was living when a checkpoint was taken, and up to where that remembers.
    fn at_checkpoint(
        &self,
        agent: &AgentName,
        thread: ThreadId,
        found: Option<&(Seq, Checkpoint)>,
        name: &str,
    ) -> Result<(BranchId, ForkPoint), TargetError> {
        let known = || {
            let all = self.checkpoints(agent).iter();
            known_names(all.map(|(_, c)| c.name.as_str()))
        };
        let (seq, checkpoint) = found.ok_or_else(|| TargetError::UnknownCheckpoint {
            agent: agent.clone(),
            name: name.into(),
            known: known(),
        })?;
        let through = checkpoint.through.map_or(*seq, |through| through.min(*seq));
        Ok((self.current_at(thread, *seq), ForkPoint::At(through)))
    }

    /// The record that opens a fork of a branch: it remembers all that the branch remembers.
    pub fn forked(parent: &Branch, note: &str, at: Timestamp) -> Event {
        Event::BranchOpened(Branch {
            id: BranchId(Seq(0)),
            thread: parent.thread,
            parent: Some(parent.id),
            // Everything in the parent's timeline is older than the record to come.
            fork_point: ForkPoint::At(Seq(u64::MAX)),
            cause: Cause::Fork,
            grade: parent.grade,
            note: note.into(),
            at,
            absent: None,
            wide: parent.wide,
        })
    }

    /// The record that opens the branch of a conversation that goes on without some of its effects.
    pub fn rewound(
        parent: &Branch,
        fork_point: ForkPoint,
        absent: Vec<Absent>,
        note: &str,
        at: Timestamp,
    ) -> Event {
        let surest = absent.iter().map(|a| a.grade).max();
        Event::BranchOpened(Branch {
            id: BranchId(Seq(0)),
            thread: parent.thread,
            parent: Some(parent.id),
            fork_point,
            cause: Cause::Restore,
            grade: surest.unwrap_or(Grade::Suspect),
            note: note.into(),
            at,
            absent: Some(absent),
            wide: false,
        })
    }

    /// The records that give a new agent its first line of work. The branch needs the thread's id, so
    /// it is made from the position of the first record.
    pub fn first_thread(
        agent: &AgentName,
        title: &str,
        at: Timestamp,
    ) -> (Event, impl FnOnce(Seq) -> Event + use<>) {
        let thread = Event::ThreadOpened(Thread {
            id: ThreadId(Seq(0)),
            agent: agent.clone(),
            title: title.into(),
            at,
        });
        let note = format!("first branch of {title}");
        (thread, move |seq| {
            open(
                ThreadId(seq),
                None,
                ForkPoint::Unknown,
                Cause::Start,
                Grade::Certain,
                &note,
                at,
            )
        })
    }

    /// The branch whose timeline the thread was living at a journal position: what was saved then is
    /// a copy of *that* timeline, whichever goes on now.
    fn current_at(&self, thread: ThreadId, seq: Seq) -> BranchId {
        let branches = self
            .threads
            .get(&thread)
            .map_or(&[][..], |line| line.branches.as_slice());
        let then = branches.iter().rev().find(|branch| branch.0 <= seq);
        then.or(branches.first())
            .copied()
            .unwrap_or(BranchId(Seq(0)))
    }

    /// Whether a restart of this agent's process says anything new: not when a restore was already
    /// told since its last life began and nothing was done in that branch.
    pub fn restart_is_told(&self, agent: &AgentName, thread: ThreadId) -> bool {
        let Some(line) = self.agents.get(agent) else {
            return true;
        };
        let Some(last) = line.lives.last() else {
            return true;
        };
        let ended = last.ended.as_ref().map(|(seq, _)| *seq);
        self.current(thread).is_some_and(|branch| {
            branch.cause != Cause::Start
                && branch.grade == Grade::Certain
                && ended.is_some_and(|end| branch.id.0 > end)
        })
    }
}

fn open(
    thread: ThreadId,
    parent: Option<BranchId>,
    fork_point: ForkPoint,
    cause: Cause,
    grade: Grade,
    note: &str,
    at: Timestamp,
) -> Event {
    Event::BranchOpened(Branch {
        id: BranchId(Seq(0)),
        thread,
        parent,
        fork_point,
        cause,
        grade,
        note: note.into(),
        at,
        absent: None,
        wide: false,
    })
}

fn known_names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: std::collections::BTreeSet<_> = names.collect();
    if names.is_empty() {
        "none was taken (`acrfence checkpoint AGENT NAME` takes one)".into()
    } else {
        format!(
            "there are: {}",
            names.into_iter().collect::<Vec<_>>().join(", ")
        )
    }
}
