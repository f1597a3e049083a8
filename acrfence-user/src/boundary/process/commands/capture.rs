//! The output of a command, recorded while it passes.

use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;

use bytes::{Buf as _, BytesMut};
use tokio_util::sync::CancellationToken;

use super::record::{Recorder, unseen};
use crate::boundary::process::stdio::{Sink, Source};
use crate::words::Body;

/// How much is taken out of a pipe at once after the command has ended: what others still write
/// is not its output.
const LAST: usize = 4 << 20;

/// Where one of a command's outputs goes, and how it is recorded.
#[derive(Debug)]
pub(super) enum Capture {
    /// Through us.
    Piped {
        /// What the command writes.
        from: Source,
        /// What its reader reads.
        to: Sink,
    },
    /// To a file, from which it is read afterwards.
    File {
        /// The same open file as the command's.
        file: OwnedFd,
        /// Where it begins.
        start: u64,
    },
    /// Nowhere, or into the other output.
    Nothing,
    /// Somewhere that we keep out of: a terminal.
    Unseen,
}

/// What is left of a capture when the command has ended.
#[derive(Debug)]
pub(super) struct Left {
    from: Source,
    to: Sink,
    pending: BytesMut,
}

impl Capture {
    /// The capture of a file.
    pub(super) fn of_file(file: OwnedFd) -> Self {
        let append = nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_GETFL)
            .is_ok_and(|flags| flags & libc::O_APPEND != 0);
        let whence = if append {
            // Where the end is now; the offset itself follows the first write.
            std::fs::File::from(match file.try_clone() {
                Ok(copy) => copy,
                Err(_) => return Self::Unseen,
            })
            .metadata()
            .map(|about| about.len())
            .ok()
        } else {
            position(&file)
        };
        match whence {
            Some(start) => Self::File { file, start },
            None => Self::Unseen,
        }
    }

    /// Passes and records until `ended`, when the command is no more. What it wrote is then all
    /// recorded, and perhaps not yet all passed on.
    pub(super) async fn run(self, ended: &CancellationToken, bound: usize) -> (Body, Option<Left>) {
        match self {
            Self::Nothing => (Body::empty(), None),
            Self::Unseen => (unseen(), None),
            Self::File { file, start } => {
                ended.cancelled().await;
                let body = tokio::task::spawn_blocking(move || written(file, start, bound)).await;
                (body.unwrap_or_else(|_| unseen()), None)
            }
            Self::Piped { from, to } => piped(from, to, ended, bound).await,
        }
    }
}

impl Left {
    /// Passes on what is left, and what others still write, to the end.
    pub(super) async fn pass(self) {
        let Self { from, to, pending } = self;
        if to.write_all(&pending).await.is_err() {
            return;
        }
        loop {
            tokio::select! {
                moved = from.splice(&to) => match moved {
                    Ok(0) | Err(_) => return,
                    Ok(_) => {}
                },
                () = to.hung_up() => return,
            }
        }
    }
}

async fn piped(
    from: Source,
    to: Sink,
    ended: &CancellationToken,
    bound: usize,
) -> (Body, Option<Left>) {
    let mut recorder = Recorder::new(bound);
    let mut pending = BytesMut::new();
    let mut fresh = BytesMut::new();
    let mut is_over = false;
    loop {
        tokio::select! {
            read = from.read(&mut fresh), if pending.is_empty() && !is_over => match read {
                Ok(0) | Err(_) => is_over = true,
                Ok(_) => {
                    recorder.take(&fresh);
                    std::mem::swap(&mut fresh, &mut pending);
                    fresh.clear();
                }
            },
            written = to.write(&pending), if !pending.is_empty() => match written {
                Ok(length) => pending.advance(length),
                Err(_) => break,
            },
            () = ended.cancelled() => {
                let mut last = 0;
                while !is_over && last < LAST && from.has_more() {
                    let before = pending.len();
                    match from.read(&mut pending).await {
                        Ok(0) | Err(_) => is_over = true,
                        Ok(length) => {
                            recorder.take(&pending[before..]);
                            last += length;
                        }
                    }
                }
                return (recorder.finish(), Some(Left { from, to, pending }));
            }
            () = to.hung_up() => break,
        }
    }
    // Nobody reads: the command shall notice, as it would without us.
    drop((from, to));
    ended.cancelled().await;
    (recorder.finish(), None)
}

fn position(file: &OwnedFd) -> Option<u64> {
    nix::unistd::lseek(file, 0, nix::unistd::Whence::SeekCur)
        .ok()
        .and_then(|at| u64::try_from(at).ok())
}

