//! A simulated disk: keeps apart what was written and what was synced, loses power at a chosen
//! operation, and then shows one of the many states a real disk could have been left in.
//!
//! Unsynced writes reach it sector by sector, in any selection; changes of a directory up to any
//! point since its last sync. It is harsher than file systems are.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::disk::{Disk, DiskFile};

const SECTOR: usize = 512;

/// A simulated disk. Clones share it.
#[derive(Clone, Default)]
pub struct SimulatedDisk(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    dirs: BTreeSet<PathBuf>,
    names: BTreeMap<PathBuf, u64>,
    synced_names: BTreeMap<PathBuf, u64>,
    changes: Vec<(PathBuf, NameChange)>,
    files: HashMap<u64, Content>,
    next: u64,
    operations: u64,
    lose_power_at: Option<u64>,
    fail_syncs: bool,
    capacity: Option<u64>,
}

#[derive(Clone)]
enum NameChange {
    Add(PathBuf, u64),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
}

#[derive(Clone, Default)]
struct Content {
    seen: Vec<u8>,
    synced: Vec<u8>,
    writes: Vec<(usize, Vec<u8>)>,
}

struct SimulatedFile {
    disk: SimulatedDisk,
    id: u64,
}

/// Chooses among the states a disk may be left in: true keeps the sector or change.
pub type Choice<'a> = &'a mut dyn FnMut() -> bool;

impl SimulatedDisk {
    /// Every operation from the `n`th on fails, as if power were gone.
    pub fn lose_power_at(&self, n: u64) {
        self.0.lock().lose_power_at = Some(n);
    }

    /// Every sync from now on fails.
    pub fn fail_syncs(&self) {
        self.0.lock().fail_syncs = true;
    }

    /// Files may take so many bytes in all from now on.
    pub fn limit(&self, bytes: u64) {
        self.0.lock().capacity = Some(bytes);
    }

    /// Operations so far.
    pub fn operations(&self) -> u64 {
        self.0.lock().operations
    }

    /// A disk as it may be found after power was lost now.
    pub fn after_power_loss(&self, keep: Choice<'_>) -> Self {
        let state = self.0.lock();
        let mut names = state.synced_names.clone();
        let mut cut: BTreeSet<&Path> = BTreeSet::new();
        for (dir, change) in &state.changes {
            // Within one directory a later change is not there without the earlier ones.
            if cut.contains(dir.as_path()) || !keep() {
                cut.insert(dir);
                continue;
            }
            change.apply(&mut names);
        }
        let files = state
            .files
            .iter()
            .map(|(id, content)| (*id, content.torn(keep)))
            .collect();
        Self(Arc::new(Mutex::new(State {
            dirs: state.dirs.clone(),
            synced_names: names.clone(),
            names,
            files,
            next: state.next,
            ..State::default()
        })))
    }

    /// Flips one bit of a file.
    pub fn flip(&self, path: &Path, at: usize, bit: u8) {
        let mut state = self.0.lock();
        let id = state.names[path];
        let content = state.files.get_mut(&id).expect("a named file");
        content.seen[at] ^= 1 << bit;
        content.synced[at] ^= 1 << bit;
    }

    /// The bytes of a file.
    pub fn bytes(&self, path: &Path) -> Vec<u8> {
        let state = self.0.lock();
        state.files[&state.names[path]].seen.clone()
    }

    /// All files.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.0.lock().names.keys().cloned().collect()
    }

    fn operate<T>(&self, operation: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.0.lock();
        state.operations += 1;
        if state.lose_power_at.is_some_and(|n| state.operations > n) {
            return Err(io::Error::other("power was lost (simulated)"));
        }
        operation(&mut state)
    }
}

impl State {
    fn change(&mut self, dir: &Path, change: NameChange) {
        change.apply(&mut self.names);
        self.changes.push((dir.to_owned(), change));
    }

