//! Makes a running process and everything below it an agent's, without missing a child that is
//! born meanwhile.
//!
//! The root is entered first: from then on the kernel hands it down. Its descendants that are
//! already there are found in snapshots of all processes, by their parents. A child that an
//! undiscovered descendant makes meanwhile is in the next snapshot, and if its parent has ended by
//! then, the exit hook has noted whose child it was. The walk is over when a whole pass finds
//! nobody new: then everybody was entered before the last snapshot began, and hands it down.

use std::collections::{HashMap, HashSet};

use acrfence_common::{AgentLabel, EXEMPT, MAX_AGENT, SnapshotRow, Tracked};

use super::proc::{PF_KTHREAD, ProcDir};
use super::{Probe, ProbeError, stream, sys, walk};
use crate::words::{ExitStatus, ProcessIdentity};

/// Whether a process belongs to an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership {
    /// It belongs to this agent.
    Inside {
        /// Which process.
        process: ProcessIdentity,
        /// The agent's index.
        agent: u32,
    },
    /// It runs and belongs to none.
    Outside,
    /// There is no such process (any more): nothing can be said about it.
    Gone,
}

impl Probe {
    /// Makes `pid` and everything below it agent `agent`'s, and gives every process of that agent,
    /// oldest first. An agent may be given several trees.
    ///
    /// Processes below `pid` that already belong to another agent stay with that one. When `pid`
    /// ends meanwhile, what it leaves is the agent's.
    pub fn track(&self, pid: u32, agent: u32) -> Result<Vec<ProcessIdentity>, ProbeError> {
        self.track_while(pid, agent, || {})
    }

    /// [`Self::track`], with something that happens at the worst moment: parents are being noted,
    /// and nobody below `pid` has been found yet. For tests.
    #[doc(hidden)]
    pub fn track_while(
        &self,
        pid: u32,
        agent: u32,
        meanwhile: impl FnOnce(),
    ) -> Result<Vec<ProcessIdentity>, ProbeError> {
        if agent > MAX_AGENT {
            return Err(ProbeError::AgentIndex(agent));
        }
        let _one_at_a_time = self.walking.lock();
        self.maps.parents.clear()?;
        self.maps.configure(|config| config.walking = 1)?;
        let mut entered = vec![];
        let walked = self
            .identify(pid)
            .inspect(|_| meanwhile())
            .and_then(|root| self.walk(root, agent, &mut entered));
        let stopped = self.maps.configure(|config| config.walking = 0);
        if let Err(error) = walked.and(stopped) {
            // Half a tree is no agent. What it had before stays its own.
            for process in entered {
                if self.agent_of(process)? == Some(agent) {
                    self.maps.tracked.remove(&process.tgid)?;
                }
            }
            return Err(error);
        }

        // Whoever ended before it was entered is past the exit hook.
        self.clear_ended()?;
        for process in entered {
            if let Some(process) = self.read_process(process, agent) {
                self.table.lock().insert(process);
            }
        }
        self.drain();
        let mut alive: Vec<_> = self
            .tracked()?
            .into_iter()
            .filter_map(|(process, owner)| (owner == agent).then_some(process))
            .collect();
        alive.sort_by_key(|process| (process.start_ns, process.tgid));
        if alive.is_empty() {
            return Err(ProbeError::NoSuchProcess(pid));
        }
        Ok(alive)
    }

    /// Lets every process of an agent go. Connections that are redirected already stay so.
    pub fn untrack(&self, agent: u32) -> Result<(), ProbeError> {
        let _no_walk = self.walking.lock();
        // A fork that is under way may still enter a child of a process that was just let go; once
        // it is through, its child is found.
        loop {
            let mine: Vec<u32> = self
                .maps
                .tracked
                .entries()?
                .into_iter()
                .filter(|(_, entry)| entry.agent == agent)
                .map(|(tgid, _)| tgid)
                .collect();
            for tgid in &mine {
                self.maps.tracked.remove(tgid)?;
            }
            sys::wait_for_running_hooks().map_err(|source| ProbeError::System {
                what: "cannot wait for the hooks that are running".into(),
                source,
            })?;
            if mine.is_empty() {
                break;
            }
        }
        self.drain();
        self.table.lock().drop_agent(agent);
        self.maps.agents.remove(&agent)?;
        Ok(())
    }

    /// Gives an agent index a name that outlives the daemon (at most 64 bytes).
    pub fn name_agent(&self, agent: u32, name: &str) -> Result<(), ProbeError> {
        let mut label = AgentLabel { name: [0; 64] };
        let end = name.floor_char_boundary(label.name.len());
        let bytes = name.as_bytes().get(..end).unwrap_or_default();
        label.name[..bytes.len()].copy_from_slice(bytes);
        self.maps.agents.set(&agent, &label)
    }

    /// The names that agent indices were given, also by daemons before this one.
    pub fn agent_names(&self) -> Result<HashMap<u32, String>, ProbeError> {
        Ok(self
            .maps
            .agents
            .entries()?
            .into_iter()
            .map(|(agent, label)| (agent, text(&label)))
            .collect())
    }

