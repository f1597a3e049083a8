//! The index: answers questions, and can be thrown away.
//!
//! The journal's writer hands over each record once it is on disk ([`Sink`]); its facts are visible
//! from then on, and a thread of the index's own moves them into the ordered keys (sled). An index
//! that will not open, panics or disagrees with the journal is wiped and rebuilt from it.

mod applier;
mod build;
mod facts;
mod key;
mod layers;
pub mod ordered;
mod pack;
pub mod query;
mod recent;
mod row;
pub mod sled;
mod told;
mod upkeep;
mod warm;

use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex, RwLock};

use crate::effect::journal::archive::Archive;
use crate::effect::journal::frame::Hash;
use crate::effect::journal::keys::hmac;
use crate::effect::journal::seal::Record;
use crate::effect::journal::{Head, Sink, Written};
use crate::effect::{CandidateRow, CredentialHistory, Event, LogError};
use crate::words::{EffectId, Fingerprint, Seq, Status, ThreadId, ToolKey};

use build::Keeper;
use facts::{Seen, facts};
use key::{Names, Tree};
use layers::{Layers, Reached};
use ordered::{End, Home, IndexFault, Ordered, Visit};
use recent::Recent;

pub use build::OpenedIndex;
pub use facts::{code_of, did_not_happen, host_of};
pub use recent::Changes;
pub use row::Row;
pub use told::{Told, for_a_fold};
pub use upkeep::Moved;

/// The journal waits when so many facts have not been applied.
const TOO_MANY: usize = 300_000;
/// Entries taken from the layers at a time.
const SLICE: usize = 512;

/// The door of the index.
pub struct Index {
    home: Arc<dyn Home>,
    archive: Arc<Archive>,
    keeper: Keeper,
    names: Names,
    state: RwLock<State>,
    layers: RwLock<Layers>,
    signals: Mutex<Signals>,
    /// Not taken while the layers are waited for.
    recent: Mutex<Recent>,
    /// Facts that were put into the ordered keys since the start.
    written: AtomicU64,
    /// Reading ahead after the start is over.
    read_ahead: AtomicBool,
    /// Wakes the applier.
    wake: Condvar,
    /// The applier made progress.
    applied: Condvar,
}

enum State {
    Ready(Arc<dyn Ordered>),
    /// Being rebuilt, or given up on; why.
    Broken(String),
}

#[derive(Default)]
struct Signals {
    dirty: bool,
    closing: bool,
    /// Look-ups may be read ahead for.
    ahead: bool,
    /// Everything that is there should be applied, whatever the linger.
    hurry: bool,
    applied: Seq,
    rebuilds: u64,
}

/// What the index is up to, for `stats`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexStats {
    /// Position up to which records are in the ordered keys.
    pub applied: Seq,
    /// Facts that wait.
    pub waiting: usize,
    /// Times it was rebuilt since the start.
    pub rebuilds: u64,
    /// Whether what look-ups of calls need has been read into memory since the start, as far as there is
    /// room for it.
    pub read_ahead: bool,
    /// Bytes on disk.
    pub bytes: u64,
}

impl Index {
    /// Row of an effect.
    pub fn row(&self, id: EffectId) -> Result<Option<Row>, LogError> {
        let found = self.get(&key::at(key::ROW, id.0))?;
        found.map(|bytes| self.decode_row(&bytes)).transpose()
    }

    /// See [`EffectLog::candidates`](crate::effect::EffectLog::candidates).
    pub fn candidates(
        &self,
        thread: ThreadId,
        tool: &ToolKey,
        before: Seq,
    ) -> Result<Vec<CandidateRow>, LogError> {
        let tool = self.names.hash(Tree::Tool, &tool.0);
        let from = key::candidate(thread, tool, Seq(0));
        let to = key::candidate(thread, tool, before);
        let mut rows = Vec::new();
        let mut damaged = false;
        let (from, to) = (Bound::Included(&from[..]), Bound::Included(&to[..]));
        self.scan(from, to, false, &mut |key, value| {
            for (seq, branch, status) in pack::candidates(key, value) {
                let removed = status == pack::GONE;
                match row::status_of(status) {
                    Some(status) if seq < before && status != Status::Failed => {
                        rows.push(CandidateRow {
                            id: EffectId(seq),
                            branch,
                            status,
                        });
                    }
                    None if !removed => damaged = true,
                    _ => {}
                }
            }
            ControlFlow::Continue(())
        })?;
        if damaged {
            return Err(self.fail(&IndexFault("a candidate entry is not one".to_owned())));
        }
        Ok(rows)
    }

    /// See [`EffectLog::first_seen`](crate::effect::EffectLog::first_seen).
    pub fn first_seen(&self, thread: ThreadId, value: u64) -> Result<Option<Seq>, LogError> {
        let found = self.get(&key::value(thread, value))?;
        Ok(found.and_then(|packed| pack::sighted(&packed, value)))
    }

