//! Keeping facts in the ordered keys: sealing, merging, catching up, building anew.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use chacha20poly1305::aead::{Aead as _, KeyInit as _, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use parking_lot::{Condvar, Mutex, RwLock};

use super::facts::{self, Seen};
use super::key::{self, Names};
use super::layers::{self, Layer, Layers, Reached};
use super::ordered::{Change, End, Home, IndexFault, Ordered, Visit};
use super::pack;
use super::recent::Recent;
use super::row::{self, Row};
use super::{Head, Index, Signals, State, secret};
use crate::effect::journal::archive::Archive;
use crate::effect::journal::frame::Hash;
use crate::effect::journal::keys::random;
use crate::effect::journal::seal::Record;
use crate::effect::journal::{Loc, frame};
use crate::effect::{LogError, Phase, Progress};
use crate::words::{EffectId, Seq};

/// Version of the keys and rows; another one is rebuilt.
const FORMAT: u8 = 2;
/// Facts gathered before they are written, when building.
const GATHER: usize = 60_000;
/// Records between two reports of progress.
const REPORT: u64 = 4096;

/// Writes facts into ordered keys and reads them back. Rows and names are sealed there.
pub struct Keeper {
    cipher: XChaCha20Poly1305,
    mark: [u8; 16],
    /// Nonces are random per process and counted within it: never the same twice.
    nonce_start: [u8; 16],
    nonce_count: AtomicU64,
}

/// An index that was opened.
pub struct OpenedIndex {
    /// The index.
    pub index: Arc<Index>,
    /// Its applier.
    pub applier: std::thread::JoinHandle<()>,
    /// Why it had to be built anew, if it had.
    pub rebuilt: Option<String>,
    /// Records it had to catch up with.
    pub caught_up: u64,
}

/// Before the first record.
pub fn nowhere() -> Reached {
    Reached {
        seq: Seq(0),
        chain: [0; 32],
        loc: Loc {
            segment: 0,
            offset: 0,
            len: 0,
        },
    }
}

/// An empty index in place of what was there.
pub fn fresh(
    home: &dyn Home,
    keeper: &Keeper,
    archive: &Archive,
) -> Result<Arc<dyn Ordered>, IndexFault> {
    home.wipe()?;
    home.mark_clean(false)?;
    let ordered = home.open()?;
    keeper.store(&*ordered, &Layer::new(), nowhere(), gc_pass(archive))?;
    Ok(ordered)
}

/// Takes records behind `from` up to `to` in from the journal; returns how far it got.
pub fn take_in(
    keeper: &Keeper,
    names: &Names,
    archive: &Archive,
    ordered: &dyn Ordered,
    from: Reached,
    to: Seq,
    progress: &mut dyn FnMut(Progress),
) -> Result<Reached, LogError> {
    let unusable = |fault: IndexFault| LogError::Unusable(fault.to_string());
    let mut gathered = Layer::new();
    let mut reached = from;
    let pass = gc_pass(archive);
    let phase = if from.seq == Seq(0) {
        Phase::Rebuild
    } else {
        Phase::CatchUp
    };
    archive.walk(from.loc.segment, to, &mut |walked| {
        let seq = walked.frame.header.seq;
        if seq <= from.seq {
            return Ok(ControlFlow::Continue(()));
        }
        let record = archive
            .open(walked.frame)
            .map_err(|detail| LogError::Corrupt {
                place: crate::effect::journal::place(
                    walked.loc.segment,
                    walked.loc.offset as usize,
                    Some(seq),
                ),
                detail,
            })?;
        if let Record::Event(event) = &record {
            let seen = Seen {
                seq,
                loc: Some(walked.loc),
                body: Archive::body_of(walked.frame),
                event,
            };
            let row_of = |id: EffectId| keeper.row(&gathered, ordered, id);
            for (key, value) in facts::facts(&seen, names, &row_of).map_err(unusable)? {
                layers::insert(&mut gathered, key, value);
            }
        }
        reached = Reached {
            seq,
            chain: walked.chain,
            loc: walked.loc,
        };
        if gathered.len() >= GATHER {
            keeper
                .store(ordered, &gathered, reached, pass)
                .map_err(unusable)?;
            gathered.clear();
        }
        if seq.0.is_multiple_of(REPORT) {
            progress(Progress {
                phase,
                done: seq.0 - from.seq.0,
                total: to.0 - from.seq.0,
            });
        }
        Ok(ControlFlow::Continue(()))
    })?;
    if reached.seq > from.seq {
        keeper
            .store(ordered, &gathered, reached, pass)
            .map_err(unusable)?;
        progress(Progress {
            phase,
            done: to.0 - from.seq.0,
            total: to.0 - from.seq.0,
        });
    }
    Ok(reached)
}

