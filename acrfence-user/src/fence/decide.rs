//! The verdict on a call (DESIGN.md §9), rule by rule.

use serde::{Deserialize, Serialize};

use crate::lineage::Fenced;
use crate::words::{
    Branch, Cause, Comparison, EffectId, Fingerprint, Forgotten, Grade, Likeness, RefusalCode,
    Status,
};

/// What a call meets: everything the rules look at.
#[derive(Clone, Debug)]
pub struct Situation<'a> {
    /// The branch the call belongs to.
    pub branch: &'a Branch,
    /// Unconsumed fenced effects with the call's tool key, nearest in order first (oldest first: a
    /// restored agent does again what it did, in the order it did it).
    pub candidates: &'a [Candidate],
    /// Credentials the call presents that an effect this timeline forgot has consumed.
    pub spent: &'a [Spent],
}

/// A fenced effect that the call might be.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The effect.
    pub effect: EffectId,
    /// Where it is in its life. Failed effects are no candidates.
    pub status: Status,
    /// Why it is fenced.
    pub fenced: Fenced,
    /// How the call compares to it.
    pub comparison: Comparison,
    /// Whether its response was kept whole, so that it can be given again.
    pub replayable: bool,
}

/// A consumed credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spent {
    /// The credential.
    pub fingerprint: Fingerprint,
    /// The effect that consumed it.
    pub consumed_by: EffectId,
}

/// What the operator leaves open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// A call without any candidate in a restored branch.
    pub unmatched: Unmatched,
    /// An equivalent call where the restore is only suspected, or only suspected to carry an order out
    /// again.
    pub suspect: SuspectRule,
    /// An equivalent call where only a shortened history no longer shows the effect.
    pub compacted: CompactedRule,
}

/// What becomes of a call that nothing earlier resembles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unmatched {
    /// It is new: send it.
    #[default]
    Forward,
    /// Stop it.
    Block,
}

/// What becomes of an equivalent call where the restore is only suspected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SuspectRule {
    /// A person decides.
    #[default]
    Hold,
    /// Take it for a restore: answer from the record.
    Replay,
    /// Take it for a wish to do it again: send it.
    Forward,
}

/// What becomes of an equivalent call where only a shortened history no longer shows the effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompactedRule {
    /// A person decides.
    #[default]
    Hold,
    /// Take it for a repetition: answer from the record.
    Replay,
}

/// What to do with a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Send it.
    Forward,
    /// Answer with the outcome of this effect, which is consumed by that.
    Replay(EffectId),
    /// Wait for this running effect, then decide again.
    AwaitTwin(EffectId),
    /// A person decides.
    Hold {
        /// The effect it may be the same as.
        effect: EffectId,
        /// Why a person must look.
        reason: HoldReason,
    },
    /// Stop it.
    Block {
        /// Which rule stops it.
        code: RefusalCode,
        /// The earlier effect that it conflicts with, where there is one.
        effect: Option<EffectId>,
    },
}

/// Why a person must look at a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldReason {
    /// The same call was sent before and nobody knows what became of it.
    InDoubt,
    /// It may mean the same as an earlier effect, or not.
    Unsure,
    /// It means the same as an earlier effect, but the restore is only suspected.
    Suspect,
    /// It means the same as an earlier effect of the same order of the model, which was not asked since.
    Again,
    /// It means the same as an earlier effect that the agent's shortened history no longer shows.
    Compacted,
    /// It means the same as an earlier effect whose response was too large to be kept whole.
    ResponseNotKept,
}

/// Decides a call.
pub fn decide(situation: &Situation<'_>, rules: Rules) -> Decision {
    let equivalent = situation
        .candidates
        .iter()
        .find(|c| c.comparison.likeness == Likeness::Equivalent);

    // Rule 1, also in a fork: a consumed credential opens nothing but the record of its own use.
    if let Some(spent) = situation
        .spent
        .iter()
        .find(|s| equivalent.is_none_or(|c| c.effect != s.consumed_by))
    {
        let own = situation
            .candidates
            .iter()
            .find(|c| c.effect == spent.consumed_by);
        return match own {
            // An older twin is nearer in order, but the credential names this one.
            Some(own) if own.comparison.likeness == Likeness::Equivalent => answer(own, rules),
            Some(own) if own.comparison.likeness == Likeness::Unsure => Decision::Hold {
                effect: own.effect,
                reason: HoldReason::Unsure,
            },
            _ => Decision::Block {
                code: RefusalCode::CredentialConsumed,
                effect: Some(spent.consumed_by),
            },
        };
    }

    // Rules 2 and 3.
    if let Some(candidate) = equivalent {
        return answer(candidate, rules);
    }

    if let Some(unsure) = situation
        .candidates
        .iter()
        .find(|c| c.comparison.likeness == Likeness::Unsure)
    {
        return Decision::Hold {
            effect: unsure.effect,
            reason: HoldReason::Unsure,
        };
    }

    // Rule 4: a different call needs a fork. What is only suspected, lies behind a summary, or got
    // lost without a restore stops nothing but its own repetition.
    let stops = |c: &&Candidate| {
        c.fenced.cause == Cause::Restore
            && c.fenced.grade == Grade::Certain
            && c.fenced.forgotten != Forgotten::Compacted
    };
    if let Some(nearest) = situation.candidates.iter().find(stops) {
        return Decision::Block {
            code: RefusalCode::Diverged,
            effect: Some(nearest.effect),
        };
    }
    if situation
        .candidates
        .iter()
        .any(|c| c.fenced.cause != Cause::Start)
    {
        return Decision::Forward;
    }

    // Rule 5.
    match (situation.branch.cause, rules.unmatched) {
        (Cause::Restore, Unmatched::Block) => Decision::Block {
            code: RefusalCode::Policy,
            effect: None,
        },
        _ => Decision::Forward,
    }
}

/// What an equivalent call gets: the record, the running twin, or a person.
fn answer(candidate: &Candidate, rules: Rules) -> Decision {
    let effect = candidate.effect;
    let suspected = candidate.fenced.grade == Grade::Suspect;
    let compacted = candidate.fenced.forgotten == Forgotten::Compacted;
    match candidate.status {
        Status::InDoubt => Decision::Hold {
            effect,
            reason: HoldReason::InDoubt,
        },
        Status::Prepared => Decision::AwaitTwin(effect),
        Status::Completed if compacted => match rules.compacted {
            CompactedRule::Hold => Decision::Hold {
                effect,
                reason: HoldReason::Compacted,
            },
            CompactedRule::Replay => replay(candidate),
        },
        Status::Completed if suspected => match rules.suspect {
            SuspectRule::Hold => Decision::Hold {
                effect,
                reason: match candidate.fenced.forgotten {
                    Forgotten::Done => HoldReason::Again,
                    _ => HoldReason::Suspect,
                },
            },
            SuspectRule::Forward => Decision::Forward,
            SuspectRule::Replay => replay(candidate),
        },
        Status::Completed => replay(candidate),
        // Never offered as a candidate; sending it again is what its status allows.
        Status::Failed => Decision::Forward,
    }
}

fn replay(candidate: &Candidate) -> Decision {
    if candidate.replayable {
        Decision::Replay(candidate.effect)
    } else {
        Decision::Hold {
            effect: candidate.effect,
            reason: HoldReason::ResponseNotKept,
        }
    }
}
