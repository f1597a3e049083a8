//! The other side of the boundary: numbers records, keeps the log, opens what has to be opened.

use std::collections::BTreeMap;
use std::time::Duration;

use super::wire::{Client, Wire};
use crate::lineage::conversation::{
    Absence, Bounds, CallSeen, Confidence, Conversations, Delta, Exchange, Finding, Known, Lost,
    Marker, ModelTraffic, Needs, Placement, ReplyReader, Rewind, Seen, ThreadMemory, read_request,
    recognise,
};
use crate::words::{
    AgentName, BranchId, EffectId, ProcessIdentity, Request, Response, Seq, ThreadId, Timestamp,
};

pub const MINUTE: u64 = 60_000_000_000;

/// A process of an agent.
#[derive(Clone, Debug, PartialEq)]
pub struct Who {
    pub agent: AgentName,
    pub process: ProcessIdentity,
    pub incarnation: u32,
}

impl Who {
    pub fn new(agent: &str, pid: u32) -> Self {
        Self {
            agent: agent.parse().unwrap(),
            process: ProcessIdentity {
                tgid: pid,
                start_ns: u64::from(pid) * 1000,
            },
            incarnation: pid,
        }
    }
}

/// What a request was found to be.
#[derive(Clone, Debug)]
pub struct Asked {
    pub findings: Vec<Finding>,
    pub absent: Vec<(EffectId, Absence)>,
    pub exchange: Exchange,
    pub branch: Option<BranchId>,
}

impl Asked {
    pub fn rewind(&self) -> Option<&Rewind> {
        self.findings.iter().find_map(|f| match f {
            Finding::Rewind(rewind) => Some(rewind),
            _ => None,
        })
    }

    pub fn lost(&self) -> Vec<Lost> {
        self.findings
            .iter()
            .flat_map(|f| match f {
                Finding::LostOutcome { lost, .. } => lost.clone(),
                _ => Vec::new(),
            })
            .collect()
    }

    pub fn compacted(&self) -> Vec<EffectId> {
        self.findings
            .iter()
            .flat_map(|f| match f {
                Finding::Compacted { effects, .. } => effects.clone(),
                _ => Vec::new(),
            })
            .collect()
    }

    pub fn opens(&self) -> bool {
        self.findings
            .iter()
            .any(|f| matches!(f, Finding::OpensThread { .. }))
    }

    pub fn is_aside(&self) -> bool {
        self.findings
            .iter()
            .any(|f| matches!(f, Finding::SideRequest { .. }))
    }

    pub fn is_quiet(&self) -> bool {
        self.findings.iter().all(|f| {
            matches!(
                f,
                Finding::Continues { .. }
                    | Finding::OpensThread { .. }
                    | Finding::SideRequest { .. }
            )
        })
    }
}

/// A record of the boundary's doings.
pub struct World {
    pub all: Conversations,
    pub marker: Marker,
    pub seq: u64,
    pub now: u64,
    pub log: BTreeMap<EffectId, Known>,
    pub placed: BTreeMap<EffectId, Placement>,
    pub deltas: Vec<Delta>,
    pub late: Vec<Rewind>,
    pub again: Vec<Rewind>,
    bounds: Bounds,
}

impl World {
    pub fn new() -> Self {
        Self::bounded(Bounds::default())
    }

    pub fn bounded(bounds: Bounds) -> Self {
        Self {
            all: Conversations::new(bounds),
            marker: Marker::new(&[42; 32]),
            seq: 1,
            now: 1_000 * MINUTE,
            log: BTreeMap::new(),
            placed: BTreeMap::new(),
            deltas: Vec::new(),
            late: Vec::new(),
            again: Vec::new(),
            bounds,
        }
    }

    fn next(&mut self) -> Seq {
        self.seq += 1;
        Seq(self.seq)
    }

    pub fn wait(&mut self, minutes: u64) {
        self.now += minutes * MINUTE;
    }

