//! Gathers what a verdict looks at, from the log and the lineage.

use super::nesting;
use super::pipeline::{Inner, Place, earlier};
use crate::analyzer::{self, Evidence, Examination, Llm, Provenance, Residue};
use crate::effect::LogError;
use crate::fence::{Candidate, Decision, Earlier, HoldReason, Situation, Spent, decide};
use crate::lineage::{Executed, Forgotten};
use crate::words::{
    Effect, EffectId, Fingerprint, Likeness, Seq, Status, ThreadId, ToolCall, ToolKey,
};

/// A decision with what is needed to tell of it.
pub(super) struct Judged {
    pub(super) decision: Decision,
    pub(super) earlier: Option<Earlier>,
}

/// What a call meets, from the log and the lineage as they stand now.
pub(super) struct Gathered {
    candidates: Vec<Candidate>,
    /// Texts that a reader of prose could settle, by candidate.
    residues: Vec<Vec<Residue>>,
    spent: Vec<Spent>,
}

/// Gathers what a call meets.
pub(super) fn gather(
    inner: &Inner,
    call: &ToolCall,
    place: Place,
    key: &ToolKey,
    presented: &[Fingerprint],
) -> Result<Gathered, LogError> {
    let spent = spent(inner, place, presented)?;
    let mut gathered = Gathered {
        candidates: Vec::new(),
        residues: Vec::new(),
        spent,
    };
    for row in inner.log.candidates(place.thread, key, Seq(u64::MAX))? {
        let executed = Executed {
            id: row.id,
            branch: row.branch,
        };
        let own = forgotten(inner, place, executed, row.status);
        if own.is_none() && !inner.nesting.is_doubtful(row.id) {
            continue;
        }
        let Some(effect) = inner.log.effect(row.id)? else {
            continue;
        };
        let Some((forgotten, status)) = nesting::with_outer(inner, place, &effect, own)? else {
            continue;
        };
        let Examination {
            comparison,
            residue,
        } = examine(inner, &effect, call);
        let equivalent = comparison.likeness == Likeness::Equivalent;
        gathered.residues.push(residue);
        gathered.candidates.push(Candidate {
            effect: row.id,
            status,
            forgotten,
            comparison,
            replayable: effect
                .outcome
                .as_ref()
                .and_then(|o| o.response())
                .is_some_and(|r| r.is_whole()),
        });
        // The nearest equivalent answers; only a spent credential can point behind it.
        if equivalent && gathered.spent.is_empty() {
            break;
        }
    }
    Ok(gathered)
}

impl Gathered {
    /// Lets the analyzer LLM read the texts that keep candidates from being decided.
    pub(super) async fn settle(&mut self, llm: &Llm) {
        for (candidate, residue) in self.candidates.iter_mut().zip(&mut self.residues) {
            if candidate.comparison.likeness != Likeness::Unsure || residue.is_empty() {
                continue;
            }
            let settled = llm
                .settle(Examination {
                    comparison: candidate.comparison.clone(),
                    residue: std::mem::take(residue),
                })
                .await;
            if let Some(trouble) = settled.trouble {
                tracing::warn!("the analyzer LLM could not be asked: {trouble}");
            }
            candidate.comparison = settled.comparison;
        }
    }

    /// Whether a reader of prose could decide more.
    pub(super) fn is_open(&self) -> bool {
        self.candidates
            .iter()
            .zip(&self.residues)
            .any(|(c, residue)| c.comparison.likeness == Likeness::Unsure && !residue.is_empty())
    }

    /// The decision.
    pub(super) fn judge(&self, inner: &Inner, place: Place) -> Result<Judged, LogError> {
        let decision = {
            let lineage = inner.lineage.read();
            let Some(branch) = lineage.branch(place.branch) else {
                return Err(LogError::Unusable(format!(
                    "branch {} is not known",
                    place.branch
                )));
            };
            let situation = Situation {
                branch,
                candidates: &self.candidates,
                spent: &self.spent,
            };
            decide(&situation, inner.config.load().fence.rules())
        };
        let about = match &decision {
            Decision::Forward => None,
            Decision::Replay(e) | Decision::AwaitTwin(e) | Decision::Hold { effect: e, .. } => {
                Some(*e)
            }
            Decision::Block { effect, .. } => *effect,
        };
        let comparison_with = |id: EffectId| {
            let found = self.candidates.iter().find(|c| c.effect == id);
            found.map(|c| c.comparison.clone())
        };
        let earlier = match about {
            Some(id) => inner
                .log
                .effect(id)?
                .map(|effect| earlier(&effect, comparison_with(id))),
            None => None,
        };
        Ok(Judged { decision, earlier })
    }
}

