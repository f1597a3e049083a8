//! The records of the journal.

use serde::{Deserialize, Serialize};

use crate::words::{
    Branch, BranchId, Checkpoint, EffectId, Fingerprint, HoldId, Incarnation, Opaque, Outcome, Ran,
    Refusal, Request, Resolution, Response, Seq, Thread, ThreadId, Timestamp, ToolCall, ToolKey,
};

/// One record. Ids of things that a record creates are the record's own position, so the id
/// inside the value is ignored when it is written and filled in when it is read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A life of an agent began.
    IncarnationBegan(Incarnation),
    /// Its last process ended, or it was detached.
    IncarnationEnded {
        /// The agent.
        agent: crate::words::AgentName,
        /// Which life.
        number: u32,
        /// When.
        at: Timestamp,
        /// `exited`, `detached`, `daemon restarted and it was gone`, …
        why: String,
    },
    /// A line of work was seen for the first time.
    ThreadOpened(Thread),
    /// A timeline began.
    BranchOpened(Branch),
    /// A person or a hook named a point in time; the point is this record's position.
    CheckpointTaken(Checkpoint),
    /// A call is about to be sent. Its [`EffectId`] is this record's position.
    Prepared(Box<Prepared>),
    /// A call ended.
    Settled {
        /// Which effect.
        effect: EffectId,
        /// How.
        outcome: Outcome,
        /// When.
        at: Timestamp,
        /// What its response told.
        harvest: Harvest,
    },
    /// A person said what became of an effect in doubt.
    Resolved {
        /// Which effect.
        effect: EffectId,
        /// What became of it.
        resolution: Resolution,
        /// Who said so (`uid 1000`).
        by: String,
        /// When.
        at: Timestamp,
    },
    /// Policy asks the other side what became of an effect in doubt. On disk before the question is
    /// sent.
    Asked {
        /// Which effect.
        effect: EffectId,
        /// Which rule (`rule 2 of the policy`).
        rule: String,
        /// `query`: something that changes nothing; `resend`: the original request again.
        how: String,
        /// What was sent. Its credentials are fingerprints.
        question: Box<Request>,
        /// When.
        at: Timestamp,
    },
    /// What the answer to such a question said. What follows from it is a record of its own.
    Answered {
        /// Which effect.
        effect: EffectId,
        /// Position of the question.
        asked: Seq,
        /// The answer, where one came.
        answer: Option<Response>,
        /// `happened`, `did_not_happen` or `unknown`.
        finding: String,
        /// Why it does not tell, where it does not.
        why: String,
        /// When.
        at: Timestamp,
    },
    /// The agent that made this call never got its true outcome (it hung up before the response was
    /// delivered): an equivalent call is answered from the record, once.
    OutcomeLost {
        /// Which effect.
        effect: EffectId,
        /// In words.
        why: String,
        /// When.
        at: Timestamp,
    },
    /// A conversation showed the true outcome of effects that its branch was taken not to know.
    Remembered {
        /// The branch.
        branch: BranchId,
        /// The effects.
        effects: Vec<EffectId>,
        /// When.
        at: Timestamp,
    },
    /// An agent's own store shows that effects which a branch was only suspected not to know were
    /// forgotten.
    Corroborated {
        /// The branch.
        branch: BranchId,
        /// The effects.
        effects: Vec<EffectId>,
        /// How, in words.
        why: String,
        /// When.
        at: Timestamp,
    },
    /// A conversation went on. What it remembers is kept as ids and keyed hashes.
    Conversed {
        /// The thread.
        thread: ThreadId,
        /// Whose process it was.
        agent: crate::words::AgentName,
        /// The change, as `lineage::conversation` encodes it.
        #[serde(with = "serde_bytes")]
        change: Vec<u8>,
    },
    /// A call was answered from the record: the effect has entered this branch's timeline here.
    Replayed {
        /// The effect.
        effect: EffectId,
        /// The branch whose candidate it was.
        branch: BranchId,
        /// The call that was answered.
        call: Box<ToolCall>,
        /// Why, where its branch had not forgotten the effect: an order that was carried out again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
        /// When.
        at: Timestamp,
    },
    /// A call was not let through (or, in observe mode, would not have been).
    Refused {
        /// The branch it came from.
        branch: BranchId,
        /// The call.
        call: Box<ToolCall>,
        /// What the agent was told.
        refusal: Refusal,
        /// Whether it was stopped (`enforce`) or only noticed (`observe`).
        enforced: bool,
        /// When.
        at: Timestamp,
    },
    /// A call waits for a person.
    HoldOpened {
        /// The branch it came from.
        branch: BranchId,
        /// The effect it may be the same as.
        effect: EffectId,
        /// What it is looked up by.
        key: ToolKey,
        /// The call.
        call: Box<ToolCall>,
        /// Why it waits.
        why: String,
        /// When.
        at: Timestamp,
    },
    /// A person decided a hold.
    HoldDecided {
        /// Which.
        hold: HoldId,
        /// How.
        decision: HoldDecision,
        /// Who said so (`uid 1000`).
        by: String,
        /// When.
        at: Timestamp,
    },
    /// A decision to send was used: it holds for one call.
    HoldUsed {
        /// Which hold.
        hold: HoldId,
        /// When.
        at: Timestamp,
    },
    /// Something that is no effect told values or credentials (a read-only call, model traffic).
    Observed {
        /// The thread it belongs to.
        thread: ThreadId,
        /// What it told.
        harvest: Harvest,
        /// When.
        at: Timestamp,
    },
    /// Traffic that is not fenced was seen, or refused. No call is ever compared with it.
    Opaque(Box<Opaque>),
    /// A program that no rule names ran. No call is ever compared with it.
    Ran(Box<Ran>),
}

