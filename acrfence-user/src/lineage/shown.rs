//! From what a model request shows to the branch that remembers no more than that.

use super::Lineage;
use super::conversation::{Absence, Finding, Observed, Shown};
use crate::effect::Event;
use crate::words::{Absent, BranchId, EffectId, Forgotten, ForkPoint, Grade, Seq, Timestamp};

impl Lineage {
    /// The record that opens the branch of what a request does not remember.
    ///
    /// `asked_before` is the position of the last request of the line that is left. None when `parent`
    /// is not known.
    pub fn rewound_by(
        &self,
        parent: BranchId,
        observed: &Observed,
        asked_before: Seq,
        at: Timestamp,
    ) -> Option<Event> {
        let left = self.branch(parent)?;
        // Somebody said, or saw, that the agent was restored since this line spoke last: what words alone
        // only suggest is then certain.
        let told = self
            .restored_from_outside(left.thread)
            .is_some_and(|b| b.grade == Grade::Certain && b.id.0 > asked_before);
        let before = |effect: EffectId| {
            let known = left.absent.iter().flatten();
            known.copied().find(|a| a.effect == effect)
        };
        let rewind = observed.rewind();
        let absent = observed
            .absent
            .iter()
            .map(|&(effect, absence)| {
                let news = news_of(observed, effect);
                match (before(effect), news) {
                    (Some(known), None) => known,
                    (_, news) => {
                        let forgotten = match absence {
                            Absence::Forgotten | Absence::Elsewhere => Forgotten::Call,
                            Absence::Lost => Forgotten::Outcome,
                            Absence::Compacted => Forgotten::Compacted,
                        };
                        let grade = news.unwrap_or(Grade::Suspect);
                        let grade = match absence {
                            Absence::Elsewhere => Grade::Suspect,
                            Absence::Forgotten if told => Grade::Certain,
                            _ => grade,
                        };
                        Absent {
                            effect,
                            forgotten,
                            grade,
                        }
                    }
                }
            })
            .collect();
        let fork_point = rewind.map_or(ForkPoint::Unknown, |r| r.fork_point);
        let note = note_of(observed);
        Some(Self::rewound(left, fork_point, absent, &note, at))
    }
}

/// How sure what a request says of an effect is; none where it says nothing new.
fn news_of(observed: &Observed, effect: EffectId) -> Option<Grade> {
    observed
        .findings
        .iter()
        .filter_map(|finding| match finding {
            Finding::Rewind(rewind) if rewind.forgotten.contains(&effect) => Some(rewind.grade),
            Finding::LostOutcome { lost, .. } => {
                let lost = lost.iter().find(|l| l.effects.contains(&effect))?;
                // A tool's words may be anything; that a call was broken off, or has no result, is
                // plain.
                Some(match lost.shown {
                    Shown::Different | Shown::True => Grade::Suspect,
                    Shown::Missing | Shown::Aborted => Grade::Certain,
                })
            }
            Finding::Compacted { effects, .. } if effects.contains(&effect) => Some(Grade::Certain),
            _ => None,
        })
        .max()
}

fn note_of(observed: &Observed) -> String {
    let mut notes: Vec<String> = Vec::new();
    for finding in &observed.findings {
        match finding {
            Finding::Rewind(rewind) => notes.push(rewind.note.clone()),
            Finding::LostOutcome { lost, .. } => notes.extend(lost.iter().map(|lost| {
                let shown = match lost.shown {
                    Shown::Missing => "no result",
                    Shown::Aborted => "that it was broken off",
                    Shown::Different | Shown::True => "another result than the recorded one",
                };
                format!("a model request shows {shown} for `{}`", lost.tool)
            })),
            Finding::Compacted { effects, .. } => notes.push(format!(
                "a shortened history no longer shows {} effects",
                effects.len()
            )),
            _ => {}
        }
    }
    notes.join("; ")
}
