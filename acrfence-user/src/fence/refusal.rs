//! What an agent and a person are told when a call is not sent.

use super::{Decision, HoldReason};
use crate::words::{
    AgentName, Comparison, EffectId, FieldClass, HoldId, Refusal, RefusalCode, Status, Timestamp,
    ToolKey,
};

/// The earlier effect, as far as a refusal tells of it.
#[derive(Clone, Debug)]
pub struct Earlier {
    /// Its id.
    pub id: EffectId,
    /// What it did.
    pub key: ToolKey,
    /// When.
    pub at: Timestamp,
    /// What became of it.
    pub status: Status,
    /// How the call compares to it.
    pub comparison: Option<Comparison>,
}

/// The words for a decision that stops a call; none for one that does not.
pub fn refusal(
    decision: &Decision,
    agent: &AgentName,
    earlier: Option<&Earlier>,
    hold: Option<HoldId>,
) -> Option<Refusal> {
    let (code, title, next) = match decision {
        Decision::Forward | Decision::Replay(_) | Decision::AwaitTwin(_) => return None,
        Decision::Block { code: RefusalCode::CredentialConsumed, .. } => (
            RefusalCode::CredentialConsumed,
            "This call presents a single-use credential that was already spent.".to_owned(),
            format!("Do not try it again: ask for a new approval or token. `acrfence show {}` shows what it was spent on. A fork does not lift this.", id_of(earlier)),
        ),
        Decision::Block { code: RefusalCode::Diverged, .. } => (
            RefusalCode::Diverged,
            "This agent was restored, and this call differs from what it already did before the restore.".to_owned(),
            format!("If the earlier action is what you want, repeat it as it was and you get its recorded answer. If this is really something else, a person runs `acrfence fork {agent}` and the call may be made again."),
        ),
        Decision::Block { code, .. } => (
            *code,
            "Policy stops calls after a restore that nothing earlier resembles.".to_owned(),
            format!("A person can allow it with `acrfence fork {agent}`, or change `fence.unmatched` in the policy."),
        ),
        Decision::Hold { reason, .. } => {
            let (code, title) = match reason {
                HoldReason::InDoubt => (RefusalCode::InDoubt, "The same call was sent before, and nobody knows whether it took effect."),
                HoldReason::Unsure => (RefusalCode::Held, "This call may repeat something that was already done before the restore."),
                HoldReason::Compacted => (RefusalCode::Held, "This call repeats something that was done before, which the agent's shortened history no longer shows."),
                HoldReason::Suspect => (RefusalCode::Held, "This call repeats something that was done shortly before, and the agent may have been restored."),
                HoldReason::Again => (RefusalCode::Held, "The model ordered this once, and it was done already. It was not asked since, and the same order is being carried out again."),
                HoldReason::ResponseNotKept => (RefusalCode::Held, "This was already done, but its response was too large to be kept and cannot be given again."),
            };
            (code, title.to_owned(), what_a_person_does(*reason, earlier, hold))
        }
    };
    let mut detail = String::new();
    if let Some(e) = earlier {
        detail.push_str(&format!(
            "Earlier: {} ({}) at {}, {}. ",
            e.id,
            e.key,
            e.at,
            status_words(e.status)
        ));
        detail.push_str(&differences(e.comparison.as_ref()));
    }
    detail.push_str("Nothing was sent. ");
    detail.push_str(&next);
    Some(Refusal {
        code,
        title,
        detail,
        effect: earlier.map(|e| e.id),
        fields: earlier
            .and_then(|e| e.comparison.as_ref())
            .map(|c| c.fields.clone())
            .unwrap_or_default(),
        hold,
    })
}

fn what_a_person_does(
    reason: HoldReason,
    earlier: Option<&Earlier>,
    hold: Option<HoldId>,
) -> String {
    let effect = id_of(earlier);
    match (reason, hold) {
        (HoldReason::InDoubt, _) => format!(
            "A person finds out at the other side and runs `acrfence resolve {effect} --happened RESPONSE` or `acrfence resolve {effect} --did-not-happen`."
        ),
        (_, Some(hold)) => format!(
            "A person runs `acrfence approve {hold} --as replay` (it is the same: give the recorded answer), `acrfence approve {hold} --as forward` (it is a new action: send it) or `acrfence deny {hold}`; the next equal call is answered accordingly."
        ),
        (_, None) => "A person decides with `acrfence holds`.".to_owned(),
    }
}

fn id_of(earlier: Option<&Earlier>) -> String {
    earlier.map_or_else(|| "EFFECT".to_owned(), |e| e.id.to_string())
}

fn status_words(status: Status) -> &'static str {
    match status {
        Status::Completed => "it was done",
        Status::Prepared => "it is still running",
        Status::InDoubt => "its outcome is not known",
        Status::Failed => "it failed",
    }
}

/// The differences that count, in a sentence.
fn differences(comparison: Option<&Comparison>) -> String {
    let Some(comparison) = comparison else {
        return String::new();
    };
    let mut told: Vec<String> = comparison
        .fields
        .iter()
        .filter(|f| f.class != FieldClass::Volatile)
        .take(5)
        .map(|f| {
            let value = |v: &Option<String>| {
                v.as_ref()
                    .map_or_else(|| "(absent)".to_owned(), |v| format!("`{v}`"))
            };
            format!(
                "{} was {} and is now {}",
                f.path,
                value(&f.recorded),
                value(&f.restored)
            )
        })
        .collect();
    let more = comparison
        .fields
        .iter()
        .filter(|f| f.class != FieldClass::Volatile)
        .count()
        .saturating_sub(told.len());
    if more > 0 {
        told.push(format!("and {more} more"));
    }
    if told.is_empty() {
        String::new()
    } else {
        format!("Different: {}. ", told.join("; "))
    }
}
