//! Standard descriptors of a held process, and putting pipes of ours in their place.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt as _;

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::{GateError, Held};
use crate::boundary::process::pinned::Process;

/// What a descriptor leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A pipe or FIFO.
    Pipe,
    /// A unix stream socket.
    Socket,
    /// A terminal.
    Terminal,
    /// A regular file.
    File,
    /// `/dev/null`.
    Null,
    /// Something else.
    Other,
    /// It is closed.
    Closed,
}

/// One of the standard descriptors of a process.
#[derive(Debug)]
pub struct Standard {
    /// What it leads to.
    pub kind: Kind,
    /// A copy; none where it is closed.
    pub copy: Option<OwnedFd>,
    /// Device and inode, to tell whether two lead to the same thing.
    pub identity: (u64, u64),
}

/// Which way bytes go, seen from the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// It reads them.
    In,
    /// It writes them.
    Out,
    /// Both (a socket that is its input and its output).
    Both,
}

/// A place where a pipe or socketpair of ours is to stand.
#[derive(Debug)]
pub struct Place<'a> {
    /// The descriptors of the process that shall lead to it.
    pub numbers: &'a [RawFd],
    /// A copy of what they lead to now.
    pub now: &'a OwnedFd,
    /// What that is: [`Kind::Pipe`] or [`Kind::Socket`], and a like thing takes its place.
    pub kind: Kind,
    /// Which way bytes go.
    pub direction: Direction,
}

/// The daemon's end of what was put in a place.
#[derive(Debug)]
pub struct Interposed(pub OwnedFd);

impl Standard {
    /// Descriptor `number` of a process.
    pub fn of(process: &Process, number: RawFd) -> Self {
        let Ok(copy) = process.descriptor(number) else {
            return Self {
                kind: Kind::Closed,
                copy: None,
                identity: (0, 0),
            };
        };
        let file = File::from(copy);
        let (kind, identity) = match file.metadata() {
            Ok(about) => (kind(&file, &about), (about.dev(), about.ino())),
            Err(_) => (Kind::Other, (0, 0)),
        };
        Self {
            kind,
            copy: Some(file.into()),
            identity,
        }
    }
}