    /// Whether the process that has this pid now belongs to an agent.
    pub fn membership(&self, pid: u32) -> Result<Membership, ProbeError> {
        let Ok(dir) = ProcDir::open(pid) else {
            return Ok(Membership::Gone);
        };
        // A thread's pid stands for its process.
        let Ok(tgid) = dir.tgid() else {
            return Ok(Membership::Gone);
        };
        let entry = self.maps.tracked.get(&tgid)?;
        let Some(entry) = entry.filter(|entry| entry.agent != EXEMPT) else {
            return Ok(Membership::Outside);
        };
        let process = ProcessIdentity {
            tgid,
            start_ns: entry.start_ns,
        };
        // The entry may be an earlier process's with the same pid.
        match ProcDir::of(process) {
            Ok(_) => Ok(Membership::Inside {
                process,
                agent: entry.agent,
            }),
            Err(_) => Ok(Membership::Outside),
        }
    }

    /// Takes out entries of processes that have ended.
    pub(super) fn clear_ended(&self) -> Result<(), ProbeError> {
        for (tgid, entry) in self.maps.tracked.entries()? {
            let process = ProcessIdentity {
                tgid,
                start_ns: entry.start_ns,
            };
            let dead = match ProcDir::of(process).and_then(|dir| dir.stat()) {
                Ok(stat) => stat.is_dead(),
                Err(_) => true,
            };
            if dead
                && self.maps.tracked.get(&tgid)? == Some(entry)
                && self.maps.tracked.remove(&tgid)?
            {
                let now = stream::wall_clock();
                self.table.lock().end(process, now, ExitStatus::Unknown);
            }
        }
        Ok(())
    }

    /// The process with this pid, if it may become an agent's root.
    pub fn identify(&self, pid: u32) -> Result<ProcessIdentity, ProbeError> {
        if pid == 1 {
            return Err(ProbeError::Init);
        }
        let Some(row) = self.row(pid)? else {
            // A thread has a directory of its own, under its process's name.
            return Err(match ProcDir::open(pid).and_then(|dir| dir.tgid()) {
                Ok(tgid) if tgid != pid => ProbeError::Thread { tid: pid, tgid },
                _ => ProbeError::NoSuchProcess(pid),
            });
        };
        if row.flags & PF_KTHREAD != 0 {
            return Err(ProbeError::KernelThread(pid));
        }
        let root = identity(&row);
        match self.agent_of(root)? {
            Some(EXEMPT) => Err(ProbeError::Exempt(pid)),
            Some(agent) => Err(ProbeError::AlreadyTracked {
                pid,
                agent,
                label: self.maps.agents.get(&agent)?.map(|label| text(&label)),
            }),
            None => Ok(root),
        }
    }

    fn row(&self, pid: u32) -> Result<Option<SnapshotRow>, ProbeError> {
        Ok(self.snapshot()?.into_iter().find(|row| row.tgid == pid))
    }

    /// Enters the root, then pass after pass its descendants. Whoever was entered is in `entered`,
    /// also when it fails.
    fn walk(
        &self,
        root: ProcessIdentity,
        agent: u32,
        entered: &mut Vec<ProcessIdentity>,
    ) -> Result<(), ProbeError> {
        self.enter(root, agent)?;
        entered.push(root);
        loop {
            let rows = self.snapshot()?;
            let parents = self.maps.parents.entries()?;
            let tracked = self.maps.tracked.entries()?;
            let owner = |process: ProcessIdentity| {
                tracked
                    .get(&process.tgid)
                    .filter(|entry| entry.start_ns == process.start_ns)
                    .map(|entry| entry.agent)
            };
            let found = walk::descendants(&HashSet::from([root]), &rows, &parents, |process| {
                owner(process).is_some_and(|other| other != agent)
            });
            let listed: HashSet<ProcessIdentity> = rows.iter().map(identity).collect();
            let mut changed = false;
            for process in found {
                // Noted and not listed: it has ended, or is so young that the next pass lists it.
                let known_end = !listed.contains(&process) && ProcDir::of(process).is_err();
                if owner(process).is_none() && !known_end {
                    self.enter(process, agent)?;
                    entered.push(process);
                    changed = true;
                }
            }
            if !changed {
                return Ok(());
            }
        }
    }

    fn enter(&self, process: ProcessIdentity, agent: u32) -> Result<(), ProbeError> {
        let entry = Tracked {
            start_ns: process.start_ns,
            agent,
            parent: 0,
        };
        if self.maps.tracked.add(&process.tgid, &entry)? {
            return Ok(());
        }
        // The hook was faster, or an earlier process with the same pid has left its entry.
        if let Some(old) = self.maps.tracked.get(&process.tgid)?
            && old.start_ns != process.start_ns
        {
            self.maps.tracked.set(&process.tgid, &entry)?;
        }
        Ok(())
    }

    fn agent_of(&self, process: ProcessIdentity) -> Result<Option<u32>, ProbeError> {
        Ok(self
            .maps
            .tracked
            .get(&process.tgid)?
            .filter(|entry| entry.start_ns == process.start_ns)
            .map(|entry| entry.agent))
    }
}

fn identity(row: &SnapshotRow) -> ProcessIdentity {
    ProcessIdentity {
        tgid: row.tgid,
        start_ns: row.start_ns,
    }
}

fn text(label: &AgentLabel) -> String {
    let end = label
        .name
        .iter()
        .position(|&b| b == 0)
        .unwrap_or(label.name.len());
    String::from_utf8_lossy(label.name.get(..end).unwrap_or_default()).into_owned()
}
