//! Where a journal ends: the torn group that a crash left is cut off, anything else that does not fit is
//! damage or a rollback, which only a person can accept.

use crate::effect::LogError;
use crate::words::Seq;

use super::Head;
use super::anchor::{self, Anchor};
use super::archive::{Archive, place};
use super::frame::{self, Hash};
use super::open::{Acceptance, End, Torn};
use super::segment::{self, SegmentHeader};
use super::tail::{self, Tail};
use super::walk::{Walk, WalkFault};

/// Reads from the segment that holds the anchored record to the end.
pub(super) fn find_end(
    archive: &Archive,
    anchor: Option<&Anchor>,
    accept: Acceptance,
    lost: &mut Option<(Seq, String)>,
) -> Result<(Head, Option<End>, Option<Torn>), LogError> {
    let headers = archive.headers();
    let Some(last) = headers.last() else {
        return Ok((
            Head {
                seq: Seq(0),
                chain: [0; 32],
            },
            None,
            None,
        ));
    };
    let anchored = anchor.map_or(Seq(0), |anchor| anchor.seq);
    let start = anchor
        .and_then(|anchor| headers.iter().rposition(|h| h.first <= anchor.seq))
        .unwrap_or(headers.len() - 1)
        .min(headers.len() - 1);
    let keyring = archive.keyring.load_full();
    for (at, header) in headers.iter().enumerate().skip(start) {
        let bytes = archive.segment_bytes(header.number)?;
        let mut walk = Walk::new(&bytes, header, &keyring);
        let mut fault = None;
        loop {
            match walk.step() {
                Ok(Some(step)) => {
                    check_anchor(anchor, step.frame.header.seq, &step.chain, accept, lost)?
                }
                Ok(None) => break,
                Err(found) => {
                    fault = Some(found);
                    break;
                }
            }
        }
        if header.number != last.number {
            let next = &headers[at + 1];
            let written = tail::written_end(&bytes);
            match sealed_end(header, next, &walk, fault.as_ref(), written) {
                Ok(()) => continue,
                // Nothing can be appended to a compacted segment: it must come from a backup.
                Err(e) if accept == Acceptance::Nothing || header.compacted.is_some() => {
                    return Err(e);
                }
                Err(e) => {
                    let known = set_later_aside(archive, &headers[at + 1..])?;
                    note_loss(lost, known.max(anchored), e.to_string());
                }
            }
        }
        let head = Head {
            seq: walk.seq,
            chain: walk.chain,
        };
        let end = End {
            number: header.number,
            offset: walk.at as u64,
            size: bytes.len() as u64,
        };
        let here = place(header.number, walk.at, None);
        let written = tail::written_end(&bytes);
        let torn = match tail::judge(&bytes, &walk, fault.as_ref(), anchored > walk.seq) {
            Tail::Clean => None,
            Tail::Torn { bytes } => Some(Torn {
                place: here,
                bytes: bytes as u64,
            }),
            Tail::Damaged { detail } if accept == Acceptance::Loss => {
                let known = written_positions(&bytes, &walk).max(anchored);
                note_loss(lost, known, format!("{here}: {detail}"));
                set_aside(archive, header.number, &bytes[walk.at..written])?;
                Some(Torn {
                    place: here,
                    bytes: (written - walk.at) as u64,
                })
            }
            Tail::Damaged { detail } => {
                return Err(LogError::Corrupt {
                    place: here,
                    detail,
                });
            }
        };
        if torn.is_some() {
            clear(archive, header.number, walk.at, written)?;
        }
        return Ok((head, Some(end), torn));
    }
    Err(LogError::Unusable(
        "the journal has no last segment".to_owned(),
    ))
}

/// Whether a segment that has a successor ends where its successor begins.
fn sealed_end(
    header: &SegmentHeader,
    next: &SegmentHeader,
    walk: &Walk<'_>,
    fault: Option<&WalkFault>,
    written: usize,
) -> Result<(), LogError> {
    let corrupt = |detail: String| {
        Err(LogError::Corrupt {
            place: place(header.number, walk.at, None),
            detail,
        })
    };
    if let Some(fault) = fault {
        return corrupt(fault.to_string());
    }
    let (seq, chain) = match &header.compacted {
        Some(compacted) => (compacted.last, compacted.end),
        None => (walk.seq, walk.chain),
    };
    if next.first.0 != seq.0.saturating_add(1) || next.previous != chain {
        return corrupt(format!(
            "it ends with record {seq}, and the next segment does not follow from that"
        ));
    }
    if written > walk.at.max(segment::HEADER) {
        return corrupt("something stands behind its last record".to_owned());
    }
    Ok(())
}

