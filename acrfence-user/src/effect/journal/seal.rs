//! Events as sealed payloads: CBOR, encrypted on the caller's thread.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::effect::{Event, LogError};
use crate::words::{Seq, Timestamp};

use super::frame::{self, Hash, Header};
use super::keys::{Keyring, Keys, StoreId, random};

/// Kind of a [`Mark`] record.
pub const MARK: u8 = 0x80;

/// What a record holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// An event, with its ids filled in.
    Event(Event),
    /// A statement of the journal about itself.
    Mark(Mark),
}

/// A statement of the journal about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mark {
    /// A person accepted that records are lost: the journal was older than its anchor, or damaged.
    RollbackAccepted {
        /// The last position that is still there.
        kept: Seq,
        /// The last position that is known to have existed.
        lost: Seq,
        /// Who said so (`uid 0`).
        by: String,
        /// What was wrong, in words.
        why: String,
        /// When.
        at: Timestamp,
    },
}

/// A payload ready to be framed.
pub struct Sealed {
    /// Kind of event or mark.
    pub kind: u8,
    /// Which key sealed it.
    pub key: u32,
    /// Nonce of the seal.
    pub nonce: [u8; 24],
    /// What the record holds: the sealed event, or the name of its body file.
    pub payload: Vec<u8>,
    /// SHA-256 of `payload`.
    pub digest: Hash,
    /// Whether `payload` names a body file.
    pub external: bool,
}

/// The kind of [`Event::Opaque`].
pub const OPAQUE: u8 = 21;
/// The kind of [`Event::Ran`].
pub const RAN: u8 = 22;

/// The number that names this kind of event in the journal; never reused.
pub fn kind_of(event: &Event) -> u8 {
    match event {
        Event::IncarnationBegan(_) => 1,
        Event::IncarnationEnded { .. } => 2,
        Event::ThreadOpened(_) => 3,
        Event::BranchOpened(_) => 4,
        Event::CheckpointTaken(_) => 5,
        Event::Prepared(_) => 6,
        Event::Settled { .. } => 7,
        Event::Resolved { .. } => 8,
        Event::Replayed { .. } => 9,
        Event::Refused { .. } => 10,
        Event::HoldOpened { .. } => 11,
        Event::HoldDecided { .. } => 12,
        Event::Observed { .. } => 13,
        Event::HoldUsed { .. } => 14,
        Event::OutcomeLost { .. } => 15,
        Event::Remembered { .. } => 16,
        Event::Conversed { .. } => 17,
        Event::Asked { .. } => 18,
        Event::Answered { .. } => 19,
        Event::Opaque(_) => OPAQUE,
        Event::Ran(_) => RAN,
        Event::Corroborated { .. } => 23,
    }
}

/// The word for a kind, in listings.
pub fn kind_name(kind: u8) -> &'static str {
    match kind {
        1 => "incarnation_began",
        2 => "incarnation_ended",
        3 => "thread_opened",
        4 => "branch_opened",
        5 => "checkpoint_taken",
        6 => "prepared",
        7 => "settled",
        8 => "resolved",
        9 => "replayed",
        10 => "refused",
        11 => "hold_opened",
        12 => "hold_decided",
        13 => "observed",
        14 => "hold_used",
        15 => "outcome_lost",
        16 => "remembered",
        17 => "conversed",
        18 => "asked",
        19 => "answered",
        OPAQUE => "opaque",
        RAN => "ran",
        23 => "corroborated",
        MARK => "mark",
        _ => "unknown",
    }
}

/// CBOR of `value`.
pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, LogError> {
    let mut bytes = Vec::with_capacity(1024);
    ciborium::into_writer(value, &mut bytes)
        .map_err(|e| LogError::Unusable(format!("the record cannot be encoded: {e}")))?;
    Ok(bytes)
}

/// Seals the CBOR of an event or mark under the current key.
pub fn seal(
    keyring: &Keyring,
    store: &StoreId,
    kind: u8,
    plain: &[u8],
) -> Result<Sealed, LogError> {
    let keys = keyring.current();
    let nonce = random()?;
    let payload = keys.seal(&nonce, plain, &context(store, kind))?;
    if payload.len() > frame::PAYLOAD_MAX {
        return Err(LogError::Unusable(format!(
            "a record of {} bytes is over the limit of {}; lower the bound on recorded bodies",
            payload.len(),
            frame::PAYLOAD_MAX
        )));
    }
    Ok(Sealed {
        kind,
        key: keys.id,
        nonce,
        digest: Sha256::digest(&payload).into(),
        payload,
        external: false,
    })
}

/// Opens a sealed payload and decodes it.
pub fn open(
    keyring: &Keyring,
    store: &StoreId,
    header: &Header,
    sealed: &[u8],
) -> Result<Record, String> {
    let keys: &Keys = keyring.get(header.key).ok_or_else(|| {
        format!(
            "it was sealed with key {:08x}, which is not in the key file",
            header.key
        )
    })?;
    let plain = keys
        .open(&header.nonce, sealed, &context(store, header.kind))
        .ok_or("its seal does not open: it is not what was written")?;
    decode(header.kind, header.seq, &plain)
}

/// Decodes the CBOR of a record; ids of what it creates are filled in from `seq`.
pub fn decode(kind: u8, seq: Seq, plain: &[u8]) -> Result<Record, String> {
    let mut rest = plain;
    let record = if kind == MARK {
        ciborium::from_reader(&mut rest).map(Record::Mark)
    } else if kind_name(kind) == "unknown" {
        return Err(format!(
            "it is of kind {kind}, which this program does not know; use a later acrfence"
        ));
    } else {
        ciborium::from_reader(&mut rest).map(|event: Event| Record::Event(event.at_position(seq)))
    }
    .map_err(|e| format!("its content cannot be decoded: {e}"))?;
    if !rest.is_empty() {
        return Err("its content is followed by something else".to_owned());
    }
    match &record {
        Record::Event(event) if kind_of(event) != kind => {
            Err("its content is of another kind than it says".to_owned())
        }
        _ => Ok(record),
    }
}

fn context(store: &StoreId, kind: u8) -> [u8; 17] {
    let mut context = [0; 17];
    context[..16].copy_from_slice(store);
    context[16] = kind;
    context
}