impl Index {
    /// Opens the index of a journal that ends at `head`, and makes it agree with it.
    pub fn open(
        home: Arc<dyn Home>,
        archive: Arc<Archive>,
        head: Head,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<OpenedIndex, LogError> {
        let keeper = Keeper::new(&archive)?;
        let names = Names::new(&secret(&archive, "names"));
        let unusable = |fault: IndexFault| {
            LogError::Unusable(format!(
                "{fault}, nor could a new one be made; look at the disk under the state directory"
            ))
        };
        let (opened, rebuilt) = match existing(&*home, &keeper, &archive, head) {
            Ok(existing) => (existing, None),
            Err(why) => {
                let empty = head.seq == Seq(0);
                (
                    (
                        fresh(&*home, &keeper, &archive).map_err(unusable)?,
                        nowhere(),
                    ),
                    (!empty).then_some(why),
                )
            }
        };
        home.mark_clean(false).map_err(unusable)?;
        let (mut ordered, mut at) = opened;
        let mut rebuilt = rebuilt;
        let caught = take_in(&keeper, &names, &archive, &*ordered, at, head.seq, progress);
        let caught = match caught {
            // A fault of the index, not of the journal: once more, from nothing.
            Err(LogError::Unusable(why)) if rebuilt.is_none() => {
                drop(ordered);
                ordered = fresh(&*home, &keeper, &archive).map_err(unusable)?;
                at = nowhere();
                rebuilt = Some(why);
                take_in(&keeper, &names, &archive, &*ordered, at, head.seq, progress)
            }
            caught => caught,
        }?;
        let caught_up = head.seq.0 - at.seq.0;
        let pass = gc_pass(&archive);
        let index = Arc::new(Self {
            home,
            archive,
            keeper,
            names,
            state: RwLock::new(State::Ready(ordered)),
            layers: RwLock::new(Layers::over(caught, pass)),
            signals: Mutex::new(Signals {
                applied: caught.seq,
                ..Signals::default()
            }),
            recent: Mutex::new(Recent::since(head.seq)),
            // What was caught up with counts as written, a whole rebuild above all.
            written: AtomicU64::new(caught_up),
            read_ahead: AtomicBool::new(false),
            wake: Condvar::new(),
            applied: Condvar::new(),
        });
        let applier = index.clone();
        let applier = std::thread::Builder::new()
            .name("acrfence-index".to_owned())
            .spawn(move || applier.run_applier())
            .map_err(|e| {
                LogError::Unusable(format!("a thread of the index cannot be started: {e}"))
            })?;
        Ok(OpenedIndex {
            index,
            applier,
            rebuilt,
            caught_up,
        })
    }
}

/// The index as it is, if it can be trusted and agrees with the journal.
fn existing(
    home: &dyn Home,
    keeper: &Keeper,
    archive: &Archive,
    head: Head,
) -> Result<(Arc<dyn Ordered>, Reached), String> {
    if !home.trusted() {
        return Err("it was not closed before the machine went down".to_owned());
    }
    let ordered = home.open().map_err(|fault| fault.0)?;
    let mark = ordered.get(&[key::META]).map_err(|fault| fault.0)?;
    let Some(mark) = mark else {
        return Err("it does not say how far it got".to_owned());
    };
    let (reached, pass) = keeper
        .parse_mark(&mark)
        .ok_or("it belongs to another effect log or another version")?;
    if pass != gc_pass(archive) {
        return Err("a garbage collection was cut short".to_owned());
    }
    if reached.seq > head.seq {
        return Err("it knows of records that the journal does not have".to_owned());
    }
    if reached.seq == Seq(0) {
        return Ok((ordered, reached));
    }
    // The record it got to must be the one that stands there.
    let agrees = if reached.seq == head.seq {
        reached.chain == head.chain
    } else {
        let bytes = archive
            .record_bytes(reached.loc)
            .map_err(|e| format!("the record it got to cannot be read: {e}"))?;
        frame::read(&bytes).is_ok_and(|frame| {
            let digest = crate::words::Digest::of(frame.payload).0;
            frame.header.seq == reached.seq && frame.header.chain(&digest) == reached.chain
        })
    };
    if agrees {
        Ok((ordered, reached))
    } else {
        Err("it was made from another journal".to_owned())
    }
}

/// The last pass of garbage collection that changed a segment.
pub fn gc_pass(archive: &Archive) -> u32 {
    archive
        .headers()
        .iter()
        .filter_map(|header| header.compacted.as_ref())
        .map(|compacted| compacted.pass)
        .max()
        .unwrap_or(0)
}

// === impl Keeper ===

impl Keeper {
    fn new(archive: &Archive) -> Result<Self, LogError> {
        Ok(Self {
            cipher: XChaCha20Poly1305::new((&secret(archive, "rows")).into()),
            mark: archive.store,
            nonce_start: random()?,
            nonce_count: AtomicU64::new(0),
        })
    }

