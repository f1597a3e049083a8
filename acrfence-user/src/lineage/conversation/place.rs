//! Finds the line that a request belongs to, and says what it means for it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::draft::{Continuation, draft_line, draft_thread};
use super::finding::{Evidence, Finding};
use super::history::{Turned, What};
use super::judge::{Judgement, judge};
use super::mark::Marker;
use super::memory::{Absence, StrandMemory, ThreadMemory, TurnNo};
use super::observe::{Draft, Needs, Observed, Outcomes, Seen};
use super::rewind::{Left, describe};
use super::state::{Conversations, is_open};
use super::view::{Shows, View};
use crate::words::{EffectId, Grade, ThreadId};

/// A new line that parts from the one it is judged by.
const PARTS: Continuation = Continuation::Parts { rewinds: true };

/// An id that stands in more threads than this tells none of them.
const MOST_THREADS_OF_AN_ID: usize = 4;

/// So many long lines of a summary must be found to take a text for it.
const LINES_OF_A_SUMMARY: usize = 2;

/// Everything a request is judged with.
pub(super) struct Ground<'a> {
    pub(super) all: &'a Conversations,
    pub(super) marker: &'a Marker,
    pub(super) turned: &'a Turned,
    pub(super) seen: &'a Seen<'a>,
    pub(super) shows: Shows<'a>,
    window: Duration,
    outcomes: &'a dyn Outcomes,
}

/// A line that a request may belong to.
pub(super) struct Candidate<'a> {
    pub(super) thread: &'a ThreadMemory,
    pub(super) strand: &'a StrandMemory,
    pub(super) view: View,
}

