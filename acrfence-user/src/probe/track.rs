//! Makes a running process and everything below it an agent's, without missing a child that is
//! born meanwhile.
//!
//! The root is entered first: from then on the kernel hands it down. Its descendants that are
//! already there are found in snapshots of all processes. A child that an undiscovered descendant
//! makes meanwhile is noted by the fork hook, which notes births *before* it looks its parent up:
//! either it finds the parent that was just entered, or the next pass finds the birth. A parent
//! that ends meanwhile has its children noted before they get another parent. The walk is over
//! when a whole pass finds nobody new.

use std::collections::{HashMap, HashSet};

use acrfence_common::{AgentLabel, EXEMPT, MAX_AGENT, SnapshotRow, Tracked};

use super::event::ExitStatus;
use super::proc::{PF_KTHREAD, ProcDir};
use super::{Probe, ProbeError, stream, sys, walk};
use crate::words::ProcessIdentity;

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
    /// Makes `pid` and everything below it agent `agent`'s, and gives who that is, `pid` first.
    ///
    /// Processes below it that already belong to another agent stay with that one.
    pub fn track(&self, pid: u32, agent: u32) -> Result<Vec<ProcessIdentity>, ProbeError> {
        if agent > MAX_AGENT {
            return Err(ProbeError::AgentIndex(agent));
        }
        let _one_at_a_time = self.walking.lock();
        self.maps.births.clear()?;
        self.maps.configure(|config| config.walking = 1)?;
        let walked = self
            .root(pid)
            .and_then(|root| Ok((root, self.walk(root, agent)?)));
        let stopped = self.maps.configure(|config| config.walking = 0);
        let (root, found) = walked?;
        stopped?;

        // Whoever ended before it was entered is past the exit hook.
        self.clear_ended()?;
        self.drain();
        let mut alive = vec![];
        for identity in found {
            if self.agent_of(identity)? == Some(agent) {
                if let Some(process) = self.read_process(identity, agent) {
                    self.table.lock().insert(process);
                }
                alive.push(identity);
            }
        }
        if alive.first() != Some(&root) {
            self.untrack(agent)?;
            return Err(ProbeError::NoSuchProcess(pid));
        }
        Ok(alive)
    }

    /// Lets every process of an agent go. Connections that are redirected already stay so.
    pub fn untrack(&self, agent: u32) -> Result<(), ProbeError> {
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

    /// The process to begin with, if it may be an agent.
    fn root(&self, pid: u32) -> Result<ProcessIdentity, ProbeError> {
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

    /// Enters the root, then pass after pass its descendants.
    fn walk(&self, root: ProcessIdentity, agent: u32) -> Result<Vec<ProcessIdentity>, ProbeError> {
        let mut entered = vec![root];
        self.enter(root, agent)?;
        loop {
            let rows = self.snapshot()?;
            let births = self.maps.births.entries()?;
            let tracked = self.maps.tracked.entries()?;
            let owner = |process: ProcessIdentity| {
                tracked
                    .get(&process.tgid)
                    .filter(|entry| entry.start_ns == process.start_ns)
                    .map(|entry| entry.agent)
            };
            let found = walk::descendants(&HashSet::from([root]), &rows, &births, |process| {
                owner(process).is_some_and(|other| other != agent)
            });
            let fresh: Vec<_> = found
                .iter()
                .copied()
                .filter(|&process| owner(process).is_none())
                .collect();
            let alive: HashMap<u32, u64> =
                rows.iter().map(|row| (row.tgid, row.start_ns)).collect();
            let mut changed = false;
            for process in fresh {
                // A birth whose process is in neither this snapshot nor the table has ended, or is
                // so young that the next pass sees it.
                let known_end = !alive.contains_key(&process.tgid) && ProcDir::of(process).is_err();
                if known_end {
                    continue;
                }
                changed = true;
                self.enter(process, agent)?;
            }
            for process in found {
                if !entered.contains(&process) {
                    entered.push(process);
                }
            }
            if !changed {
                return Ok(entered);
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