/// A call about to be sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prepared {
    /// What it is looked up by.
    pub key: ToolKey,
    /// The thread it belongs to.
    pub thread: ThreadId,
    /// The branch it is executed in.
    pub branch: BranchId,
    /// The outer effect that causes it, for nested boundaries.
    pub parent: Option<EffectId>,
    /// Further outer effects, where several ran and any of them may have caused it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub co_parents: Vec<EffectId>,
    /// The call.
    pub call: ToolCall,
    /// Credentials it presents.
    pub presented: Vec<Fingerprint>,
    /// Keyed hashes of the values in the request.
    pub values: Vec<u64>,
    /// The effect this attempt takes the place of, after a person resolved it as not happened.
    #[serde(default)]
    pub retry_of: Option<EffectId>,
}

/// What a message told: made by `analyzer::harvest`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Harvest {
    /// Fingerprints of token-like values that were issued.
    #[serde(default)]
    pub issued: Vec<Fingerprint>,
    /// Keyed 64-bit hashes of scalar values, so that a later call's value can be told from one the
    /// model made up. The values themselves are not kept.
    #[serde(default)]
    pub values: Vec<u64>,
}

/// How a person decided a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldDecision {
    /// Answer it from the record.
    Replay,
    /// Send it: it is a new action.
    Forward,
    /// Refuse it.
    Deny,
}

impl Event {
    /// The position at which this record would name the thing it creates, for display.
    pub fn creates(&self) -> bool {
        matches!(
            self,
            Self::ThreadOpened(_)
                | Self::BranchOpened(_)
                | Self::Prepared(_)
                | Self::HoldOpened { .. }
        )
    }

    /// Fills in the id of what this record creates from the position it was written at.
    pub fn at_position(mut self, seq: Seq) -> Self {
        match &mut self {
            Self::ThreadOpened(thread) => thread.id = ThreadId(seq),
            Self::BranchOpened(branch) => branch.id = BranchId(seq),
            _ => {}
        }
        self
    }
}
