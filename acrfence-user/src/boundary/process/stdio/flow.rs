//! Ends of pipes, sockets and terminals, read and written without blocking and without changing
//! what others see of them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use bytes::BytesMut;
use nix::fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, Shutdown, recv, send, shutdown};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// How much is read at once.
const CHUNK: usize = 64 << 10;
/// How much is moved at once inside the kernel.
const SPLICE: usize = 1 << 20;

/// An end that bytes come from.
#[derive(Debug)]
pub struct Source(End);

/// An end that bytes go to.
#[derive(Debug)]
pub struct Sink {
    end: End,
    /// Another registration of the same end: watching it for its loss must not take the news that
    /// it is writable away from a writer.
    watch: AsyncFd<OwnedFd>,
}

#[derive(Debug)]
struct End {
    fd: AsyncFd<OwnedFd>,
    is_socket: bool,
    /// What to shut down when it is closed; for a socket that is both source and sink, closing one
    /// of two copies would say nothing to the other side.
    shut: Option<Shutdown>,
}

impl Source {
    /// From a descriptor whose open file description other processes may share.
    pub fn shared(fd: OwnedFd) -> io::Result<Self> {
        End::shared(fd, OFlag::O_RDONLY, Interest::READABLE).map(Self)
    }

    /// From a descriptor that only we have.
    pub fn ours(fd: OwnedFd) -> io::Result<Self> {
        End::ours(fd, Interest::READABLE).map(Self)
    }

    /// The same, where a [`Sink`] on the same socket exists as well.
    pub fn half(mut self) -> Self {
        self.0.shut = Some(Shutdown::Read);
        self
    }

    /// Reads some bytes to the end of `into`; none at the end of the stream. Nothing is lost when
    /// the future is dropped.
    pub async fn read(&self, into: &mut BytesMut) -> io::Result<usize> {
        let mut chunk = [0; CHUNK];
        let length = self
            .0
            .fd
            .async_io(Interest::READABLE, |fd| {
                let read = if self.0.is_socket {
                    recv(fd.as_raw_fd(), &mut chunk, MsgFlags::MSG_DONTWAIT)
                } else {
                    nix::unistd::read(fd, &mut chunk)
                };
                read.map_err(io::Error::from)
            })
            .await
            .or_else(end_of_terminal)?;
        into.extend_from_slice(&chunk[..length]);
        Ok(length)
    }

    /// Whether something can be read now: bytes or the end.
    pub fn has_more(&self) -> bool {
        is_ready(self.0.fd.get_ref().as_fd(), PollFlags::POLLIN).unwrap_or(true)
    }

    /// Moves some bytes to `sink`, inside the kernel where it can; none at the end of the stream.
    ///
    /// When the future is dropped, bytes may be lost; an error of kind `BrokenPipe` comes from the
    /// sink.
    pub async fn splice(&self, sink: &Sink) -> io::Result<usize> {
        if self.0.is_socket && sink.end.is_socket {
            return self.copy(sink).await;
        }
        let flags = SpliceFFlags::SPLICE_F_NONBLOCK | SpliceFFlags::SPLICE_F_MOVE;
        loop {
            let mut readable = self.0.fd.readable().await?;
            let mut writable = sink.end.fd.writable().await?;
            let (from, to) = (self.0.fd.get_ref(), sink.end.fd.get_ref());
            match nix::fcntl::splice(from, None, to, None, SPLICE, flags) {
                Ok(moved) => return Ok(moved),
                Err(nix::Error::EAGAIN) => {
                    // Readiness may only be given up where there is none: the other side would
                    // never be told of again.
                    if !is_ready(from.as_fd(), PollFlags::POLLIN)? {
                        readable.clear_ready();
                    }
                    if !is_ready(to.as_fd(), PollFlags::POLLOUT)? {
                        writable.clear_ready();
                    }
                }
                // Terminals and the like.
                Err(nix::Error::EINVAL) => return self.copy(sink).await,
                Err(nix::Error::EINTR) => {}
                Err(error) => return end_of_terminal(error.into()),
            }
        }
    }

    async fn copy(&self, sink: &Sink) -> io::Result<usize> {
        let mut bytes = BytesMut::new();
        let length = self.read(&mut bytes).await?;
        sink.write_all(&bytes)
            .await
            .map_err(|broken| broken.error)?;
        Ok(length)
    }
}

/// How much of what was written was never read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// This many bytes.
    Bytes(u64),
    /// Something, and nobody knows how much.
    Some,
}

/// A write that did not come to its end.
#[derive(Debug)]
pub struct Broken {
    /// How many bytes were taken before.
    pub written: usize,
    /// Why no more.
    pub error: io::Error,
}

impl Sink {
    /// To a descriptor whose open file description other processes may share.
    pub fn shared(fd: OwnedFd) -> io::Result<Self> {
        End::shared(fd, OFlag::O_WRONLY, Interest::WRITABLE).and_then(Self::new)
    }

