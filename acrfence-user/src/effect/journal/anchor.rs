//! The anchor: a second record of how far the journal got, outside the state directory.
//!
//! A file with two slots: one holds what was last synced, the other is written until the next sync,
//! so that one is whole whatever happens. It is written by a thread of its own, after the records it names are durable: it may trail, it is
//! never ahead. A journal that ends before its anchor was rolled back.
//!
//! ```text
//! slot (at 0 and at 4096):
//!   0  magic      "ACRFANC1"
//!   8  count      u64, higher in the newer slot
//!  16  store      16 bytes
//!  32  seq        u64, position of the last durable record
//!  40  chain      32 bytes, its chain hash
//!  72  key        u32, which key signed
//!  76  reserved   u32, zero
//!  80  at         u64, nanoseconds since 1970
//!  88  signature  64 bytes, Ed25519 over everything before
//! 152  check      u32, CRC-32C of everything before
//! ```

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::words::{Seq, Timestamp};

use super::disk::{Disk, DiskFile, read_range};
use super::frame::Hash;
use super::keys::{Keyring, StoreId};

const MAGIC: &[u8; 8] = b"ACRFANC1";
const SLOT: usize = 4096;
const SIGNED: usize = 88;
const CHECKED: usize = 152;

/// What an anchor says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// How many times it was written.
    pub count: u64,
    /// The store it belongs to.
    pub store: StoreId,
    /// Position of a durable record.
    pub seq: Seq,
    /// Its chain hash.
    pub chain: Hash,
    /// When it was written.
    pub at: Timestamp,
}

/// What an anchor file holds.
#[derive(Debug)]
pub enum Found {
    /// There is no file.
    Missing,
    /// The newest whole slot.
    Anchor(Anchor),
    /// There is a file, and no slot in it can be trusted.
    Broken(String),
}

