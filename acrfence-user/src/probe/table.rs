//! What is known of every process of an agent, and for a while after its end. Pure.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::event::{Execution, ProbeEvent, What};
use crate::words::{ExitStatus, ProcessIdentity, Timestamp};

/// A process of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Which.
    pub identity: ProcessIdentity,
    /// The agent's index.
    pub agent: u32,
    /// The process that made it; none when that was before the attach.
    pub parent: Option<ProcessIdentity>,
    /// Its executable; `?` when it was gone before it could be read.
    pub exe: String,
    /// Its arguments, bounded.
    pub argv: Vec<String>,
    /// Whether `argv` is only the beginning.
    pub argv_truncated: bool,
    /// Its working directory, as last seen.
    pub cwd: String,
    /// Its real user id.
    pub uid: u32,
    /// Its cgroup.
    pub cgroup: String,
    /// Allow-listed variables of its environment.
    pub env: BTreeMap<String, String>,
    /// Whether variables may be missing from `env`.
    pub env_truncated: bool,
    /// When it was first seen.
    pub seen: Timestamp,
    /// When it ended, and how; none while it runs.
    pub exited: Option<(Timestamp, ExitStatus)>,
}

/// The table.
#[derive(Debug, Default)]
pub struct ProcessTable {
    processes: HashMap<ProcessIdentity, Process>,
    /// Those that ended, in the order in which they did.
    dead: VecDeque<(Timestamp, ProcessIdentity)>,
}

impl ProcessTable {
    /// Takes in what happened.
    pub fn apply(&mut self, event: &ProbeEvent) {
        let Some(agent) = event.agent else {
            return;
        };
        match &event.what {
            What::Born { parent } => {
                let inherited = self.processes.get(parent).cloned();
                let mut process = inherited.unwrap_or_else(|| unknown(event.process, agent));
                process.identity = event.process;
                process.agent = agent;
                process.parent = Some(*parent);
                process.seen = event.at;
                process.exited = None;
                // The table may already have it from a walk that was faster than its birth.
                self.processes.entry(event.process).or_insert(process);
            }
            What::Executed(execution) => {
                let process = self
                    .processes
                    .entry(event.process)
                    .or_insert_with(|| Process {
                        seen: event.at,
                        ..unknown(event.process, agent)
                    });
                executed(process, execution);
            }
            What::Exited { status } => self.end(event.process, event.at, *status),
            What::Connected { .. } | What::Wrote(_) | What::Restoring { .. } => {}
        }
        self.forget(event.at);
    }

    /// Puts in a process that was there before anything was reported about it.
    pub fn insert(&mut self, process: Process) {
        self.processes.entry(process.identity).or_insert(process);
    }

    /// Notes the end of a process.
    pub fn end(&mut self, identity: ProcessIdentity, at: Timestamp, status: ExitStatus) {
        if let Some(process) = self.processes.get_mut(&identity)
            && process.exited.is_none()
        {
            process.exited = Some((at, status));
            self.dead.push_back((at, identity));
        }
    }

    /// Makes a process another agent's.
    pub fn relabel(&mut self, identity: ProcessIdentity, agent: u32) {
        if let Some(process) = self.processes.get_mut(&identity) {
            process.agent = agent;
        }
    }

    /// One process.
    pub fn get(&self, identity: ProcessIdentity) -> Option<&Process> {
        self.processes.get(&identity)
    }

    /// Notes where a running process is now.
    pub fn moved(&mut self, identity: ProcessIdentity, cwd: String) {
        if let Some(process) = self.processes.get_mut(&identity) {
            process.cwd = cwd;
        }
    }

    /// Every process of an agent, oldest first; those that ended only as long as they are kept.
    pub fn of_agent(&self, agent: u32) -> Vec<Process> {
        let mut found: Vec<_> = self
            .processes
            .values()
            .filter(|process| process.agent == agent)
            .cloned()
            .collect();
        found.sort_by_key(|process| (process.identity.start_ns, process.identity.tgid));
        found
    }

    /// Lets an agent's processes go.
    pub fn drop_agent(&mut self, agent: u32) {
        self.processes.retain(|_, process| process.agent != agent);
        self.dead
            .retain(|(_, identity)| self.processes.contains_key(identity));
    }

