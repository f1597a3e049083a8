//! System calls that no crate here wraps.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::netns;

/// Attaches a program to a cgroup; the link lives as long as the descriptor or its pin.
pub fn cgroup_link(
    program: BorrowedFd<'_>,
    cgroup: BorrowedFd<'_>,
    attach_type: u32,
) -> io::Result<OwnedFd> {
    let attribute = LinkCreate {
        program: program.as_raw_fd(),
        target: cgroup.as_raw_fd(),
        attach_type,
        ..LinkCreate::default()
    };
    bpf(LINK_CREATE, &attribute).map(owned)
}

/// Puts another program in a cgroup link's place, without a moment in which there is none.
pub fn replace_program(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let attribute = LinkUpdate {
        link: link.as_raw_fd(),
        program: program.as_raw_fd(),
        ..LinkUpdate::default()
    };
    bpf(LINK_UPDATE, &attribute).map(drop)
}

/// Takes a cgroup link's program off at once. Unpinning alone takes effect only some time later.
pub fn detach(link: BorrowedFd<'_>) -> io::Result<()> {
    bpf(LINK_DETACH, &link.as_raw_fd()).map(drop)
}

/// Gives a link a name in a bpffs.
pub fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    let attribute = Object {
        path: path.as_ptr() as u64,
        fd: object.as_raw_fd(),
        flags: 0,
    };
    bpf(OBJ_PIN, &attribute).map(drop)
}

/// Asks the kernel to execute a file that is no program: whoever is asked about an exec is asked about this
/// one, and nothing runs.
pub fn try_exec() -> io::Result<()> {
    let file = nix::sys::memfd::memfd_create(c"acrfence", nix::sys::memfd::MFdFlags::empty())?;
    nix::unistd::write(&file, b"no program")?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    match std::process::Command::new(path).spawn() {
        Err(error) if error.raw_os_error() == Some(libc::ENOEXEC) => Ok(()),
        Err(error) => Err(error),
        Ok(mut child) => child.wait().map(drop),
    }
}

/// Opens what is pinned under a name.
pub fn open_pin(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    let attribute = Object {
        path: path.as_ptr() as u64,
        fd: 0,
        flags: 0,
    };
    bpf(OBJ_GET, &attribute).map(owned)
}

/// The number the kernel has for the network namespace this process is in.
pub fn netns_cookie() -> io::Result<u64> {
    let socket = std::net::UdpSocket::bind(("127.0.0.1", 0))?;
    netns::cookie_of(socket.as_fd())
}

/// A handle on a process that a later one with the same pid cannot take over.
pub fn pidfd_open(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: plain numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    checked(fd).map(owned)
}

/// A copy of another process's descriptor.
pub fn pidfd_getfd(process: BorrowedFd<'_>, fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: plain numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd, 0) };
    checked(fd).map(owned)
}

/// Sends a signal to the process behind a handle.
pub fn pidfd_send_signal(process: BorrowedFd<'_>, signal: libc::c_int) -> io::Result<()> {
    let none = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: the descriptor is open, and no information goes along.
    let sent = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            process.as_raw_fd(),
            signal,
            none,
            0,
        )
    };
    checked(sent).map(drop)
}

/// Waits until every program run that was under way has ended.
pub fn wait_for_running_hooks() -> io::Result<()> {
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    // SAFETY: plain numbers.
    checked(unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) }).map(drop)
}

/// The lock of a directory.
pub struct Lock(OwnedFd);

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing is not enough: a child that was just forked shares it until it executes.
        // SAFETY: the descriptor is open.
        unsafe { libc::flock(self.0.as_raw_fd(), libc::LOCK_UN) };
    }
}

/// Takes the lock of a directory; none when another process has it.
pub fn try_lock(directory: &Path) -> io::Result<Option<Lock>> {
    let file = std::fs::File::open(directory)?;
    // SAFETY: the descriptor is open.
    let result = unsafe { libc::flock(file.as_fd().as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
    if result == 0 {
        return Ok(Some(Lock(file.into())));
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::WouldBlock {
        Ok(None)
    } else {
        Err(error)
    }
}

/// Whether a directory lies in a bpffs.
pub fn is_bpffs(directory: &Path) -> io::Result<bool> {
    let stat = nix::sys::statfs::statfs(directory)?;
    Ok(stat.filesystem_type() == nix::sys::statfs::FsType(BPF_FS_MAGIC))
}

const OBJ_PIN: libc::c_int = 6;
const OBJ_GET: libc::c_int = 7;
const LINK_CREATE: libc::c_int = 28;
const LINK_UPDATE: libc::c_int = 29;
const LINK_DETACH: libc::c_int = 34;
const BPF_FS_MAGIC: libc::c_long = 0xcafe_4a11;

/// The parts of `union bpf_attr` that are used here.
#[repr(C)]
#[derive(Default)]
struct LinkCreate {
    program: RawFd,
    target: RawFd,
    attach_type: u32,
    flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct LinkUpdate {
    link: RawFd,
    program: RawFd,
    flags: u32,
    old_program: RawFd,
}

#[repr(C)]
struct Object {
    path: u64,
    fd: RawFd,
    flags: u32,
}

fn bpf<T>(command: libc::c_int, attribute: &T) -> io::Result<libc::c_long> {
    // SAFETY: the attribute is valid for the call, and its size is given.
    checked(unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_ref(attribute),
            size_of::<T>(),
        )
    })
}

fn checked(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

fn owned(fd: libc::c_long) -> OwnedFd {
    // SAFETY: the kernel just made this descriptor for us. It is a `c_int` widened.
    unsafe { OwnedFd::from_raw_fd(fd as RawFd) }
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}