/// Compares a record with the one the anchor names.
fn check_anchor(
    anchor: Option<&Anchor>,
    seq: Seq,
    chain: &Hash,
    accept: Acceptance,
    lost: &mut Option<(Seq, String)>,
) -> Result<(), LogError> {
    match anchor {
        Some(anchor) if anchor.seq == seq && anchor.chain != *chain => refuse(
            accept,
            lost,
            seq,
            format!("record {seq} is not the one the anchor names: the journal went another way"),
        ),
        _ => Ok(()),
    }
}

/// Refuses the journal, unless a person accepts the loss: then it is noted.
pub(super) fn refuse(
    accept: Acceptance,
    lost: &mut Option<(Seq, String)>,
    known: Seq,
    why: String,
) -> Result<(), LogError> {
    match accept {
        Acceptance::Nothing => Err(LogError::RolledBack { detail: why }),
        Acceptance::Loss => {
            note_loss(lost, known, why);
            Ok(())
        }
    }
}

fn note_loss(lost: &mut Option<(Seq, String)>, known: Seq, why: String) {
    *lost = Some(match lost.take() {
        None => (known, why),
        Some((before, reasons)) => (before.max(known), format!("{reasons}; {why}")),
    });
}

/// The highest position that a whole record behind a damaged place has.
fn written_positions(bytes: &[u8], walk: &Walk<'_>) -> Seq {
    let mut highest = walk.seq;
    let mut at = walk.at;
    while let Some(found) = frame::next_magic(bytes, at) {
        if let Ok(header) = frame::read_header(&bytes[found..]) {
            highest = highest.max(Seq(header.seq.0.saturating_add(header.left.into())));
        }
        at = found + 1;
    }
    highest
}

/// Takes segments behind a damaged one out of the journal, for whoever wants to look at them. Returns
/// the last position that is known to have been in them.
fn set_later_aside(archive: &Archive, later: &[SegmentHeader]) -> Result<Seq, LogError> {
    let keyring = archive.keyring.load_full();
    let mut known = Seq(0);
    // The last first: what is left is in one piece at every moment.
    for header in later.iter().rev() {
        let bytes = archive.segment_bytes(header.number)?;
        let mut walk = Walk::new(&bytes, header, &keyring);
        while let Ok(Some(_)) = walk.step() {}
        known = known.max(written_positions(&bytes, &walk));
        let name = segment::file_name(header.number);
        let aside = format!("cut-{name}-{}", anchor::now().0);
        let moved = archive
            .disk
            .rename(&archive.dir.join(&name), &archive.dir.join(aside))
            .and_then(|()| archive.disk.sync_dir(&archive.dir));
        moved.map_err(|e| LogError::Unusable(format!("{name} cannot be set aside: {e}")))?;
        archive.segments.write().remove(&header.number);
    }
    Ok(known)
}

/// Keeps what is cut off for whoever wants to look at it.
fn set_aside(archive: &Archive, number: u32, bytes: &[u8]) -> Result<(), LogError> {
    let name = format!("cut-{number:010}-{}", anchor::now().0);
    let write = || -> std::io::Result<()> {
        let file = archive.disk.create(&archive.dir.join(name))?;
        file.write_at(bytes, 0)?;
        file.sync()
    };
    write().map_err(|e| LogError::Unusable(format!("the damaged end cannot be set aside: {e}")))
}

fn clear(archive: &Archive, number: u32, from: usize, to: usize) -> Result<(), LogError> {
    if to <= from {
        return Ok(());
    }
    let write = || -> std::io::Result<()> {
        let file = archive.file(number)?;
        file.write_at(&vec![0; to - from], from as u64)?;
        file.sync()
    };
    write().map_err(|e| LogError::Stopped {
        detail: format!("a torn end could not be cleared: {e}"),
    })
}
