//! What a person should know about connections: troubles, and traffic that is not fenced.

use std::collections::{BTreeMap, VecDeque};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::now;
use crate::boundary::{Trouble, TroubleKind};
use crate::words::{AgentName, Opaque, OpaqueClass, OpaqueStep, Timestamp};

/// Most recent troubles kept for `acrfence status`.
const MOST_TROUBLES: usize = 200;
/// Most recent shortcomings kept.
const MOST_PROBLEMS: usize = 20;
/// Most peers told apart for one agent; further ones are counted together.
const MOST_PEERS: usize = 500;

/// Troubles and opaque flows since the daemon started.
#[derive(Default)]
pub struct Notices(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    /// Reports of the kernel that nobody looked at.
    missed: u64,
    troubles: VecDeque<TroubleNotice>,
    opaque: BTreeMap<AgentName, BTreeMap<String, OpaqueCount>>,
    ran: BTreeMap<AgentName, u64>,
    problems: VecDeque<String>,
}

/// One trouble.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TroubleNotice {
    /// When.
    pub at: Timestamp,
    /// Whose connection.
    pub agent: AgentName,
    /// Process id.
    pub pid: u32,
    /// Executable.
    pub exe: String,
    /// Which kind.
    pub kind: TroubleKind,
    /// In words, with what to do next.
    pub detail: String,
}

/// Traffic with one peer that was passed on without being understood.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct OpaqueCount {
    /// Peer address, and why it is opaque.
    pub peer: String,
    /// What kind of traffic.
    #[serde(default)]
    pub class: OpaqueClass,
    /// Flows that were let through.
    pub flows: u64,
    /// Those of them that are open.
    #[serde(default)]
    pub open: u64,
    /// Flows that were refused.
    #[serde(default)]
    pub refused: u64,
    /// Bytes the agent sent.
    pub sent: u64,
    /// Bytes the agent received.
    pub received: u64,
}

impl Notices {
    pub(super) fn trouble(&self, trouble: Trouble) {
        self.note(TroubleNotice {
            at: now(),
            agent: trouble.origin.agent,
            pid: trouble.origin.process.tgid,
            exe: trouble.origin.exe,
            kind: trouble.kind,
            detail: trouble.detail,
        });
    }

    /// Notes something about an agent that no call brought up.
    pub(super) fn note(&self, notice: TroubleNotice) {
        let mut kept = self.0.lock();
        if kept.troubles.len() == MOST_TROUBLES {
            kept.troubles.pop_front();
        }
        kept.troubles.push_back(notice);
    }

    /// Notes a shortcoming that belongs to no agent.
    pub(super) fn problem(&self, sentence: String) {
        let mut kept = self.0.lock();
        if kept.problems.len() == MOST_PROBLEMS {
            kept.problems.pop_front();
        }
        kept.problems.push_back(sentence);
    }

    /// Shortcomings, newest last.
    pub fn problems(&self) -> Vec<String> {
        self.0.lock().problems.iter().cloned().collect()
    }

    /// Counts opaque traffic. Bytes are those of this record alone.
    pub(super) fn opaque(&self, seen: &Opaque) {
        let mut kept = self.0.lock();
        let peers = kept.opaque.entry(seen.origin.agent.clone()).or_default();
        let mut peer = format!("{} ({})", seen.peer, seen.why);
        if peers.len() >= MOST_PEERS && !peers.contains_key(&peer) {
            peer = "all others".into();
        }
        let count = peers.entry(peer.clone()).or_default();
        count.peer = peer;
        count.class = seen.class;
        match seen.step {
            OpaqueStep::Began => {
                count.flows += 1;
                // Nobody says when a command ended.
                count.open += u64::from(seen.class != OpaqueClass::Command);
            }
            OpaqueStep::WentOn => {}
            OpaqueStep::Ended => count.open = count.open.saturating_sub(1),
            OpaqueStep::Refused => count.refused += 1,
        }
        count.sent += seen.sent;
        count.received += seen.received;
    }

    /// Counts a program that no rule names.
    pub(super) fn ran(&self, agent: &AgentName) {
        *self.0.lock().ran.entry(agent.clone()).or_default() += 1;
    }

    /// Programs of an agent that ended and that no rule names.
    pub fn ran_of(&self, agent: &AgentName) -> u64 {
        self.0.lock().ran.get(agent).copied().unwrap_or_default()
    }

    /// So many of the kernel's reports came faster than they could be looked at.
    pub(super) fn missed(&self, count: u64) {
        self.0.lock().missed += count;
    }

    /// Reports that nobody looked at: what they would have shown of unfenced traffic is not counted.
    pub fn unseen(&self) -> u64 {
        self.0.lock().missed
    }

    /// Troubles, newest last.
    pub fn troubles(&self) -> Vec<TroubleNotice> {
        self.0.lock().troubles.iter().cloned().collect()
    }

    /// What an agent sent that was not fenced.
    pub fn opaque_of(&self, agent: &AgentName) -> Vec<OpaqueCount> {
        self.0
            .lock()
            .opaque
            .get(agent)
            .map(|peers| peers.values().cloned().collect())
            .unwrap_or_default()
    }
}
