//! An effect: an irreversible tool call with its outcome.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{BranchId, EffectId, Response, ThreadId, Timestamp, ToolCall, ToolKey};

/// Keyed hash of a credential. The secret itself is never kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub [u8; 16]);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl Serialize for Fingerprint {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if s.is_human_readable() {
            s.collect_str(self)
        } else {
            s.serialize_bytes(&self.0)
        }
    }
}

impl<'de> Deserialize<'de> for Fingerprint {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        let bytes = if d.is_human_readable() {
            hex::decode(String::deserialize(d)?).map_err(D::Error::custom)?
        } else {
            serde_bytes::ByteBuf::deserialize(d)?.into_vec()
        };
        bytes
            .try_into()
            .map(Self)
            .map_err(|_| D::Error::custom("a fingerprint has 16 bytes"))
    }
}

/// Where an effect is in its life (DESIGN.md §7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Durable, perhaps sent, no outcome yet: its call is running.
    Prepared,
    /// Its response is durable.
    Completed,
    /// It certainly did not happen, or the server definitely refused it.
    Failed,
    /// It was sent and nobody knows.
    InDoubt,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Prepared => "prepared",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::InDoubt => "in_doubt",
        })
    }
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It happened, and this is what the server said.
    Completed(Response),
    /// It did not happen: refused by the server (then with its response) or never sent.
    Failed {
        /// Why, in words.
        why: String,
        /// What the server said, if it said anything.
        response: Option<Response>,
    },
    /// It was sent, and no full answer came.
    InDoubt {
        /// What went wrong, in words.
        why: String,
        /// What the server said so far (a 5xx answer), if anything.
        response: Option<Response>,
    },
}

impl Outcome {
    /// The status that this outcome gives an effect.
    pub fn status(&self) -> Status {
        match self {
            Self::Completed(_) => Status::Completed,
            Self::Failed { .. } => Status::Failed,
            Self::InDoubt { .. } => Status::InDoubt,
        }
    }

    /// The response, where there is one.
    pub fn response(&self) -> Option<&Response> {
        match self {
            Self::Completed(response) => Some(response),
            Self::Failed { response, .. } | Self::InDoubt { response, .. } => response.as_ref(),
        }
    }
}

/// A person's answer about an effect in doubt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resolution {
    /// It happened; equivalent calls get this response.
    Happened(Response),
    /// It did not happen; an equivalent call may be sent.
    DidNotHappen,
}

/// An irreversible tool call, with its outcome, as the effect log tells it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Effect {
    /// Its id.
    pub id: EffectId,
    /// What it is looked up by.
    pub key: ToolKey,
    /// The thread it belongs to.
    pub thread: ThreadId,
    /// The branch it was executed in.
    pub branch: BranchId,
    /// The outer effect that caused it, for nested boundaries.
    pub parent: Option<EffectId>,
    /// Further outer effects, where several ran and any of them may have caused it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub co_parents: Vec<EffectId>,
    /// The call.
    pub call: ToolCall,
    /// Credentials it presented.
    pub presented: Vec<Fingerprint>,
    /// Credentials its response issued.
    pub issued: Vec<Fingerprint>,
    /// Where it is in its life.
    pub status: Status,
    /// How it ended; none while prepared.
    pub outcome: Option<Outcome>,
    /// When it ended.
    pub ended: Option<Timestamp>,
}

impl Effect {
    /// The outer effects that it belongs to; none for one that stands by itself.
    pub fn outer(&self) -> impl Iterator<Item = EffectId> + '_ {
        self.parent
            .into_iter()
            .chain(self.co_parents.iter().copied())
    }
}
