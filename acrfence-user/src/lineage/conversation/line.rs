//! Which line a request goes on with.

use std::collections::BTreeMap;

use super::memory::{StrandMemory, ThreadMemory};
use super::place::Ground;
use super::view::View;
use crate::words::ThreadId;

/// So many long lines of a summary must be found to take a text for it.
const LINES_OF_A_SUMMARY: usize = 2;

/// A line that a request may belong to.
pub(super) struct Candidate<'a> {
    pub(super) thread: &'a ThreadMemory,
    pub(super) strand: &'a StrandMemory,
    pub(super) view: View,
}

impl Candidate<'_> {
    /// How much of the line is shown: calls say more than words.
    pub(super) fn depth(&self) -> (Option<usize>, Option<usize>) {
        (self.view.last_call(), self.view.last)
    }

    /// Whether a request parts from this line where it parts from `other`: after the same call and
    /// the same words, or words that are all that is left of a turn whose calls were dropped.
    pub(super) fn parts_with(&self, other: &Self) -> bool {
        let turn = |c: &Self, at: Option<usize>| at.map(|at| c.view.path[at]);
        let is_remains = |c: &Self| {
            turn(c, c.view.last).is_some_and(|at| !c.thread.turns[at].calls.is_empty())
                && c.view.last > c.view.last_call()
        };
        self.thread.id == other.thread.id
            && turn(self, self.view.last_call()) == turn(other, other.view.last_call())
            && (turn(self, self.view.last) == turn(other, other.view.last)
                || is_remains(self)
                || is_remains(other))
    }
}

impl<'a> Ground<'a> {
    pub(super) fn candidate(
        &self,
        thread: &'a ThreadMemory,
        strand: &'a StrandMemory,
        by_tail: bool,
    ) -> Candidate<'a> {
        Candidate {
            thread,
            strand,
            view: self.shows.view(thread, strand, by_tail),
        }
    }

    /// The lines that a request may go on with: none that another line of the same thread knows more
    /// of the request's calls than.
    pub(super) fn continued<'c>(
        &'c self,
        candidates: &'c [Candidate<'a>],
    ) -> impl Iterator<Item = &'c Candidate<'a>> {
        let knows_more = |c: &Candidate<'a>| {
            candidates.iter().any(|other| {
                other.thread.id == c.thread.id && other.view.calls_shown() > c.view.calls_shown()
            })
        };
        candidates
            .iter()
            .filter(move |c| self.continues(c) && !knows_more(c))
    }

    /// Whether a request goes on with this very line, and not only with what it shares with others.
    fn continues(&self, candidate: &Candidate<'_>) -> bool {
        let Candidate {
            thread,
            strand,
            view,
        } = candidate;
        let Some(tip) = strand.tip else {
            // Its first request was not answered, or not to the end.
            return view.same_opening
                && !self.shows.has_answers()
                && (!strand.answered || strand.input == Some(self.shows.input))
                || view.is_tied() && strand.input == Some(self.shows.input);
        };
        if view.shows_tip() && view.shows_calls_of_tip() {
            let is_own = thread.turn(tip).is_some_and(|t| t.strand == strand.number);
            return is_own || strand.input == Some(self.shows.input);
        }
        self.is_retry(candidate)
    }

    /// Whether it is the line's last request again, whose answer did not come to its end.
    fn is_retry(&self, candidate: &Candidate<'_>) -> bool {
        let Candidate {
            thread,
            strand,
            view,
        } = candidate;
        let broken = strand
            .tip
            .filter(|tip| strand.pending == Some(*tip) && !strand.answered);
        let Some(broken) = broken.and_then(|tip| thread.turn(tip)) else {
            return false;
        };
        let before = broken.parent.and_then(|p| thread.position(p));
        let shown = view.last.map(|last| view.path[last]);
        broken.input == self.shows.input
            && shown == before
            && (shown.is_some() || view.same_opening || view.is_tied())
    }

    pub(super) fn same_tools(&self, strand: &StrandMemory) -> bool {
        let ours = &self.turned.tools;
        ours.is_empty() && strand.tools.is_empty() || ours.iter().any(|t| strand.tools.contains(t))
    }

    /// Whether the request says that its history was shortened since the line's last.
    pub(super) fn is_shortened(&self, strand: &StrandMemory) -> bool {
        let new_summary = self.turned.summary.is_some() && self.turned.summary != strand.summary;
        self.shows.has_newer_window(strand) || new_summary || self.carries_summary_of().is_some()
    }

    /// The thread whose summary the request begins with, found by its long lines.
    pub(super) fn carries_summary_of(&self) -> Option<ThreadId> {
        let mut lines: BTreeMap<ThreadId, usize> = BTreeMap::new();
        for said in self.turned.prompts().take(2) {
            for line in &said.lines {
                if let Some(thread) = self.all.lines.get(line) {
                    *lines.entry(*thread).or_default() += 1;
                }
            }
        }
        let (thread, count) = lines.into_iter().max_by_key(|(_, count)| *count)?;
        (count >= LINES_OF_A_SUMMARY).then_some(thread)
    }
}
