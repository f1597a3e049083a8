//! What a comparison found and what the fence decided.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{EffectId, HoldId, Response};

/// Class of a difference between two calls (DESIGN.md §10).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FieldClass {
    /// Changes with every attempt and means nothing: request ids, nonces, timestamps of now.
    Volatile,
    /// Changes what happens: amounts, parties, targets, scope, quantity, content.
    Intent,
    /// Free text that may say the same in other words.
    Prose,
    /// Nothing tells.
    Unknown,
}

impl fmt::Display for FieldClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Volatile => "volatile",
            Self::Intent => "intent",
            Self::Prose => "prose",
            Self::Unknown => "unknown",
        })
    }
}

/// One difference between a recorded and a new call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Field {
    /// Where: `body.amount`, `headers.idempotency-key`, `arguments.items[2].sku`, `url.query.to`.
    pub path: String,
    /// What kind of difference.
    pub class: FieldClass,
    /// The evidence, in words a person understands.
    pub reason: String,
    /// Value in the recorded call, shortened; none where it is missing there.
    pub recorded: Option<String>,
    /// Value in the new call, shortened; none where it is missing there.
    pub restored: Option<String>,
}

/// Whether two calls mean the same effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Likeness {
    /// Every difference is volatile.
    Equivalent,
    /// At least one difference is intent.
    Different,
    /// No intent difference, but prose or unknown ones are left.
    Unsure,
}

/// The result of comparing two calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Comparison {
    /// The whole answer.
    pub likeness: Likeness,
    /// Every difference with its class and evidence.
    pub fields: Vec<Field>,
}

/// Why a call was not let through; stable, part of the error an agent sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCode {
    /// It differs from what the earlier timeline did; someone must fork.
    Diverged,
    /// It presents a credential that was already consumed.
    CredentialConsumed,
    /// It waits, or waited in vain, for a person.
    Held,
    /// An equivalent effect is in doubt; a person must resolve it.
    InDoubt,
    /// It repeats an earlier effect. Only ever noted in observe mode: enforced, it is answered.
    Duplicate,
    /// Policy refuses it.
    Policy,
    /// The effect log cannot take it (disk full, sync failed): nothing was sent.
    LogUnavailable,
}

impl RefusalCode {
    /// The word in JSON and in the problem type.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Diverged => "diverged",
            Self::CredentialConsumed => "credential_consumed",
            Self::Held => "held",
            Self::InDoubt => "in_doubt",
            Self::Duplicate => "duplicate",
            Self::Policy => "policy",
            Self::LogUnavailable => "log_unavailable",
        }
    }
}

/// What an agent is told instead of an answer. Each transport words it in its own way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Refusal {
    /// Which kind.
    pub code: RefusalCode,
    /// One sentence: what happened.
    pub title: String,
    /// What was done earlier, what differs, and what to do next, for an agent and a person.
    pub detail: String,
    /// The earlier effect, where there is one.
    pub effect: Option<EffectId>,
    /// The differences, where a comparison was made.
    pub fields: Vec<Field>,
    /// The hold a person can approve or deny.
    pub hold: Option<HoldId>,
}

/// The verdict on a call (DESIGN.md §2).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Send it.
    Forward,
    /// Answer with what was recorded for this effect; send nothing.
    Replay {
        /// The effect whose outcome answers.
        effect: EffectId,
        /// The recorded response.
        response: Response,
    },
    /// Do not send it; say why.
    Block(Refusal),
    /// Do not send it yet: a person decides, or a running twin ends.
    Hold(Refusal),
}
