//! The number that the kernel has for a network namespace, which the kernel side and the hooks agree on.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// The number of the network namespace that a socket was made in.
///
/// Errors are the kernel's: before 5.14 there is no such number.
pub(crate) fn cookie_of(socket: BorrowedFd<'_>) -> io::Result<u64> {
    /// From `asm-generic/socket.h`; not in libc.
    const SO_NETNS_COOKIE: libc::c_int = 71;
    let mut cookie = 0u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: both pointers are valid for the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(cookie)
}
