//! Finds the line that a request belongs to, and says what it means for it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::conclude::grade;
use super::draft::{Continuation, draft_thread};
use super::finding::{Evidence, Finding};
use super::history::Turned;
use super::line::Candidate;
use super::mark::{Mark, Marker};
use super::memory::{StrandMemory, ThreadMemory};
use super::observe::{Draft, Needs, Observed, Outcomes, Seen};
use super::state::Conversations;
use super::view::Shows;
use crate::words::{Grade, ThreadId};

/// Everything a request is judged with.
pub(super) struct Ground<'a> {
    pub(super) all: &'a Conversations,
    pub(super) marker: &'a Marker,
    pub(super) turned: &'a Turned,
    pub(super) seen: &'a Seen<'a>,
    pub(super) shows: Shows<'a>,
    pub(super) window: Duration,
    pub(super) outcomes: &'a dyn Outcomes,
}

/// A new line that parts from the one it is judged by.
pub(super) const PARTS: Continuation = Continuation::Parts { rewinds: true };

/// An id that stands in more threads than this tells none of them.
const MOST_THREADS_OF_AN_ID: usize = 4;

impl<'a> Ground<'a> {
    pub(super) fn new(
        all: &'a Conversations,
        marker: &'a Marker,
        turned: &'a Turned,
        seen: &'a Seen<'a>,
        window: Duration,
        outcomes: &'a dyn Outcomes,
    ) -> Self {
        Self {
            all,
            marker,
            turned,
            seen,
            shows: Shows::new(marker, turned),
            window,
            outcomes,
        }
    }

    pub(super) fn observe(&self) -> Observed {
        let tied = self.tied();
        if self.turned.session.aside {
            return aside(tied.map(|(t, _)| t.id), "the client says what it is for");
        }
        match tied {
            Some((thread, evidence)) => self.in_thread(thread, &evidence),
            None => self.by_words(),
        }
    }

    /// The thread that ids or sessions tie the request to.
    fn tied(&self) -> Option<(&'a ThreadMemory, Vec<Evidence>)> {
        let session = &self.turned.session;
        let mut votes: BTreeMap<ThreadId, usize> = BTreeMap::new();
        for id in self.shows.ids() {
            if let Some(places) = self.all.ids.get(id) {
                let threads: BTreeSet<ThreadId> = places.iter().map(|(t, _)| *t).collect();
                if threads.len() <= MOST_THREADS_OF_AN_ID {
                    for thread in threads {
                        *votes.entry(thread).or_default() += 1;
                    }
                }
            }
        }
        let previous: Vec<ThreadId> = session
            .after
            .iter()
            .filter_map(|id| self.all.ids.get(id))
            .flatten()
            .map(|(thread, _)| *thread)
            .collect();
        let with_session = |marks: &[Mark]| -> Vec<ThreadId> {
            let threads = marks.iter().filter_map(|m| self.all.sessions.get(m));
            threads.flatten().copied().collect()
        };
        let family = with_session(&session.family);
        let origins = with_session(&session.origins);
        let all: BTreeSet<ThreadId> = votes
            .keys()
            .chain(&previous)
            .chain(&family)
            .chain(&origins)
            .copied()
            .collect();
        let best = all
            .into_iter()
            .filter_map(|id| self.all.threads.get(&id))
            .max_by_key(|thread| {
                let id = &thread.id;
                (
                    previous.contains(id),
                    votes.get(id).copied().unwrap_or(0),
                    family.contains(id),
                    origins.contains(id),
                    thread.active,
                )
            })?;
        let mut evidence = Vec::new();
        if previous.contains(&best.id) {
            evidence.push(Evidence::PreviousResponse);
        }
        if votes.contains_key(&best.id) {
            evidence.push(Evidence::Ids);
        }
        if family.contains(&best.id) {
            evidence.push(Evidence::Session);
        }
        if origins.contains(&best.id) {
            evidence.push(Evidence::SplitOff);
        }
        Some((best, evidence))
    }