    /// See [`EffectLog::credential`](crate::effect::EffectLog::credential).
    pub fn credential(&self, fingerprint: Fingerprint) -> Result<CredentialHistory, LogError> {
        let mut history = CredentialHistory::default();
        self.scan_prefix(
            &key::credentials(key::ISSUED, fingerprint),
            &mut |key, value| {
                let thread = ThreadId(Seq(key::last_number(key)));
                history.issued.push((thread, Seq(key::last_number(value))));
                ControlFlow::Continue(())
            },
        )?;
        let mut effects = Vec::new();
        let presented = key::credentials(key::CREDENTIAL, fingerprint);
        self.scan_prefix(&presented, &mut |key, value| {
            let all = pack::credentials(key, value).into_iter();
            effects.extend(
                all.filter(|(_, how)| how & pack::PRESENTED != 0)
                    .map(|(seq, _)| EffectId(seq)),
            );
            ControlFlow::Continue(())
        })?;
        for id in effects {
            if let Some(row) = self.row(id)? {
                history.presented.push((id, row.shown.status));
            }
        }
        history.issued.sort_by_key(|(_, seq)| *seq);
        Ok(history)
    }

    /// Effects with a status that is listed (all but completed), oldest first.
    pub fn with_status(&self, status: Status) -> Result<Vec<EffectId>, LogError> {
        let mut ids = Vec::new();
        if let Some(number) = key::status_number(status) {
            self.scan_prefix(&key::list(Tree::Status, number), &mut |key, _| {
                ids.push(EffectId(Seq(key::last_number(key))));
                ControlFlow::Continue(())
            })?;
        }
        Ok(ids)
    }

    /// Whether a body file is named by a record.
    pub fn names_body(&self, digest: &Hash) -> Result<bool, LogError> {
        Ok(self.get(&key::body(digest))?.is_some())
    }

    /// Makes a noted record visible, until it is on disk and comes again through [`Sink`].
    pub fn note(&self, seq: Seq, event: Event) {
        let event = Arc::new(event);
        let mut layers = self.layers.write();
        if seq <= layers.durable.seq {
            return;
        }
        let Ok(ordered) = self.ordered() else {
            return;
        };
        let seen = Seen {
            seq,
            loc: None,
            body: None,
            event: &event,
        };
        let row_of = |id: EffectId| self.row_below(&layers, &*ordered, id, true);
        // On a fault the record becomes visible when it is on disk, after the rebuild.
        if let Ok(facts) = facts(&seen, &self.names, &row_of) {
            layers.add_early(seq, event, facts);
        }
    }

    /// A record that is only noted.
    pub fn noted(&self, seq: Seq) -> Option<Arc<Event>> {
        self.layers.read().noted(seq)
    }

    /// What it is up to.
    pub fn stats(&self) -> IndexStats {
        let bytes = match &*self.state.read() {
            State::Ready(ordered) => ordered.size(),
            State::Broken(_) => 0,
        };
        let signals = self.signals.lock();
        IndexStats {
            applied: signals.applied,
            waiting: self.layers.read().waiting(),
            rebuilds: signals.rebuilds,
            read_ahead: self.read_ahead.load(Ordering::Relaxed),
            bytes,
        }
    }

    /// Returns once everything that is on disk now is in the ordered keys (or cannot get there).
    pub fn catch_up(&self) {
        let target = self.layers.read().durable.seq;
        let mut signals = self.signals.lock();
        signals.hurry = true;
        self.wake.notify_one();
        while signals.applied < target && !signals.closing && !self.given_up() {
            self.applied.wait(&mut signals);
        }
        signals.hurry = false;
    }

    /// Ends the applier after it took in everything, and marks the index clean.
    pub fn close(&self, applier: std::thread::JoinHandle<()>) {
        self.signals.lock().closing = true;
        self.wake.notify_all();
        self.applied.notify_all();
        let _ = applier.join();
    }

    /// Begins to read into memory what look-ups of calls need, as far as there is room for it. Not before
    /// whoever starts has read what it needs itself: the two would wait for each other's reads.
    pub fn read_ahead(&self) {
        self.signals.lock().ahead = true;
        self.wake.notify_one();
    }

