//! What the index keeps of an effect: everything a listing shows, and where its records lie.

use crate::effect::EffectRow;
use crate::effect::journal::Loc;
use crate::words::{
    BranchId, EffectId, Fingerprint, ProcessIdentity, Seq, Status, ThreadId, Timestamp, ToolKey,
    Transport,
};

const VERSION: u8 = 2;

/// An effect as the index keeps it.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What a listing shows.
    pub shown: EffectRow,
    /// Credentials it presented.
    pub presented: Vec<Fingerprint>,
    /// Credentials its responses issued.
    pub issued: Vec<Fingerprint>,
    /// Where its *prepared* record lies; none until it is on disk.
    pub prepared: Option<Loc>,
    /// The record that gave it its status, once one did, and where it lies.
    pub outcome: Option<(Seq, Option<Loc>)>,
}

impl Row {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let shown = &self.shown;
        let mut out = Vec::with_capacity(256);
        out.push(VERSION);
        number(&mut out, shown.id.0.0);
        number(&mut out, shown.at.0);
        optional(&mut out, shown.ended.map(|at| at.0));
        text(&mut out, shown.agent.as_str());
        number(&mut out, shown.thread.0.0);
        number(&mut out, shown.branch.0.0);
        optional(&mut out, shown.parent.map(|id| id.0.0));
        number(&mut out, shown.co_parents.len() as u64);
        for id in &shown.co_parents {
            number(&mut out, id.0.0);
        }
        number(&mut out, shown.process.tgid.into());
        number(&mut out, shown.process.start_ns);
        out.push(match shown.transport {
            Transport::Http => 0,
            Transport::Mcp => 1,
            Transport::Exec => 2,
        });
        text(&mut out, &shown.key.0);
        text(&mut out, &shown.host);
        out.push(status_byte(shown.status));
        optional(&mut out, shown.code.map(|code| u64::from(code as u32)));
        text(&mut out, &shown.why);
        text(&mut out, &shown.gaps);
        fingerprints(&mut out, &self.presented);
        fingerprints(&mut out, &self.issued);
        place(&mut out, self.prepared);
        match self.outcome {
            None => out.push(0),
            Some((seq, loc)) => {
                out.push(1);
                number(&mut out, seq.0);
                place(&mut out, loc);
            }
        }
        out
    }

    /// From bytes; none when they are not a row.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader(bytes);
        if from.byte()? != VERSION {
            return None;
        }
        let row = Self {
            shown: EffectRow {
                id: EffectId(Seq(from.number()?)),
                at: Timestamp(from.number()?),
                ended: from.optional()?.map(Timestamp),
                agent: from.text()?.parse().ok()?,
                thread: ThreadId(Seq(from.number()?)),
                branch: BranchId(Seq(from.number()?)),
                parent: from.optional()?.map(|n| EffectId(Seq(n))),
                co_parents: from.effects()?,
                process: ProcessIdentity {
                    tgid: u32::try_from(from.number()?).ok()?,
                    start_ns: from.number()?,
                },
                transport: match from.byte()? {
                    0 => Transport::Http,
                    1 => Transport::Mcp,
                    2 => Transport::Exec,
                    _ => return None,
                },
                key: ToolKey(from.text()?),
                host: from.text()?,
                status: status_of(from.byte()?)?,
                code: match from.optional()? {
                    None => None,
                    Some(code) => Some(u32::try_from(code).ok()? as i32),
                },
                why: from.text()?,
                gaps: from.text()?,
            },
            presented: from.fingerprints()?,
            issued: from.fingerprints()?,
            prepared: from.place()?,
            outcome: match from.byte()? {
                0 => None,
                _ => Some((Seq(from.number()?), from.place()?)),
            },
        };
        from.0.is_empty().then_some(row)
    }
}

/// A status as a byte.
pub fn status_byte(status: Status) -> u8 {
    match status {
        Status::Prepared => 0,
        Status::InDoubt => 1,
        Status::Failed => 2,
        Status::Completed => 3,
    }
}

/// The status behind a byte.
pub fn status_of(byte: u8) -> Option<Status> {
    Some(match byte {
        0 => Status::Prepared,
        1 => Status::InDoubt,
        2 => Status::Failed,
        3 => Status::Completed,
        _ => return None,
    })
}

/// A place as 12 bytes.
pub fn loc_bytes(loc: Loc) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&loc.segment.to_le_bytes());
    bytes[4..8].copy_from_slice(&loc.offset.to_le_bytes());
    bytes[8..].copy_from_slice(&loc.len.to_le_bytes());
    bytes
}

/// The place behind 12 bytes.
pub fn loc_of(bytes: &[u8]) -> Option<Loc> {
    let (segment, rest) = bytes.split_first_chunk()?;
    let (offset, rest) = rest.split_first_chunk()?;
    let len = rest.try_into().ok()?;
    Some(Loc {
        segment: u32::from_le_bytes(*segment),
        offset: u32::from_le_bytes(*offset),
        len: u32::from_le_bytes(len),
    })
}

fn number(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

fn optional(out: &mut Vec<u8>, n: Option<u64>) {
    match n {
        None => out.push(0),
        Some(n) => {
            out.push(1);
            number(out, n);
        }
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    number(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

fn fingerprints(out: &mut Vec<u8>, all: &[Fingerprint]) {
    number(out, all.len() as u64);
    for fingerprint in all {
        out.extend_from_slice(&fingerprint.0);
    }
}

fn place(out: &mut Vec<u8>, loc: Option<Loc>) {
    match loc {
        None => out.push(0),
        Some(loc) => {
            out.push(1);
            out.extend_from_slice(&loc_bytes(loc));
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u64> {
        let mut n = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            n |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(n);
            }
        }
        None
    }

    fn optional(&mut self) -> Option<Option<u64>> {
        match self.byte()? {
            0 => Some(None),
            _ => Some(Some(self.number()?)),
        }
    }

    fn text(&mut self) -> Option<String> {
        let len = usize::try_from(self.number()?).ok()?;
        String::from_utf8(self.bytes(len)?.to_vec()).ok()
    }

    fn effects(&mut self) -> Option<Vec<EffectId>> {
        let count = self.number()?;
        (0..count)
            .map(|_| Some(EffectId(Seq(self.number()?))))
            .collect()
    }

    fn fingerprints(&mut self) -> Option<Vec<Fingerprint>> {
        let count = usize::try_from(self.number()?).ok()?;
        let bytes = self.bytes(count.checked_mul(16)?)?;
        Some(
            bytes
                .chunks_exact(16)
                .filter_map(|chunk| chunk.try_into().ok().map(Fingerprint))
                .collect(),
        )
    }

    fn place(&mut self) -> Option<Option<Loc>> {
        match self.byte()? {
            0 => Some(None),
            _ => Some(Some(loc_of(self.bytes(12)?)?)),
        }
    }
}
