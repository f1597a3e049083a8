//! Gathers what a verdict looks at, from the log and the lineage.

use super::again;
use super::attempts;
use super::nesting;
use super::pipeline::{Inner, Place, earlier};
use super::provenance::LogProvenance;
use super::talks::Placed;
use crate::analyzer::{self, Evidence, Examination, Llm, Residue};
use crate::effect::LogError;
use crate::fence::{Candidate, Decision, Earlier, HoldReason, Situation, Spent, decide, token};
use crate::lineage::{Executed, Fenced, Lineage};
use crate::words::{
    AgentName, BranchId, Effect, EffectId, Fingerprint, Forgotten, Grade, HoldId, Likeness, Seq,
    Status, ThreadId, ToolCall, ToolKey,
};

/// A decision with what is needed to tell of it.
pub(super) struct Judged {
    pub(super) decision: Decision,
    pub(super) earlier: Option<Earlier>,
}

/// What a call meets, from the log and the lineage as they stand now.
pub(super) struct Gathered {
    candidates: Vec<Candidate>,
    /// The branch that each is a candidate of, where it is consumed.
    branches: Vec<BranchId>,
    /// Texts that a reader of prose could settle, by candidate.
    residues: Vec<Vec<Residue>>,
    spent: Vec<Spent>,
}

/// Gathers what a call meets.
pub(super) fn gather(
    inner: &Inner,
    call: &ToolCall,
    place: Place,
    placed: Option<&Placed>,
    key: &ToolKey,
    presented: &[Fingerprint],
) -> Result<Gathered, LogError> {
    let by_time = placed.map_or(&[][..], |placed| &placed.by_time);
    let sources = sources(&inner.lineage.read(), &call.origin.agent, place, by_time);
    let mut spent = spent(inner, &sources, presented)?;
    let gets_a_token = token::only_gets_a_token(&call.request);
    if gets_a_token {
        // A refresh token that its use did not replace is not spent.
        let mut kept = Vec::new();
        for one in spent {
            let consumer = inner.log.effect(one.consumed_by)?;
            if consumer.is_none_or(|effect| token::replaced_its_token(&effect)) {
                kept.push(one);
            }
        }
        spent = kept;
    }
    let mut gathered = Gathered {
        candidates: Vec::new(),
        branches: Vec::new(),
        residues: Vec::new(),
        spent,
    };
    for found in fenced_effects(inner, &sources, key)? {
        let Some(effect) = inner.log.effect(found.id)? else {
            continue;
        };
        let Some((fenced, status)) = nesting::with_outer(inner, found.source, &effect, found.own)?
        else {
            continue;
        };
        let Examination {
            comparison,
            residue,
            ..
        } = examine(inner, &effect, call);
        let equivalent = comparison.likeness == Likeness::Equivalent;
        // It stops nobody that a token was got before; only where the server takes the old one no more is
        // the record of any use.
        if gets_a_token && !(equivalent && token::replaced_its_token(&effect)) {
            continue;
        }
        gathered.residues.push(residue);
        gathered.branches.push(found.branch);
        gathered.candidates.push(Candidate {
            effect: found.id,
            status,
            fenced,
            comparison,
            replayable: is_replayable(&effect),
        });
        // The nearest equivalent answers; only a spent credential can point behind it.
        if equivalent && gathered.spent.is_empty() {
            break;
        }
    }
    // What is fenced by itself answers first.
    if let Some(placed) = placed
        && !gathered.candidates.iter().any(is_equivalent)
    {
        for candidate in again::candidates(inner, call, place.branch, placed, key)? {
            // Nothing is open in a comparison that found them equivalent.
            gathered.residues.push(Vec::new());
            gathered.branches.push(place.branch);
            gathered.candidates.push(candidate);
        }
    }
    Ok(gathered)
}

fn is_equivalent(candidate: &Candidate) -> bool {
    candidate.comparison.likeness == Likeness::Equivalent
}

/// Whether the response of an effect can be given again.
pub(super) fn is_replayable(effect: &Effect) -> bool {
    let response = effect.outcome.as_ref().and_then(|o| o.response());
    response.is_some_and(|r| r.is_whole())
}

/// Where a call looks for what it might be: a thread of its agent, and what of it is forgotten.
pub(super) struct Source {
    thread: ThreadId,
    /// The branch that forgot; none where only lost outcomes count.
    branch: Option<BranchId>,
    /// Whether it is the thread that the call belongs to.
    is_home: bool,
    /// How sure it can be at most that the call means an effect of that thread.
    at_most: Grade,
    /// Effects of this thread that its conversation does not explain, with the branch that a restore
    /// of the whole agent opened: it tells what is forgotten of them.
    unexplained: Option<(BranchId, Vec<EffectId>)>,
}

