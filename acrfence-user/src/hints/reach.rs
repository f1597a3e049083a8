//! One process's files, as it sees them itself.

use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

use crate::probe::proc::{ProcDir, split_texts};
use crate::words::ProcessIdentity;

/// Most of a directory's entries that are looked at.
const MOST_ENTRIES: usize = 4096;

/// Most of a process's environment that is read.
const LONGEST_ENVIRONMENT: u64 = 1 << 20;

/// A process whose files are read.
pub(super) struct Reach {
    process: ProcDir,
    root: OwnedFd,
    uid: u32,
    deadline: Instant,
}

/// An entry of a directory.
pub(super) struct Entry {
    /// Its name.
    pub(super) name: String,
    /// When it was last written.
    pub(super) changed: SystemTime,
}

impl Reach {
    /// Reaches for the files of exactly this process, until `deadline`.
    pub(super) fn of(process: ProcessIdentity, deadline: Instant) -> io::Result<Self> {
        let process = ProcDir::of(process)?;
        let root = std::fs::OpenOptions::new()
            .read(true)
            .custom_flags((OFlag::O_PATH | OFlag::O_DIRECTORY).bits())
            .open(process.path("root"))?
            .into();
        let uid = process.uid()?;
        Ok(Self {
            process,
            root,
            uid,
            deadline,
        })
    }

    /// The process itself.
    pub(super) fn process(&self) -> &ProcDir {
        &self.process
    }

    /// Whether time is up.
    pub(super) fn in_time(&self) -> io::Result<()> {
        if Instant::now() < self.deadline {
            Ok(())
        } else {
            Err(io::ErrorKind::TimedOut.into())
        }
    }

    /// When time is up.
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// What a variable was when the process began.
    pub(super) fn variable(&self, name: &str) -> io::Result<Option<String>> {
        let all = split_texts(&self.process.read("environ", LONGEST_ENVIRONMENT)?);
        Ok(all.into_iter().find_map(|one| {
            let value = one.strip_prefix(name)?.strip_prefix('=')?;
            (!value.is_empty()).then(|| value.to_owned())
        }))
    }

    /// A file by its path in the process's own view; links are followed in there, and lead nowhere
    /// else. It must be a plain file of the process's user.
    pub(super) fn file(&self, path: &Path) -> io::Result<(File, Metadata)> {
        let found = self.open(path, OFlag::O_PATH)?;
        let (file, about) = plain(found)?;
        if about.uid() != self.uid {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok((file, about))
    }

    /// What is in a directory of the process's own view, last written first.
    pub(super) fn list(&self, path: &Path) -> io::Result<Vec<Entry>> {
        let directory = self.open(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(by_number(&directory))?.take(MOST_ENTRIES) {
            self.in_time()?;
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            // Not following: only its order depends on it.
            let Ok(changed) = entry.metadata().and_then(|about| about.modified()) else {
                continue;
            };
            entries.push(Entry { name, changed });
        }
        entries.sort_by(|a, b| (b.changed, &b.name).cmp(&(a.changed, &a.name)));
        Ok(entries)
    }

    /// Numbers and paths of the files that the process has open.
    pub(super) fn open_files(&self) -> io::Result<Vec<(String, PathBuf)>> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(self.process.path("fd"))?.take(MOST_ENTRIES) {
            self.in_time()?;
            let Ok(number) = entry?.file_name().into_string() else {
                continue;
            };
            if let Ok(path) = self.process.read_link(&format!("fd/{number}"))
                && path.is_absolute()
            {
                files.push((number, path));
            }
        }
        Ok(files)
    }

    /// One of them, opened anew.
    pub(super) fn open_file(&self, number: &str) -> io::Result<(File, Metadata)> {
        let found = std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(OFlag::O_PATH.bits())
            .open(self.process.path(&format!("fd/{number}")))?;
        plain(found.into())
    }

    /// All of a file, if it is not longer than `most`.
    pub(super) fn read(&self, file: &mut File, most: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut piece = vec![0; 1 << 20];
        loop {
            self.in_time()?;
            let n = file.read(&mut piece)?;
            if n == 0 {
                return Ok(bytes);
            }
            if bytes.len() + n > most {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            bytes.extend_from_slice(&piece[..n]);
        }
    }

    fn open(&self, path: &Path, flags: OFlag) -> io::Result<OwnedFd> {
        self.in_time()?;
        let how = OpenHow::new()
            .flags(flags | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        Ok(openat2(self.root.as_fd(), path, how)?)
    }
}

/// Opens what was found for reading, if it is a plain file: opening anything else can wait, or do
/// something.
fn plain(found: OwnedFd) -> io::Result<(File, Metadata)> {
    let found = File::from(found);
    if !found.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let file = File::open(by_number(&OwnedFd::from(found)))?;
    let about = file.metadata()?;
    Ok((file, about))
}

fn by_number(fd: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into()
}
