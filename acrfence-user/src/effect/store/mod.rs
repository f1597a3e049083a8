//! The door of the effect log: journal and index behind [`EffectLog`].

mod answer;
mod config;
mod gc;
mod payload;
mod read;
mod verify;

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::fcntl::{Flock, FlockArg};
use parking_lot::{Mutex, RwLock};

use super::LogError;
use super::index::ordered::Home;
use super::index::sled::SledHome;
use super::index::{Index, IndexStats, OpenedIndex};
use super::journal::disk::{Disk, OsDisk};
use super::journal::keys::KeyFile;
use super::journal::seal::{self, MARK, Mark, Record};
use super::journal::{self, Acceptance, Claim, Counters, Journal, Torn};
use crate::words::{Seq, Status};

pub use config::{StoreConfig, usual_key_file};
pub use gc::{GcKeep, GcPolicy, GcReport};
use payload::Sealer;
pub use read::{Content, ExportFilter};
pub use verify::Verification;

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

    /// Adds a fresh key to the key file and seals new records with it from now on; returns its id. The
    /// old keys stay in the file: old records need them.
    pub fn rotate_key(&self) -> Result<String, LogError> {
        let _upkeep = self.upkeep.lock();
        let archive = self.journal.archive();
        let mut keys = KeyFile::load(&self.key_file, false)?;
        keys.rotate(&self.key_file)?;
        let keyring = keys.bind(&archive.store);
        let id = format!("{:08x}", keyring.current().id);
        archive.keyring.store(Arc::new(keyring));
        Ok(id)
    }

    /// Like [`Self::rotate_key`], for a log that is not open; the next start uses the key.
    pub fn rotate_key_closed(config: &StoreConfig) -> Result<String, LogError> {
        if !config.state_dir.is_dir() {
            return Err(LogError::Unusable(format!(
                "there is no effect log in {}",
                config.state_dir.display()
            )));
        }
        let _lock = lock(config)?;
        let mut keys = KeyFile::load(&config.key_file, false)?;
        keys.rotate(&config.key_file)?;
        Ok(format!("{:08x}", keys.bind(&[0; 16]).current().id))
    }

    /// The key file.
    pub fn key_file(&self) -> &std::path::Path {
        &self.key_file
    }

    /// Begins to read into memory what look-ups of calls need, as far as there is room for it: to be said once
    /// everything that a start reads has been read.
    pub fn read_ahead(&self) {
        self.index.read_ahead();
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
}

impl Drop for Store {
    fn drop(&mut self) {
        self.close();
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
