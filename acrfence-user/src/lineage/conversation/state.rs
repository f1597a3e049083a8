//! All threads that are remembered, and the way deltas change them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::finding::Confidence;
use super::ids::ProviderId;
use super::mark::Mark;
use super::memory::{
    Absence, Asked, Delta, ResultMemory, Strand, StrandMemory, ThreadMemory, Tie, TurnMemory,
    TurnNo,
};
use crate::words::{AgentName, BranchId, EffectId, ForkPoint, ThreadId};

/// How much is remembered at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Threads. The one that was silent longest goes first.
    pub threads: usize,
    /// Turns of a thread. The oldest go first.
    pub turns: usize,
    /// Lines of a thread. The one that was silent longest goes first.
    pub strands: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            threads: 4096,
            turns: 4096,
            strands: 96,
        }
    }
}

/// Most sessions, hints or summary lines of one thread.
const MOST_MARKS: usize = 256;

/// Most effects that one line is known not to remember. The oldest go first.
const MOST_ABSENT: usize = 8192;

/// The door of this room: every conversation that is remembered.
///
/// Questions take `&self` and answer with findings and [`Delta`]s; only [`Self::apply`] changes it.
#[derive(Clone, Debug, Default)]
pub struct Conversations {
    pub(super) bounds: Bounds,
    pub(super) threads: BTreeMap<ThreadId, ThreadMemory>,
    /// Where an id that identifies by itself was seen: answers, calls, sealed reasoning, input.
    pub(super) ids: HashMap<ProviderId, Vec<(ThreadId, TurnNo)>>,
    pub(super) sessions: HashMap<Mark, Vec<ThreadId>>,
    pub(super) openings: HashMap<Mark, Vec<ThreadId>>,
    /// Long lines of summaries.
    pub(super) lines: HashMap<Mark, ThreadId>,
    /// What each line's last answer said and called.
    pub(super) tails: HashMap<Mark, BTreeSet<(ThreadId, Strand)>>,
    pub(super) agents: BTreeMap<AgentName, BTreeSet<ThreadId>>,
    evicted: u64,
}

