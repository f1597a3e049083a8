//! What a request shows of one line of a thread.

use std::collections::{HashMap, HashSet};

use super::align::{leading, trailing};
use super::history::{Brought, Called, From, Piece, Turned, What};
use super::ids::ProviderId;
use super::mark::{Mark, Marker};
use super::memory::{CallMemory, StrandMemory, ThreadMemory, TurnMemory};

/// A request's history, made ready for look-ups.
pub(super) struct Shows<'t> {
    pub(super) turned: &'t Turned,
    /// Calls by their ids that identify by themselves.
    by_id: HashMap<&'t ProviderId, usize>,
    /// All other ids, and the last piece that has each.
    other_ids: HashMap<&'t ProviderId, usize>,
    /// For every piece that is a call, the piece that is its result.
    results: Vec<Option<usize>>,
    /// Pieces that are calls; those of one answer in a canonical order.
    calls: Vec<usize>,
    /// Pieces that are words of the model.
    texts: Vec<usize>,
    /// Marks of what the agent's side said.
    pub(super) prompts: HashSet<Mark>,
    /// The last of it.
    pub(super) prompt: Option<Mark>,
    pub(super) opening: Option<Mark>,
    /// Mark of what comes after the model's last answer.
    pub(super) input: Mark,
}

/// What it shows of the turns of one line.
#[derive(Clone, Debug)]
pub(super) struct View {
    /// Positions of the line's turns in the thread's, oldest first.
    pub(super) path: Vec<usize>,
    /// One for each of them.
    pub(super) turns: Vec<TurnView>,
    /// The last of them that is shown.
    pub(super) last: Option<usize>,
    /// Ids that identify by themselves tie it to this line.
    pub(super) by_ids: bool,
    /// It names a response of this line as the one before.
    pub(super) by_previous: bool,
    /// It begins with the words that the line began with.
    pub(super) same_opening: bool,
    /// How many of its calls are the line's by words alone.
    pub(super) calls_by_words: usize,
    /// How many of its calls the line does not know.
    pub(super) unknown_calls: usize,
    /// The first piece after everything that is the line's.
    pub(super) end: usize,
}

/// What it shows of a turn.
#[derive(Clone, Debug, Default)]
pub(super) struct TurnView {
    /// Any part of it is shown.
    pub(super) shown: bool,
    /// For each of its calls, whether it is shown and where.
    pub(super) calls: Vec<Sight>,
}

/// Whether a call is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sight {
    /// No.
    #[default]
    Not,
    /// As this piece.
    At(usize),
    /// The provider holds that part of the history; the agent cannot have lost it.
    Held,
}

impl<'t> Shows<'t> {
    pub(super) fn new(marker: &Marker, turned: &'t Turned) -> Self {
        let mut shows = Self {
            turned,
            by_id: HashMap::new(),
            other_ids: HashMap::new(),
            results: pair_results(&turned.pieces),
            calls: Vec::new(),
            texts: Vec::new(),
            prompts: turned.prompts().map(|said| said.mark).collect(),
            prompt: turned.prompts().next_back().map(|said| said.mark),
            opening: turned.opening(),
            input: marker.whole(turned.input().iter().map(Piece::mark)),
        };
        let mut answer = 0;
        for (at, piece) in turned.pieces.iter().enumerate() {
            let unique = piece.ids.iter().filter(|id| id.is_unique());
            shows.other_ids.extend(unique.map(|id| (id, at)));
            match &piece.what {
                What::Call(call) => {
                    if let Some(id) = call.id.as_ref().filter(|id| id.is_unique()) {
                        shows.by_id.insert(id, at);
                    }
                    shows.calls.push(at);
                }
                What::Words(_) if piece.from == From::Model => shows.texts.push(at),
                _ => {}
            }
            if piece.from == From::Agent {
                shows.order_calls(answer);
                answer = shows.calls.len();
            }
        }
        shows.order_calls(answer);
        shows
    }

