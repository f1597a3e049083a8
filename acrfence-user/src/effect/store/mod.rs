//! The door of the effect log: journal and index behind [`EffectLog`].

mod config;
mod gc;
mod payload;
mod read;
mod verify;

use std::fs::OpenOptions;
use std::ops::ControlFlow;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::fcntl::{Flock, FlockArg};
use parking_lot::{Mutex, RwLock};
use tokio::sync::broadcast;

use super::index;
use super::index::ordered::Home;
use super::index::query::contains;
use super::index::sled::SledHome;
use super::index::{Index, IndexStats, OpenedIndex, Row, Told, did_not_happen};
use super::journal::disk::{Disk, OsDisk};
use super::journal::keys::KeyFile;
use super::journal::seal::{self, MARK, Mark, Record};
use super::journal::{self, Acceptance, Claim, Counters, Journal, Loc, Torn};
use super::{
    CandidateRow, CredentialHistory, EffectFilter, EffectLog, EffectRow, Event, Harvest, LogError,
    Page, Prepared,
};
use crate::words::{
    Effect, EffectId, Fingerprint, Outcome, Request, Resolution, Response, Seq, Status, ThreadId,
    ToolKey,
};

pub use config::StoreConfig;
pub use gc::{GcKeep, GcPolicy, GcReport};
use payload::Sealer;
pub use read::{Content, ExportFilter};
pub use verify::Verification;

/// Bytes of bodies that one call reads at most when it looks for a text.
const SEARCH: usize = 1 << 20;

/// What opening is busy with, when it takes long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The index takes in records that were written after it was last saved.
    CatchUp,
    /// The index is built anew from the journal.
    Rebuild,
    /// Records are checked.
    Verify,
}

/// How far it is, in records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// With what.
    pub phase: Phase,
    /// Records done.
    pub done: u64,
    /// Records in all.
    pub total: u64,
}

/// What was found when the log was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenReport {
    /// Whether the log was made just now.
    pub created: bool,
    /// Position of the last record.
    pub last: Seq,
    /// A commit group that a crash had torn and that was cut off; nobody was ever answered for it.
    pub torn: Option<Torn>,
    /// Why the index had to be built anew, if it had.
    pub index_rebuilt: Option<String>,
    /// Records that the index had to catch up with.
    pub caught_up: u64,
    /// Effects that a dead daemon left unsettled.
    pub unsettled: usize,
    /// What was accepted as lost (only [`Store::accept_rollback`]).
    pub accepted: Option<String>,
}

/// Numbers for `acrfence log stats`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreStats {
    /// Position of the last durable record.
    pub last: Seq,
    /// Position that the anchor names.
    pub anchored: Seq,
    /// Why the anchor is not being written, if it is not.
    pub anchor_trouble: Option<String>,
    /// Why no more records are taken, if none are.
    pub stopped: Option<String>,
    /// Segments of the journal.
    pub segments: u64,
    /// Commit groups and records since the start, room.
    pub journal: Counters,
    /// The index.
    pub index: IndexStats,
    /// Effects that are prepared, in doubt, failed.
    pub prepared: u64,
    /// See `prepared`.
    pub in_doubt: u64,
    /// See `prepared`.
    pub failed: u64,
    /// Observations that found no room.
    pub notes_dropped: u64,
}

/// The effect log of this machine.
pub struct Store {
    journal: Journal,
    index: Arc<Index>,
    applier: Mutex<Option<std::thread::JoinHandle<()>>>,
    sealer: Arc<Sealer>,
    notes_dropped: AtomicU64,
    /// Taken by readers of records at known places, and by whoever moves records.
    layout: RwLock<()>,
    /// Garbage collection and verification do not go on at the same time.
    upkeep: Mutex<()>,
    key_file: PathBuf,
    /// Held as long as the store is open.
    _lock: Option<Flock<std::fs::File>>,
}