impl Conversations {
    /// Nothing remembered yet.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            ..Self::default()
        }
    }

    /// What snapshots of threads tell.
    pub fn from_memories(bounds: Bounds, memories: impl IntoIterator<Item = ThreadMemory>) -> Self {
        let mut all = Self::new(bounds);
        for memory in memories {
            all.evict_for(memory.id);
            all.index(&memory);
            all.threads.insert(memory.id, memory);
        }
        all
    }

    /// Whether the agent has shown any conversation.
    pub fn knows(&self, agent: &AgentName) -> bool {
        self.agents.contains_key(agent)
    }

    /// What is remembered of a thread. Serialised, it is its snapshot.
    pub fn thread(&self, id: ThreadId) -> Option<&ThreadMemory> {
        self.threads.get(&id)
    }

    /// All threads, by id.
    pub fn threads(&self) -> impl Iterator<Item = &ThreadMemory> {
        self.threads.values()
    }

    /// How many threads were forgotten for want of room.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Calls that no other conversation has and that surely caused these effects of a thread: their own,
    /// or those that started the sub-agents which did.
    pub fn calls_of(&self, thread: ThreadId, effects: &[EffectId]) -> Vec<(EffectId, ProviderId)> {
        let Some(memory) = self.threads.get(&thread) else {
            return Vec::new();
        };
        let mut calls = Vec::new();
        for turn in &memory.turns {
            for (number, call) in turn.calls.iter().enumerate() {
                let Some(id) = call.id.as_ref().filter(|id| id.is_unique()) else {
                    continue;
                };
                let below = memory.ties_below_call(turn.number, number);
                let ties = call.ties.iter().chain(below);
                let sure = ties.filter(|tie| tie.confidence > Confidence::Time);
                let known = sure.filter(|tie| effects.contains(&tie.effect));
                calls.extend(known.map(|tie| (tie.effect, id.clone())));
            }
        }
        calls
    }

    /// The branch that a thread's line goes on in.
    pub fn branch(&self, thread: ThreadId, strand: Strand) -> Option<BranchId> {
        Some(self.threads.get(&thread)?.strand(strand)?.branch)
    }

    /// The change that a restore makes which something else told of (a person, a hook, the kernel, a
    /// restart): the thread's newest main line goes on in `branch`, remembering what entered its
    /// timeline up to `fork_point`. A model request that shows the same is then no second rewind.
    pub fn told(&self, thread: ThreadId, branch: BranchId, fork_point: ForkPoint) -> Option<Delta> {
        let memory = self.threads.get(&thread)?;
        let main = memory.strands.iter().filter(|s| s.born_of.is_none());
        let line = main.max_by_key(|s| (!s.is_child, s.asked, s.number))?;
        let after = |tie: &&Tie| match fork_point {
            ForkPoint::At(seq) => tie.at > seq,
            ForkPoint::Unknown => true,
        };
        let path = memory.path_to(line.tip);
        let mut absent: Vec<(EffectId, Absence)> = path
            .into_iter()
            .flat_map(|at| memory.ties_of_turn(&memory.turns[at]))
            .filter(after)
            .map(|tie| (tie.effect, Absence::Forgotten))
            .collect();
        absent.sort_unstable();
        absent.dedup();
        Some(Delta::Moved {
            thread,
            strand: line.number,
            branch,
            absent,
        })
    }

    /// Takes in a change.
    pub fn apply(&mut self, delta: &Delta) {
        match delta {
            Delta::Asked(asked) => self.apply_asked(asked),
            Delta::Answered {
                thread,
                strand,
                turn,
                lines,
            } => self.apply_answered(*thread, *strand, turn, lines),
            Delta::Summarised { thread, lines } => self.remember_lines(*thread, lines),
            Delta::Tied {
                thread,
                strand,
                turn,
                call,
                tie,
            } => self.apply_tied(*thread, *strand, *turn, *call, tie),
            Delta::Moved {
                thread,
                strand,
                branch,
                absent,
            } => {
                let thread = self.threads.get_mut(thread);
                if let Some(strand) = thread.and_then(|t| strand_mut(t, *strand)) {
                    strand.branch = *branch;
                    add_absent(&mut strand.absent, absent);
                }
            }
        }
    }

    fn apply_asked(&mut self, asked: &Asked) {
        let id = asked.thread;
        if let Some((agent, title)) = &asked.opens {
            self.evict_for(id);
            self.threads.entry(id).or_insert_with(|| ThreadMemory {
                id,
                agent: agent.clone(),
                title: title.clone(),
                sessions: Vec::new(),
                hints: Vec::new(),
                turns: Vec::new(),
                strands: Vec::new(),
                summaries: Vec::new(),
                next_turn: 1,
                next_strand: 1,
                dropped_through: None,
                active: asked.strand.active,
            });
        }
        let Some(mut memory) = self.threads.remove(&id) else {
            return;
        };
        // The indices are taken down and put up again around every change that they speak of.
        let number = asked.strand.number;
        self.unindex_strand(&memory, number);
        extend_bounded(&mut memory.sessions, &asked.sessions);
        extend_bounded(&mut memory.hints, &asked.hints);
        for turn in &asked.imported {
            if memory
                .turns
                .last()
                .is_none_or(|last| last.number < turn.number)
            {
                self.index_turn(id, turn);
                memory.turns.push(turn.clone());
                memory.next_turn = memory.next_turn.max(turn.number.0 + 1);
            }
        }
        for (turn, call, result) in &asked.results {
            if let Some(at) = memory.position(*turn)
                && let Some(call) = memory.turns[at].calls.get_mut(usize::from(*call))
            {
                call.result = *result;
                call.values = Vec::new();
            }
        }
        for turn in &asked.shown {
            if let Some(at) = memory.position(*turn) {
                memory.turns[at].shown_at.get_or_insert(asked.strand.asked);
            }
        }
        if let Some(pending) = asked.strand.pending {
            memory.next_turn = memory.next_turn.max(pending.0 + 1);
        }
        memory.next_strand = memory.next_strand.max(number.0 + 1);
        memory.active = memory.active.max(asked.strand.active);
        match strand_mut(&mut memory, number) {
            Some(known) => {
                let absent = std::mem::take(&mut known.absent);
                *known = asked.strand.clone();
                known.absent = absent;
                add_absent(&mut known.absent, &asked.absent);
            }
            None => {
                let mut strand = asked.strand.clone();
                add_absent(&mut strand.absent, &asked.absent);
                memory.strands.push(strand);
            }
        }
        self.prune(&mut memory, number);
        self.index_head(&memory);
        self.index_strand(&memory, number);
        self.threads.insert(id, memory);
    }

    fn apply_answered(&mut self, id: ThreadId, strand: Strand, turn: &TurnMemory, lines: &[Mark]) {
        let Some(mut memory) = self.threads.remove(&id) else {
            return;
        };
        self.unindex_strand(&memory, strand);
        let mut turn = turn.clone();
        let touched = answered_in(&mut memory, strand, &mut turn);
        match memory
            .turns
            .binary_search_by_key(&turn.number, |t| t.number)
        {
            Ok(at) => {
                // Effects that were attached while the answer still streamed.
                let before = &memory.turns[at];
                turn.loose.clone_from(&before.loose);
                for (call, before) in turn.calls.iter_mut().zip(&before.calls) {
                    call.ties.clone_from(&before.ties);
                    call.result = before.result;
                }
                turn.find_calls_of_ties();
                self.unindex_turn(id, &memory.turns[at]);
                self.index_turn(id, &turn);
                memory.turns[at] = turn.clone();
            }
            Err(at) => {
                self.index_turn(id, &turn);
                memory.turns.insert(at, turn.clone());
            }
        }
        memory.next_turn = memory.next_turn.max(turn.number.0 + 1);
        memory.active = memory.active.max(turn.time);
        self.prune(&mut memory, touched);
        self.index_strand(&memory, strand);
        self.index_strand(&memory, touched);
        self.threads.insert(id, memory);
        self.remember_lines(id, lines);
    }

    fn apply_tied(
        &mut self,
        id: ThreadId,
        strand: Strand,
        turn: TurnNo,
        call: Option<u16>,
        tie: &Tie,
    ) {
        let Some(memory) = self.threads.get_mut(&id) else {
            return;
        };
        memory.active = memory.active.max(tie.time);
        if memory.position(turn).is_none() {
            await_turn(memory, strand, turn, tie);
        }
        if let Some(at) = memory.position(turn) {
            let turn = &mut memory.turns[at];
            let call = call.and_then(|c| turn.calls.get_mut(usize::from(c)));
            let ties = call.map_or(&mut turn.loose, |call| &mut call.ties);
            if ties.iter().all(|known| known.effect != tie.effect) {
                ties.push(tie.clone());
            }
        }
        if let Some(line) = strand_mut(memory, strand) {
            line.active = line.active.max(tie.time);
            line.absent.retain(|(effect, _)| *effect != tie.effect);
        }
    }

    fn remember_lines(&mut self, id: ThreadId, lines: &[Mark]) {
        let Some(memory) = self.threads.get_mut(&id) else {
            return;
        };
        for line in lines {
            if !memory.summaries.contains(line) {
                memory.summaries.push(*line);
                self.lines.insert(*line, id);
            }
        }
        let over = memory.summaries.len().saturating_sub(MOST_MARKS);
        for line in memory.summaries.drain(..over) {
            if self.lines.get(&line) == Some(&id) {
                self.lines.remove(&line);
            }
        }
    }

    /// Drops what is too much of one thread, never the line that was just touched.
    fn prune(&mut self, memory: &mut ThreadMemory, touched: Strand) {
        let over = memory.turns.len().saturating_sub(self.bounds.turns.max(1));
        for turn in memory.turns.drain(..over) {
            self.unindex_turn(memory.id, &turn);
            let last = turn.ties().map(|tie| tie.at).max();
            memory.dropped_through = memory.dropped_through.max(last);
        }
        while memory.strands.len() > self.bounds.strands.max(2) {
            let newest = Strand(memory.next_strand.saturating_sub(1));
            let silent = memory
                .strands
                .iter()
                .filter(|s| s.number != touched && s.number != newest)
                .min_by_key(|s| (s.active, s.number))
                .map(|s| s.number);
            let Some(silent) = silent else {
                break;
            };
            self.unindex_strand(memory, silent);
            memory.strands.retain(|s| s.number != silent);
        }
    }

    fn evict_for(&mut self, newcomer: ThreadId) {
        if self.threads.contains_key(&newcomer) {
            return;
        }
        while self.threads.len() >= self.bounds.threads.max(1) {
            let has_effects =
                |t: &ThreadMemory| t.turns.iter().any(|turn| turn.ties().next().is_some());
            // Threads without effects can lose nothing that matters.
            let silent = self
                .threads
                .values()
                .min_by_key(|t| (has_effects(t), t.active, t.id))
                .map(|t| t.id);
            let Some(memory) = silent.and_then(|id| self.threads.remove(&id)) else {
                break;
            };
            self.unindex(&memory);
            self.evicted += 1;
        }
    }
}

