//! Where an id, a session or words are looked up.

use std::collections::HashMap;

use super::ids::ProviderId;
use super::mark::Mark;
use super::memory::{Strand, StrandMemory, ThreadMemory, TurnMemory};
use super::state::Conversations;
use crate::words::ThreadId;

/// Most threads that one opening or session is looked up in.
const MOST_NAMESAKES: usize = 64;

impl Conversations {
    pub(super) fn index(&mut self, memory: &ThreadMemory) {
        for turn in &memory.turns {
            self.index_turn(memory.id, turn);
        }
        for line in &memory.summaries {
            self.lines.insert(*line, memory.id);
        }
        self.index_head(memory);
        for strand in &memory.strands {
            self.index_strand(memory, strand.number);
        }
    }

    pub(super) fn unindex(&mut self, memory: &ThreadMemory) {
        for turn in &memory.turns {
            self.unindex_turn(memory.id, turn);
        }
        for strand in &memory.strands {
            self.unindex_strand(memory, strand.number);
            for opening in &strand.openings {
                remove_namesake(&mut self.openings, *opening, memory.id);
            }
            if let Some(threads) = self.agents.get_mut(&strand.agent) {
                threads.remove(&memory.id);
            }
        }
        for session in &memory.sessions {
            remove_namesake(&mut self.sessions, *session, memory.id);
        }
        for line in &memory.summaries {
            if self.lines.get(line) == Some(&memory.id) {
                self.lines.remove(line);
            }
        }
        if let Some(threads) = self.agents.get_mut(&memory.agent) {
            threads.remove(&memory.id);
        }
    }

    pub(super) fn index_head(&mut self, memory: &ThreadMemory) {
        for session in &memory.sessions {
            add_namesake(&mut self.sessions, *session, memory.id);
        }
        self.agents
            .entry(memory.agent.clone())
            .or_default()
            .insert(memory.id);
    }

    pub(super) fn index_turn(&mut self, thread: ThreadId, turn: &TurnMemory) {
        for id in ids_of(turn) {
            let places = self.ids.entry(id.clone()).or_default();
            if !places.contains(&(thread, turn.number)) && places.len() < MOST_NAMESAKES {
                places.push((thread, turn.number));
            }
        }
    }

    pub(super) fn unindex_turn(&mut self, thread: ThreadId, turn: &TurnMemory) {
        for id in ids_of(turn) {
            if let Some(places) = self.ids.get_mut(id) {
                places.retain(|place| *place != (thread, turn.number));
                if places.is_empty() {
                    self.ids.remove(id);
                }
            }
        }
    }

    pub(super) fn index_strand(&mut self, memory: &ThreadMemory, number: Strand) {
        let Some(strand) = memory.strand(number) else {
            return;
        };
        for opening in &strand.openings {
            add_namesake(&mut self.openings, *opening, memory.id);
        }
        if let Some(tail) = tail(memory, strand) {
            let lines = self.tails.entry(tail).or_default();
            if lines.len() < MOST_NAMESAKES {
                lines.insert((memory.id, number));
            }
        }
        self.agents
            .entry(strand.agent.clone())
            .or_default()
            .insert(memory.id);
    }

    pub(super) fn unindex_strand(&mut self, memory: &ThreadMemory, number: Strand) {
        let Some(strand) = memory.strand(number) else {
            return;
        };
        if let Some(tail) = tail(memory, strand)
            && let Some(lines) = self.tails.get_mut(&tail)
        {
            lines.remove(&(memory.id, number));
            if lines.is_empty() {
                self.tails.remove(&tail);
            }
        }
    }
}

/// Ids of a turn that identify by themselves.
fn ids_of(turn: &TurnMemory) -> impl Iterator<Item = &ProviderId> {
    let calls = turn.calls.iter().filter_map(|c| c.id.as_ref());
    turn.ids
        .iter()
        .chain(&turn.input_ids)
        .chain(calls)
        .filter(|id| id.is_unique())
}

/// By what a line's last answer is recognised where nothing has ids: one of its calls, or its words.
fn tail(memory: &ThreadMemory, strand: &StrandMemory) -> Option<Mark> {
    let turn = memory.turn(strand.tip?)?;
    turn.calls.last().map(|call| call.arguments).or(turn.said)
}

fn add_namesake(index: &mut HashMap<Mark, Vec<ThreadId>>, mark: Mark, thread: ThreadId) {
    let threads = index.entry(mark).or_default();
    if !threads.contains(&thread) {
        threads.push(thread);
        let over = threads.len().saturating_sub(MOST_NAMESAKES);
        threads.drain(..over);
    }
}

fn remove_namesake(index: &mut HashMap<Mark, Vec<ThreadId>>, mark: Mark, thread: ThreadId) {
    if let Some(threads) = index.get_mut(&mark) {
        threads.retain(|t| *t != thread);
        if threads.is_empty() {
            index.remove(&mark);
        }
    }
}
