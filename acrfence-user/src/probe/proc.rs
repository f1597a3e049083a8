//! What `/proc` says about a process.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::PathBuf;

use crate::words::ProcessIdentity;

/// The directory of one process. Once open it never shows another process with the same pid.
pub struct ProcDir {
    fd: OwnedFd,
}

/// Fields of `/proc/PID/stat`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Name of the program, at most 15 bytes.
    pub name: String,
    /// `R`, `S`, `Z`, …
    pub state: char,
    /// Pid of the parent.
    pub parent: u32,
    /// `PF_…`
    pub flags: u32,
    /// How many threads are left.
    pub threads: u32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
}

impl ProcDir {
    /// Opens the directory of the process that has this pid now.
    pub fn open(pid: u32) -> io::Result<Self> {
        File::open(format!("/proc/{pid}")).map(|file| Self { fd: file.into() })
    }

    /// Opens the directory of exactly this process.
    pub fn of(process: ProcessIdentity) -> io::Result<Self> {
        let dir = Self::open(process.tgid)?;
        if process.same_as_proc(process.tgid, dir.stat()?.start_ticks, clock_ticks()) {
            Ok(dir)
        } else {
            Err(io::ErrorKind::NotFound.into())
        }
    }

    /// Reads `stat`.
    pub fn stat(&self) -> io::Result<Stat> {
        parse_stat(&self.read("stat", 4096)?).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Reads a file, at most `limit` bytes of it.
    pub fn read(&self, name: &str, limit: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(self.path(name))?
            .take(limit)
            .read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads a symbolic link (`exe`, `cwd`, `fd/3`).
    pub fn read_link(&self, name: &str) -> io::Result<PathBuf> {
        std::fs::read_link(self.path(name))
    }

    /// The path of one of its files, valid as long as this is open.
    pub fn path(&self, name: &str) -> PathBuf {
        format!("/proc/self/fd/{}/{name}", self.fd.as_raw_fd()).into()
    }

    /// Its path in the cgroup2 hierarchy.
    pub fn cgroup(&self) -> io::Result<String> {
        let text = self.read("cgroup", 64 << 10)?;
        let text = String::from_utf8_lossy(&text);
        Ok(text
            .lines()
            .find_map(|line| line.strip_prefix("0::"))
            .unwrap_or_default()
            .to_owned())
    }

    /// Its real user id.
    pub fn uid(&self) -> io::Result<u32> {
        self.status_field("Uid:")
    }

    /// The thread group that this pid is a thread of.
    pub fn tgid(&self) -> io::Result<u32> {
        self.status_field("Tgid:")
    }

    /// Who traces it; 0 for nobody.
    pub fn tracer(&self) -> io::Result<u32> {
        self.status_field("TracerPid:")
    }

    /// Its pid in the innermost of its pid namespaces.
    pub fn innermost_pid(&self) -> io::Result<u32> {
        let text = self.read("status", 64 << 10)?;
        String::from_utf8_lossy(&text)
            .lines()
            .find_map(|line| {
                let pids = line.strip_prefix("NSpid:")?;
                pids.split_whitespace().next_back()?.parse().ok()
            })
            .ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn status_field(&self, name: &str) -> io::Result<u32> {
        let text = self.read("status", 64 << 10)?;
        String::from_utf8_lossy(&text)
            .lines()
            .find_map(|line| {
                line.strip_prefix(name)?
                    .split_whitespace()
                    .next()?
                    .parse()
                    .ok()
            })
            .ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

impl Stat {
    /// Whether its last thread has ended or is about to.
    pub fn is_dead(&self) -> bool {
        self.flags & PF_EXITING != 0 && self.threads <= 1
    }
}

/// `task->flags`: it is going away.
pub const PF_EXITING: u32 = 0x4;
/// `task->flags`: it belongs to the kernel.
pub const PF_KTHREAD: u32 = 0x0020_0000;

/// Clock ticks a second.
pub fn clock_ticks() -> u64 {
    nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK)
        .ok()
        .flatten()
        .and_then(|ticks| u64::try_from(ticks).ok())
        .unwrap_or(100)
}

/// Splits an area of zero-ended texts.
pub fn split_texts(area: &[u8]) -> Vec<String> {
    let area = area.strip_suffix(&[0]).unwrap_or(area);
    if area.is_empty() {
        return vec![];
    }
    area.split(|&b| b == 0)
        .map(|text| String::from_utf8_lossy(text).into_owned())
        .collect()
}

fn parse_stat(bytes: &[u8]) -> Option<Stat> {
    // The name may hold anything, also brackets and spaces.
    let open = bytes.iter().position(|&b| b == b'(')?;
    let close = bytes.iter().rposition(|&b| b == b')')?;
    let name = String::from_utf8_lossy(bytes.get(open + 1..close)?).into_owned();
    let rest = std::str::from_utf8(bytes.get(close + 1..)?).ok()?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    Some(Stat {
        name,
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        flags: fields.get(6)?.parse().ok()?,
        threads: fields.get(17)?.parse().ok()?,
        start_ticks: fields.get(19)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_forge_fields() {
        let line = b"7 (x) R 1 (y)) S 42 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 3 0 991 0 0";
        let stat = parse_stat(line).unwrap();
        assert_eq!(stat.name, "x) R 1 (y)");
        assert_eq!((stat.state, stat.parent, stat.threads), ('S', 42, 3));
        assert_eq!((stat.flags, stat.start_ticks), (4_194_560, 991));
        assert!(parse_stat(b"7 (x) S 42").is_none());
        assert!(parse_stat(b")(").is_none());
    }

    #[test]
    fn texts_are_split_at_zeros_and_empty_ones_are_kept() {
        assert_eq!(split_texts(b""), Vec::<String>::new());
        assert_eq!(split_texts(b"a\0\0b\0"), ["a", "", "b"]);
        assert_eq!(split_texts(b"a\0b"), ["a", "b"]);
    }

    #[test]
    fn this_process_is_what_it_says() {
        let me = std::process::id();
        let dir = ProcDir::open(me).unwrap();
        let stat = dir.stat().unwrap();
        assert!(!stat.is_dead());
        assert_eq!(dir.tgid().unwrap(), me);
        let mine = ProcessIdentity {
            tgid: me,
            start_ns: stat.start_ticks * (1_000_000_000 / clock_ticks()),
        };
        assert!(ProcDir::of(mine).is_ok());
        let other = ProcessIdentity {
            start_ns: mine.start_ns + 1_000_000_000,
            ..mine
        };
        assert!(ProcDir::of(other).is_err());
    }
}