    /// Ids that identify by themselves, of every kind.
    pub(super) fn ids(&self) -> impl Iterator<Item = &'t ProviderId> {
        self.by_id.keys().chain(self.other_ids.keys()).copied()
    }

    /// Whether it shows any answer of the model.
    pub(super) fn has_answers(&self) -> bool {
        !self.calls.is_empty() || !self.texts.is_empty()
    }

    /// The model's last call, or else its last words.
    pub(super) fn tail(&self) -> Option<Mark> {
        let last = self
            .turned
            .pieces
            .iter()
            .rposition(|p| p.from == From::Model)?;
        let begin = self.answer_of(last);
        let answer = || self.turned.pieces[begin..=last].iter().rev();
        let call = answer().find_map(|p| match &p.what {
            What::Call(call) => Some(call.arguments),
            _ => None,
        });
        call.or_else(|| {
            answer().find_map(|p| match &p.what {
                What::Words(said) => Some(said.mark),
                _ => None,
            })
        })
    }

    /// What the call at that piece brought, where it is shown.
    pub(super) fn result(&self, call: usize) -> Option<&'t Brought> {
        match &self.turned.pieces[self.results[call]?].what {
            What::Result(brought) => Some(brought),
            _ => None,
        }
    }

    /// What a call brought whose own piece is not in the request.
    pub(super) fn result_for(&self, call: &ProviderId) -> Option<&'t Brought> {
        self.turned
            .pieces
            .iter()
            .find_map(|piece| match &piece.what {
                What::Result(brought) if brought.call.as_ref() == Some(call) => Some(brought),
                _ => None,
            })
    }

    fn call(&self, at: usize) -> Option<&'t Called> {
        match &self.turned.pieces[at].what {
            What::Call(call) => Some(call),
            _ => None,
        }
    }

    /// Whether the client says that it has compacted the history since the line's last request.
    pub(super) fn has_newer_window(&self, strand: &StrandMemory) -> bool {
        let window = self.turned.session.window.zip(strand.window);
        window.is_some_and(|(now, then)| now > then)
    }

    /// The first piece of the answer that a piece of the model's belongs to.
    fn answer_of(&self, at: usize) -> usize {
        let before = &self.turned.pieces[..at];
        before
            .iter()
            .rposition(|p| p.from == From::Agent)
            .map_or(0, |agent| agent + 1)
    }

    fn order_calls(&mut self, from: usize) {
        let pieces = &self.turned.pieces;
        self.calls[from..].sort_by_key(|at| match &pieces[*at].what {
            What::Call(call) => (call.arguments, &*call.name),
            _ => (Mark(0), ""),
        });
    }

    /// What it shows of a line.
    pub(super) fn view(&self, thread: &ThreadMemory, strand: &StrandMemory, by_tail: bool) -> View {
        let path = thread.path_to(strand.tip);
        // What lies behind the summary that the request still carries is as it was.
        let same_summary = self.turned.summary.is_some()
            && self.turned.summary == strand.summary
            && !self.has_newer_window(strand);
        let behind = strand
            .summarised
            .filter(|_| same_summary)
            .and_then(|t| thread.position(t))
            .and_then(|summarised| path.iter().position(|p| *p == summarised));
        let known: Vec<&TurnMemory> = path.iter().map(|at| &thread.turns[*at]).collect();
        let mut view = View {
            turns: known
                .iter()
                .map(|turn| TurnView {
                    shown: false,
                    calls: vec![Sight::Not; turn.calls.len()],
                })
                .collect(),
            path,
            last: None,
            by_ids: false,
            by_previous: false,
            same_opening: self.opening.is_some_and(|o| strand.openings.contains(&o)),
            calls_by_words: 0,
            unknown_calls: 0,
            end: 0,
        };
        self.look_by_previous(&known, &mut view);
        self.look_by_ids(&known, &mut view);
        let mut taken: HashSet<usize> = view
            .turns
            .iter()
            .flat_map(|t| &t.calls)
            .filter_map(|sight| match sight {
                Sight::At(at) => Some(*at),
                _ => None,
            })
            .collect();
        if view.same_opening || by_tail {
            self.look_by_words(&known, &mut view, &mut taken, by_tail, behind);
        }
        if by_tail {
            self.look_at_last_text(&known, &mut view);
        } else if view.same_opening || view.by_ids || view.by_previous {
            self.look_at_texts(&known, &mut view, behind);
        }
        view.last = view.last_shown().max(behind);
        view.unknown_calls = self.calls.len() - taken.len();
        view.end = view.end.max(taken.iter().max().map_or(0, |at| at + 1));
        view
    }

    fn look_by_previous(&self, known: &[&TurnMemory], view: &mut View) {
        let Some(previous) = &self.turned.session.after else {
            return;
        };
        if let Some(last) = known.iter().rposition(|turn| turn.ids.contains(previous)) {
            view.by_previous = true;
            for turn in &mut view.turns[..=last] {
                turn.shown = true;
                turn.calls.fill(Sight::Held);
            }
        }
    }

    fn look_by_ids(&self, known: &[&TurnMemory], view: &mut View) {
        for (turn, sight) in known.iter().zip(&mut view.turns) {
            if let Some(at) = turn
                .ids
                .iter()
                .filter_map(|id| self.other_ids.get(id))
                .max()
            {
                sight.shown = true;
                view.by_ids = true;
                view.end = view.end.max(at + 1);
            }
            if turn
                .input_ids
                .iter()
                .any(|id| self.other_ids.contains_key(id))
            {
                view.by_ids = true;
            }
            for (call, seen) in turn.calls.iter().zip(&mut sight.calls) {
                let at = call.id.as_ref().and_then(|id| self.by_id.get(id));
                if let Some(at) = at
                    && self
                        .call(*at)
                        .is_some_and(|shown| same_name(&shown.name, &call.name))
                {
                    *seen = Sight::At(*at);
                    sight.shown = true;
                    view.by_ids = true;
                }
            }
        }
    }

    fn look_by_words(
        &self,
        known: &[&TurnMemory],
        view: &mut View,
        taken: &mut HashSet<usize>,
        by_tail: bool,
        behind: Option<usize>,
    ) {
        let mut calls: Vec<(usize, usize)> = Vec::new();
        let after = behind.map_or(0, |behind| behind + 1);
        for (turn, memory) in known.iter().enumerate().skip(after) {
            let first = calls.len();
            calls.extend((0..memory.calls.len()).map(|call| (turn, call)));
            calls[first..].sort_by_key(|(_, call)| {
                let call = &memory.calls[*call];
                (call.arguments, &*call.name)
            });
        }
        let same = |item: usize, at: usize| {
            let (turn, call) = calls[item];
            self.call(self.calls[at])
                .is_some_and(|shown| same_call(shown, &known[turn].calls[call]))
        };
        let found: Vec<(usize, usize)> = if by_tail {
            let found = trailing(calls.len(), self.calls.len(), same);
            (0..calls.len()).rev().zip(found).collect()
        } else {
            (0..)
                .zip(leading(calls.len(), self.calls.len(), same, |_| false))
                .collect()
        };
        for (item, at) in found {
            let (turn, call) = calls[item];
            let at = self.calls[at];
            if view.turns[turn].calls[call] == Sight::Not {
                view.turns[turn].calls[call] = Sight::At(at);
                view.calls_by_words += 1;
            }
            view.turns[turn].shown = true;
            taken.insert(at);
        }
    }

    /// Turns without calls after the last that is shown, and the words that a client kept of a turn
    /// whose calls it dropped.
    fn look_at_texts(&self, known: &[&TurnMemory], view: &mut View, behind: Option<usize>) {
        let last = view.last_shown().max(behind);
        let after = last.map_or(0, |last| last + 1);
        let from = view
            .turns
            .iter()
            .flat_map(|t| &t.calls)
            .filter_map(|sight| match sight {
                Sight::At(at) => Some(at + 1),
                _ => None,
            })
            .max()
            .unwrap_or(0)
            // What ids already told.
            .max(view.end);
        let mut turns = Vec::new();
        for (turn, memory) in known.iter().enumerate().skip(after) {
            if let Some(said) = memory.said {
                turns.push((turn, said));
            }
            if !memory.calls.is_empty() {
                break;
            }
        }
        // An answer with other calls is another answer, whatever it says.
        let until = self
            .calls
            .iter()
            .filter(|at| **at >= from)
            .min()
            .map_or(self.turned.pieces.len(), |call| self.answer_of(*call));
        let texts: Vec<(usize, Mark)> = self
            .texts
            .iter()
            .filter(|at| (from..until).contains(*at))
            .filter_map(|at| match &self.turned.pieces[*at].what {
                What::Words(said) => Some((*at, said.mark)),
                _ => None,
            })
            .collect();
        let same = |item: usize, at: usize| turns[item].1 == texts[at].1;
        let found = leading(turns.len(), texts.len(), same, |_| true);
        for ((turn, _), at) in turns.iter().zip(found) {
            view.turns[*turn].shown = true;
            view.end = view.end.max(texts[at].0 + 1);
        }
    }

    fn look_at_last_text(&self, known: &[&TurnMemory], view: &mut View) {
        let (Some(turn), Some(at)) = (known.last(), self.texts.last()) else {
            return;
        };
        if let What::Words(said) = &self.turned.pieces[*at].what
            && turn.said == Some(said.mark)
            && let Some(sight) = view.turns.last_mut()
        {
            sight.shown = true;
            view.end = at + 1;
        }
    }
}