/// What was written to a file since `start`.
fn written(file: OwnedFd, start: u64, bound: usize) -> Body {
    use std::os::fd::AsRawFd as _;
    let Some(end) = position(&file) else {
        return unseen();
    };
    // The command's description may be for writing only.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let Ok(readable) = std::fs::File::open(path) else {
        return unseen();
    };
    let mut recorder = Recorder::new(bound);
    let mut at = start;
    let mut chunk = vec![0; 64 << 10];
    while at < end {
        let most = usize::try_from(end - at)
            .unwrap_or(chunk.len())
            .min(chunk.len());
        match readable.read_at(&mut chunk[..most], at) {
            Ok(length) if length > 0 => {
                recorder.take(&chunk[..length]);
                at += length as u64;
            }
            // Cut off by somebody else.
            _ => return unseen(),
        }
    }
    recorder.finish()
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Seek as _, Write as _};

    use super::*;

    fn pipe() -> (OwnedFd, OwnedFd) {
        nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).unwrap()
    }

    #[tokio::test]
    async fn output_passes_while_it_is_recorded() {
        let (from, command) = pipe();
        let (reader, to) = pipe();
        let capture = Capture::Piped {
            from: Source::ours(from).unwrap(),
            to: Sink::shared(to).unwrap(),
        };
        let ended = CancellationToken::new();
        let token = ended.clone();
        let task = tokio::spawn(async move { capture.run(&token, 4).await });
        let mut command = std::fs::File::from(command);
        command.write_all(b"first").unwrap();
        let mut reader = std::fs::File::from(reader);
        let (mut reader, got) = tokio::task::spawn_blocking(move || {
            let mut got = [0; 5];
            reader.read_exact(&mut got).unwrap();
            (reader, got)
        })
        .await
        .unwrap();
        assert_eq!(&got, b"first");
        // A grandchild keeps the pipe open; what the command wrote last is recorded all the same.
        let grandchild = command.try_clone().unwrap();
        command.write_all(b" last").unwrap();
        drop(command);
        ended.cancel();
        let (body, left) = task.await.unwrap();
        assert_eq!((body.len, &body.kept[..]), (10, &b"firs"[..]));
        let passing = tokio::spawn(left.unwrap().pass());
        let mut grandchild = grandchild;
        grandchild.write_all(b" later").unwrap();
        drop(grandchild);
        passing.await.unwrap();
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, " last later");
    }

    #[tokio::test]
    async fn a_reader_that_does_not_read_does_not_keep_the_record_back() {
        let (from, command) = pipe();
        let (_reader, to) = pipe();
        let capture = Capture::Piped {
            from: Source::ours(from).unwrap(),
            to: Sink::shared(to).unwrap(),
        };
        let ended = CancellationToken::new();
        let token = ended.clone();
        let task = tokio::spawn(async move { capture.run(&token, 1 << 20).await });
        let mut command = std::fs::File::from(command);
        let command = tokio::task::spawn_blocking(move || {
            command.write_all(&vec![b'x'; 150_000]).unwrap();
            command
        })
        .await
        .unwrap();
        drop(command);
        ended.cancel();
        let (body, left) = task.await.unwrap();
        assert_eq!(body.len, 150_000);
        assert!(!left.unwrap().pending.is_empty());
    }

    #[tokio::test]
    async fn a_reader_that_goes_is_noticed_by_the_command() {
        let (from, command) = pipe();
        let (reader, to) = pipe();
        let capture = Capture::Piped {
            from: Source::ours(from).unwrap(),
            to: Sink::shared(to).unwrap(),
        };
        let ended = CancellationToken::new();
        let token = ended.clone();
        let task = tokio::spawn(async move { capture.run(&token, 100).await });
        drop(reader);
        let command = Sink::ours(command).unwrap();
        command.hung_up().await;
        ended.cancel();
        assert!(task.await.unwrap().1.is_none());
    }

    #[tokio::test]
    async fn what_went_into_a_file_is_read_from_there() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"before ").unwrap();
        for append in [false, true] {
            let mut open = std::fs::OpenOptions::new();
            let mut own = if append {
                open.append(true)
            } else {
                open.write(true)
            }
            .open(file.path())
            .unwrap();
            own.seek(std::io::SeekFrom::Start(if append { 0 } else { 7 }))
                .unwrap();
            let capture = Capture::of_file(own.try_clone().unwrap().into());
            own.write_all(b"output").unwrap();
            let ended = CancellationToken::new();
            ended.cancel();
            let (body, left) = capture.run(&ended, 100).await;
            assert_eq!(body, Body::whole("output"));
            assert!(left.is_none());
        }
    }
}
