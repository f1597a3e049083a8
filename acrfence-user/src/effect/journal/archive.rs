//! The reading side of the journal: segments, records at known places, whole walks.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};

use crate::effect::LogError;
use crate::words::Seq;

use super::bodies::{self, Bodies};
use super::disk::{Disk, DiskFile, read_range};
use super::frame::{self, EXTERNAL, Frame, Hash};
use super::keys::{Keyring, StoreId};
use super::seal::{self, Record};
use super::segment::{self, SegmentHeader};
use super::tail;
use super::walk::{Step, Walk};

/// Open segment files are kept up to this number.
const OPEN_FILES: usize = 128;

/// Where a record lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loc {
    /// Segment number.
    pub segment: u32,
    /// Offset in it.
    pub offset: u32,
    /// Length of the whole record.
    pub len: u32,
}

/// Something that is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Record, segment and offset.
    pub place: String,
    /// What is wrong.
    pub detail: String,
}

/// The segments, for reading.
pub struct Archive {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) dir: PathBuf,
    /// Names the store.
    pub store: StoreId,
    /// The keys; replaced when a key is added.
    pub keyring: ArcSwap<Keyring>,
    /// Large payloads.
    pub bodies: Bodies,
    pub(super) segments: RwLock<BTreeMap<u32, SegmentHeader>>,
    /// Held while a segment is replaced and the index told, and while the index is rebuilt.
    pub rewriting: Mutex<()>,
    files: Mutex<HashMap<u32, Arc<dyn DiskFile>>>,
}

/// A record on a walk.
pub struct Walked<'a> {
    /// Where it lies.
    pub loc: Loc,
    /// The record, sealed.
    pub frame: &'a Frame<'a>,
    /// Its chain hash.
    pub chain: Hash,
}

impl Archive {
    pub(super) fn new(
        disk: Arc<dyn Disk>,
        dir: PathBuf,
        store: StoreId,
        keyring: Keyring,
        bodies: Bodies,
    ) -> Self {
        Self {
            disk,
            dir,
            store,
            keyring: ArcSwap::from_pointee(keyring),
            bodies,
            segments: RwLock::default(),
            rewriting: Mutex::default(),
            files: Mutex::default(),
        }
    }

    /// The record at `loc`, which must have position `seq`.
    pub fn read(&self, loc: Loc, seq: Seq) -> Result<Record, LogError> {
        let damaged = |detail: String| LogError::Corrupt {
            place: place(loc.segment, loc.offset as usize, Some(seq)),
            detail,
        };
        let bytes = self.record_bytes(loc).map_err(|e| damaged(e.to_string()))?;
        let frame = frame::read(&bytes).map_err(|e| damaged(e.to_string()))?;
        if frame.header.seq != seq {
            return Err(damaged(format!("record {} stands there", frame.header.seq)));
        }
        let chain = frame.header.chain(&digest(frame.payload));
        let keyring = self.keyring.load();
        let right = keyring
            .get(frame.header.key)
            .is_none_or(|keys| keys.mac(&chain) == frame.header.mac);
        if !right {
            return Err(damaged("its keyed hash does not fit".to_owned()));
        }
        self.open(&frame).map_err(damaged)
    }

    /// The bytes at `loc`, unchecked.
    pub fn record_bytes(&self, loc: Loc) -> io::Result<Vec<u8>> {
        let file = self.file(loc.segment)?;
        read_range(&*file, loc.offset.into(), loc.len as usize)
    }

    /// Opens the payload of a record.
    pub fn open(&self, frame: &Frame<'_>) -> Result<Record, String> {
        let keyring = self.keyring.load();
        if frame.header.flags & EXTERNAL == 0 {
            return seal::open(&keyring, &self.store, &frame.header, frame.payload);
        }
        let sealed = self
            .bodies
            .load(frame.payload)
            .map_err(|e| format!("its body cannot be read: {e}"))?;
        seal::open(&keyring, &self.store, &frame.header, &sealed)
    }

    /// The headers of all segments, oldest first.
    pub fn headers(&self) -> Vec<SegmentHeader> {
        self.segments.read().values().cloned().collect()
    }

