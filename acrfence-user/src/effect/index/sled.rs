//! sled as the keeper of the index.
//!
//! sled 0.34 panics on some damage and its `flush` does not reach the disk. So every call is guarded
//! against panics, its files are synced here, and content that a power loss may have mixed up is not
//! trusted: it is trusted when it was closed cleanly, or written since the machine was started (a
//! killed process loses nothing that it handed to the kernel).

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::ordered::{Change, End, Home, IndexFault, Ordered, Visit};

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A directory with a sled database and a note about it.
pub struct SledHome {
    dir: PathBuf,
    cache: u64,
}

struct Sled {
    db: sled::Db,
    dir: PathBuf,
}

// === impl SledHome ===

impl SledHome {
    /// An index under `dir`, with so many bytes of cache.
    pub fn new(dir: PathBuf, cache: u64) -> Self {
        Self { dir, cache }
    }

    fn open_db(&self) -> Result<sled::Db, IndexFault> {
        let db = guard(|| {
            sled::Config::new()
                .path(&self.dir)
                .cache_capacity(self.cache)
                .mode(sled::Mode::HighThroughput)
                // The applier says when; a flusher thread of sled's own could panic unseen.
                .flush_every_ms(None)
                .open()
        })?;
        private(&self.dir).map_err(fault)?;
        Ok(db)
    }

    fn note(&self) -> PathBuf {
        self.dir.with_extension("note")
    }
}

impl Home for SledHome {
    fn open(&self) -> Result<Arc<dyn Ordered>, IndexFault> {
        Ok(Arc::new(Sled {
            db: self.open_db()?,
            dir: self.dir.clone(),
        }))
    }

    fn wipe(&self) -> Result<(), IndexFault> {
        match fs::remove_dir_all(&self.dir) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(fault(e)),
            _ => Ok(()),
        }
    }

    fn mark_clean(&self, clean: bool) -> Result<(), IndexFault> {
        let boot = boot_id();
        let text = if clean {
            "clean\n".to_owned()
        } else {
            format!("in use since {boot}\n")
        };
        let write = || -> std::io::Result<()> {
            let new = self.dir.with_extension("new");
            fs::write(&new, text)?;
            fs::File::open(&new)?.sync_all()?;
            fs::rename(&new, self.note())?;
            match self.dir.parent() {
                Some(parent) => fs::File::open(parent)?.sync_all(),
                None => Ok(()),
            }
        };
        write().map_err(fault)
    }

    fn fold(&self) -> Result<(), IndexFault> {
        // sled writes down where its pages are only while it opens; until then the next open reads
        // everything that was written since the last one.
        let db = self.open_db()?;
        guard(|| db.flush())?;
        drop(db);
        sync_tree(&self.dir).map_err(fault)
    }

    fn cache(&self) -> u64 {
        self.cache
    }

    fn trusted(&self) -> bool {
        match fs::read_to_string(self.note()) {
            Ok(text) => {
                let text = text.trim_end();
                let boot = boot_id();
                text == "clean" || (!boot.is_empty() && text == format!("in use since {boot}"))
            }
            // Nothing was ever written: an empty index is right about an empty journal.
            Err(_) => !self.dir.exists(),
        }
    }
}

// === impl Sled ===

impl Ordered for Sled {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, IndexFault> {
        guard(|| self.db.get(key)).map(|found| found.map(|value| value.to_vec()))
    }

    fn scan(
        &self,
        from: End<'_>,
        to: End<'_>,
        reverse: bool,
        visit: Visit<'_>,
    ) -> Result<(), IndexFault> {
        guard(|| {
            let mut range = self.db.range::<&[u8], _>((from, to));
            loop {
                let next = if reverse {
                    range.next_back()
                } else {
                    range.next()
                };
                let Some(entry) = next else { return Ok(()) };
                let (key, value) = entry?;
                if visit(&key, &value).is_break() {
                    return Ok(());
                }
            }
        })
    }

    fn apply(&self, changes: Vec<Change>) -> Result<(), IndexFault> {
        // Not as a batch of sled's: that shuts out readers until it is done.
        guard(|| {
            for (key, value) in changes {
                match value {
                    Some(value) => self.db.insert(key, value)?,
                    None => self.db.remove(key)?,
                };
            }
            Ok(())
        })
    }

    fn flush(&self, sync: bool) -> Result<(), IndexFault> {
        guard(|| self.db.flush())?;
        if sync {
            sync_tree(&self.dir).map_err(fault)?;
        }
        Ok(())
    }

    fn size(&self) -> u64 {
        self.db.size_on_disk().unwrap_or(0)
    }
}

fn guard<T>(call: impl FnOnce() -> sled::Result<T>) -> Result<T, IndexFault> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(done) => done.map_err(fault),
        Err(panic) => {
            let said = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("it did not say why");
            Err(IndexFault(format!("sled panicked: {said}")))
        }
    }
}

fn fault(error: impl std::fmt::Display) -> IndexFault {
    IndexFault(error.to_string())
}

fn boot_id() -> String {
    fs::read_to_string(BOOT_ID)
        .unwrap_or_default()
        .trim()
        .to_owned()
}

fn private(dir: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o700))
}

fn sync_tree(dir: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_tree(&entry.path())?;
        } else {
            fs::File::open(entry.path())?.sync_all()?;
        }
    }
    fs::File::open(dir)?.sync_all()
}