    /// To a descriptor that only we have.
    pub fn ours(fd: OwnedFd) -> io::Result<Self> {
        End::ours(fd, Interest::WRITABLE).and_then(Self::new)
    }

    /// The same, where a [`Source`] on the same socket exists as well.
    pub fn half(mut self) -> Self {
        self.end.shut = Some(Shutdown::Write);
        self
    }

    /// Writes some of it; gives how much. Nothing was written when the future is dropped.
    pub async fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.end
            .fd
            .async_io(Interest::WRITABLE, |fd| {
                let sent = if self.end.is_socket {
                    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
                    send(fd.as_raw_fd(), bytes, flags)
                } else {
                    nix::unistd::write(fd, bytes)
                };
                sent.map_err(io::Error::from)
            })
            .await
    }

    /// Writes all of it. When the future is dropped, some may have been written.
    pub async fn write_all(&self, bytes: &[u8]) -> Result<(), Broken> {
        let mut written = 0;
        while written < bytes.len() {
            match self.write(&bytes[written..]).await {
                Ok(length) => written += length,
                Err(error) => return Err(Broken { written, error }),
            }
        }
        Ok(())
    }

    /// What was written and not read, once nobody can read it any more.
    pub fn unread(&self) -> Unread {
        let fd = self.end.fd.get_ref();
        if self.end.is_socket {
            // The queue is gone with its reader; that it was not empty is told by this error.
            let error = nix::sys::socket::getsockopt(fd, nix::sys::socket::sockopt::SocketError);
            return if error == Ok(libc::ECONNRESET) {
                Unread::Some
            } else {
                Unread::Bytes(0)
            };
        }
        let mut left = 0i32;
        // SAFETY: FIONREAD writes one integer.
        let asked = unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONREAD, &raw mut left) };
        Unread::Bytes(if asked == 0 {
            u64::from(left.unsigned_abs())
        } else {
            0
        })
    }

    /// Waits until nobody can read what would be written.
    pub async fn hung_up(&self) {
        loop {
            let interest = Interest::ERROR | Interest::WRITABLE;
            let Ok(mut guard) = self.watch.ready(interest).await else {
                return;
            };
            let fd = self.watch.get_ref().as_fd();
            let gone = PollFlags::POLLERR | PollFlags::POLLHUP | PollFlags::POLLNVAL;
            if is_ready(fd, gone).unwrap_or(true) {
                return;
            }
            // It is only writable, which is no news: wait for a change.
            guard.clear_ready();
        }
    }

    fn new(end: End) -> io::Result<Self> {
        let copy = end.fd.get_ref().try_clone()?;
        let interest = Interest::ERROR | Interest::WRITABLE;
        let watch = registered(copy, interest)?;
        Ok(Self { end, watch })
    }
}

impl End {
    fn shared(fd: OwnedFd, access: OFlag, interest: Interest) -> io::Result<Self> {
        let is_socket = is_socket(&fd);
        let fd = if is_socket {
            // Calls that do not wait are possible one by one.
            fd
        } else {
            // A description of our own: not waiting is a property of it, and what the processes
            // that share the old one do must stay as it was.
            let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
            let flags = access | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC | OFlag::O_NOCTTY;
            nix::fcntl::open(path.as_str(), flags, nix::sys::stat::Mode::empty())?
        };
        Self::new(fd, is_socket, interest)
    }

    fn ours(fd: OwnedFd, interest: Interest) -> io::Result<Self> {
        let is_socket = is_socket(&fd);
        if !is_socket {
            let flags = OFlag::from_bits_truncate(fcntl(&fd, FcntlArg::F_GETFL)?);
            fcntl(&fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        }
        Self::new(fd, is_socket, interest)
    }

    fn new(fd: OwnedFd, is_socket: bool, interest: Interest) -> io::Result<Self> {
        Ok(Self {
            fd: registered(fd, interest | Interest::ERROR)?,
            is_socket,
            shut: None,
        })
    }
}

impl Drop for End {
    fn drop(&mut self) {
        if let Some(how) = self.shut {
            // The other side may have gone first.
            let _ = shutdown(self.fd.get_ref().as_raw_fd(), how);
        }
    }
}

fn registered(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd is open, and stays the same descriptor until it is dropped.
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest) }?)
}

/// A terminal whose other side is closed answers EIO; that is its end of file.
fn end_of_terminal(error: io::Error) -> io::Result<usize> {
    match error.raw_os_error() {
        Some(libc::EIO | libc::ECONNRESET) => Ok(0),
        _ => Err(error),
    }
}

fn is_socket(fd: &OwnedFd) -> bool {
    nix::sys::stat::fstat(fd).is_ok_and(|about| about.st_mode & libc::S_IFMT == libc::S_IFSOCK)
}