    /// Forgets those that ended long ago, and the oldest when there are many.
    fn forget(&mut self, now: Timestamp) {
        while let Some(&(at, identity)) = self.dead.front() {
            let age = Duration::from_nanos(now.0.saturating_sub(at.0));
            if age < KEPT_FOR && self.dead.len() <= MOST_DEAD {
                break;
            }
            self.dead.pop_front();
            self.processes.remove(&identity);
        }
    }
}

/// How long a process that ended is remembered.
const KEPT_FOR: Duration = Duration::from_secs(15 * 60);
/// How many that ended are remembered.
const MOST_DEAD: usize = 8192;

fn unknown(identity: ProcessIdentity, agent: u32) -> Process {
    Process {
        identity,
        agent,
        parent: None,
        exe: "?".into(),
        argv: vec![],
        argv_truncated: false,
        cwd: String::new(),
        uid: 0,
        cgroup: String::new(),
        env: BTreeMap::new(),
        env_truncated: false,
        seen: Timestamp(0),
        exited: None,
    }
}

fn executed(process: &mut Process, execution: &Execution) {
    let exe = execution.exe.as_ref().unwrap_or(&execution.filename);
    process.exe.clone_from(exe);
    if process.exe.is_empty() {
        process.exe = "?".into();
    }
    process.argv_truncated = execution.argv_truncated;
    process.argv.clone_from(&execution.argv);
    process.env_truncated = execution.env_truncated;
    process.env.clone_from(&execution.env);
    process.uid = execution.uid;
    // Not known: as far as we know it is where the process that made it was.
    if let Some(cwd) = &execution.cwd {
        process.cwd.clone_from(cwd);
    }
    if let Some(cgroup) = &execution.cgroup {
        process.cgroup.clone_from(cgroup);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pid(tgid: u32) -> ProcessIdentity {
        ProcessIdentity { tgid, start_ns: 1 }
    }

    fn event(process: u32, second: u64, what: What) -> ProbeEvent {
        ProbeEvent {
            at: Timestamp(second * 1_000_000_000),
            process: pid(process),
            agent: Some(1),
            what,
        }
    }

    fn exec(argv: &[&str]) -> What {
        What::Executed(Box::new(Execution {
            filename: "/bin/x".into(),
            argv: argv.iter().map(|&a| a.into()).collect(),
            argv_truncated: true,
            ..Execution::default()
        }))
    }

    #[test]
    fn a_child_is_its_parent_until_it_starts_a_program() {
        let mut table = ProcessTable::default();
        let in_srv = What::Executed(Box::new(Execution {
            cwd: Some("/srv".into()),
            argv: vec!["a".into()],
            ..Execution::default()
        }));
        table.apply(&event(1, 1, in_srv));
        table.apply(&event(2, 2, What::Born { parent: pid(1) }));
        let child = table.get(pid(2)).unwrap();
        assert_eq!((child.argv[0].as_str(), child.cwd.as_str()), ("a", "/srv"));
        assert_eq!(child.parent, Some(pid(1)));

        table.apply(&event(2, 3, exec(&["b", "more"])));
        let child = table.get(pid(2)).unwrap();
        assert_eq!(child.argv, ["b", "more"]);
        assert!(child.argv_truncated);
        assert_eq!((child.exe.as_str(), child.cwd.as_str()), ("/bin/x", "/srv"));
    }

    #[test]
    fn the_dead_are_kept_for_a_while_and_not_for_ever() {
        let mut table = ProcessTable::default();
        table.apply(&event(1, 1, exec(&["a"])));
        let end = What::Exited {
            status: ExitStatus::Code(3),
        };
        table.apply(&event(1, 2, end));
        let (at, status) = table.get(pid(1)).unwrap().exited.unwrap();
        assert_eq!((at.0, status), (2_000_000_000, ExitStatus::Code(3)));

        table.apply(&event(2, 800, exec(&["b"])));
        assert!(table.get(pid(1)).is_some());
        table.apply(&event(2, 1000, exec(&["b"])));
        assert!(table.get(pid(1)).is_none());
        assert!(table.get(pid(2)).is_some());
    }

    #[test]
    fn only_so_many_dead_are_kept() {
        let mut table = ProcessTable::default();
        for n in 0..MOST_DEAD as u32 + 10 {
            table.apply(&event(n, 1, exec(&["a"])));
            let end = What::Exited {
                status: ExitStatus::Code(0),
            };
            table.apply(&event(n, 1, end));
        }
        assert_eq!(table.processes.len(), MOST_DEAD);
    }
}