    fn seen<'w>(&self, who: &'w Who) -> Seen<'w> {
        Seen {
            agent: &who.agent,
            process: who.process,
            incarnation: who.incarnation,
            at: Seq(self.seq),
            now: Timestamp(self.now),
        }
    }

    fn take(&mut self, delta: Delta) {
        self.all.apply(&delta);
        self.deltas.push(delta);
        self.seq += 1;
    }

    /// A request crosses the boundary.
    pub fn ask(&mut self, who: &Who, wire: &Wire) -> Asked {
        self.now += 1_000_000_000;
        let traffic = recognise("POST", wire.client.url(), &wire.body, false);
        let format = wire.client.format();
        assert_eq!(
            traffic,
            Some(ModelTraffic::Conversation(format)),
            "{}",
            String::from_utf8_lossy(&wire.body)
        );
        let turned = read_request(&self.marker, format, &wire.headers, &wire.body).unwrap();
        let outcomes = |effect: EffectId| self.log.get(&effect).cloned().unwrap_or(Known::Nothing);
        let observed = self.all.observe_request(
            &self.marker,
            &turned,
            &self.seen(who),
            Duration::from_secs(15 * 60),
            &outcomes,
        );
        assert!(!observed.findings.is_empty());
        let (thread, branch) = match observed.needs {
            Needs::Nothing => (None, None),
            Needs::Thread => (Some(ThreadId(self.next())), Some(BranchId(self.next()))),
            Needs::Branch { .. } => (None, Some(BranchId(self.next()))),
        };
        let findings = observed.findings.clone();
        let absent = observed.absent.clone();
        let (exchange, delta) = observed.bind(thread, branch);
        if let Some(delta) = delta {
            self.take(delta);
        }
        Asked {
            findings,
            absent,
            exchange,
            branch,
        }
    }

    /// The answer comes back, in pieces of `piece` bytes; calls are taken in as soon as they are whole.
    pub fn answer(&mut self, who: &Who, asked: &Asked, client: Client, bytes: &[u8], piece: usize) {
        self.answer_with(who, asked, client, 200, bytes, piece);
    }

    pub fn answer_with(
        &mut self,
        who: &Who,
        asked: &Asked,
        client: Client,
        status: u16,
        bytes: &[u8],
        piece: usize,
    ) {
        let mut reader = ReplyReader::new(self.marker.clone(), client.format(), status);
        for chunk in bytes.chunks(piece.max(1)) {
            if reader.push(chunk) {
                let so_far = reader.so_far();
                let delta = self
                    .all
                    .observe_reply(&asked.exchange, &so_far, &self.seen(who));
                if let Some(delta) = delta {
                    self.take(delta);
                }
            }
        }
        let delta = self
            .all
            .observe_reply(&asked.exchange, &reader.finish(), &self.seen(who));
        if let Some(delta) = delta {
            self.take(delta);
        }
    }

    /// A tool call crosses the boundary and has its effect.
    pub fn effect(&mut self, who: &Who, request: &Request, known: Known) -> EffectId {
        self.effect_from(who, &[who.process], request, known)
    }

    pub fn effect_from(
        &mut self,
        who: &Who,
        lineage: &[ProcessIdentity],
        request: &Request,
        known: Known,
    ) -> EffectId {
        self.now += 1_000_000_000;
        let call = CallSeen::of(&self.marker, request);
        let placement = self.all.place(&call, &self.seen(who), lineage);
        if let Some(again) = placement.as_ref().and_then(|p| p.again.clone()) {
            let strand = placement.as_ref().unwrap().at.strand;
            let branch = BranchId(self.next());
            let moved = again.moved(strand, branch);
            self.again.push(again);
            self.take(moved);
        }
        let effect = EffectId(self.next());
        self.log.insert(effect, known);
        if let Some(placement) = placement {
            self.tie(who, &placement, effect);
            self.placed.insert(effect, placement);
        }
        effect
    }

    fn tie(&mut self, who: &Who, placement: &Placement, effect: EffectId) {
        let attached = self
            .all
            .attach_effect(placement, effect, Seq(self.seq), &self.seen(who));
        self.take(attached.delta);
        for (strand, rewind) in attached.late {
            let branch = BranchId(self.next());
            let moved = rewind.moved(strand, branch);
            self.late.push(rewind);
            self.take(moved);
        }
    }

    /// Where a tool call of the agent's own process would be placed now.
    pub fn placement(&self, who: &Who, request: &Request) -> Option<Placement> {
        let call = CallSeen::of(&self.marker, request);
        self.all.place(&call, &self.seen(who), &[who.process])
    }

    /// A tool call crosses the boundary and is answered from the record of an earlier effect.
    pub fn replay(&mut self, who: &Who, request: &Request, effect: EffectId) -> Response {
        self.now += 1_000_000_000;
        let call = CallSeen::of(&self.marker, request);
        let placement = self.all.place(&call, &self.seen(who), &[who.process]);
        self.next();
        if let Some(placement) = placement {
            self.tie(who, &placement, effect);
        }
        match &self.log[&effect] {
            Known::Response(response) => (**response).clone(),
            other => panic!("{effect} has no response: {other:?}"),
        }
    }

    pub fn confidence(&self, effect: EffectId) -> Option<Confidence> {
        self.placed.get(&effect).map(|p| p.at.confidence)
    }

    /// All deltas applied again, and snapshots read back, are the same memory.
    pub fn check(&self) {
        let mut again = Conversations::new(self.bounds);
        for delta in &self.deltas {
            let json = serde_json::to_string(delta).unwrap();
            let back: Delta = serde_json::from_str(&json).unwrap();
            assert_eq!(&back, delta);
            again.apply(&back);
        }
        let all: Vec<&ThreadMemory> = self.all.threads().collect();
        assert_eq!(again.threads().collect::<Vec<_>>(), all);
        let mut bytes = Vec::new();
        for memory in &all {
            bytes.clear();
            ciborium::into_writer(memory, &mut bytes).unwrap();
            let back: ThreadMemory = ciborium::from_reader(bytes.as_slice()).unwrap();
            assert_eq!(&&back, memory);
        }
        let snapshots = all.into_iter().cloned();
        let restored = Conversations::from_memories(self.bounds, snapshots);
        assert!(restored.threads().eq(self.all.threads()));
    }
}