impl Candidate<'_> {
    /// How much of the line is shown: calls say more than words.
    fn depth(&self) -> (Option<usize>, Option<usize>) {
        (self.view.last_call(), self.view.last)
    }

    /// Whether a request parts from this line where it parts from `other`: after the same call and
    /// the same words, or words that are all that is left of a turn whose calls were dropped.
    fn parts_with(&self, other: &Self) -> bool {
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
        let with_session = |marks: &[super::mark::Mark]| -> Vec<ThreadId> {
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
        let depth = candidates.iter().filter(reaches).map(|c| c.view.last).max();
        let base: Vec<&Candidate<'a>> = candidates
            .iter()
            .filter(reaches)
            .filter(|c| Some(c.view.last) == depth)
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

    fn candidate(
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
    fn continued<'c>(
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

    fn same_tools(&self, strand: &StrandMemory) -> bool {
        let ours = &self.turned.tools;
        ours.is_empty() && strand.tools.is_empty() || ours.iter().any(|t| strand.tools.contains(t))
    }

    /// The request goes on with a line.
    fn continuation(&self, candidate: &Candidate<'a>, evidence: &[Evidence]) -> Observed {
        let how = Continuation::Same;
        self.conclude(candidate, &[candidate], evidence, grade(evidence), how)
    }

    /// What several lines that part at the same turn tell together.
    fn not_remembered(&self, base: &[&Candidate<'a>]) -> Judgement {
        let mut all = Judgement::default();
        for c in base {
            all.absorb(judge(
                c.thread,
                c.strand,
                &c.view,
                &self.shows,
                self.outcomes,
            ));
        }
        all
    }

    /// Whether the request says that its history was shortened since the line's last.
    fn is_shortened(&self, strand: &StrandMemory) -> bool {
        let new_summary = self.turned.summary.is_some() && self.turned.summary != strand.summary;
        self.shows.has_newer_window(strand) || new_summary || self.carries_summary_of().is_some()
    }

    /// The thread whose summary the request carries, found by its long lines.
    fn carries_summary_of(&self) -> Option<ThreadId> {
        let mut lines: BTreeMap<ThreadId, usize> = BTreeMap::new();
        for said in self.turned.prompts().take(8) {
            for line in &said.lines {
                if let Some(thread) = self.all.lines.get(line) {
                    *lines.entry(*thread).or_default() += 1;
                }
            }
        }
        let (thread, count) = lines.into_iter().max_by_key(|(_, count)| *count)?;
        (count >= LINES_OF_A_SUMMARY).then_some(thread)
    }

    /// Writes down what was found and how the line goes on. `base` are the lines that part at the
    /// same turn, `primary` the one of them that is left or goes on.
    fn conclude(
        &self,
        primary: &Candidate<'a>,
        base: &[&Candidate<'a>],
        evidence: &[Evidence],
        grade: Grade,
        how: Continuation,
    ) -> Observed {
        let Candidate {
            thread,
            strand,
            view,
        } = primary;
        let mut judged = self.not_remembered(base);
        let shortened = view.last.is_none() && self.is_shortened(strand);
        if shortened {
            judged.forgotten_is_compacted();
        }
        if self.turned.clipped {
            judged.compacted.clear();
        }
        let elsewhere = self.elsewhere(primary, &judged);
        let absent = not_remembered_any_more(&judged, &elsewhere, base);
        let news = judged.clone().beside(strand);
        let mut findings = Vec::new();
        if !news.forgotten.is_empty() {
            let left = Left {
                shows: &self.shows,
                primary,
                judged: &judged,
                absent: &absent,
                grade,
            };
            findings.push(Finding::Rewind(describe(&left, evidence)));
        } else {
            let known = |e: &EffectId| strand.absent.iter().any(|(known, _)| known == e);
            let effects: Vec<EffectId> = elsewhere.into_iter().filter(|e| !known(e)).collect();
            if !effects.is_empty() {
                let rewind = super::rewind::elsewhere(primary, &judged, effects);
                findings.push(Finding::Rewind(rewind));
            }
        }
        if !news.lost.is_empty() {
            findings.push(Finding::LostOutcome {
                thread: thread.id,
                branch: strand.branch,
                lost: news.lost,
            });
        }
        if !news.compacted.is_empty() {
            let turns: BTreeSet<TurnNo> = news.compacted.iter().map(|(t, _)| *t).collect();
            let effects: BTreeSet<EffectId> = news.compacted.iter().map(|(_, e)| *e).collect();
            findings.push(Finding::Compacted {
                thread: thread.id,
                branch: strand.branch,
                turns: turns.into_iter().collect(),
                effects: effects.into_iter().collect(),
            });
        }
        let needs = if findings.is_empty() {
            findings.push(Finding::Continues {
                thread: thread.id,
                branch: strand.branch,
            });
            Needs::Nothing
        } else {
            Needs::Branch {
                thread: thread.id,
                parent: strand.branch,
            }
        };
        let how = if shortened {
            Continuation::Shortened
        } else {
            how
        };
        let asked = draft_line(self, primary, &judged, &absent, how);
        Observed {
            findings,
            needs,
            absent,
            draft: Draft::Asked(Box::new(asked)),
        }
    }

    /// Effects of other lines that this one cannot know of: lines that parted from it by a rewind (or
    /// it from them), and what another process did in this conversation since this line's last
    /// request. Lines of one process beside each other are parallel work of one agent.
    fn elsewhere(&self, primary: &Candidate<'a>, judged: &Judgement) -> Vec<EffectId> {
        let Candidate {
            thread,
            strand,
            view,
        } = primary;
        if strand.born_of.is_some() || strand.is_child {
            return Vec::new();
        }
        let own: BTreeSet<usize> = view.path.iter().copied().collect();
        let mut effects = Vec::new();
        for other in &thread.strands {
            if other.number == strand.number || other.born_of.is_some() || other.is_child {
                continue;
            }
            let parted = other.branch != strand.branch && (other.parted || strand.parted);
            let is_foreign = other.process != self.seen.process;
            for at in thread.path_to(other.tip) {
                if own.contains(&at) || !(parted || is_foreign) {
                    continue;
                }
                let ties = thread.ties_of_turn(&thread.turns[at]);
                let unknown = ties.iter().filter(|tie| parted || tie.at > strand.asked);
                effects.extend(unknown.map(|tie| tie.effect));
            }
        }
        effects.sort_unstable();
        effects.dedup();
        effects.retain(|e| judged.remembered.binary_search(e).is_err());
        effects
    }

    /// A request of a known session that shows nothing of what is known.
    fn unknown_opening(
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

    /// A sub-agent's first request.
    fn sub_agent(
        &self,
        thread: &'a ThreadMemory,
        candidates: &[Candidate<'a>],
        task: Option<(TurnNo, u16)>,
    ) -> Observed {
        self.beside(thread, candidates, Some(task))
    }

    /// A new line of a known thread that leaves nothing behind.
    fn beside(
        &self,
        thread: &'a ThreadMemory,
        candidates: &[Candidate<'a>],
        task: Option<Option<(TurnNo, u16)>>,
    ) -> Observed {
        // It belongs to the branch of the line that started it.
        let parent = task
            .flatten()
            .and_then(|(turn, _)| {
                thread
                    .strands
                    .iter()
                    .filter(|s| {
                        thread
                            .path_to(s.tip)
                            .iter()
                            .any(|p| thread.turns[*p].number == turn)
                    })
                    .max_by_key(|s| (s.asked, s.number))
            })
            .or_else(|| {
                thread
                    .strands
                    .iter()
                    .filter(|s| !s.is_child)
                    .max_by_key(|s| s.asked)
            })
            .or(thread.strands.last());
        let Some(parent) = parent else {
            return self.opens_thread(Some(thread.id));
        };
        let shared = candidates
            .iter()
            .filter(|c| c.view.is_tied())
            .max_by_key(|c| c.view.last);
        let asked = draft_line(
            self,
            &Candidate {
                thread,
                strand: shared.map_or(parent, |c| c.strand),
                view: shared.map_or_else(View::of_nothing, |c| c.view.clone()),
            },
            &Judgement::default(),
            &[],
            Continuation::Beside {
                branch: parent.branch,
                born_of: task.flatten(),
                is_child: task.is_some(),
            },
        );
        Observed {
            findings: vec![Finding::Continues {
                thread: thread.id,
                branch: parent.branch,
            }],
            needs: Needs::Nothing,
            absent: Vec::new(),
            draft: Draft::Asked(Box::new(asked)),
        }
    }

    /// A call of the thread that has not come back, has no sub-agent yet, and has what the request
    /// ends with as an argument. A sub-agent that takes over its parent's history shows the call with
    /// something that stands for a result.
    ///
    /// Words that the agent's side had said itself are no task: many tools are called with them, and
    /// they come again when a conversation goes back.
    fn open_call(&self, thread: &ThreadMemory) -> Option<(TurnNo, u16)> {
        let said_before = |mark| {
            thread.turns.iter().any(|t| t.prompt == Some(mark))
                || thread.strands.iter().any(|s| {
                    s.born_of.is_none() && (s.openings.contains(&mark) || s.prompt == Some(mark))
                })
        };
        let tasks: Vec<_> = self
            .turned
            .input()
            .iter()
            .filter_map(|piece| match &piece.what {
                What::Words(said) => Some(said),
                _ => None,
            })
            .filter(|said| !said_before(said.mark))
            .map(|said| said.value)
            .collect();
        if tasks.is_empty() {
            return None;
        }
        let taken = |place| thread.strands.iter().any(|s| s.born_of == Some(place));
        let tips: BTreeSet<TurnNo> = thread.strands.iter().filter_map(|s| s.tip).collect();
        let waiting = thread
            .turns
            .iter()
            .rev()
            .filter(|t| tips.contains(&t.number));
        waiting
            .flat_map(|turn| {
                (0u16..)
                    .zip(&turn.calls)
                    .map(|(n, call)| ((turn.number, n), call))
            })
            .find(|(place, call)| {
                is_open(call.result)
                    && !taken(*place)
                    && tasks.iter().any(|t| call.values.binary_search(t).is_ok())
            })
            .map(|(place, _)| place)
    }

    /// A conversation that was not seen before.
    fn opens_thread(&self, beside: Option<ThreadId>) -> Observed {
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

    /// A request that nothing but its words may tie to a thread.
    fn by_words(&self) -> Observed {
        if let Some(thread) = self
            .carries_summary_of()
            .and_then(|t| self.all.threads.get(&t))
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
            .filter(|c| !self.is_parallel_opening(c))
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

    /// A first request that was already answered: the same words again are another conversation, or
    /// a rewind, but never the same request.
    fn is_parallel_opening(&self, candidate: &Candidate<'_>) -> bool {
        candidate.strand.tip.is_none() && candidate.strand.answered
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

/// A request that belongs to no line.
fn aside(thread: Option<ThreadId>, why: &str) -> Observed {
    Observed {
        findings: vec![Finding::SideRequest { why: why.into() }],
        needs: Needs::Nothing,
        absent: Vec::new(),
        draft: Draft::Aside(thread),
    }
}

fn grade(evidence: &[Evidence]) -> Grade {
    use Evidence::{ExecutedAgain, Ids, PreviousResponse, Session, SplitOff};
    if evidence.iter().any(|e| {
        matches!(
            e,
            Ids | PreviousResponse | Session | SplitOff | ExecutedAgain
        )
    }) {
        Grade::Certain
    } else {
        Grade::Suspect
    }
}

/// Everything that the request does not remember: by what it shows, and what its line did not
/// remember before.
fn not_remembered_any_more(
    judged: &Judgement,
    elsewhere: &[EffectId],
    base: &[&Candidate<'_>],
) -> Vec<(EffectId, Absence)> {
    let mut absent: BTreeMap<EffectId, Absence> = BTreeMap::new();
    let before = base.iter().flat_map(|c| c.strand.absent.iter().copied());
    let elsewhere = elsewhere.iter().map(|e| (*e, Absence::Elsewhere));
    for (effect, why) in before.chain(judged.absences()).chain(elsewhere) {
        let known = absent.entry(effect).or_insert(why);
        *known = why.max(*known);
    }
    for effect in &judged.remembered {
        absent.remove(effect);
    }
    absent.into_iter().collect()
}
