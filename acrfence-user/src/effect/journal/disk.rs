//! What the journal asks of a disk.
//!
//! The journal reaches its files only through [`Disk`], so that tests can put a disk under it that
//! loses, tears and reorders what was not synced, or that ends the process at a chosen step.
//! Production pays one dynamic call a commit group for it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{
    DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::Path;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};

/// Directory operations. What they change is durable only after [`Disk::sync_dir`] of the parent.
pub trait Disk: Send + Sync + 'static {
    /// Makes a directory that only its owner may enter; nothing when it is there already.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Refuses a file or directory that others than its owner may touch.
    fn check_private(&self, path: &Path) -> io::Result<()>;
    /// Makes a file that must not be there yet, readable by its owner only.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens a file for reading and writing.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// Names in a directory, in no order; empty when it is not there.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Renames, replacing what is there.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes creations, renames and removals in `dir` durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
}

/// An open file.
pub trait DiskFile: Send + Sync {
    /// Reads at most `buffer.len()` bytes; fewer only at the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes all of `bytes`.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Gives the file `len` bytes of real room that read as zeros.
    fn allocate(&self, len: u64) -> io::Result<()>;
    /// Returns once everything written is on the disk (`fdatasync`).
    fn sync(&self) -> io::Result<()>;
    /// Length in bytes.
    fn size(&self) -> io::Result<u64>;
}

/// The disk of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsDisk;

struct OsFile(File);

/// Reads `len` bytes from `offset`; what lies beyond the end of the file reads as zeros.
pub fn read_range(file: &dyn DiskFile, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let mut filled = 0;
    while filled < len {
        match file.read_at(&mut bytes[filled..], offset + filled as u64)? {
            0 => break,
            n => filled += n,
        }
    }
    Ok(bytes)
}

/// Whether an error says that there is no room.
pub fn is_full(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error().map(Errno::from_raw),
        Some(Errno::ENOSPC | Errno::EDQUOT)
    )
}

// === impl OsDisk ===

impl Disk for OsDisk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        match std::fs::DirBuilder::new().mode(0o700).create(path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            done => done,
        }
    }

    fn check_private(&self, path: &Path) -> io::Result<()> {
        let meta = std::fs::metadata(path)?;
        let mode = meta.permissions().mode() & 0o777;
        let me = nix::unistd::geteuid().as_raw();
        if meta.uid() != me {
            return Err(io::Error::other(format!(
                "{} belongs to user {} and not to the user of the daemon ({me}); run `chown -R {me} {}`",
                path.display(),
                meta.uid(),
                path.display()
            )));
        }
        if mode & 0o077 == 0 {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "{} has mode {mode:04o}, so others than its owner can reach it; run `chmod go-rwx {}`",
            path.display(),
            path.display()
        )))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        Ok(Arc::new(OsFile(file)))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Arc::new(OsFile(file)))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let entries = match std::fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(e),
        };
        entries
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }
}

// === impl OsFile ===

impl DiskFile for OsFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        match fallocate(
            &self.0,
            FallocateFlags::empty(),
            0,
            i64::try_from(len).map_err(io::Error::other)?,
        ) {
            // File systems without it (NFS, ZFS): real zeros take the room as well.
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => {
                let zeros = vec![0; 1 << 20];
                let mut at = 0;
                while at < len {
                    let n = (len - at).min(zeros.len() as u64);
                    self.0.write_all_at(&zeros[..n as usize], at)?;
                    at += n;
                }
                Ok(())
            }
            done => done.map_err(io::Error::from),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
}
