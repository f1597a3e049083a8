//! What a line remembers and what it does not, from what a request shows of it.

use super::finding::{Confidence, Lost, Shown};
use super::history::Brought;
use super::memory::{Absence, CallMemory, ResultMemory, StrandMemory, ThreadMemory, Tie, TurnNo};
use super::observe::{Known, Outcomes};
use super::outcome::{says_aborted, shows_outcome};
use super::view::{Shows, Sight, View};
use crate::words::{EffectId, Seq, Timestamp};

/// What a line remembers and what it does not.
#[derive(Clone, Debug, Default)]
pub(super) struct Judgement {
    /// Effects that are remembered with their outcome.
    pub(super) remembered: Vec<EffectId>,
    /// Effects that came after the last turn that is shown.
    pub(super) forgotten: Vec<Forgotten>,
    /// Effects before it that are not shown.
    pub(super) compacted: Vec<(TurnNo, EffectId)>,
    /// Calls that are shown without their outcome.
    pub(super) lost: Vec<Lost>,
    /// News about results.
    pub(super) results: Vec<(TurnNo, u16, ResultMemory)>,
    /// Turns whose results were all shown.
    pub(super) shown: Vec<TurnNo>,
}

/// An effect that came after the last turn that is shown.
#[derive(Clone, Debug)]
pub(super) struct Forgotten {
    pub(super) turn: TurnNo,
    pub(super) effect: EffectId,
    /// How sure it is that it belongs to that turn.
    pub(super) confidence: Confidence,
    /// Where and when it entered the timeline.
    pub(super) at: Seq,
    pub(super) time: Timestamp,
    /// What the agent's side had last said before its turn.
    pub(super) prompt: Option<super::mark::Mark>,
}

/// Judges a line by what a request shows of it.
pub(super) fn judge(
    thread: &ThreadMemory,
    strand: &StrandMemory,
    view: &View,
    shows: &Shows<'_>,
    outcomes: &dyn Outcomes,
) -> Judgement {
    let mut found = Judgement::default();
    let first = view.turns.iter().position(|turn| turn.shown);
    for (at, (position, sight)) in view.path.iter().zip(&view.turns).enumerate() {
        let turn = &thread.turns[*position];
        let is_after = view.last.is_none_or(|last| at > last);
        let is_last = view.last == Some(at);
        // A sub-agent that took over its parent's history shows placeholders where its parent waits.
        let is_parents = strand.born_of.is_some() && turn.strand != strand.number;
        let mut all_shown = !turn.calls.is_empty();
        for (number, (call, seen)) in turn.calls.iter().zip(&sight.calls).enumerate() {
            let ties = || {
                let below = thread.ties_below_call(turn.number, number);
                call.ties.iter().chain(below)
            };
            match *seen {
                Sight::Not if is_after || is_last => {
                    all_shown = false;
                    let gone = ties().map(|tie| Forgotten::of(tie, turn.number, turn.prompt));
                    found.forgotten.extend(gone);
                }
                Sight::Not => {
                    all_shown = false;
                    let gone = ties().map(|tie| (turn.number, tie.effect));
                    found.compacted.extend(gone);
                }
                seen => {
                    let result = match seen {
                        Sight::At(piece) => shows.result(piece),
                        _ => call.id.as_ref().and_then(|id| shows.result_for(id)),
                    };
                    if is_parents || seen == Sight::Held && result.is_none() {
                        found.remembered.extend(ties().map(|tie| tie.effect));
                        continue;
                    }
                    all_shown &= result.is_some();
                    let judged = CallJudge {
                        thread,
                        turn: turn.number,
                        number,
                        call,
                        result,
                        is_last,
                    };
                    judged.judge(outcomes, &mut found);
                }
            }
        }
        let behind_summary = first.is_some_and(|first| at < first) && !sight.shown;
        for tie in &turn.loose {
            if is_after {
                found
                    .forgotten
                    .push(Forgotten::of(tie, turn.number, turn.prompt));
            } else if behind_summary {
                found.compacted.push((turn.number, tie.effect));
            } else {
                found.remembered.push(tie.effect);
            }
        }
        if all_shown && !is_parents && turn.shown_at.is_none() {
            found.shown.push(turn.number);
        }
    }
    found.settle();
    found
}

