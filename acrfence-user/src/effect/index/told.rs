//! Records that are neither effects nor observations: where they lie, and, of those that lineage is
//! folded from, what they say. So a start reads one range of the index instead of as many records
//! as there ever were threads and replays.

use std::ops::ControlFlow;

use super::facts::Seen;
use super::key;
use super::ordered::{Change, IndexFault};
use super::row::{loc_bytes, loc_of};
use super::{Index, facts};
use crate::effect::journal::Loc;
use crate::effect::{Event, LogError};
use crate::words::{
    AgentName, Body, EffectId, ExecRequest, ExecResponse, Origin, ProcessIdentity, Request,
    Resolution, Response, Seq, Timestamp, ToolCall,
};

/// A longer event is read from the journal.
const SHORT: usize = 1024;

/// A record as the index tells of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    /// Its position.
    pub seq: Seq,
    /// Where it lies; none while it is only noted.
    pub loc: Option<Loc>,
    /// What it says, without what a fold does not look at; none when it has to be read.
    pub event: Option<Event>,
}

/// Puts the entries of such a record.
pub(super) fn place(seen: &Seen<'_>, out: &mut Vec<Change>) {
    let kind = kind(seen.event);
    let at = seen
        .loc
        .map_or_else(Vec::new, |loc| loc_bytes(loc).to_vec());
    if kind.folded {
        let mut value = vec![u8::from(seen.loc.is_some())];
        value.extend_from_slice(&at);
        let mut short = Vec::new();
        if let Some(event) = shortened(seen.event)
            && ciborium::into_writer(&event, &mut short).is_ok()
            && short.len() <= SHORT
        {
            value.extend(short);
        }
        out.push((key::at(key::LINEAGE, seen.seq), Some(value)));
    }
    if kind.refused {
        out.push((key::at(key::REFUSED, seen.seq), Some(at.clone())));
    }
    if let Some(effect) = kind.of {
        out.push((key::told_of(effect, seen.seq), Some(at)));
    }
}

impl Index {
    /// Records that lineage and holds are folded from, in order.
    pub fn lineage(&self) -> Result<Vec<Told>, LogError> {
        let mut all = Vec::new();
        let mut damaged = false;
        self.scan_prefix(&[key::LINEAGE], &mut |key, value| {
            match read(Seq(key::last_number(key)), value) {
                Some(told) => all.push(told),
                None => damaged = true,
            }
            ControlFlow::Continue(())
        })?;
        if damaged {
            return Err(self.fail(&IndexFault("an entry of the lineage is not one".to_owned())));
        }
        Ok(all)
    }

    /// Where one of these lies, if it is on disk.
    pub fn lineage_at(&self, seq: Seq) -> Result<Option<Loc>, LogError> {
        Ok(self
            .get(&key::at(key::LINEAGE, seq))?
            .and_then(|value| read(seq, &value)?.loc))
    }

    /// Places of refusals behind a position, in order.
    pub fn refusals(&self, after: Seq, limit: usize) -> Result<Vec<(Seq, Option<Loc>)>, LogError> {
        self.places(&key::at(key::REFUSED, after), &[key::REFUSED], limit)
    }

    /// Places of what was decided against an effect and said of it, in order.
    pub fn history(&self, effect: EffectId) -> Result<Vec<(Seq, Option<Loc>)>, LogError> {
        let prefix = key::history(effect);
        self.places(&prefix, &prefix, usize::MAX)
    }

    fn places(
        &self,
        behind: &[u8],
        prefix: &[u8],
        limit: usize,
    ) -> Result<Vec<(Seq, Option<Loc>)>, LogError> {
        use std::ops::Bound::Excluded;
        let mut places = Vec::new();
        let end = key::behind(prefix);
        self.scan(
            Excluded(behind),
            Excluded(&end),
            false,
            &mut |key, value| {
                if places.len() == limit {
                    return ControlFlow::Break(());
                }
                places.push((Seq(key::last_number(key)), loc_of(value)));
                ControlFlow::Continue(())
            },
        )?;
        Ok(places)
    }

    /// The entries of a record under its new place, or without it.
    pub(super) fn replaced(
        &self,
        seq: Seq,
        loc: Option<Loc>,
        event: &Event,
    ) -> Result<Vec<Change>, IndexFault> {
        let seen = Seen {
            seq,
            loc,
            body: None,
            event,
        };
        let mut entries = Vec::new();
        if facts::is_told(event) {
            place(&seen, &mut entries);
        }
        if loc.is_none() {
            for (_, value) in &mut entries {
                *value = None;
            }
        }
        Ok(entries)
    }
}

fn read(seq: Seq, value: &[u8]) -> Option<Told> {
    let (flag, rest) = value.split_first()?;
    let (loc, rest) = match flag {
        0 => (None, rest),
        1 => {
            let (place, rest) = rest.split_at_checked(12)?;
            (Some(loc_of(place)?), rest)
        }
        _ => return None,
    };
    let event = match rest {
        [] => None,
        mut text => {
            let event: Event = ciborium::from_reader(&mut text).ok()?;
            Some(event.at_position(seq))
        }
    };
    Some(Told { seq, loc, event })
}

/// Where a record is looked up.
struct Kind {
    /// Whether lineage and holds are folded from it.
    folded: bool,
    /// Whether it stopped a call.
    refused: bool,
    /// The effect it speaks of.
    of: Option<EffectId>,
}

fn kind(event: &Event) -> Kind {
    let folded = !matches!(
        event,
        Event::Refused { .. } | Event::Asked { .. } | Event::Answered { .. }
    );
    let of = match event {
        Event::Refused { refusal, .. } => refusal.effect,
        Event::Replayed { effect, .. }
        | Event::HoldOpened { effect, .. }
        | Event::Resolved { effect, .. }
        | Event::Asked { effect, .. }
        | Event::Answered { effect, .. }
        | Event::OutcomeLost { effect, .. } => Some(*effect),
        _ => None,
    };
    Kind {
        folded,
        refused: matches!(event, Event::Refused { .. }),
        of,
    }
}

/// An event as folds get it.
pub fn for_a_fold(event: Event) -> Event {
    shortened(&event).unwrap_or(event)
}

/// The event without what a fold does not look at; none for one whose call is needed.
fn shortened(event: &Event) -> Option<Event> {
    Some(match event {
        Event::HoldOpened { .. } => return None,
        Event::Replayed {
            effect,
            branch,
            why,
            at,
            ..
        } => Event::Replayed {
            effect: *effect,
            branch: *branch,
            call: Box::new(no_call(*at)?),
            why: why.clone(),
            at: *at,
        },
        Event::Resolved {
            effect,
            resolution: Resolution::Happened(_),
            by,
            at,
        } => Event::Resolved {
            effect: *effect,
            resolution: Resolution::Happened(Response::Exec(ExecResponse {
                exit: 0,
                stdout: Body::empty(),
                stderr: Body::empty(),
            })),
            by: by.clone(),
            at: *at,
        },
        other => other.clone(),
    })
}

fn no_call(at: Timestamp) -> Option<ToolCall> {
    let nobody: AgentName = "nobody".parse().ok()?;
    Some(ToolCall {
        at,
        request: Request::Exec(ExecRequest {
            argv: Vec::new(),
            cwd: String::new(),
            env: Vec::new(),
            stdin: None,
        }),
        origin: Origin {
            agent: nobody,
            incarnation: 0,
            process: ProcessIdentity {
                tgid: 0,
                start_ns: 0,
            },
            exe: String::new(),
            argv: Vec::new(),
            cwd: String::new(),
            uid: 0,
            connection: None,
            gaps: String::new(),
        },
    })
}
