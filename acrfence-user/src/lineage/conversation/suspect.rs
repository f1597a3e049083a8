//! Requests that nothing but their words may tie to a thread.

use super::finding::Evidence;
use super::line::Candidate;
use super::memory::{StrandMemory, ThreadMemory};
use super::observe::Observed;
use super::place::{Ground, PARTS, aside};
use crate::words::Grade;

impl<'a> Ground<'a> {
    /// A request that nothing but its words may tie to a thread.
    pub(super) fn by_words(&self) -> Observed {
        let summary_of = self
            .carries_summary_of()
            .and_then(|t| self.all.threads.get(&t));
        if let Some(thread) = summary_of
            && thread.strands.iter().any(|s| s.agent == *self.seen.agent)
        {
            return self.summary_of(thread);
        }
        let agents_threads = self.all.agents.get(self.seen.agent);
        let own = || {
            agents_threads
                .into_iter()
                .flatten()
                .filter_map(|t| self.all.threads.get(t))
        };
        let is_here = |s: &StrandMemory| s.process == self.seen.process;
        if !self.turned.may_call
            && let Some(thread) = own().find(|t| t.strands.iter().any(|s| is_here(s) && s.may_call))
        {
            return aside(
                Some(thread.id),
                "it offers no tools, while the process's conversation does",
            );
        }
        let by_opening = self.shows.opening.and_then(|o| self.all.openings.get(&o));
        let mut candidates: Vec<Candidate<'a>> = by_opening
            .into_iter()
            .flatten()
            .filter_map(|id| self.all.threads.get(id))
            .flat_map(|thread| thread.strands.iter().map(move |s| (thread, s)))
            .filter(|(_, s)| s.agent == *self.seen.agent && self.same_tools(s))
            .map(|(thread, strand)| self.candidate(thread, strand, false))
            .filter(|c| c.view.same_opening)
            .collect();
        let by_tail = self.shows.tail().and_then(|tail| self.all.tails.get(&tail));
        // A window that slides shows the end of a conversation without its beginning.
        candidates.extend(
            by_tail
                .into_iter()
                .flatten()
                .filter_map(|(id, strand)| {
                    let thread = self.all.threads.get(id)?;
                    Some((thread, thread.strand(*strand)?))
                })
                .filter(|(_, s)| s.agent == *self.seen.agent && self.same_tools(s))
                .filter(|(_, s)| self.shows.opening != s.openings.first().copied())
                .map(|(thread, strand)| self.candidate(thread, strand, true))
                .filter(|c| c.view.shows_tip()),
        );
        let continued = self
            .continued(&candidates)
            .max_by_key(|c| (c.view.last, is_here(c.strand), c.strand.asked));
        if let Some(candidate) = continued {
            let evidence = self.evidence_of_words(candidate);
            return self.continuation(candidate, &evidence);
        }
        if !self.shows.has_answers() {
            let task = own()
                .filter(|t| t.strands.iter().any(is_here))
                .find_map(|t| Some((t, self.open_call(t)?)));
            if let Some((thread, task)) = task {
                return self.sub_agent(thread, &[], Some(task));
            }
        }
        self.suspect(&candidates)
            .unwrap_or_else(|| self.opens_thread(None))
    }

    fn evidence_of_words(&self, candidate: &Candidate<'_>) -> Vec<Evidence> {
        let mut evidence = Vec::new();
        if candidate.view.calls_by_words > 0 {
            evidence.push(Evidence::SameTurns);
        }
        if candidate.view.same_opening {
            evidence.push(Evidence::SameOpening);
        }
        let hints = &self.turned.session.hints;
        if hints.iter().any(|h| candidate.thread.hints.contains(h)) {
            evidence.push(Evidence::Hint);
        }
        evidence
    }

    /// Whether only words suggest that the request goes back to before effects of the last minutes.
    fn suspect(&self, candidates: &[Candidate<'a>]) -> Option<Observed> {
        let fits = |c: &&Candidate<'a>| c.view.same_opening && c.view.unknown_calls == 0;
        let newest = candidates
            .iter()
            .filter(fits)
            .max_by_key(|c| (c.depth(), c.strand.asked, c.thread.id))?;
        // Several threads may begin the same way; what they did is not one timeline's.
        let base: Vec<&Candidate<'a>> = candidates
            .iter()
            .filter(fits)
            .filter(|c| c.parts_with(newest))
            .collect();
        let judged = self.not_remembered(&base);
        let since = self
            .seen
            .now
            .0
            .saturating_sub(u64::try_from(self.window.as_nanos()).unwrap_or(u64::MAX));
        // It must still say what the agent's side had asked for before those effects: a conversation
        // that merely begins in the same way was never told to do that.
        let is_fresh = judged
            .forgotten
            .iter()
            .any(|f| f.time.0 >= since && f.prompt.is_none_or(|p| self.shows.prompts.contains(&p)));
        // An answer of this very conversation is written anew: it goes on there.
        let was_here = newest.view.calls_by_words > 0 && judged.forgotten.is_empty();
        let evidence = self.evidence_of_words(newest);
        let how = PARTS;
        (is_fresh || was_here).then(|| self.conclude(newest, &base, &evidence, Grade::Suspect, how))
    }

    /// A request that carries a thread's summary and nothing else that is known.
    fn summary_of(&self, thread: &'a ThreadMemory) -> Observed {
        let candidates: Vec<Candidate<'a>> = thread
            .strands
            .iter()
            .map(|strand| self.candidate(thread, strand, false))
            .collect();
        if let Some(candidate) = self.continued(&candidates).max_by_key(|c| c.strand.asked) {
            return self.continuation(candidate, &[Evidence::SameTurns]);
        }
        self.unknown_opening(thread, &candidates, &[Evidence::SameTurns])
    }
}
