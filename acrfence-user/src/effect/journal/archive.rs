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
        let headers: Vec<SegmentHeader> = self
            .segments
            .read()
            .range(from..)
            .map(|(_, h)| h.clone())
            .collect();
        for header in &headers {
            if header.first > to {
                break;
            }
            let bytes = self.segment_bytes(header.number)?;
            let keyring = self.keyring.load_full();
            let mut walk = Walk::new(&bytes, header, &keyring);
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

    /// A whole segment.
    pub fn segment_bytes(&self, number: u32) -> Result<Vec<u8>, LogError> {
        let read = || -> io::Result<Vec<u8>> {
            let file = self.file(number)?;
            read_range(&*file, 0, file.size()? as usize)
        };
        read().map_err(|e| LogError::Corrupt {
            place: place(number, 0, None),
            detail: format!("the segment cannot be read: {e}"),
        })
    }

    /// Digest of the body file that a record names, if it names one.
    pub fn body_of(frame: &Frame<'_>) -> Option<Hash> {
        if frame.header.flags & EXTERNAL == 0 {
            return None;
        }
        bodies::split(frame.payload).ok().map(|(digest, _)| digest)
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