impl View {
    /// Nothing of a line that has nothing.
    pub(super) fn of_nothing() -> Self {
        Self {
            path: Vec::new(),
            turns: Vec::new(),
            last: None,
            by_ids: false,
            by_previous: false,
            same_opening: false,
            calls_by_words: 0,
            unknown_calls: 0,
            end: 0,
        }
    }

    fn last_shown(&self) -> Option<usize> {
        self.turns.iter().rposition(|turn| turn.shown)
    }

    /// Whether the whole line is shown.
    pub(super) fn shows_tip(&self) -> bool {
        self.last.is_some_and(|last| last + 1 == self.path.len())
    }

    /// The last turn of which a call is shown, or that the provider holds.
    pub(super) fn last_call(&self) -> Option<usize> {
        let is_shown = |sight: &Sight| *sight != Sight::Not;
        self.turns
            .iter()
            .rposition(|turn| turn.calls.iter().any(is_shown) || turn.shown && self.by_previous)
    }

    /// How many of its calls are shown.
    pub(super) fn calls_shown(&self) -> usize {
        let calls = self.turns.iter().flat_map(|turn| &turn.calls);
        calls.filter(|sight| **sight != Sight::Not).count()
    }

    /// Whether all that the last turn did is shown.
    pub(super) fn shows_calls_of_tip(&self) -> bool {
        let tip = self.turns.last();
        tip.is_none_or(|turn| turn.calls.iter().all(|sight| *sight != Sight::Not))
    }