/// An effect came before anything of the answer that caused it was seen.
fn await_turn(memory: &mut ThreadMemory, strand: Strand, number: TurnNo, tie: &Tie) {
    let Some(line) = strand_mut(memory, strand).filter(|s| s.pending == Some(number)) else {
        return;
    };
    let turn = TurnMemory {
        number,
        parent: line.tip,
        strand,
        at: tie.at,
        time: tie.time,
        ids: Vec::new(),
        input_ids: line.input_ids.clone(),
        said: None,
        calls: Vec::new(),
        loose: Vec::new(),
        input: line.input.unwrap_or(Mark(0)),
        prompt: line.prompt,
        shown_at: None,
        complete: false,
        imported: false,
    };
    line.tip = Some(number);
    if let Err(at) = memory.turns.binary_search_by_key(&number, |t| t.number) {
        memory.turns.insert(at, turn);
    }
}

/// Moves the line that was answered on to its new turn, and says which line that is.
fn answered_in(memory: &mut ThreadMemory, strand: Strand, turn: &mut TurnMemory) -> Strand {
    let next = Strand(memory.next_strand);
    let before = memory
        .strands
        .iter()
        .position(|s| s.tip == Some(turn.number));
    let Some(line) = strand_mut(memory, strand) else {
        return strand;
    };
    line.active = line.active.max(turn.time);
    if line.pending == Some(turn.number) {
        line.tip = Some(turn.number);
        line.answered = turn.complete;
        return strand;
    }
    // The line was asked something else meanwhile. What broke off and was asked again is
    // replaced by that; otherwise both go on.
    let is_replaced = !turn.complete && line.input == Some(turn.input);
    let other = line.clone();
    if let Some(known) = before {
        let known = &mut memory.strands[known];
        known.answered = turn.complete;
        turn.strand = known.number;
        return known.number;
    }
    if is_replaced {
        return strand;
    }
    turn.strand = next;
    memory.next_strand += 1;
    memory.strands.push(StrandMemory {
        number: next,
        tip: Some(turn.number),
        pending: Some(turn.number),
        answered: turn.complete,
        input: Some(turn.input),
        ..other
    });
    next
}

fn strand_mut(memory: &mut ThreadMemory, number: Strand) -> Option<&mut StrandMemory> {
    memory.strands.iter_mut().find(|s| s.number == number)
}

fn add_absent(to: &mut Vec<(EffectId, Absence)>, news: &[(EffectId, Absence)]) {
    for (effect, why) in news {
        match to.binary_search_by_key(effect, |(e, _)| *e) {
            Ok(at) => to[at].1 = to[at].1.max(*why),
            Err(at) => to.insert(at, (*effect, *why)),
        }
    }
    let over = to.len().saturating_sub(MOST_ABSENT);
    to.drain(..over);
}

fn extend_bounded(to: &mut Vec<Mark>, news: &[Mark]) {
    for mark in news {
        if !to.contains(mark) {
            to.push(*mark);
        }
    }
    let over = to.len().saturating_sub(MOST_MARKS);
    to.drain(..over);
}

/// Whether a call's result was not shown yet.
pub(super) fn is_open(result: ResultMemory) -> bool {
    result == ResultMemory::Open
}
