//! What a command will read from its standard input, known before it runs, where that can be.

use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use nix::fcntl::{OFlag, SpliceFFlags};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::boundary::process::inject::{Kind, Standard};
use crate::boundary::process::stdio::Source;
use crate::words::{Body, Digest};

/// Longest input that is known before a command runs.
const LONGEST: usize = 16 << 20;
/// How long silent input is waited for: an agent often leaves a pipe open that it never uses.
const SILENCE: Duration = Duration::from_millis(250);
/// How long input that has begun may pause.
const PAUSE: Duration = Duration::from_secs(2);

/// The input of a command.
#[derive(Debug)]
pub(super) enum Input {
    /// It is where it was.
    Untouched(Option<Body>),
    /// It was read, and the command must get it from us.
    Taken {
        /// What is known of it.
        body: Body,
        /// The bytes that were read.
        bytes: Bytes,
        /// What follows; none at its end.
        rest: Option<Source>,
    },
}

impl Input {
    /// What is known of it.
    pub(super) fn body(&self) -> Option<&Body> {
        match self {
            Self::Untouched(body) => body.as_ref(),
            Self::Taken { body, .. } => Some(body),
        }
    }
}

/// Looks at the input, without taking it away where that is possible.
pub(super) async fn look(standard: &Standard) -> std::io::Result<Input> {
    let Some(fd) = &standard.copy else {
        return Ok(Input::Untouched(None));
    };
    match standard.kind {
        Kind::File => Ok(Input::Untouched(of_file(fd.try_clone()?))),
        Kind::Pipe | Kind::Socket => {
            let fd = fd.try_clone()?;
            if standard.kind == Kind::Pipe
                && let Some(whole) = peek(&fd)
            {
                return Ok(Input::Untouched(Some(whole)));
            }
            take(Source::shared(fd)?).await
        }
        _ => Ok(Input::Untouched(None)),
    }
}

/// What is left of a file, which stays where it is.
fn of_file(fd: OwnedFd) -> Option<Body> {
    let at = nix::unistd::lseek(&fd, 0, nix::unistd::Whence::SeekCur).ok()?;
    // A file that can be written only is no input.
    let file = std::fs::File::from(fd);
    let mut bytes = Vec::new();
    let mut chunk = vec![0; 64 << 10];
    let mut offset = u64::try_from(at).ok()?;
    loop {
        match file.read_at(&mut chunk, offset).ok()? {
            0 => return Some(Body::whole(bytes)),
            length => {
                bytes.extend_from_slice(&chunk[..length]);
                offset += length as u64;
            }
        }
        if bytes.len() > LONGEST {
            return Some(begun(&bytes));
        }
    }
}

/// All of a pipe that nobody writes to any more, without taking it out.
fn peek(fd: &OwnedFd) -> Option<Body> {
    let mut polled = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    poll(&mut polled, PollTimeout::ZERO).ok()?;
    if !polled[0].revents()?.contains(PollFlags::POLLHUP) {
        return None;
    }
    let mut waiting = 0i32;
    // SAFETY: FIONREAD writes one integer.
    let asked = unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONREAD, &raw mut waiting) };
    let waiting = usize::try_from(waiting).ok().filter(|_| asked == 0)?;
    if waiting == 0 {
        return Some(Body::empty());
    }
    let (from, to) = nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).ok()?;
    // As many pages as the other pipe may have: what it holds must fit.
    let size = nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_GETPIPE_SZ).ok()?;
    nix::fcntl::fcntl(&to, nix::fcntl::FcntlArg::F_SETPIPE_SZ(size)).ok()?;
    let copied = nix::fcntl::tee(fd, &to, waiting, SpliceFFlags::SPLICE_F_NONBLOCK).ok()?;
    if copied != waiting {
        return None;
    }
    let mut bytes = vec![0; waiting];
    let mut file = std::fs::File::from(from);
    std::io::Read::read_exact(&mut file, &mut bytes).ok()?;
    Some(Body::whole(bytes))
}

