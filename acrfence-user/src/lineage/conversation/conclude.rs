//! What a request means for the line that it goes on with or leaves.

use std::collections::{BTreeMap, BTreeSet};

use super::draft::{Continuation, draft_line};
use super::finding::{Confidence, Evidence, Finding};
use super::judge::{Judgement, judge};
use super::line::Candidate;
use super::memory::{Absence, TurnNo};
use super::observe::{Draft, Needs, Observed};
use super::place::Ground;
use super::rewind::{self, Left, describe};
use crate::words::{EffectId, Grade};

impl<'a> Ground<'a> {
    /// The request goes on with a line.
    pub(super) fn continuation(
        &self,
        candidate: &Candidate<'a>,
        evidence: &[Evidence],
    ) -> Observed {
        let how = Continuation::Same;
        self.conclude(candidate, &[candidate], evidence, grade(evidence), how)
    }

    /// Writes down what was found and how the line goes on. `base` are the lines that part at the
    /// same turn, `primary` the one of them that is left or goes on.
    pub(super) fn conclude(
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
            // What only happened at the same time (a trace that is sent, a metric) may have nothing to
            // do with the turn that is gone.
            let is_sure = news
                .forgotten
                .iter()
                .any(|f| f.confidence > Confidence::Time);
            let grade = if is_sure { grade } else { Grade::Suspect };
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
                let rewind = rewind::elsewhere(primary, &judged, effects);
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

    /// What several lines that part at the same turn tell together.
    pub(super) fn not_remembered(&self, base: &[&Candidate<'a>]) -> Judgement {
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
}

pub(super) fn grade(evidence: &[Evidence]) -> Grade {
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
