//! Processes that were put together from saved ones: the kernel side tracks them as nobody's
//! ([`RESTORED`]) until they are adopted here.

use std::collections::HashMap;
use std::os::fd::AsFd as _;

use acrfence_common::{MAX_AGENT, RESTORED, Restorable, Tracked};

use super::proc::ProcDir;
use super::{Probe, ProbeError, sys};
use crate::words::ProcessIdentity;

/// A restored process that nobody has adopted yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restored {
    /// Which.
    pub process: ProcessIdentity,
    /// The agent whose process it was; none when that cannot be told any more.
    pub was: Option<u32>,
    /// Its pid in the innermost of its pid namespaces, as the image has it.
    pub pid: u32,
}

impl Probe {
    /// Processes that were restored and not adopted, oldest first. Their children are not among them.
    pub fn restored(&self) -> Result<Vec<Restored>, ProbeError> {
        let mut found = vec![];
        for (tgid, entry) in self.maps.tracked.entries()? {
            let process = ProcessIdentity {
                tgid,
                start_ns: entry.start_ns,
            };
            if entry.agent != RESTORED || entry.parent != 0 {
                continue;
            }
            // One that is gone needs nobody.
            let Ok(pid) = ProcDir::of(process).and_then(|dir| dir.innermost_pid()) else {
                continue;
            };
            let was = match self.maps.dumped.get(&pid)? {
                Some(was) => Some(was),
                None => self.maps.restorable.get(&pid)?,
            };
            found.push(Restored {
                process,
                was: was.map(|was| was.agent),
                pid,
            });
        }
        found.sort_by_key(|one| (one.process.start_ns, one.process.tgid));
        Ok(found)
    }

    /// Makes a restored process, and what it has made since, agent `agent`'s. Gives them all; nobody
    /// when it has ended.
    pub fn adopt(
        &self,
        process: ProcessIdentity,
        agent: u32,
    ) -> Result<Vec<ProcessIdentity>, ProbeError> {
        if agent > MAX_AGENT {
            return Err(ProbeError::AgentIndex(agent));
        }
        self.settle(process, Some(agent))
    }

    /// Tracks a restored process, and what it has made since, no longer: it was nobody's after all.
    pub fn let_go(&self, process: ProcessIdentity) -> Result<(), ProbeError> {
        self.settle(process, None).map(drop)
    }

    fn settle(
        &self,
        process: ProcessIdentity,
        agent: Option<u32>,
    ) -> Result<Vec<ProcessIdentity>, ProbeError> {
        let _no_walk = self.walking.lock();
        let mut adopted: Vec<ProcessIdentity> = vec![];
        // From the moment the process is the agent's it hands that down; whom it made before is found
        // below. A fork that is under way is waited for.
        loop {
            self.drain();
            let entries = self.maps.tracked.entries()?;
            let mut found = false;
            for (&tgid, entry) in &entries {
                let one = ProcessIdentity {
                    tgid,
                    start_ns: entry.start_ns,
                };
                if entry.agent != RESTORED || !self.is_below(one, entry, process, &entries) {
                    continue;
                }
                match agent {
                    Some(agent) => {
                        let mine = Tracked { agent, ..*entry };
                        self.maps.tracked.set(&tgid, &mine)?;
                    }
                    None => {
                        self.maps.tracked.remove(&tgid)?;
                    }
                }
                adopted.push(one);
                found = true;
            }
            if !found {
                break;
            }
            sys::wait_for_running_hooks().map_err(|source| ProbeError::System {
                what: "cannot wait for the hooks that are running".into(),
                source,
            })?;
        }
        // Whoever ended before the entry was written is past the exit hook.
        self.clear_ended()?;
        self.drain();
        for (&one, agent) in adopted.iter().zip(agent.into_iter().cycle()) {
            self.table.lock().relabel(one, agent);
            if self.table.lock().get(one).is_none()
                && let Some(known) = self.read_process(one, agent)
            {
                self.table.lock().insert(known);
            }
        }
        Ok(adopted)
    }

    /// Lets a restored process go on. The kernel side stops it as it appears, so that nothing leaves it
    /// before it was looked at; one that its restorer traces was not stopped, and the restorer must see
    /// no signal that it does not expect. No error when it has ended.
    pub fn go_on(&self, process: ProcessIdentity) -> Result<(), ProbeError> {
        let failed = |source| ProbeError::System {
            what: format!("the restored process {} cannot go on", process.tgid),
            source,
        };
        let gone = |error: &std::io::Error| {
            matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOENT))
        };
        let handle = match sys::pidfd_open(process.tgid) {
            Ok(handle) => handle,
            Err(error) if gone(&error) => return Ok(()),
            Err(error) => return Err(failed(error)),
        };
        // Looked at after the handle was opened: it is the right process's.
        let Ok(dir) = ProcDir::of(process) else {
            return Ok(());
        };
        if dir.tracer().unwrap_or(0) != 0 {
            return Ok(());
        }
        match sys::pidfd_send_signal(handle.as_fd(), libc::SIGCONT) {
            Err(error) if !gone(&error) => Err(failed(error)),
            _ => Ok(()),
        }
    }

    /// Says that a process with this innermost pid, which began at `start_ns`, is saved somewhere and
    /// may be restored.
    pub fn expect_restore(&self, pid: u32, start_ns: u64, agent: u32) -> Result<(), ProbeError> {
        let entry = Restorable {
            start_ns,
            agent,
            zero: 0,
        };
        self.maps.dumped.set(&pid, &entry)
    }

    /// The pid that a process has in the innermost of its pid namespaces.
    pub fn innermost_pid(&self, process: ProcessIdentity) -> Option<u32> {
        ProcDir::of(process).ok()?.innermost_pid().ok()
    }

    /// Whether `one` is `top` or was made below it, as far as the entries or the process table tell.
    fn is_below(
        &self,
        one: ProcessIdentity,
        entry: &Tracked,
        top: ProcessIdentity,
        entries: &HashMap<u32, Tracked>,
    ) -> bool {
        let table = self.table.lock();
        let (mut at, mut parent) = (one, entry.parent);
        // A chain is never so long; whatever the tables say, this ends.
        for _ in 0..256 {
            if at == top {
                return true;
            }
            let noted = table.get(at).and_then(|known| known.parent);
            let next = noted.or_else(|| {
                let entry = entries.get(&parent).filter(|_| parent != 0)?;
                Some(ProcessIdentity {
                    tgid: parent,
                    start_ns: entry.start_ns,
                })
            });
            let Some(next) = next else { return false };
            parent = entries.get(&next.tgid).map_or(0, |entry| entry.parent);
            at = next;
        }
        false
    }
}
