//! Gathers what an order that is carried out once more is compared with. The rule itself is
//! [`again`](crate::lineage::conversation::again).
//!
//! Nothing of the finding stays behind: it is found anew for every call, from what the conversation
//! is known to have done, so no later order meets it.

use super::evidence;
use super::pipeline::Inner;
use super::talks::Placed;
use crate::effect::LogError;
use crate::fence::Candidate;
use crate::lineage::conversation::{Alike, again};
use crate::lineage::{Executed, Fenced};
use crate::words::{BranchId, Cause, EffectId, Forgotten, Likeness, Status, ToolCall, ToolKey};

/// Effects that the call carries out once more: the one that answered least recently first.
pub(super) fn candidates(
    inner: &Inner,
    call: &ToolCall,
    branch: BranchId,
    placed: &Placed,
    key: &ToolKey,
) -> Result<Vec<Candidate>, LogError> {
    let orders = &placed.placement.orders;
    let mut alike = Vec::new();
    let mut compared = Vec::new();
    for done in orders.iter().flat_map(|order| &order.done) {
        let Some(effect) = inner.log.effect(done.effect)? else {
            continue;
        };
        if effect.key != *key || effect.status == Status::Failed {
            continue;
        }
        let examined = evidence::examine(inner, &effect, call);
        if examined.comparison.likeness != Likeness::Equivalent {
            continue;
        }
        alike.push(Alike {
            effect: effect.id,
            completed: effect.status == Status::Completed,
            made_anew: examined.made_anew,
        });
        compared.push((effect, examined.comparison));
    }
    let found = again(orders, &alike);
    let grade_of = |effect: EffectId| found.iter().find(|(id, _)| *id == effect).map(|(_, g)| *g);
    let mut candidates = Vec::new();
    for (effect, comparison) in compared {
        let Some(grade) = grade_of(effect.id) else {
            continue;
        };
        let executed = Executed {
            id: effect.id,
            branch: effect.branch,
        };
        let entered = inner.lineage.read().position(branch, executed);
        let candidate = Candidate {
            effect: effect.id,
            status: effect.status,
            fenced: Fenced {
                forgotten: Forgotten::Done,
                grade,
                cause: Cause::Start,
            },
            comparison,
            replayable: evidence::is_replayable(&effect),
        };
        candidates.push((entered.unwrap_or(effect.id.0), candidate));
    }
    candidates.sort_by_key(|(entered, candidate)| (*entered, candidate.effect));
    Ok(candidates.into_iter().map(|(_, c)| c).collect())
}

#[cfg(test)]
mod tests;