fn is_ready(fd: BorrowedFd<'_>, what: PollFlags) -> io::Result<bool> {
    let mut polled = [PollFd::new(fd, what)];
    poll(&mut polled, PollTimeout::ZERO)?;
    let gone = PollFlags::POLLERR | PollFlags::POLLHUP;
    Ok(polled[0]
        .revents()
        .is_some_and(|found| found.intersects(what | gone)))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;

    fn pipe() -> (OwnedFd, OwnedFd) {
        nix::unistd::pipe2(OFlag::O_CLOEXEC).unwrap()
    }

    fn sockets() -> (OwnedFd, OwnedFd) {
        let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
        (one.into(), other.into())
    }

    fn is_waiting(fd: &OwnedFd) -> bool {
        let flags = OFlag::from_bits_truncate(fcntl(fd, FcntlArg::F_GETFL).unwrap());
        !flags.contains(OFlag::O_NONBLOCK)
    }

    #[tokio::test]
    async fn the_description_that_others_share_stays_as_it_was() {
        for (read, write) in [pipe(), sockets()] {
            let (theirs_read, theirs_write) =
                (read.try_clone().unwrap(), write.try_clone().unwrap());
            let source = Source::shared(read).unwrap();
            let sink = Sink::shared(write).unwrap();
            assert!(is_waiting(&theirs_read) && is_waiting(&theirs_write));
            sink.write_all(b"over").await.unwrap();
            let mut got = BytesMut::new();
            source.read(&mut got).await.unwrap();
            assert_eq!(got, "over");
        }
    }

    #[tokio::test]
    async fn a_reader_that_goes_is_noticed_without_writing() {
        for (read, write) in [pipe(), sockets()] {
            let sink = Sink::ours(write).unwrap();
            let watch = tokio::spawn(async move {
                sink.hung_up().await;
                sink.write_all(b"x").await.unwrap_err().written
            });
            tokio::task::yield_now().await;
            assert!(!watch.is_finished());
            drop(read);
            assert_eq!(watch.await.unwrap(), 0);
        }
    }

    #[tokio::test]
    async fn what_a_reader_left_behind_is_known() {
        for (pair, left) in [(pipe(), Unread::Bytes(4)), (sockets(), Unread::Some)] {
            let (read, write) = pair;
            let sink = Sink::ours(write).unwrap();
            sink.write_all(b"read left").await.unwrap();
            nix::unistd::read(&read, &mut [0; 5]).unwrap();
            drop(read);
            sink.hung_up().await;
            assert_eq!(sink.unread(), left);
        }
        let (read, write) = sockets();
        let sink = Sink::ours(write).unwrap();
        sink.write_all(b"all").await.unwrap();
        nix::unistd::read(&read, &mut [0; 5]).unwrap();
        drop(read);
        sink.hung_up().await;
        assert_eq!(sink.unread(), Unread::Bytes(0));
    }

    #[tokio::test]
    async fn splicing_moves_everything_between_any_ends() {
        const SIZE: usize = 3 << 20;
        for (first, second) in [
            (pipe(), pipe()),
            (pipe(), sockets()),
            (sockets(), pipe()),
            (sockets(), sockets()),
        ] {
            let source = Source::ours(first.0).unwrap();
            let sink = Sink::ours(second.1).unwrap();
            let mut to = std::fs::File::from(first.1);
            let writer = std::thread::spawn(move || {
                let all: Vec<u8> = (0..SIZE as u32 / 4).flat_map(u32::to_ne_bytes).collect();
                for some in all.chunks(10_007) {
                    to.write_all(some).unwrap();
                }
            });
            let mut from = std::fs::File::from(second.0);
            let reader = std::thread::spawn(move || {
                let mut got = Vec::new();
                from.read_to_end(&mut got).unwrap();
                got
            });
            let mut moved = 0;
            loop {
                match source.splice(&sink).await.unwrap() {
                    0 => break,
                    length => moved += length,
                }
            }
            drop(sink);
            writer.join().unwrap();
            let got = reader.join().unwrap();
            assert_eq!((moved, got.len()), (SIZE, SIZE));
            let in_order = got
                .chunks(4)
                .enumerate()
                .all(|(n, bytes)| bytes == (n as u32).to_ne_bytes());
            assert!(in_order);
        }
    }

    #[tokio::test]
    async fn one_half_of_a_socket_ends_while_the_other_goes_on() {
        let (ours, theirs) = sockets();
        let copy = ours.try_clone().unwrap();
        let source = Source::ours(ours).unwrap().half();
        let sink = Sink::ours(copy).unwrap().half();
        let mut theirs = std::os::unix::net::UnixStream::from(theirs);
        drop(sink);
        assert_eq!(theirs.read(&mut [0; 1]).unwrap(), 0);
        theirs.write_all(b"still").unwrap();
        let mut got = BytesMut::new();
        source.read(&mut got).await.unwrap();
        assert_eq!(got, "still");
    }
}