    fn grow(&mut self, id: u64, len: usize) -> io::Result<()> {
        let used: u64 = self
            .names
            .values()
            .map(|id| self.files[id].seen.len() as u64)
            .sum();
        let content = self.files.entry(id).or_default();
        let more = len.saturating_sub(content.seen.len()) as u64;
        if more > 0 && self.capacity.is_some_and(|capacity| used + more > capacity) {
            return Err(io::Error::from_raw_os_error(nix::libc::ENOSPC));
        }
        if more > 0 {
            content.seen.resize(len, 0);
        }
        Ok(())
    }
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<PathBuf, u64>) {
        match self {
            Self::Add(path, id) => {
                names.insert(path.clone(), *id);
            }
            Self::Rename(from, to) => {
                if let Some(id) = names.remove(from) {
                    names.insert(to.clone(), id);
                }
            }
            Self::Remove(path) => {
                names.remove(path);
            }
        }
    }
}

impl Content {
    fn torn(&self, keep: Choice<'_>) -> Self {
        let mut bytes = self.synced.clone();
        for (offset, written) in &self.writes {
            let mut at = *offset;
            let end = offset + written.len();
            while at < end {
                let stop = ((at / SECTOR + 1) * SECTOR).min(end);
                if keep() {
                    if bytes.len() < stop {
                        bytes.resize(stop, 0);
                    }
                    bytes[at..stop].copy_from_slice(&written[at - offset..stop - offset]);
                }
                at = stop;
            }
        }
        // A file system knows the length of a file apart from its content.
        if keep() && bytes.len() < self.seen.len() {
            bytes.resize(self.seen.len(), 0);
        }
        Self {
            seen: bytes.clone(),
            synced: bytes,
            writes: Vec::new(),
        }
    }
}

impl Disk for SimulatedDisk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.operate(|state| {
            state.dirs.insert(path.to_owned());
            Ok(())
        })
    }

    fn check_private(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let id = self.operate(|state| {
            if state.names.contains_key(path) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            let id = state.next;
            state.next += 1;
            state.files.insert(id, Content::default());
            state.change(parent(path), NameChange::Add(path.to_owned(), id));
            Ok(id)
        })?;
        Ok(Arc::new(SimulatedFile {
            disk: self.clone(),
            id,
        }))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let id = self.operate(|state| {
            state
                .names
                .get(path)
                .copied()
                .ok_or_else(|| io::ErrorKind::NotFound.into())
        })?;
        Ok(Arc::new(SimulatedFile {
            disk: self.clone(),
            id,
        }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.operate(|state| {
            let files = state.names.keys().filter(|path| parent(path) == dir);
            let dirs = state.dirs.iter().filter(|path| parent(path) == dir);
            Ok(files
                .chain(dirs)
                .filter_map(|path| path.file_name()?.to_str().map(str::to_owned))
                .collect())
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.operate(|state| {
            if !state.names.contains_key(from) {
                return Err(io::ErrorKind::NotFound.into());
            }
            state.change(
                parent(to),
                NameChange::Rename(from.to_owned(), to.to_owned()),
            );
            Ok(())
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.operate(|state| {
            if !state.names.contains_key(path) {
                return Err(io::ErrorKind::NotFound.into());
            }
            state.change(parent(path), NameChange::Remove(path.to_owned()));
            Ok(())
        })
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.operate(|state| {
            let changes = std::mem::take(&mut state.changes);
            for (of, change) in changes {
                if of == dir {
                    change.apply(&mut state.synced_names);
                } else {
                    state.changes.push((of, change));
                }
            }
            Ok(())
        })
    }
}

impl DiskFile for SimulatedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        // Reading is no step at which anything can be lost.
        let state = self.disk.0.lock();
        let bytes = &state.files[&self.id].seen;
        let from = (offset as usize).min(bytes.len());
        let n = buffer.len().min(bytes.len() - from);
        buffer[..n].copy_from_slice(&bytes[from..from + n]);
        Ok(n)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.disk.operate(|state| {
            let offset = offset as usize;
            state.grow(self.id, offset + bytes.len())?;
            let content = state.files.entry(self.id).or_default();
            content.seen[offset..offset + bytes.len()].copy_from_slice(bytes);
            content.writes.push((offset, bytes.to_vec()));
            Ok(())
        })
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.disk.operate(|state| state.grow(self.id, len as usize))
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.operate(|state| {
            if state.fail_syncs {
                return Err(io::Error::other("the disk does not answer (simulated)"));
            }
            let content = state.files.entry(self.id).or_default();
            content.synced = content.seen.clone();
            content.writes.clear();
            Ok(())
        })
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.disk.0.lock().files[&self.id].seen.len() as u64)
    }
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}