impl Held<'_> {
    /// Puts a new pipe or socketpair into each place and gives our ends of them, in order. After
    /// an error nothing has changed.
    pub fn interpose(&mut self, places: &[Place<'_>]) -> Result<Vec<Interposed>, GateError> {
        let mut made = Vec::with_capacity(places.len());
        let mut ours = Vec::with_capacity(places.len());
        let made_all = places.iter().try_for_each(|place| {
            let (theirs, end) = self.pair(place, &mut made)?;
            ours.push((theirs, end));
            Ok(())
        });
        let moved = made_all.and_then(|()| {
            for (place, (theirs, _)) in places.iter().zip(&ours) {
                for &number in place.numbers {
                    // Cannot fail: both numbers are in range, and `theirs` was just made.
                    self.call(
                        "dup3",
                        libc::SYS_dup3,
                        [*theirs, number.unsigned_abs().into(), 0, 0, 0, 0],
                    )?;
                }
            }
            Ok(())
        });
        self.close_all(&made)?;
        moved?;
        Ok(ours.into_iter().map(|(_, end)| Interposed(end)).collect())
    }

    /// Makes one pair in the process: its own end there, and our copy of the other one. Every
    /// descriptor made is added to `made`.
    fn pair(
        &mut self,
        place: &Place<'_>,
        made: &mut Vec<u64>,
    ) -> Result<(u64, OwnedFd), GateError> {
        let at = self.scratch();
        match place.kind {
            Kind::Socket => {
                let kind = (libc::SOCK_STREAM | libc::SOCK_CLOEXEC).unsigned_abs();
                let unix = libc::AF_UNIX.unsigned_abs();
                self.call(
                    "socketpair",
                    libc::SYS_socketpair,
                    [unix.into(), kind.into(), 0, at, 0, 0],
                )?;
            }
            _ => {
                let flags = libc::O_CLOEXEC.unsigned_abs();
                self.call("pipe2", libc::SYS_pipe2, [at, flags.into(), 0, 0, 0, 0])?;
            }
        }
        let pid = self.process.pid();
        let mut bytes = [0; 8];
        if super::read(pid, at, &mut bytes) != bytes.len() {
            return Err(self.lost("reading its memory", nix::errno::Errno::EFAULT));
        }
        let word = u64::from_le_bytes(bytes);
        let (first, second) = (word & 0xffff_ffff, word >> 32);
        made.extend([first, second]);
        // A pipe's first end is the one to read from.
        let (theirs, other) = match place.direction {
            Direction::Out => (second, first),
            Direction::In | Direction::Both => (first, second),
        };
        let copy = |number: u64| {
            let number = RawFd::try_from(number).unwrap_or(-1);
            self.process.descriptor(number).map_err(|e| {
                let why = nix::errno::Errno::from_raw(e.raw_os_error().unwrap_or(libc::EBADF));
                self.lost("pidfd_getfd", why)
            })
        };
        let ours = copy(other)?;
        // What the program finds on its end is what it would have found on the one it had. Where
        // that cannot be told or set, the defaults stand.
        let end = copy(theirs)?;
        if let Ok(flags) = fcntl(place.now, FcntlArg::F_GETFL) {
            let kept = OFlag::from_bits_truncate(flags) & (OFlag::O_NONBLOCK | OFlag::O_APPEND);
            if !kept.is_empty() {
                let _ = fcntl(&end, FcntlArg::F_SETFL(kept));
            }
        }
        if place.kind == Kind::Pipe
            && let Ok(size) = fcntl(place.now, FcntlArg::F_GETPIPE_SZ)
        {
            let _ = fcntl(&end, FcntlArg::F_SETPIPE_SZ(size));
        }
        Ok((theirs, ours))
    }

    fn close_all(&mut self, made: &[u64]) -> Result<(), GateError> {
        let mut sorted = made.to_vec();
        sorted.sort_unstable();
        let (Some(&first), Some(&last)) = (sorted.first(), sorted.last()) else {
            return Ok(());
        };
        let neighbours = last - first + 1 == sorted.len() as u64;
        if neighbours
            && self
                .call(
                    "close_range",
                    libc::SYS_close_range,
                    [first, last, 0, 0, 0, 0],
                )
                .is_ok()
        {
            return Ok(());
        }
        for number in sorted {
            self.call("close", libc::SYS_close, [number, 0, 0, 0, 0, 0])?;
        }
        Ok(())
    }
}

fn kind(file: &File, about: &std::fs::Metadata) -> Kind {
    use std::os::unix::fs::FileTypeExt as _;
    let is = about.file_type();
    if is.is_fifo() {
        Kind::Pipe
    } else if is.is_socket() {
        if is_unix_stream(file) {
            Kind::Socket
        } else {
            Kind::Other
        }
    } else if is.is_file() {
        Kind::File
    } else if is.is_char_device() {
        // Device 1:3 everywhere on Linux.
        if about.rdev() == libc::makedev(1, 3) {
            Kind::Null
        } else if nix::unistd::isatty(file.as_fd()).unwrap_or(false) {
            Kind::Terminal
        } else {
            Kind::Other
        }
    } else {
        Kind::Other
    }
}

fn is_unix_stream(file: &File) -> bool {
    use nix::sys::socket::{AddressFamily, SockaddrLike as _, SockaddrStorage, getsockname};
    let stream = nix::sys::socket::getsockopt(file, nix::sys::socket::sockopt::SockType)
        .is_ok_and(|kind| kind == nix::sys::socket::SockType::Stream);
    stream
        && getsockname::<SockaddrStorage>(file.as_raw_fd())
            .is_ok_and(|name| name.family() == Some(AddressFamily::Unix))
}