    /// The value of a key, opened.
    pub fn get(&self, ordered: &dyn Ordered, key: &[u8]) -> Result<Option<Vec<u8>>, IndexFault> {
        if key.first() != Some(&key::ROW) {
            return self.get_value(ordered, key);
        }
        let rows = self.get_value(ordered, &pack::row_block(key))?;
        let rows = rows.unwrap_or_default();
        let row = pack::row_in(&rows, key).ok_or_else(not_rows)?;
        Ok(row.map(<[u8]>::to_vec))
    }

    /// Visits ordered keys with `above` laid over them. Rows cannot be visited.
    pub fn scan_under(
        &self,
        ordered: &dyn Ordered,
        above: &[Change],
        from: End<'_>,
        to: End<'_>,
        reverse: bool,
        visit: Visit<'_>,
    ) -> Result<ControlFlow<()>, IndexFault> {
        let mut above = above.iter().peekable();
        let mut fault = None;
        let mut flow = ControlFlow::Continue(());
        let before = |a: &[u8], b: &[u8]| if reverse { a > b } else { a < b };
        ordered.scan(from, to, reverse, &mut |key, value| {
            while let Some((k, v)) = above.next_if(|(k, _)| before(k, key)) {
                if let Some(v) = v {
                    flow = visit(k, v);
                    if flow.is_break() {
                        return flow;
                    }
                }
            }
            let below = match self.opened(key, value.to_vec()) {
                Ok(below) => below,
                Err(found) => {
                    fault = Some(found);
                    return ControlFlow::Break(());
                }
            };
            let value = match above.next_if(|(k, _)| k == key) {
                None => Some(below),
                Some((_, None)) => None,
                Some((_, Some(v))) => Some(facts::merge(key, &below, v.clone())),
            };
            if let Some(value) = value {
                flow = visit(key, &value);
            }
            flow
        })?;
        if let Some(fault) = fault {
            return Err(fault);
        }
        if flow.is_continue() {
            for (key, value) in above {
                if let Some(value) = value {
                    flow = visit(key, value);
                    if flow.is_break() {
                        break;
                    }
                }
            }
        }
        Ok(flow)
    }

    /// Writes facts, then how far they reach.
    pub fn store(
        &self,
        ordered: &dyn Ordered,
        facts: &Layer,
        reached: Reached,
        pass: u32,
    ) -> Result<(), IndexFault> {
        let mut changes = Vec::with_capacity(facts.len() + 1);
        let mut rows: BTreeMap<Vec<u8>, Vec<pack::RowChange<'_>>> = BTreeMap::new();
        for (key, value) in facts {
            let value = match value {
                _ if key.first() == Some(&key::ROW) => {
                    let block = rows.entry(pack::row_block(key)).or_default();
                    block.push((key.as_slice(), value.as_deref()));
                    continue;
                }
                Some(value) if facts::merges(key) => Some(match ordered.get(key)? {
                    Some(older) => facts::merge(key, &older, value.clone()),
                    None => value.clone(),
                }),
                // The same name again and again.
                Some(_) if key.first() == Some(&key::NAME) && ordered.get(key)?.is_some() => {
                    continue;
                }
                Some(value) => Some(self.sealed(key, value)?),
                None => None,
            };
            changes.push((key.clone(), value));
        }
        for (block, changed) in rows {
            let older = self.get_value(ordered, &block)?.unwrap_or_default();
            let newer = pack::rows_with(&older, &changed).ok_or_else(not_rows)?;
            let value = if newer.is_empty() {
                None
            } else {
                Some(self.sealed(&block, &newer)?)
            };
            changes.push((block, value));
        }
        changes.push((vec![key::META], Some(self.mark_bytes(reached, pass))));
        ordered.apply(changes)
    }