impl Store {
    /// Opens the log, or makes it. `progress` is called now and then when that takes long.
    ///
    /// Refuses a log that is damaged, older than its anchor, readable by others, or in use.
    pub fn open(
        config: &StoreConfig,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(Self, OpenReport), LogError> {
        Self::open_with(config, progress, Acceptance::Nothing, "")
    }

    /// Opens a log that [`Self::open`] refuses as rolled back or damaged at its end, and goes on from
    /// its last whole record: the way out for a person who cannot put the newest journal back.
    ///
    /// What was lost is stated in a record of its own; positions that may have been used are not used
    /// again. Effects that were lost can happen twice from now on: `by` takes that on.
    pub fn accept_rollback(
        config: &StoreConfig,
        by: &str,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(Self, OpenReport), LogError> {
        Self::open_with(config, progress, Acceptance::Loss, by)
    }

    fn open_with(
        config: &StoreConfig,
        progress: &mut dyn FnMut(Progress),
        accept: Acceptance,
        by: &str,
    ) -> Result<(Self, OpenReport), LogError> {
        let disk = Arc::new(OsDisk);
        let dir = &config.state_dir;
        let unusable = |e: std::io::Error| {
            LogError::Unusable(format!("the state directory {}: {e}", dir.display()))
        };
        disk.create_dir(dir).map_err(unusable)?;
        disk.check_private(dir).map_err(unusable)?;
        let lock = lock(config)?;
        let home = Arc::new(SledHome::new(config.index_dir(), config.index_cache));
        let (mut store, report) = Self::open_on(disk, home, config, progress, accept, by)?;
        store._lock = Some(lock);
        Ok((store, report))
    }

    /// Opens the log on a given disk and index: for tests of both.
    #[doc(hidden)]
    pub fn open_on(
        disk: Arc<dyn Disk>,
        home: Arc<dyn Home>,
        config: &StoreConfig,
        progress: &mut dyn FnMut(Progress),
        accept: Acceptance,
        by: &str,
    ) -> Result<(Self, OpenReport), LogError> {
        config.check()?;
        let opened = journal::open(disk, config.settings(), accept)?;
        let mut report = OpenReport {
            created: opened.created,
            last: opened.head.seq,
            torn: opened.torn.clone(),
            ..OpenReport::default()
        };
        let OpenedIndex {
            index,
            applier,
            rebuilt,
            caught_up,
        } = Index::open(home, opened.archive.clone(), opened.head, progress)?;
        report.index_rebuilt = rebuilt;
        report.caught_up = caught_up;
        let started = index.with_status(Status::Prepared).and_then(|unsettled| {
            report.unsettled = unsettled.len();
            let head = opened.head;
            let lost = opened.lost.clone();
            let journal = opened.start(index.clone(), unsettled)?;
            Ok((journal, head, lost))
        });
        let (journal, head, lost) = match started {
            Ok(started) => started,
            Err(e) => {
                index.close(applier);
                return Err(e);
            }
        };
        let store = Self {
            journal,
            index,
            applier: Mutex::new(Some(applier)),
            sealer: Arc::new(Sealer::new(config.body_inline_max, config.outcome_room)),
            notes_dropped: AtomicU64::new(0),
            layout: RwLock::new(()),
            upkeep: Mutex::new(()),
            key_file: config.key_file.clone(),
            _lock: None,
        };
        if let Some((known, why)) = lost {
            store.state_loss(head.seq, head.seq.max(known), by, &why)?;
            report.accepted = Some(why);
        }
        Ok((store, report))
    }

    /// A secret that belongs to this log and survives key rotation, for keyed hashes of credentials
    /// and values.
    pub fn secret(&self, purpose: &str) -> [u8; 32] {
        self.journal
            .archive()
            .keyring
            .load()
            .lasting_secret(purpose)
    }

    /// Adds a fresh key to the key file and seals new records with it from now on. The old keys stay
    /// in the file: old records need them.
    pub fn rotate_key(&self) -> Result<(), LogError> {
        let archive = self.journal.archive();
        let mut keys = KeyFile::load(&self.key_file, false)?;
        keys.rotate(&self.key_file)?;
        archive.keyring.store(Arc::new(keys.bind(&archive.store)));
        Ok(())
    }

    /// Numbers about the log.
    pub fn stats(&self) -> Result<StoreStats, LogError> {
        let count = |status| Ok::<_, LogError>(self.index.with_status(status)?.len() as u64);
        Ok(StoreStats {
            last: self.journal.head().seq,
            anchored: self.journal.anchorer().position(),
            anchor_trouble: self.journal.anchorer().trouble(),
            stopped: self.journal.stopped(),
            segments: self.journal.archive().headers().len() as u64,
            journal: self.journal.counters(),
            index: self.index.stats(),
            prepared: count(Status::Prepared)?,
            in_doubt: count(Status::InDoubt)?,
            failed: count(Status::Failed)?,
            notes_dropped: self.notes_dropped.load(Ordering::Relaxed),
        })
    }

    /// Returns once the index has taken in everything that is on disk now.
    pub fn catch_up(&self) {
        self.index.catch_up();
    }

    /// Writes everything out and ends. Dropping the store does the same.
    pub fn close(&self) {
        self.journal.close();
        if let Some(applier) = self.applier.lock().take() {
            self.index.close(applier);
        }
    }

    fn state_loss(&self, kept: Seq, lost: Seq, by: &str, why: &str) -> Result<(), LogError> {
        let mark = Mark::RollbackAccepted {
            kept,
            lost,
            by: by.to_owned(),
            why: why.to_owned(),
            at: journal::anchor::now(),
        };
        let archive = self.journal.archive();
        let plain = seal::encode(&mark)?;
        let sealed = seal::seal(&archive.keyring.load(), &archive.store, MARK, &plain)?;
        let seq = self.journal.submit(
            sealed,
            Record::Mark(mark),
            Claim::Other,
            Some(Seq(lost.0.saturating_add(1))),
        )?;
        self.journal.wait_durable(seq)
    }

    /// What a record may use of the room; an error when it speaks of an effect that is not there.
    fn claim(&self, event: &Event) -> Result<Claim, LogError> {
        let (effect, claim) = match event {
            Event::Prepared(_) => return Ok(Claim::Prepared),
            Event::Settled { effect, .. } => (*effect, Claim::Outcome(*effect)),
            Event::Resolved { effect, .. } => (*effect, Claim::Other),
            _ => return Ok(Claim::Other),
        };
        // The index may be out of order; an outcome is taken all the same.
        if self.journal.is_running(effect) || !matches!(self.index.row(effect), Ok(None)) {
            return Ok(claim);
        }
        Err(LogError::Unusable(format!(
            "there is no effect {effect} in the log whose outcome could be recorded"
        )))
    }

    /// The event of a record: from the journal, or from what is only noted.
    fn event(&self, seq: Seq, loc: Option<Loc>) -> Result<Option<Event>, LogError> {
        match loc {
            None => Ok(self.index.noted(seq).map(|event| (*event).clone())),
            Some(loc) => match self.journal.archive().read(loc, seq)? {
                Record::Event(event) => Ok(Some(event)),
                Record::Mark(_) => Ok(None),
            },
        }
    }

    fn assemble(&self, row: Row) -> Result<Option<Effect>, LogError> {
        let id = row.shown.id;
        let Some(Event::Prepared(prepared)) = self.event(id.0, row.prepared)? else {
            return Ok(None);
        };
        let outcome = match row.outcome {
            None => None,
            Some((seq, loc)) => match self.event(seq, loc)? {
                Some(event) => outcome_of(event),
                None => return Ok(None),
            },
        };
        let Prepared {
            key,
            thread,
            branch,
            parent,
            call,
            presented,
            ..
        } = *prepared;
        Ok(Some(Effect {
            id,
            key,
            thread,
            branch,
            parent,
            call,
            presented,
            issued: row.issued,
            status: row.shown.status,
            outcome,
            ended: row.shown.ended,
        }))
    }

    /// The events of records at these places.
    fn events(&self, places: Vec<(Seq, Option<Loc>)>) -> Result<Vec<(Seq, Event)>, LogError> {
        let mut events = Vec::with_capacity(places.len());
        for (seq, loc) in places {
            events.extend(self.event(seq, loc)?.map(|event| (seq, event)));
        }
        Ok(events)
    }

    /// Whether request or response of an effect contain a text.
    fn has_text(&self, id: EffectId, part: &str) -> Result<bool, LogError> {
        Ok(self.effect(id)?.is_some_and(|effect| {
            texts(&effect, &mut |text| {
                if contains(text, part.as_bytes()) {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            })
            .is_break()
        }))
    }

    fn note_or_drop(&self, event: Event) -> Result<(), LogError> {
        let claim = self.claim(&event)?;
        self.submit(event, claim)
    }

    fn submit(&self, event: Event, claim: Claim) -> Result<(), LogError> {
        let (plain, _) = self.sealer.encode(&event)?;
        let (sealed, event) = self.sealer.seal(self.journal.archive(), event, &plain)?;
        let record = Record::Event(event.clone());
        let seq = self.journal.submit(sealed, record, claim, None)?;
        self.index.note(seq, event.at_position(seq));
        Ok(())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.close();
    }
}

#[async_trait::async_trait]
impl EffectLog for Store {
    async fn append(&self, event: Event) -> Result<Seq, LogError> {
        let claim = self.claim(&event)?;
        let (plain, large) = self.sealer.encode(&event)?;
        let archive = self.journal.archive();
        let (sealed, event) = if large && tokio::runtime::Handle::try_current().is_ok() {
            let sealer = self.sealer.clone();
            let archive = archive.clone();
            let sealing = move || sealer.seal(&archive, event, &plain);
            tokio::task::spawn_blocking(sealing)
                .await
                .map_err(|e| LogError::Unusable(format!("sealing a record failed: {e}")))?
        } else {
            self.sealer.seal(archive, event, &plain)
        }?;
        let (seq, durable) = self
            .journal
            .enter(sealed, Record::Event(event), claim)
            .await?;
        let abandoned = (claim == Claim::Prepared).then(|| Abandoned { store: self, seq });
        let done = durable.wait().await;
        std::mem::forget(abandoned);
        done
    }

    fn note(&self, event: Event) {
        if let Err(e) = self.note_or_drop(event) {
            self.notes_dropped.fetch_add(1, Ordering::Relaxed);
            tracing::error!("a note was lost: {e}");
        }
    }

    fn effect(&self, id: EffectId) -> Result<Option<Effect>, LogError> {
        let _layout = self.layout.read();
        // A noted record may reach the disk between the look at its row and the look for it.
        for _ in 0..8 {
            let Some(row) = self.index.row(id)? else {
                return Ok(None);
            };
            if let Some(effect) = self.assemble(row)? {
                return Ok(Some(effect));
            }
        }
        Err(LogError::Corrupt {
            place: format!("effect {id}"),
            detail: "its row names records of another kind".to_owned(),
        })
    }

    fn effects(&self, filter: &EffectFilter) -> Result<Page<EffectRow>, LogError> {
        let _layout = self.layout.read();
        let text = |row: &Row, part: &str| {
            let Some(effect) = self.assemble(row.clone())? else {
                return Ok((false, 0));
            };
            let mut read = 0;
            let found = texts(&effect, &mut |text| {
                read += text.len();
                if contains(text, part.as_bytes()) {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            });
            Ok((found.is_break(), read))
        };
        self.index.effects(filter, &text, SEARCH)
    }

    fn candidates(
        &self,
        thread: ThreadId,
        key: &ToolKey,
        before: Seq,
    ) -> Result<Vec<CandidateRow>, LogError> {
        self.index.candidates(thread, key, before)
    }

    fn credential(&self, fingerprint: Fingerprint) -> Result<CredentialHistory, LogError> {
        self.index.credential(fingerprint)
    }

    fn first_seen(&self, thread: ThreadId, value: u64) -> Result<Option<Seq>, LogError> {
        self.index.first_seen(thread, value)
    }

    fn lineage_events(&self) -> Result<Vec<(Seq, Event)>, LogError> {
        let _layout = self.layout.read();
        let mut events = Vec::new();
        for Told { seq, loc, event } in self.index.lineage()? {
            let event = match event {
                Some(event) => Some(event),
                None => match self.event(seq, loc)? {
                    Some(event) => Some(event),
                    // It reached the disk meanwhile, or its note was lost with the journal.
                    None => self
                        .index
                        .lineage_at(seq)?
                        .map_or(Ok(None), |loc| self.event(seq, Some(loc)))?,
                },
            };
            events.extend(event.map(|event| (seq, index::for_a_fold(event))));
        }
        Ok(events)
    }

    fn refusals(&self, after: Seq, limit: usize) -> Result<Vec<(Seq, Event)>, LogError> {
        let _layout = self.layout.read();
        self.events(self.index.refusals(after, limit)?)
    }

    fn history(&self, effect: EffectId) -> Result<Vec<(Seq, Event)>, LogError> {
        let _layout = self.layout.read();
        self.events(self.index.history(effect)?)
    }

    fn changes(&self, after: Seq, filter: &EffectFilter) -> Result<(Vec<EffectRow>, Seq), LogError> {
        let (mut rows, reached) = match self.index.changes(after, filter) {
            Some(changes) => (changes.rows, changes.reached),
            None => self.changes_in_journal(after, filter)?,
        };
        if let Some(text) = &filter.text {
            let all = std::mem::take(&mut rows);
            for row in all {
                if self.has_text(row.id, text)? {
                    rows.push(row);
                }
            }
        }
        Ok((rows, reached))
    }

    fn unsettled(&self) -> Result<Vec<EffectId>, LogError> {
        self.index.with_status(Status::Prepared)
    }

    fn follow(&self) -> (Seq, broadcast::Receiver<Seq>) {
        self.journal.follow()
    }
}

/// A *prepared* record whose writer may go away before it learns that it may send. Then nothing was
/// sent, and the effect is settled as such.
struct Abandoned<'a> {
    store: &'a Store,
    seq: Seq,
}

impl Drop for Abandoned<'_> {
    fn drop(&mut self) {
        let event = Event::Settled {
            effect: EffectId(self.seq),
            outcome: Outcome::Failed {
                why: "whoever wanted to send it went away before it was recorded; it was not sent"
                    .to_owned(),
                response: None,
            },
            at: journal::anchor::now(),
            harvest: Harvest::default(),
        };
        // Not through `note`: the effect need not be visible yet.
        if let Err(e) = self.store.submit(event, Claim::Outcome(EffectId(self.seq))) {
            tracing::error!("an effect that was not sent could not be settled: {e}");
        }
    }
}

/// What a record says of the end of its effect.
fn outcome_of(event: Event) -> Option<Outcome> {
    match event {
        Event::Settled { outcome, .. } => Some(outcome),
        Event::Resolved {
            resolution: Resolution::Happened(response),
            ..
        } => Some(Outcome::Completed(response)),
        Event::Resolved {
            resolution: Resolution::DidNotHappen,
            by,
            ..
        } => Some(Outcome::Failed {
            why: did_not_happen(&by),
            response: None,
        }),
        _ => None,
    }
}

/// Visits every piece of request and response that a text search looks at.
fn texts(effect: &Effect, visit: &mut dyn FnMut(&[u8]) -> ControlFlow<()>) -> ControlFlow<()> {
    match &effect.call.request {
        Request::Http(http) => {
            visit(http.method.as_bytes())?;
            visit(http.url.as_bytes())?;
            http.headers.iter().try_for_each(|h| visit(&h.value))?;
            visit(&http.body.kept)?;
        }
        Request::Mcp(mcp) => {
            visit(mcp.server.as_bytes())?;
            visit(mcp.name.as_bytes())?;
            visit(mcp.arguments.as_bytes())?;
        }
        Request::Exec(exec) => {
            exec.argv.iter().try_for_each(|arg| visit(arg.as_bytes()))?;
            visit(exec.cwd.as_bytes())?;
            if let Some(stdin) = &exec.stdin {
                visit(&stdin.kept)?;
            }
        }
    }
    match effect.outcome.as_ref().and_then(Outcome::response) {
        Some(Response::Http(http)) => {
            http.headers
                .iter()
                .chain(&http.trailers)
                .try_for_each(|h| visit(&h.value))?;
            visit(&http.body.kept)
        }
        Some(Response::Mcp(mcp)) => visit(mcp.answer.as_bytes()),
        Some(Response::Exec(exec)) => {
            visit(&exec.stdout.kept)?;
            visit(&exec.stderr.kept)
        }
        None => ControlFlow::Continue(()),
    }
}

fn lock(config: &StoreConfig) -> Result<Flock<std::fs::File>, LogError> {
    let path = config.state_dir.join("lock");
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(|e| LogError::Unusable(format!("{} cannot be opened: {e}", path.display())))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| {
        LogError::Unusable(format!(
            "the effect log in {} is in use by another process ({errno}); stop the other acrfence daemon, or give this one a state directory of its own",
            config.state_dir.display()
        ))
    })
}