/// The call's own thread first, then the agent's others: what a restore of the whole agent made them
/// forget may come again in any conversation.
fn sources(
    lineage: &Lineage,
    agent: &AgentName,
    place: Place,
    by_time: &[EffectId],
) -> Vec<Source> {
    let home = Source {
        thread: place.thread,
        branch: Some(place.branch),
        is_home: true,
        at_most: Grade::Certain,
        unexplained: lineage
            .wide(place.thread)
            .filter(|wide| wide.id != place.branch)
            .map(|wide| (wide.id, by_time.to_vec())),
    };
    let threads = lineage.agent(agent).map_or(&[][..], |line| &line.threads);
    let main = lineage.main_thread(agent);
    let others = threads
        .iter()
        .filter(|t| **t != place.thread)
        .map(|&thread| {
            let wide = lineage.wide(thread).map(|b| b.id);
            // A conversation that was there before the restore, and has spoken since, says itself what it
            // remembers; it is only perhaps the one to do again what another did.
            let goes_on = Some(place.thread) != main
                && Some(thread) != main
                && wide.is_some_and(|wide| place.thread.0 < wide.0)
                && lineage
                    .wide(place.thread)
                    .is_none_or(|b| b.id != place.branch);
            Source {
                thread,
                branch: wide,
                is_home: false,
                unexplained: None,
                at_most: if goes_on {
                    Grade::Suspect
                } else {
                    Grade::Certain
                },
            }
        });
    std::iter::once(home).chain(others).collect()
}

/// An effect that a call may have to be compared with.
struct Found<'s> {
    id: EffectId,
    /// The branch that it is a candidate of.
    branch: BranchId,
    /// Why it is fenced by itself.
    own: Option<Fenced>,
    source: &'s Source,
}

/// Fenced effects with this key, nearest first, and those whose outer effect is in doubt.
fn fenced_effects<'s>(
    inner: &Inner,
    sources: &'s [Source],
    key: &ToolKey,
) -> Result<Vec<Found<'s>>, LogError> {
    let mut found: Vec<Found<'s>> = Vec::new();
    for source in sources {
        for row in inner.log.candidates(source.thread, key, Seq(u64::MAX))? {
            let executed = Executed {
                id: row.id,
                branch: row.branch,
            };
            let own = fenced(inner, source, executed, row.status);
            if own.is_some() || inner.nesting.is_doubtful(row.id) {
                found.push(Found {
                    id: row.id,
                    branch: source.branch.unwrap_or(row.branch),
                    own,
                    source,
                });
            }
        }
        if !source.is_home {
            continue;
        }
        // What was replayed into a conversation may be another thread's effect.
        let home = source.branch;
        let named: Vec<(EffectId, BranchId)> = {
            let lineage = inner.lineage.read();
            let branch = home.and_then(|b| lineage.branch(b));
            let absent = branch.and_then(|b| b.absent.as_ref());
            let absent = absent.into_iter().flatten().map(|a| a.effect);
            absent
                .filter(|effect| home.is_some_and(|b| lineage.lacks(b, *effect)))
                .filter(|effect| !found.iter().any(|f| f.id == *effect))
                .filter_map(|effect| Some((effect, home?)))
                .collect()
        };
        for (id, home) in named {
            let Some(effect) = inner.log.effect(id)? else {
                continue;
            };
            if effect.key != *key
                || effect.thread == source.thread
                || effect.status == Status::Failed
            {
                continue;
            }
            let executed = Executed {
                id,
                branch: effect.branch,
            };
            let own = fenced(inner, source, executed, effect.status);
            if own.is_some() {
                found.push(Found {
                    id,
                    branch: home,
                    own,
                    source,
                });
            }
        }
    }
    Ok(found)
}

impl Gathered {
    /// The branch that an effect is a candidate of.
    pub(super) fn branch_of(&self, effect: EffectId) -> Option<BranchId> {
        let at = self.candidates.iter().position(|c| c.effect == effect)?;
        self.branches.get(at).copied()
    }

    /// Why an effect answers although nothing is forgotten of it; none where something is.
    pub(super) fn why_again(&self, effect: EffectId) -> Option<String> {
        let candidate = self.candidates.iter().find(|c| c.effect == effect)?;
        (candidate.fenced.forgotten == Forgotten::Done)
            .then(|| reason_words(HoldReason::Again).to_owned())
    }