    fn get_value(&self, ordered: &dyn Ordered, key: &[u8]) -> Result<Option<Vec<u8>>, IndexFault> {
        ordered
            .get(key)?
            .map(|value| self.opened(key, value))
            .transpose()
    }

    fn row(
        &self,
        gathered: &Layer,
        ordered: &dyn Ordered,
        id: EffectId,
    ) -> Result<Option<Row>, IndexFault> {
        let key = key::at(key::ROW, id.0);
        let bytes = match gathered.get(&key) {
            Some(value) => value.clone(),
            None => self.get(ordered, &key)?,
        };
        bytes
            .map(|bytes| {
                Row::decode(&bytes).ok_or_else(|| IndexFault("a row is not one".to_owned()))
            })
            .transpose()
    }

    fn mark_bytes(&self, reached: Reached, pass: u32) -> Vec<u8> {
        let mut bytes = vec![FORMAT];
        bytes.extend_from_slice(&self.mark);
        bytes.extend_from_slice(&reached.seq.0.to_le_bytes());
        bytes.extend_from_slice(&reached.chain);
        bytes.extend_from_slice(&row::loc_bytes(reached.loc));
        bytes.extend_from_slice(&pass.to_le_bytes());
        bytes
    }

    fn parse_mark(&self, bytes: &[u8]) -> Option<(Reached, u32)> {
        let (format, rest) = bytes.split_first()?;
        let (store, rest) = rest.split_first_chunk::<16>()?;
        let (seq, rest) = rest.split_first_chunk::<8>()?;
        let (chain, rest) = rest.split_first_chunk::<32>()?;
        let (loc, rest) = rest.split_first_chunk::<12>()?;
        let pass = rest.try_into().ok()?;
        if *format != FORMAT || *store != self.mark {
            return None;
        }
        let reached = Reached {
            seq: Seq(u64::from_le_bytes(*seq)),
            chain: *chain as Hash,
            loc: row::loc_of(loc)?,
        };
        Some((reached, u32::from_le_bytes(pass)))
    }

    fn sealed(&self, key: &[u8], value: &[u8]) -> Result<Vec<u8>, IndexFault> {
        if !is_sealed(key) {
            return Ok(value.to_vec());
        }
        let mut nonce = [0; 24];
        nonce[..16].copy_from_slice(&self.nonce_start);
        let count = self.nonce_count.fetch_add(1, Ordering::Relaxed);
        nonce[16..].copy_from_slice(&count.to_le_bytes());
        let sealed = self
            .cipher
            .encrypt(
                &XNonce::from(nonce),
                Payload {
                    msg: value,
                    aad: key,
                },
            )
            .map_err(|_| IndexFault("a row could not be sealed".to_owned()))?;
        Ok([&nonce[..], &sealed].concat())
    }

    fn opened(&self, key: &[u8], value: Vec<u8>) -> Result<Vec<u8>, IndexFault> {
        if !is_sealed(key) {
            return Ok(value);
        }
        let opened = value.split_first_chunk::<24>().and_then(|(nonce, sealed)| {
            let payload = Payload {
                msg: sealed,
                aad: key,
            };
            self.cipher.decrypt(&XNonce::from(*nonce), payload).ok()
        });
        opened.ok_or_else(|| IndexFault("the seal of a row does not open".to_owned()))
    }
}

fn not_rows() -> IndexFault {
    IndexFault("a value that should hold rows does not".to_owned())
}

fn is_sealed(key: &[u8]) -> bool {
    matches!(key.first(), Some(&key::ROWS | &key::NAME | &key::LINEAGE))
}
