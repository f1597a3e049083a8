//! From an event to a sealed payload: inline, or in a body file, or shortened when the disk is full
//! and the event is an outcome that must not fail.

use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest as _, Sha256};

use crate::effect::journal::archive::Archive;
use crate::effect::journal::disk;
use crate::effect::journal::seal::{self, Sealed};
use crate::effect::{Event, LogError};
use crate::words::{Outcome, Response};

/// Sealing adds as much.
const TAG: usize = 16;
/// A reason in words is not longer in a shortened outcome.
const WHY: usize = 4096;
/// A shortened outcome names no more issued credentials.
const ISSUED: usize = 1024;

/// Seals events.
pub struct Sealer {
    inline_max: usize,
    outcome_room: usize,
    unique: AtomicU64,
}

impl Sealer {
    /// With these bounds.
    pub fn new(inline_max: usize, outcome_room: usize) -> Self {
        Self {
            inline_max,
            outcome_room,
            unique: AtomicU64::new(0),
        }
    }

    /// The CBOR of an event, and whether sealing it will write a body file.
    pub fn encode(&self, event: &Event) -> Result<(Vec<u8>, bool), LogError> {
        let plain = seal::encode(event)?;
        let large = plain.len() + TAG > self.inline_max;
        Ok((plain, large))
    }

    /// Seals an encoded event, and returns it as it was sealed: an outcome may have been shortened.
    /// Writes and syncs a body file when it is large.
    pub fn seal(
        &self,
        archive: &Archive,
        event: Event,
        plain: &[u8],
    ) -> Result<(Sealed, Event), LogError> {
        let keyring = archive.keyring.load();
        let kind = seal::kind_of(&event);
        let mut sealed = seal::seal(&keyring, &archive.store, kind, plain)?;
        if sealed.payload.len() <= self.inline_max {
            return Ok((sealed, event));
        }
        let unique = self.unique.fetch_add(1, Ordering::Relaxed);
        match archive.bodies.store(&sealed.payload, unique) {
            Ok(name) => {
                sealed.digest = Sha256::digest(name).into();
                sealed.payload = name.to_vec();
                sealed.external = true;
                Ok((sealed, event))
            }
            Err(e) if disk::is_full(&e) && matches!(event, Event::Settled { .. }) => {
                tracing::warn!(
                    "no room for the body file of an outcome; it goes into the room kept for it"
                );
                if sealed.payload.len() <= self.outcome_room {
                    return Ok((sealed, event));
                }
                let (plain, event) = self.shortened(event)?;
                let sealed = seal::seal(&keyring, &archive.store, kind, &plain)?;
                Ok((sealed, event))
            }
            Err(e) if disk::is_full(&e) => Err(LogError::Full {
                detail: format!("{} bytes for a body file: {e}", sealed.payload.len()),
            }),
            Err(e) => Err(LogError::Stopped {
                detail: format!("a body file could not be written: {e}"),
            }),
        }
    }

    /// An outcome that fits into the room kept for it: first without bodies, then without response.
    fn shortened(&self, mut event: Event) -> Result<(Vec<u8>, Event), LogError> {
        let Event::Settled { outcome, .. } = &mut event else {
            return Ok((seal::encode(&event)?, event));
        };
        if let Outcome::Completed(response)
        | Outcome::Failed {
            response: Some(response),
            ..
        }
        | Outcome::InDoubt {
            response: Some(response),
            ..
        } = outcome
        {
            forget_bodies(response);
        }
        let plain = seal::encode(&event)?;
        if plain.len() + TAG <= self.outcome_room {
            return Ok((plain, event));
        }
        let Event::Settled {
            outcome,
            harvest: kept,
            ..
        } = &mut event
        else {
            return Ok((plain, event));
        };
        kept.values.clear();
        kept.issued.truncate(ISSUED);
        *outcome = match std::mem::replace(outcome, in_doubt(String::new())) {
            // What it was cannot be told, so nobody may be answered with it: a person decides.
            Outcome::Completed(_) => in_doubt(
                "it completed, and its response was too long to be recorded on a full disk"
                    .to_owned(),
            ),
            Outcome::Failed { why, .. } => Outcome::Failed {
                why: short(&why),
                response: None,
            },
            Outcome::InDoubt { why, .. } => in_doubt(short(&why)),
        };
        Ok((seal::encode(&event)?, event))
    }
}

fn forget_bodies(response: &mut Response) {
    match response {
        Response::Http(http) => http.body.kept.clear(),
        Response::Exec(exec) => {
            exec.stdout.kept.clear();
            exec.stderr.kept.clear();
        }
        Response::Mcp(_) => {}
    }
}

fn in_doubt(why: String) -> Outcome {
    Outcome::InDoubt {
        why,
        response: None,
    }
}

fn short(why: &str) -> String {
    why.chars().take(WHY).collect()
}