/// Whether a new call is the same as one that was held before.
pub(super) fn same_call(inner: &Inner, held: &ToolCall, call: &ToolCall, place: Place) -> bool {
    let provenance = LogProvenance {
        inner,
        thread: place.thread,
        before: Seq(u64::MAX),
    };
    let evidence = Evidence {
        provenance: &provenance,
        schema: None,
        recorded_at: held.at,
        restored_at: call.at,
    };
    analyzer::compare(&held.request, None, &call.request, &evidence).likeness
        == Likeness::Equivalent
}

/// Why a person must look, for the list of holds.
pub(super) fn reason_words(reason: HoldReason) -> &'static str {
    match reason {
        HoldReason::InDoubt => "the same call was sent before and its outcome is not known",
        HoldReason::Unsure => "it may mean the same as the earlier effect, or not",
        HoldReason::Suspect => "it repeats the earlier effect, and a restore is only suspected",
        HoldReason::ResponseNotKept => {
            "it repeats the earlier effect, whose response was too large to be kept"
        }
    }
}

/// Why an effect is fenced for this branch, also where no restore is involved: its agent may know
/// the call and still not what became of it.
pub(super) fn forgotten(
    inner: &Inner,
    place: Place,
    effect: Executed,
    status: Status,
) -> Option<Forgotten> {
    if let Some(forgotten) = inner.lineage.read().fenced(place.branch, effect) {
        return Some(forgotten);
    }
    let abandoned = || {
        inner
            .running
            .lock()
            .get(&effect.id)
            .is_some_and(|running| running.abandoned)
    };
    match status {
        Status::InDoubt => Some(Forgotten::Outcome),
        Status::Prepared if abandoned() => Some(Forgotten::Outcome),
        _ => None,
    }
}

/// Compares a call with an earlier effect, with all the evidence there is.
pub(super) fn examine(inner: &Inner, effect: &Effect, call: &ToolCall) -> Examination {
    let provenance = LogProvenance {
        inner,
        thread: effect.thread,
        before: effect.id.0,
    };
    let schema = inner.tools.schema(&call.request);
    let evidence = Evidence {
        provenance: &provenance,
        schema: schema.as_ref(),
        recorded_at: effect.call.at,
        restored_at: call.at,
    };
    let answer = effect.outcome.as_ref().and_then(|o| o.response());
    analyzer::examine(&effect.call.request, answer, &call.request, &evidence)
}

/// Credentials of the call that a forgotten effect has consumed.
///
/// A credential is single-use when the thread was seen to get it and one effect has used it since
/// (DESIGN.md §9); one that a single timeline used several times is a key, not an approval.
pub(super) fn spent(
    inner: &Inner,
    place: Place,
    presented: &[Fingerprint],
) -> Result<Vec<Spent>, LogError> {
    let mut spent = Vec::new();
    for &fingerprint in presented {
        let history = inner.log.credential(fingerprint)?;
        if !history
            .issued
            .iter()
            .any(|(thread, _)| *thread == place.thread)
        {
            continue;
        }
        let mut uses: Vec<Executed> = Vec::new();
        for (id, status) in history.presented {
            if status == Status::Failed {
                continue;
            }
            if let Some(effect) = inner.log.effect(id)?
                && effect.thread == place.thread
            {
                uses.push(Executed {
                    id,
                    branch: effect.branch,
                });
            }
        }
        let is_key = uses
            .iter()
            .any(|a| uses.iter().filter(|b| a.branch == b.branch).count() > 1);
        let lineage = inner.lineage.read();
        let consumer = uses.iter().find(|e| {
            lineage
                .ancestors(place.branch)
                .any(|b| lineage.forgotten_at_opening(b, **e))
        });
        if let (Some(consumer), false) = (consumer, is_key) {
            spent.push(Spent {
                fingerprint,
                consumed_by: consumer.id,
            });
        }
    }
    Ok(spent)
}

/// Provenance from the hashes that the log keeps.
struct LogProvenance<'a> {
    inner: &'a Inner,
    thread: ThreadId,
    before: Seq,
}

impl Provenance for LogProvenance<'_> {
    fn seen(&self, value: &str) -> Option<String> {
        let hash = analyzer::value_hash(&self.inner.keys.values, value);
        // A log that cannot be read says nothing of where a value came from: taken as seen, the
        // difference counts, and the call is stopped.
        match self.inner.log.first_seen(self.thread, hash) {
            Ok(seq) => seq
                .filter(|seq| *seq < self.before)
                .map(|seq| format!("seen earlier in this thread (record {seq})")),
            Err(e) => Some(format!("perhaps seen earlier ({e})")),
        }
    }
}