impl Judgement {
    /// An effect that any shown call remembers is remembered, wherever else it hangs: a replay puts
    /// an effect into a timeline a second time.
    fn settle(&mut self) {
        self.remembered.sort_unstable();
        self.remembered.dedup();
        let remembered = |effect: &EffectId| self.remembered.binary_search(effect).is_ok();
        self.forgotten.retain(|f| !remembered(&f.effect));
        self.compacted.retain(|(_, effect)| !remembered(effect));
        for lost in &mut self.lost {
            lost.effects.retain(|effect| !remembered(effect));
        }
        self.lost.retain(|lost| !lost.effects.is_empty());
        let lost: Vec<EffectId> = self.lost.iter().flat_map(|l| l.effects.clone()).collect();
        self.forgotten.retain(|f| !lost.contains(&f.effect));
        let forgotten: Vec<EffectId> = self.forgotten.iter().map(|f| f.effect).collect();
        self.compacted
            .retain(|(_, e)| !lost.contains(e) && !forgotten.contains(e));
    }

    /// Takes in what another line of the same thread tells.
    pub(super) fn absorb(&mut self, other: Self) {
        self.remembered.extend(other.remembered);
        self.forgotten.extend(other.forgotten);
        self.compacted.extend(other.compacted);
        self.lost.extend(other.lost);
        self.results.extend(other.results);
        self.shown.extend(other.shown);
        self.forgotten.sort_by_key(|f| (f.effect, f.turn));
        self.forgotten.dedup_by_key(|f| f.effect);
        self.compacted
            .sort_unstable_by_key(|(turn, effect)| (*effect, *turn));
        self.compacted.dedup();
        let mut seen = std::collections::BTreeSet::new();
        self.lost
            .retain(|l| seen.insert((l.turn, l.call.clone(), l.effects.clone())));
        let mut seen = std::collections::BTreeSet::new();
        self.results
            .retain(|(turn, call, _)| seen.insert((*turn, *call)));
        self.shown.sort_unstable();
        self.shown.dedup();
        self.settle();
    }

    /// What came after the last turn that is shown lies behind a summary.
    pub(super) fn forgotten_is_compacted(&mut self) {
        let gone = std::mem::take(&mut self.forgotten);
        self.compacted
            .extend(gone.into_iter().map(|f| (f.turn, f.effect)));
    }

    /// Everything that is not remembered, with the reason.
    pub(super) fn absences(&self) -> Vec<(EffectId, Absence)> {
        let forgotten = self
            .forgotten
            .iter()
            .map(|f| (f.effect, Absence::Forgotten));
        let compacted = self.compacted.iter().map(|(_, e)| (*e, Absence::Compacted));
        let lost = self
            .lost
            .iter()
            .flat_map(|l| l.effects.iter().map(|e| (*e, Absence::Lost)));
        forgotten.chain(compacted).chain(lost).collect()
    }

    /// The same, without what the line is known not to remember.
    pub(super) fn beside(mut self, strand: &StrandMemory) -> Self {
        let known = |effect: &EffectId, why: Absence| {
            strand
                .absent
                .binary_search_by_key(effect, |(e, _)| *e)
                .is_ok_and(|at| strand.absent[at].1 >= why)
        };
        self.forgotten
            .retain(|f| !known(&f.effect, Absence::Forgotten));
        self.compacted
            .retain(|(_, effect)| !known(effect, Absence::Compacted));
        for lost in &mut self.lost {
            lost.effects.retain(|effect| !known(effect, Absence::Lost));
        }
        self.lost.retain(|lost| !lost.effects.is_empty());
        self
    }
}

impl Forgotten {
    fn of(tie: &Tie, turn: TurnNo, prompt: Option<super::mark::Mark>) -> Self {
        Self {
            turn,
            effect: tie.effect,
            confidence: tie.confidence,
            at: tie.at,
            time: tie.time,
            prompt,
        }
    }
}