/// Reads to the end, as long as it comes.
async fn take(source: Source) -> std::io::Result<Input> {
    let mut bytes = BytesMut::new();
    loop {
        let patience = if bytes.is_empty() { SILENCE } else { PAUSE };
        match tokio::time::timeout(patience, source.read(&mut bytes)).await {
            Err(_) if bytes.is_empty() => return Ok(Input::Untouched(None)),
            Ok(Err(error)) => return Err(error),
            Ok(Ok(0)) => {
                let bytes = bytes.freeze();
                return Ok(Input::Taken {
                    body: Body::whole(bytes.clone()),
                    bytes,
                    rest: None,
                });
            }
            Ok(_) if bytes.len() <= LONGEST => {}
            // It goes on: more than can be known, or slower than anybody waits.
            _ => {
                let bytes = bytes.freeze();
                return Ok(Input::Taken {
                    body: begun(&bytes),
                    bytes,
                    rest: Some(source),
                });
            }
        }
    }
}

/// The beginning of a longer body: it is not whole.
fn begun(bytes: &[u8]) -> Body {
    Body {
        len: bytes.len() as u64 + 1,
        digest: Digest::of(bytes),
        kept: Bytes::copy_from_slice(bytes),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Seek as _, Write as _};

    use super::*;

    fn pipe() -> (OwnedFd, std::fs::File) {
        let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC).unwrap();
        (read, write.into())
    }

    fn standard(kind: Kind, fd: &OwnedFd) -> Standard {
        Standard {
            kind,
            copy: Some(fd.try_clone().unwrap()),
            identity: (0, 0),
        }
    }

    #[tokio::test]
    async fn a_finished_pipe_is_known_and_stays_full() {
        for text in ["INSERT INTO t VALUES (1);\n".repeat(1000), String::new()] {
            let (read, mut write) = pipe();
            write.write_all(text.as_bytes()).unwrap();
            drop(write);
            let input = look(&standard(Kind::Pipe, &read)).await.unwrap();
            let Input::Untouched(Some(body)) = input else {
                panic!("{input:?}");
            };
            assert_eq!(body, Body::whole(text.clone()));
            let mut left = String::new();
            std::fs::File::from(read).read_to_string(&mut left).unwrap();
            assert_eq!(left, text);
        }
    }

    #[tokio::test]
    async fn a_silent_pipe_is_left_alone_and_a_running_one_is_taken() {
        let (read, write) = pipe();
        let input = look(&standard(Kind::Pipe, &read)).await.unwrap();
        assert!(matches!(input, Input::Untouched(None)));

        let text = "x".repeat(300_000);
        let (mut to, sent) = (write, text.clone());
        let writer = std::thread::spawn(move || to.write_all(sent.as_bytes()).unwrap());
        let input = look(&standard(Kind::Pipe, &read)).await.unwrap();
        writer.join().unwrap();
        let Input::Taken { body, bytes, rest } = input else {
            panic!("{input:?}");
        };
        assert!(rest.is_none() && body.is_whole());
        assert_eq!(bytes, text);
    }

    #[tokio::test]
    async fn a_pipe_that_pauses_is_known_in_part() {
        let (read, mut write) = pipe();
        write.write_all(b"begun").unwrap();
        let input = look(&standard(Kind::Pipe, &read)).await.unwrap();
        let Input::Taken { body, bytes, rest } = input else {
            panic!("{input:?}");
        };
        assert!(!body.is_whole() && rest.is_some());
        assert_eq!(bytes, "begun");
    }

    #[tokio::test]
    async fn a_file_is_read_from_where_the_command_will_read_it() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"0123456789").unwrap();
        file.seek(std::io::SeekFrom::Start(4)).unwrap();
        let fd = OwnedFd::from(file);
        let input = look(&standard(Kind::File, &fd)).await.unwrap();
        assert_eq!(input.body(), Some(&Body::whole("456789")));
        let mut left = String::new();
        std::fs::File::from(fd).read_to_string(&mut left).unwrap();
        assert_eq!(left, "456789");
        assert!(
            look(&standard(
                Kind::Terminal,
                &OwnedFd::from(tempfile::tempfile().unwrap())
            ))
            .await
            .unwrap()
            .body()
            .is_none()
        );
    }
}