/// Keeps the anchor file up to date.
pub struct Anchorer {
    shared: Arc<Shared>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

struct State {
    wanted: (Seq, Hash),
    written: Seq,
    closing: bool,
    trouble: Option<String>,
}

/// How the anchor is written.
pub struct Pace {
    /// At least this long between two writes.
    pub write: Duration,
    /// At least this long between two syncs, besides the one at the end.
    pub sync: Duration,
}

/// The store that the newest slot names, before there are keys to check it with.
pub fn store_of(disk: &dyn Disk, path: &Path) -> io::Result<Option<StoreId>> {
    let Some(bytes) = read_file(disk, path)? else {
        return Ok(None);
    };
    Ok(slots(&bytes)
        .filter(|slot| checked(slot))
        .max_by_key(|slot| u64::from_le_bytes(array(&slot[8..16])))
        .map(|slot| array(&slot[16..32])))
}

/// Reads the anchor file.
pub fn read(disk: &dyn Disk, path: &Path, keyring: &Keyring) -> io::Result<Found> {
    let Some(bytes) = read_file(disk, path)? else {
        return Ok(Found::Missing);
    };
    let newest = slots(&bytes)
        .filter_map(|slot| parse(slot, keyring))
        .max_by_key(|anchor| anchor.count);
    Ok(match newest {
        Some(anchor) => Found::Anchor(anchor),
        None => Found::Broken(
            "neither of its two slots is whole and signed with a key of the key file".to_owned(),
        ),
    })
}

// === impl Anchorer ===

impl Anchorer {
    /// Writes `first` at once, durably, then follows [`Self::advance`] in a thread of its own.
    pub fn start(
        disk: Arc<dyn Disk>,
        path: PathBuf,
        keyring: Arc<Keyring>,
        pace: Pace,
        first: Anchor,
    ) -> io::Result<Self> {
        let file = begin(&*disk, &path, &first, &keyring)?;
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                wanted: (first.seq, first.chain),
                written: first.seq,
                closing: false,
                trouble: None,
            }),
            wake: Condvar::new(),
        });
        let follower = Follower {
            shared: shared.clone(),
            file,
            keyring,
            pace,
            slot: 0,
            last: first,
        };
        let thread = std::thread::Builder::new()
            .name("acrfence-anchor".to_owned())
            .spawn(move || follower.run())?;
        Ok(Self {
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// A record is durable. Never waits.
    pub fn advance(&self, seq: Seq, chain: Hash) {
        self.shared.state.lock().wanted = (seq, chain);
        self.shared.wake.notify_one();
    }

    /// Why the anchor is not being written, if it is not.
    pub fn trouble(&self) -> Option<String> {
        self.shared.state.lock().trouble.clone()
    }

    /// Position it names.
    pub fn position(&self) -> Seq {
        self.shared.state.lock().written
    }

    /// Writes what is left, durably, and ends the thread.
    pub fn close(&self) {
        self.shared.state.lock().closing = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

struct Follower {
    shared: Arc<Shared>,
    file: Arc<dyn DiskFile>,
    keyring: Arc<Keyring>,
    pace: Pace,
    /// The slot that may be overwritten: not the one that was last synced.
    slot: u64,
    last: Anchor,
}

impl Follower {
    fn run(mut self) {
        let mut synced = Instant::now();
        let mut dirty = false;
        loop {
            let mut state = self.shared.state.lock();
            while state.wanted.0 <= self.last.seq && !state.closing {
                if dirty {
                    let timed_out = self
                        .shared
                        .wake
                        .wait_until(&mut state, synced + self.pace.sync)
                        .timed_out();
                    if timed_out {
                        break;
                    }
                } else {
                    self.shared.wake.wait(&mut state);
                }
            }
            let (seq, chain) = state.wanted;
            let closing = state.closing;
            drop(state);

            let mut result = Ok(());
            if seq > self.last.seq {
                self.last.count += 1;
                self.last.seq = seq;
                self.last.chain = chain;
                self.last.at = now();
                result = write(&*self.file, self.slot, &self.last, &self.keyring);
                dirty = true;
            }
            if dirty && (closing || synced.elapsed() >= self.pace.sync) {
                result = result.and_then(|()| self.file.sync());
                synced = Instant::now();
                if result.is_ok() {
                    dirty = false;
                    self.slot ^= 1;
                }
            }

            let mut state = self.shared.state.lock();
            match result {
                Ok(()) => {
                    state.written = self.last.seq;
                    state.trouble = None;
                }
                Err(e) => {
                    let detail = format!("the anchor file cannot be written: {e}");
                    if state.trouble.is_none() {
                        tracing::error!("{detail}; a rolled back journal may go unnoticed");
                    }
                    state.trouble = Some(detail);
                }
            }
            if closing && state.wanted.0 <= self.last.seq {
                return;
            }
            // Not after every commit group: signing and writing must not take the disk away from
            // the journal. An end of the store cuts the wait short.
            let until = Instant::now() + self.pace.write;
            while !state.closing && !self.shared.wake.wait_until(&mut state, until).timed_out() {}
        }
    }
}

/// Makes both slots name `first`, so that whatever they held before is past, without a moment at
/// which neither is whole.
fn begin(
    disk: &dyn Disk,
    path: &Path,
    first: &Anchor,
    keyring: &Keyring,
) -> io::Result<Arc<dyn DiskFile>> {
    let both = |file: &dyn DiskFile, order: [u64; 2]| -> io::Result<()> {
        for slot in order {
            write(file, slot, first, keyring)?;
            file.sync()?;
        }
        Ok(())
    };
    match disk.open(path) {
        Ok(file) => {
            let bytes = read_range(&*file, 0, 2 * SLOT)?;
            let count = |slot| parse(slot, keyring).map(|anchor| anchor.count);
            let counts: Vec<_> = slots(&bytes).map(count).collect();
            both(
                &*file,
                if counts[0] > counts[1] {
                    [1, 0]
                } else {
                    [0, 1]
                },
            )?;
            Ok(file)
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let mut name = path.file_name().unwrap_or_default().to_owned();
            name.push(".new");
            let new = path.with_file_name(name);
            let _ = disk.remove(&new);
            let file = disk.create(&new)?;
            both(&*file, [0, 1])?;
            disk.rename(&new, path)?;
            if let Some(dir) = path.parent() {
                disk.sync_dir(dir)?;
            }
            Ok(file)
        }
        Err(e) => Err(e),
    }
}

/// The time of day.
pub fn now() -> Timestamp {
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

fn write(file: &dyn DiskFile, slot: u64, anchor: &Anchor, keyring: &Keyring) -> io::Result<()> {
    let keys = keyring.current();
    let mut bytes = [0; CHECKED + 4];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..16].copy_from_slice(&anchor.count.to_le_bytes());
    bytes[16..32].copy_from_slice(&anchor.store);
    bytes[32..40].copy_from_slice(&anchor.seq.0.to_le_bytes());
    bytes[40..72].copy_from_slice(&anchor.chain);
    bytes[72..76].copy_from_slice(&keys.id.to_le_bytes());
    bytes[80..88].copy_from_slice(&anchor.at.0.to_le_bytes());
    let signature = keys.sign(&bytes[..SIGNED]);
    bytes[SIGNED..CHECKED].copy_from_slice(&signature);
    let check = crc32c::crc32c(&bytes[..CHECKED]);
    bytes[CHECKED..].copy_from_slice(&check.to_le_bytes());
    file.write_at(&bytes, slot * SLOT as u64)
}

fn read_file(disk: &dyn Disk, path: &Path) -> io::Result<Option<Vec<u8>>> {
    match disk.open(path) {
        Ok(file) => read_range(&*file, 0, 2 * SLOT).map(Some),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

fn slots(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.chunks_exact(SLOT)
}

fn checked(slot: &[u8]) -> bool {
    &slot[..8] == MAGIC
        && crc32c::crc32c(&slot[..CHECKED])
            == u32::from_le_bytes(array(&slot[CHECKED..CHECKED + 4]))
}

fn parse(slot: &[u8], keyring: &Keyring) -> Option<Anchor> {
    let keys = keyring.get(u32::from_le_bytes(array(&slot[72..76])))?;
    let whole = checked(slot) && keys.signed(&slot[..SIGNED], &array(&slot[SIGNED..CHECKED]));
    whole.then(|| Anchor {
        count: u64::from_le_bytes(array(&slot[8..16])),
        store: array(&slot[16..32]),
        seq: Seq(u64::from_le_bytes(array(&slot[32..40]))),
        chain: array(&slot[40..72]),
        at: Timestamp(u64::from_le_bytes(array(&slot[80..88]))),
    })
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(bytes);
    out
}