    /// Whether a candidate is only suspected to be forgotten by this branch.
    pub(super) fn is_suspected_in(&self, branch: BranchId) -> bool {
        let mut all = self.candidates.iter().zip(&self.branches);
        all.any(|(c, of)| *of == branch && c.fenced.grade == Grade::Suspect)
    }

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
                    made_anew: false,
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
///
/// What the agent was told after the hold began says nothing of where the held call's values came
/// from: it shows its own call to its model as soon as it was refused.
pub(super) fn same_call(
    inner: &Inner,
    (hold, held): (HoldId, &ToolCall),
    call: &ToolCall,
    place: Place,
) -> bool {
    let provenance = LogProvenance::of(inner, place.thread, &call.origin.agent, hold.0);
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
        HoldReason::Again => {
            "the model ordered it once and was not asked since: the agent's program carries the same order out again"
        }
        HoldReason::Compacted => {
            "it repeats an effect that the agent's shortened history no longer shows"
        }
        HoldReason::ResponseNotKept => {
            "it repeats the earlier effect, whose response was too large to be kept"
        }
    }
}

/// Why an effect is fenced for calls that look here, also where no restore is involved: its agent may
/// know the call and still not what became of it.
pub(super) fn fenced(
    inner: &Inner,
    source: &Source,
    effect: Executed,
    status: Status,
) -> Option<Fenced> {
    let by_restore = {
        let lineage = inner.lineage.read();
        let fenced = match source.branch {
            Some(branch) if source.is_home => lineage.fenced(branch, effect).or_else(|| {
                let (wide, effects) = source.unexplained.as_ref()?;
                let is_one = effects.contains(&effect.id);
                is_one.then(|| lineage.fenced_elsewhere(*wide, effect))?
            }),
            Some(branch) => lineage.fenced_elsewhere(branch, effect),
            None => None,
        };
        let holds = |branch| lineage.position(branch, effect).is_some();
        let is_here = source.is_home && source.branch.is_some_and(holds);
        let lost = || (!is_here && lineage.is_lost(effect.id)).then_some(Fenced::LOST);
        fenced.or_else(lost)
    };
    if let Some(fenced) = by_restore {
        return Some(Fenced {
            grade: fenced.grade.min(source.at_most),
            ..fenced
        });
    }
    let abandoned = || {
        inner
            .running
            .lock()
            .get(&effect.id)
            .is_some_and(|running| running.abandoned)
    };
    match status {
        Status::InDoubt => Some(Fenced::LOST),
        Status::Prepared if abandoned() => Some(Fenced::LOST),
        _ => None,
    }
}

/// Compares a call with an earlier effect, with all the evidence there is.
pub(super) fn examine(inner: &Inner, effect: &Effect, call: &ToolCall) -> Examination {
    let agent = &effect.call.origin.agent;
    // A log that cannot be read says nothing of earlier attempts.
    let first = attempts::first(inner, effect).unwrap_or(effect.id.0);
    let provenance = LogProvenance::of(inner, effect.thread, agent, first);
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

/// Credentials that a forgotten effect has consumed, of a call in this place.
pub(super) fn spent_in(
    inner: &Inner,
    agent: &AgentName,
    place: Place,
    presented: &[Fingerprint],
) -> Result<Vec<Spent>, LogError> {
    let sources = sources(&inner.lineage.read(), agent, place, &[]);
    spent(inner, &sources, presented)
}

/// Credentials of the call that a forgotten effect has consumed.
///
/// A credential is single-use when the thread was seen to get it and one effect has used it since
/// (DESIGN.md §9); one that a single timeline used several times is a key, not an approval.
fn spent(
    inner: &Inner,
    sources: &[Source],
    presented: &[Fingerprint],
) -> Result<Vec<Spent>, LogError> {
    let source_of = |thread: ThreadId| sources.iter().find(|s| s.thread == thread);
    let mut spent = Vec::new();
    for &fingerprint in presented {
        let history = inner.log.credential(fingerprint)?;
        if !history
            .issued
            .iter()
            .any(|(thread, _)| source_of(*thread).is_some())
        {
            continue;
        }
        let mut uses: Vec<(Executed, &Source)> = Vec::new();
        for (id, status) in history.presented {
            if status == Status::Failed {
                continue;
            }
            if let Some(effect) = inner.log.effect(id)?
                && let Some(source) = source_of(effect.thread)
            {
                let executed = Executed {
                    id,
                    branch: effect.branch,
                };
                uses.push((executed, source));
            }
        }
        let is_key = uses
            .iter()
            .any(|(a, _)| uses.iter().filter(|(b, _)| a.branch == b.branch).count() > 1);
        let lineage = inner.lineage.read();
        let consumer = uses.iter().find(|(effect, source)| {
            let branches = source.branch.into_iter();
            branches
                .flat_map(|branch| lineage.ancestors(branch))
                .any(|branch| lineage.forgotten_at_opening(branch, *effect))
        });
        if let (Some((consumer, _)), false) = (consumer, is_key) {
            spent.push(Spent {
                fingerprint,
                consumed_by: consumer.id,
            });
        }
    }
    Ok(spent)
}