    /// A request that is tied to a thread.
    fn in_thread(&self, thread: &'a ThreadMemory, evidence: &[Evidence]) -> Observed {
        let session = &self.turned.session;
        let own_line = |s: &StrandMemory| session.line.is_some() && s.line == session.line;
        let has_line = thread.strands.iter().any(own_line);
        if !self.turned.may_call && thread.strands.iter().any(|s| s.may_call) {
            return aside(
                Some(thread.id),
                "it offers no tools, while its conversation does",
            );
        }
        let candidates: Vec<Candidate<'a>> = thread
            .strands
            .iter()
            // A sub-agent's line is another's only when ids say so.
            .filter(|s| own_line(s) || !has_line || !s.is_child)
            .map(|strand| self.candidate(thread, strand, false))
            .collect();
        // A sub-agent that the client names, or whose task is the argument of a call that has not
        // come back.
        let task = self.open_call(thread);
        if session.is_child && !has_line || task.is_some() {
            return self.sub_agent(thread, &candidates, task);
        }
        let continued = self
            .continued(&candidates)
            .max_by_key(|c| (own_line(c.strand), c.view.path.len(), c.strand.asked));
        if let Some(candidate) = continued {
            return self.continuation(candidate, evidence);
        }
        let reaches = |c: &&Candidate<'_>| {
            c.view.last.is_some()
                || c.view.is_tied()
                || c.view.same_opening && self.same_tools(c.strand)
        };
        let deepest = candidates
            .iter()
            .filter(reaches)
            .max_by_key(|c| (c.depth(), c.strand.asked, c.strand.number));
        let base: Vec<&Candidate<'a>> = candidates
            .iter()
            .filter(reaches)
            .filter(|c| deepest.is_some_and(|d| c.parts_with(d)))
            .collect();
        let primary = base.iter().max_by_key(|c| {
            (
                own_line(c.strand),
                c.view.last,
                c.strand.asked,
                c.strand.number,
            )
        });
        match primary {
            Some(primary) => self.conclude(primary, &base, evidence, Grade::Certain, PARTS),
            None => self.unknown_opening(thread, &candidates, evidence),
        }
    }

    /// A request of a known session that shows nothing of what is known.
    pub(super) fn unknown_opening(
        &self,
        thread: &'a ThreadMemory,
        candidates: &[Candidate<'a>],
        evidence: &[Evidence],
    ) -> Observed {
        let session = &self.turned.session;
        let primary = candidates
            .iter()
            .filter(|c| !c.strand.is_child || c.strand.line == session.line)
            .max_by_key(|c| {
                (
                    session.line.is_some() && c.strand.line == session.line,
                    c.strand.asked,
                )
            });
        match primary {
            Some(primary) if self.is_shortened(primary.strand) => {
                let grade = grade(evidence);
                self.conclude(
                    primary,
                    &[primary],
                    evidence,
                    grade,
                    Continuation::Shortened,
                )
            }
            _ => self.beside(thread, candidates, None),
        }
    }

    /// A conversation that was not seen before.
    pub(super) fn opens_thread(&self, beside: Option<ThreadId>) -> Observed {
        let session = &self.turned.session;
        let title = if session.title.is_empty() {
            format!("{:?} conversation", self.turned.format)
        } else {
            format!("{:?} session {}", self.turned.format, session.title)
        };
        let asked = draft_thread(self, &title);
        Observed {
            findings: vec![Finding::OpensThread { title, beside }],
            needs: Needs::Thread,
            absent: Vec::new(),
            draft: Draft::Asked(Box::new(asked)),
        }
    }
}

/// A request that belongs to no line.
pub(super) fn aside(thread: Option<ThreadId>, why: &str) -> Observed {
    Observed {
        findings: vec![Finding::SideRequest { why: why.into() }],
        needs: Needs::Nothing,
        absent: Vec::new(),
        draft: Draft::Aside(thread),
    }
}
