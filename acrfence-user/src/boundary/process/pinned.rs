//! A handle on a process that cannot come to mean another one.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::unistd::Pid;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::words::ProcessIdentity;

/// A process, held by a pidfd: signals and descriptor copies reach this very process or none.
#[derive(Debug)]
pub struct Process {
    pid: Pid,
    fd: OwnedFd,
}

impl Process {
    /// The process that has `pid` now.
    pub fn open(pid: Pid) -> io::Result<Self> {
        // SAFETY: pidfd_open takes two integers and touches no memory of ours.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) };
        Ok(Self {
            pid,
            fd: owned(fd)?,
        })
    }

    /// The process that `identity` names; an error when its pid belongs to another one by now.
    pub fn open_identity(identity: ProcessIdentity) -> io::Result<Self> {
        let pid = i32::try_from(identity.tgid)
            .map(Pid::from_raw)
            .map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
        let process = Self::open(pid)?;
        // The pidfd pins the process, so what /proc says afterwards is about it or about nothing.
        let ticks = start_ticks(pid)?;
        let hz = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK)
            .ok()
            .flatten()
            .and_then(|hz| u64::try_from(hz).ok())
            .unwrap_or(100);
        if identity.same_as_proc(identity.tgid, ticks, hz) {
            Ok(process)
        } else {
            Err(io::Error::from_raw_os_error(libc::ESRCH))
        }
    }

    /// Another handle on the same process.
    pub fn duplicate(&self) -> io::Result<Self> {
        Ok(Self {
            pid: self.pid,
            fd: self.fd.try_clone()?,
        })
    }

    /// Its process id, valid as long as it has not been reaped.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// A copy of its descriptor `number`: the same open file description.
    pub fn descriptor(&self, number: RawFd) -> io::Result<OwnedFd> {
        // SAFETY: pidfd_getfd takes three integers and touches no memory of ours.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, self.fd.as_raw_fd(), number, 0) };
        owned(fd)
    }

    /// Waits until it has ended.
    pub async fn ended(&self) -> io::Result<()> {
        let copy = self.fd.try_clone()?;
        // SAFETY: an OwnedFd is open, and stays the same descriptor until it is dropped.
        let watch = unsafe { AsyncFd::register_with_interest(copy, Interest::READABLE) }?;
        watch.readable().await.map(drop)
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        let none = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: a null siginfo is allowed and means "as kill(2) would fill it in".
        let done = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.fd.as_raw_fd(),
                signal,
                none,
                0,
            )
        };
        if done == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Start time of a process in clock ticks since boot, as `/proc/PID/stat` has it.
pub(super) fn start_ticks(pid: Pid) -> io::Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name may hold spaces and parentheses: fields are counted from the last one.
    stat.rsplit_once(')')
        .and_then(|(_, fields)| fields.split_ascii_whitespace().nth(19))
        .and_then(|ticks| ticks.parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no start time in stat"))
}

fn owned(fd: libc::c_long) -> io::Result<OwnedFd> {
    let fd = RawFd::try_from(fd).unwrap_or(-1);
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_that_was_reused_is_not_opened() {
        let pid = Pid::this();
        let hz = 100;
        let ticks = start_ticks(pid).unwrap();
        let right = ProcessIdentity {
            tgid: pid.as_raw().try_into().unwrap(),
            start_ns: ticks * (1_000_000_000 / hz) + 7,
        };
        assert!(Process::open_identity(right).is_ok());
        let wrong = ProcessIdentity {
            start_ns: right.start_ns + 1_000_000_000,
            ..right
        };
        assert_eq!(
            Process::open_identity(wrong).unwrap_err().raw_os_error(),
            Some(libc::ESRCH)
        );
    }

    #[test]
    fn a_descriptor_copy_is_the_same_description() {
        use std::io::{Read as _, Write as _};
        let (read, write) = nix::unistd::pipe().unwrap();
        let myself = Process::open(Pid::this()).unwrap();
        let copy = myself.descriptor(write.as_raw_fd()).unwrap();
        drop(write);
        std::fs::File::from(copy).write_all(b"over").unwrap();
        let mut got = String::new();
        std::fs::File::from(read).read_to_string(&mut got).unwrap();
        assert_eq!(got, "over");
    }
}