    /// Whether ids, not words, tie the request to the line.
    pub(super) fn is_tied(&self) -> bool {
        self.by_ids || self.by_previous
    }
}

fn same_name(a: &str, b: &str) -> bool {
    a == b
}

/// Whether a shown call is the remembered one where at least one of them has no id to tell.
fn same_call(shown: &Called, known: &CallMemory) -> bool {
    let unique = |id: &Option<ProviderId>| id.clone().filter(ProviderId::is_unique);
    match (unique(&shown.id), unique(&known.id)) {
        (Some(a), Some(b)) => a == b,
        _ => shown.arguments == known.arguments && same_name(&shown.name, &known.name),
    }
}

/// The result of each call: by id, else by name, else in order among the calls of the same answer.
fn pair_results(pieces: &[Piece]) -> Vec<Option<usize>> {
    let mut results = vec![None; pieces.len()];
    let mut by_id: HashMap<&ProviderId, usize> = HashMap::new();
    let mut open: Vec<usize> = Vec::new();
    let mut answering = false;
    for (at, piece) in pieces.iter().enumerate() {
        match &piece.what {
            What::Call(call) => {
                if !answering {
                    open.clear();
                }
                answering = true;
                match &call.id {
                    // The same weak id may be used again: the newest call is meant.
                    Some(id) => {
                        by_id.insert(id, at);
                    }
                    None => open.push(at),
                }
            }
            What::Result(result) => {
                answering = false;
                if let Some(call) = result.call.as_ref().and_then(|id| by_id.get(id)) {
                    results[*call] = Some(at);
                    continue;
                }
                let named = open.iter().position(|call| match &pieces[*call].what {
                    What::Call(call) => result.name.as_ref().is_none_or(|n| *n == call.name),
                    _ => false,
                });
                if let Some(position) = named {
                    results[open.remove(position)] = Some(at);
                }
            }
            _ => answering &= piece.from == From::Model,
        }
    }
    results
}