    /// The value of a key, through all layers.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, LogError> {
        let above = self.layers.read().get(key, true);
        if let Some(value) = &above
            && !(facts::merges(key))
        {
            return Ok(value.clone());
        }
        let ordered = self.ordered()?;
        let below = self
            .keeper
            .get(&*ordered, key)
            .map_err(|fault| self.fail(&fault))?;
        Ok(match (below, above.flatten()) {
            (Some(below), Some(above)) => Some(facts::merge(key, &below, above)),
            (below, above) => above.or(below),
        })
    }

    fn scan_prefix(&self, prefix: &[u8], visit: Visit<'_>) -> Result<(), LogError> {
        let end = key::behind(prefix);
        self.scan(Bound::Included(prefix), Bound::Excluded(&end), false, visit)
    }

    /// Visits keys through all layers, in order. The visitor must not ask the index.
    fn scan(
        &self,
        from: End<'_>,
        to: End<'_>,
        reverse: bool,
        visit: Visit<'_>,
    ) -> Result<(), LogError> {
        let ordered = self.ordered()?;
        let mut from: Bound<Vec<u8>> = from.map(<[u8]>::to_vec);
        let mut to: Bound<Vec<u8>> = to.map(<[u8]>::to_vec);
        loop {
            if is_empty(&from, &to) {
                return Ok(());
            }
            let low = from.as_ref().map(Vec::as_slice);
            let high = to.as_ref().map(Vec::as_slice);
            let slice = self.layers.read().slice(low, high, reverse, SLICE);
            let (low, high) = match (&slice.horizon, reverse) {
                (None, _) => (low, high),
                (Some(h), false) => (low, Bound::Included(h.as_slice())),
                (Some(h), true) => (Bound::Included(h.as_slice()), high),
            };
            let done = self
                .keeper
                .scan_under(&*ordered, &slice.entries, low, high, reverse, visit)
                .map_err(|fault| self.fail(&fault))?;
            match (done.is_break(), slice.horizon) {
                (true, _) | (_, None) => return Ok(()),
                (false, Some(h)) if reverse => to = Bound::Excluded(h),
                (false, Some(h)) => from = Bound::Excluded(h),
            }
        }
    }

    fn ordered(&self) -> Result<Arc<dyn Ordered>, LogError> {
        match &*self.state.read() {
            State::Ready(ordered) => Ok(ordered.clone()),
            State::Broken(why) => Err(being_rebuilt(why)),
        }
    }

    fn given_up(&self) -> bool {
        matches!(&*self.state.read(), State::Broken(_))
    }

    /// The index cannot be trusted from here on: the applier rebuilds it.
    fn fail(&self, fault: &IndexFault) -> LogError {
        let mut state = self.state.write();
        if let State::Ready(_) = &*state {
            tracing::error!(
                "{fault}; it is rebuilt from the journal, look-ups are refused until then"
            );
            *state = State::Broken(fault.0.clone());
            drop(state);
            self.signals.lock().dirty = true;
            self.wake.notify_one();
        }
        being_rebuilt(&fault.0)
    }

    fn decode_row(&self, bytes: &[u8]) -> Result<Row, LogError> {
        Row::decode(bytes).ok_or_else(|| self.fail(&IndexFault("a row is not one".to_owned())))
    }

    /// A row as the layers and the ordered keys have it, for making facts of a later record.
    fn row_below(
        &self,
        layers: &Layers,
        ordered: &dyn Ordered,
        id: EffectId,
        early: bool,
    ) -> Result<Option<Row>, IndexFault> {
        let key = key::at(key::ROW, id.0);
        let bytes = match layers.get(&key, early) {
            Some(value) => value,
            None => self.keeper.get(ordered, &key)?,
        };
        bytes
            .map(|bytes| {
                Row::decode(&bytes).ok_or_else(|| IndexFault("a row is not one".to_owned()))
            })
            .transpose()
    }
}

// === impl Sink ===

impl Sink for Index {
    fn durable(&self, records: Vec<Written>) {
        let mut layers = self.layers.write();
        let state = self.state.read();
        let mut broken = None;
        for written in &records {
            if let (State::Ready(ordered), Record::Event(event)) = (&*state, &written.record) {
                let seen = Seen {
                    seq: written.seq,
                    loc: Some(written.loc),
                    body: written.body,
                    event,
                };
                let row_of = |id: EffectId| self.row_below(&layers, &**ordered, id, false);
                match facts(&seen, &self.names, &row_of) {
                    Ok(facts) => {
                        self.recent.lock().add(written.seq, &facts);
                        layers.add(facts);
                    }
                    Err(fault) => {
                        self.recent.lock().forget(written.seq);
                        broken = Some(fault);
                    }
                }
            } else {
                self.recent.lock().forget(written.seq);
            }
            layers.settle_early(written.seq);
            if let Some(digest) = &written.body {
                self.archive.bodies.named(digest);
            }
            layers.durable = Reached {
                seq: written.seq,
                chain: written.chain,
                loc: written.loc,
            };
        }
        drop((state, layers));
        if let Some(fault) = broken {
            let _ = self.fail(&fault);
        }
        self.wake.notify_one();
    }

    fn throttle(&self) {
        if self.layers.read().waiting() < TOO_MANY {
            return;
        }
        let mut signals = self.signals.lock();
        while self.layers.read().waiting() >= TOO_MANY && !signals.closing && !self.given_up() {
            self.wake.notify_one();
            self.applied.wait(&mut signals);
        }
    }
}

fn is_empty(from: &Bound<Vec<u8>>, to: &Bound<Vec<u8>>) -> bool {
    match (from, to) {
        (Bound::Included(a), Bound::Included(b)) => a > b,
        (Bound::Included(a) | Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b)) => {
            a >= b
        }
        _ => false,
    }
}

fn being_rebuilt(why: &str) -> LogError {
    LogError::Unusable(format!(
        "the index of the effect log is being rebuilt from the journal ({why}); look-ups are refused until it is done, `acrfence status` shows how far it is"
    ))
}

/// The secret of the index, from the lasting secret of the store.
fn secret(archive: &Archive, purpose: &str) -> [u8; 32] {
    hmac(
        &archive.keyring.load().lasting_secret("index"),
        &[purpose.as_bytes()],
    )
}