    /// Visits every record from segment `from` on, up to position `to`, in order. Each is checked
    /// against the chain.
    pub fn walk(
        &self,
        from: u32,
        to: Seq,
        visit: &mut dyn FnMut(Walked<'_>) -> Result<ControlFlow<()>, LogError>,
    ) -> Result<(), LogError> {
        let mut next = from;
        while let Some((header, bytes)) = self.segment_from(next)? {
            if header.first > to {
                break;
            }
            next = header.number.saturating_add(1);
            let keyring = self.keyring.load_full();
            let mut walk = Walk::new(&bytes, &header, &keyring);
            while walk.seq < to {
                let at = walk.at;
                let step = walk.step().map_err(|fault| LogError::Corrupt {
                    place: place(header.number, at, None),
                    detail: fault.to_string(),
                })?;
                let Some(Step {
                    frame,
                    offset,
                    chain,
                }) = step
                else {
                    break;
                };
                let loc = Loc {
                    segment: header.number,
                    offset: offset as u32,
                    len: frame::length(frame.payload.len()) as u32,
                };
                if visit(Walked {
                    loc,
                    frame: &frame,
                    chain,
                })?
                .is_break()
                {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Checks every record of a segment up to position `to`, and that it follows from `before`, the
    /// end of the segment before it. `visit` may find fault with a record. Returns its end, when the
    /// chain held to there.
    pub fn check_segment(
        &self,
        header: &SegmentHeader,
        before: Option<(Seq, Hash)>,
        to: Option<Seq>,
        faults: &mut Vec<Fault>,
        visit: &mut dyn FnMut(Walked<'_>) -> Option<String>,
    ) -> Option<(Seq, Hash)> {
        let number = header.number;
        let mut blame = |offset: usize, seq: Option<Seq>, detail: String| {
            faults.push(Fault {
                place: place(number, offset, seq),
                detail,
            });
        };
        if let Some((seq, chain)) = before
            && (header.first.0 != seq.0.saturating_add(1) || header.previous != chain)
        {
            let detail = format!("it does not follow from record {seq}, the last one before it");
            blame(0, None, detail);
        }
        let bytes = match self.segment_bytes(number) {
            Ok(bytes) => bytes,
            Err(e) => {
                blame(0, None, e.to_string());
                return None;
            }
        };
        let keyring = self.keyring.load_full();
        let mut walk = Walk::new(&bytes, header, &keyring);
        while to.is_none_or(|to| walk.seq < to) {
            let at = walk.at;
            let next = Seq(walk.seq.0.saturating_add(1));
            match walk.step() {
                Ok(Some(Step {
                    frame,
                    offset,
                    chain,
                })) => {
                    let loc = Loc {
                        segment: number,
                        offset: offset as u32,
                        len: frame::length(frame.payload.len()) as u32,
                    };
                    let seq = frame.header.seq;
                    let walked = Walked {
                        loc,
                        frame: &frame,
                        chain,
                    };
                    if let Some(detail) = visit(walked) {
                        blame(offset, Some(seq), detail);
                    }
                }
                Ok(None) => break,
                Err(fault) => {
                    blame(at, Some(next), fault.to_string());
                    return None;
                }
            }
        }
        let is_last = self.segments.read().keys().next_back() == Some(&number);
        if !(is_last && to.is_some()) && tail::written_end(&bytes) > walk.at.max(segment::HEADER) {
            let next = Seq(walk.seq.0.saturating_add(1));
            blame(
                walk.at,
                Some(next),
                "something stands behind the last record".to_owned(),
            );
            return None;
        }
        let Some(compacted) = &header.compacted else {
            return Some((walk.seq, walk.chain));
        };
        if digest(&bytes[segment::HEADER..walk.at]) != compacted.kept {
            let detail = "it does not hold the records that its compaction kept".to_owned();
            blame(segment::HEADER, None, detail);
        }
        Some((compacted.last, compacted.end))
    }

    /// The first segment with this or a later number, as it is at this moment.
    fn segment_from(&self, number: u32) -> Result<Option<(SegmentHeader, Vec<u8>)>, LogError> {
        // The file stays the one the header speaks of, even when it is replaced meanwhile.
        let (header, file) = {
            let segments = self.segments.read();
            let Some((number, header)) = segments.range(number..).next() else {
                return Ok(None);
            };
            (header.clone(), self.file(*number))
        };
        let bytes = file.and_then(|file| read_range(&*file, 0, file.size()? as usize));
        let bytes = bytes.map_err(|e| unreadable(header.number, &e))?;
        Ok(Some((header, bytes)))
    }

    /// A whole segment.
    pub fn segment_bytes(&self, number: u32) -> Result<Vec<u8>, LogError> {
        let read = || -> io::Result<Vec<u8>> {
            let file = self.file(number)?;
            read_range(&*file, 0, file.size()? as usize)
        };
        read().map_err(|e| unreadable(number, &e))
    }

    /// Digest of the body file that a record names, if it names one.
    pub fn body_of(frame: &Frame<'_>) -> Option<Hash> {
        if frame.header.flags & EXTERNAL == 0 {
            return None;
        }
        bodies::split(frame.payload).ok().map(|(digest, _)| digest)
    }

    /// Whether the record at this position may have been removed by garbage collection.
    pub fn may_lack(&self, seq: Seq) -> bool {
        let segments = self.segments.read();
        let segment = segments.values().rfind(|header| header.first <= seq);
        segment.is_some_and(|header| header.compacted.is_some())
    }

    /// Bytes of all segments and body files.
    pub fn bytes(&self) -> Result<u64, LogError> {
        let sum = || -> io::Result<u64> {
            let mut sum = self.bodies.bytes()?;
            let numbers: Vec<u32> = self.segments.read().keys().copied().collect();
            for number in numbers {
                sum += self.file(number)?.size()?;
            }
            Ok(sum)
        };
        sum().map_err(|e| LogError::Unusable(format!("the size of the log cannot be told: {e}")))
    }

    /// Puts a segment with this header and these records in place of the one with its number.
    pub fn replace(&self, header: SegmentHeader, records: &[u8]) -> Result<(), LogError> {
        let number = header.number;
        let new = self.dir.join(format!("compact-{number}"));
        let write = || -> io::Result<Arc<dyn DiskFile>> {
            let _ = self.disk.remove(&new);
            let file = self.disk.create(&new)?;
            file.write_at(&header.write(self.keyring.load().current()), 0)?;
            file.write_at(records, segment::HEADER as u64)?;
            file.sync()?;
            Ok(file)
        };
        let swap = |file: Arc<dyn DiskFile>| -> io::Result<()> {
            // Whoever walks sees the old header and file, or the new ones.
            let mut segments = self.segments.write();
            let path = self.dir.join(segment::file_name(number));
            self.disk.rename(&new, &path)?;
            self.files.lock().insert(number, file);
            segments.insert(number, header.clone());
            self.disk.sync_dir(&self.dir)
        };
        write().and_then(swap).map_err(|e| {
            let _ = self.disk.remove(&new);
            LogError::Unusable(format!(
                "segment {number} could not be rewritten: {e}; free some space and run gc again"
            ))
        })
    }

    pub(super) fn add(&self, header: SegmentHeader, file: Arc<dyn DiskFile>) {
        self.files.lock().insert(header.number, file);
        self.segments.write().insert(header.number, header);
    }

    pub(super) fn file(&self, number: u32) -> io::Result<Arc<dyn DiskFile>> {
        if let Some(file) = self.files.lock().get(&number) {
            return Ok(file.clone());
        }
        let file = self.disk.open(&self.dir.join(segment::file_name(number)))?;
        let mut files = self.files.lock();
        if files.len() >= OPEN_FILES {
            files.clear();
        }
        files.insert(number, file.clone());
        Ok(file)
    }
}

fn unreadable(number: u32, error: &io::Error) -> LogError {
    LogError::Corrupt {
        place: place(number, 0, None),
        detail: format!("the segment cannot be read: {error}"),
    }
}

/// A place in the journal, in words.
pub fn place(segment: u32, offset: usize, seq: Option<Seq>) -> String {
    let name = segment::file_name(segment);
    match seq {
        Some(seq) => format!("record {seq}, journal/{name} offset {offset}"),
        None => format!("journal/{name} offset {offset}"),
    }
}

fn digest(bytes: &[u8]) -> Hash {
    use sha2::Digest as _;
    sha2::Sha256::digest(bytes).into()
}
