//! A verdict on one pair of the corpus: the comparison, and the fence's rule on credentials
//! (DESIGN.md §9) with history taken from the pair itself.

use serde::Serialize;

use super::credential::{self, Secret};
use super::evidence::{Evidence, Transcript};
use super::pairs::{Pair, PairVerdict};
use super::{Examination, Settled, examine};
use crate::words::{Field, FieldClass, Likeness};

/// Who decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The comparison alone.
    Compare,
    /// The analyzer LLM settled what the comparison left open.
    Llm,
}

/// The verdict on a pair, as `acrfence judge --json` prints it.
#[derive(Clone, Debug, Serialize)]
pub struct Judgement {
    /// Which pair.
    pub id: String,
    /// The verdict.
    pub verdict: PairVerdict,
    /// Who decided.
    pub stage: Stage,
    /// The differences.
    pub fields: Vec<JudgedField>,
}

/// One difference.
#[derive(Clone, Debug, Serialize)]
pub struct JudgedField {
    /// Where.
    pub path: String,
    /// What kind.
    pub class: FieldClass,
    /// Why.
    pub reason: String,
}

/// Compares the calls of a pair.
pub fn examine_pair(pair: &Pair) -> Examination {
    let transcript = Transcript::of(&pair.prior, &pair.recorded);
    examine(
        &pair.recorded,
        pair.answer.as_ref(),
        &pair.restored,
        &Evidence {
            provenance: &transcript,
            schema: None,
            recorded_at: pair.recorded_at,
            restored_at: pair.restored_at,
        },
    )
}

/// The verdict that follows from a comparison.
pub fn conclude(pair: &Pair, settled: &Settled) -> Judgement {
    let comparison = &settled.comparison;
    let verdict = match comparison.likeness {
        Likeness::Equivalent => PairVerdict::Replay,
        Likeness::Unsure => PairVerdict::Hold,
        Likeness::Different if spent(pair).is_some() => PairVerdict::Credential,
        Likeness::Different => PairVerdict::Diverge,
    };
    let mut fields: Vec<JudgedField> = comparison.fields.iter().map(judged).collect();
    if verdict == PairVerdict::Credential
        && let Some(secret) = spent(pair)
    {
        fields.insert(
            0,
            JudgedField {
                path: secret.path,
                class: FieldClass::Intent,
                reason: "a single-use credential that the recorded call used up".into(),
            },
        );
    }
    Judgement {
        id: pair.id.clone(),
        verdict,
        stage: if settled.by_model {
            Stage::Llm
        } else {
            Stage::Compare
        },
        fields,
    }
}

/// A single-use credential that both calls of a pair present: issued (or vouched for) before the
/// recorded call, or named used up in its answer.
pub fn spent(pair: &Pair) -> Option<Secret> {
    let recorded = credential::presented(&pair.recorded);
    let restored = credential::presented(&pair.restored);
    let mut shared: Vec<Secret> = restored
        .into_iter()
        .filter(|s| recorded.iter().any(|r| r.value == s.value))
        .collect();
    if shared.is_empty() {
        return None;
    }
    let mut issued: Vec<String> = Vec::new();
    let mut used_before: Vec<String> = Vec::new();
    for (request, response) in &pair.prior {
        let mut here: Vec<String> = credential::issued(response)
            .into_iter()
            .chain(credential::vouched(request, response))
            .map(|s| s.value)
            .collect();
        // A value that an earlier call presented without being issued by it opens more than one door.
        used_before.extend(
            credential::presented(request)
                .into_iter()
                .map(|s| s.value)
                .filter(|v| !here.contains(v)),
        );
        issued.append(&mut here);
    }
    shared.retain(|s| !used_before.contains(&s.value));
    if let Some(found) = shared.iter().find(|s| issued.contains(&s.value)) {
        return Some(found.clone());
    }
    // Nobody saw it issued, but the server says that something was used up, and one value that
    // both calls present is named like a credential.
    let answer = pair.answer.as_ref()?;
    if !credential::says_consumed(answer) {
        return None;
    }
    let mut named: Vec<Secret> = shared
        .into_iter()
        .filter(credential::is_named_credential)
        .collect();
    if named.len() == 1 { named.pop() } else { None }
}

fn judged(field: &Field) -> JudgedField {
    JudgedField {
        path: field.path.clone(),
        class: field.class,
        reason: field.reason.clone(),
    }
}