/// One call that is shown.
struct CallJudge<'a> {
    thread: &'a ThreadMemory,
    turn: TurnNo,
    number: usize,
    call: &'a CallMemory,
    result: Option<&'a Brought>,
    is_last: bool,
}

impl CallJudge<'_> {
    fn judge(&self, outcomes: &dyn Outcomes, found: &mut Judgement) {
        let below = self.thread.ties_below_call(self.turn, self.number);
        let below = below.into_iter().map(|tie| tie.effect);
        let own = self.call.ties.iter().map(|tie| tie.effect);
        let was_true = match (self.call.result, self.result) {
            (ResultMemory::True(mark), Some(result)) if result.mark == mark => {
                found.remembered.extend(own.chain(below));
                return;
            }
            (ResultMemory::True(_), _) => true,
            _ => false,
        };
        let mut lost = Vec::new();
        let mut worst = Shown::True;
        let mut undecided = false;
        for tie in &self.call.ties {
            match self.shown(tie, outcomes) {
                None => {
                    undecided = true;
                    found.remembered.push(tie.effect);
                }
                Some(Shown::True) => found.remembered.push(tie.effect),
                Some(shown) => {
                    worst = shown;
                    lost.push(tie.effect);
                }
            }
        }
        // What a sub-agent did is told by its parent's result, in whatever words.
        let told = match self.result {
            None => Some(Shown::Missing),
            Some(result) if says_aborted(&result.text) => Some(Shown::Aborted),
            Some(_) => None,
        };
        match told {
            Some(shown) if below.len() > 0 => {
                worst = shown;
                lost.extend(below);
            }
            _ => found.remembered.extend(below),
        }
        let number = u16::try_from(self.number).unwrap_or(u16::MAX);
        if lost.is_empty() {
            let news = match self.result {
                Some(_) if undecided => ResultMemory::Undecided,
                Some(result) => ResultMemory::True(result.mark),
                None => self.call.result,
            };
            if news != self.call.result {
                found.results.push((self.turn, number, news));
            }
        } else if was_true && !self.is_last {
            // It was shown before, and later turns stand on it: it was cleared to save room.
            found
                .compacted
                .extend(lost.into_iter().map(|effect| (self.turn, effect)));
        } else {
            if self.call.result != ResultMemory::Lost {
                found.results.push((self.turn, number, ResultMemory::Lost));
            }
            found.lost.push(Lost {
                turn: self.turn,
                call: self.call.id.as_ref().map(|id| id.as_str().to_owned()),
                tool: self.call.name.to_string(),
                shown: worst,
                effects: lost,
            });
        }
    }

    /// What is shown of one effect's outcome; none when it cannot be said yet.
    fn shown(&self, tie: &Tie, outcomes: &dyn Outcomes) -> Option<Shown> {
        let known = outcomes.known(tie.effect);
        let Some(result) = self.result else {
            return match known {
                Known::Running => None,
                Known::Nothing => Some(Shown::True),
                Known::Response(_) | Known::InDoubt => Some(Shown::Missing),
            };
        };
        match known {
            Known::Running => None,
            Known::Nothing => Some(Shown::True),
            Known::InDoubt if says_aborted(&result.text) || result.text.trim().is_empty() => {
                Some(Shown::Aborted)
            }
            Known::InDoubt => Some(Shown::True),
            Known::Response(recorded) => {
                let shown = shows_outcome(&recorded, &result.text);
                // What a tool made of a response that it got while it ran can be anything: only a
                // notice or an error says that the agent does not know. The same where it is not
                // certain that the effect is this call.
                let is_call = tie.is_call && tie.confidence >= Confidence::Name;
                match shown {
                    Shown::Different if !is_call && !result.is_error => Some(Shown::True),
                    Shown::Missing if !is_call => Some(Shown::True),
                    shown => Some(shown),
                }
            }
        }
    }
}
