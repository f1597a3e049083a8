//! Request bodies: read whole before the call is decided, in memory while they are small.

use std::io::{self, SeekFrom};
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use tokio::fs::File;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _, ReadBuf};
use tokio::time::timeout;

use super::body::Recorder;
use super::budget::{Memory, Share};
use crate::boundary::config::Limits;
use crate::words;

/// A request body that arrived whole.
pub(crate) struct Spooled {
    memory: Bytes,
    rest: Option<File>,
    record: words::Body,
    trailers: Option<HeaderMap>,
    /// What an agent that streams both ways has not sent yet.
    more: Option<UnsyncBoxBody<Bytes, io::Error>>,
    share: Option<Share>,
}

/// Why a request body cannot be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SpoolError {
    #[error("the request body was cut off: {0}")]
    Cut(String),
    #[error("the request body is larger than {0} bytes")]
    TooLarge(u64),
    #[error("no byte of the request body came for {0:?}")]
    Idle(Duration),
    #[error("no memory was left for the request body")]
    Memory,
    #[error("the request body could not be spooled to disk: {0}")]
    Disk(#[from] io::Error),
}

impl Spooled {
    /// No bytes.
    pub(crate) fn empty() -> Self {
        Self::whole(Bytes::new())
    }

    /// Bytes that are in memory anyway.
    pub(crate) fn whole(bytes: Bytes) -> Self {
        Self {
            record: words::Body::whole(bytes.clone()),
            memory: bytes,
            rest: None,
            trailers: None,
            more: None,
            share: None,
        }
    }

    /// What the record keeps of it.
    pub(crate) fn record(&self) -> &words::Body {
        &self.record
    }

    /// Whether the agent goes on sending while it is answered. Then only the beginning is known.
    pub(crate) fn is_open(&self) -> bool {
        self.more.is_some()
    }

    /// All of it in memory, when it is not longer than `bound`.
    pub(crate) async fn in_memory(
        &mut self,
        bound: usize,
        memory: &Memory,
        patience: Duration,
    ) -> Result<Option<Bytes>, SpoolError> {
        if self.record.len > bound as u64 {
            return Ok(None);
        }
        let Some(rest) = &mut self.rest else {
            return Ok(Some(self.memory.clone()));
        };
        let len = usize::try_from(self.record.len).unwrap_or(usize::MAX);
        let share = self.share.get_or_insert_with(|| memory.share());
        if !share.grow(len + self.memory.len(), patience).await {
            return Err(SpoolError::Memory);
        }
        let mut all = Vec::with_capacity(len);
        all.extend_from_slice(&self.memory);
        rest.seek(SeekFrom::Start(0)).await?;
        rest.read_to_end(&mut all).await?;
        rest.seek(SeekFrom::Start(0)).await?;
        Ok(Some(all.into()))
    }
}

/// Reads a body to its end. With `duplex`, an agent that is silent for so long between two
/// messages (gRPC framing) is taken to wait for an answer, and the body stays open.
pub(crate) async fn spool<B>(
    mut body: B,
    limits: &Limits,
    dir: &Path,
    memory: &Memory,
    duplex: Option<Duration>,
) -> Result<Spooled, SpoolError>
where
    B: Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: std::fmt::Display,
{
    let declared = body.size_hint().exact();
    if declared.is_some_and(|len| len > limits.body) {
        return Err(SpoolError::TooLarge(limits.body));
    }
    let mut near = BytesMut::new();
    let mut share = memory.share();
    let mut rest: Option<File> = None;
    let mut recorder = Recorder::new(0, None);
    let mut trailers = None;
    let mut messages = Messages::default();
    let mut open = false;
    loop {
        let patience = duplex
            .filter(|_| messages.is_between())
            .unwrap_or(limits.body_idle);
        let frame = match timeout(patience, body.frame()).await {
            Err(_) if duplex.is_some() && messages.is_between() => {
                open = true;
                break;
            }
            Err(_) => return Err(SpoolError::Idle(limits.body_idle)),
            Ok(None) => break,
            Ok(Some(Err(error))) => return Err(SpoolError::Cut(error.to_string())),
            Ok(Some(Ok(frame))) => frame,
        };
        let data = match frame.into_data() {
            Ok(data) => data,
            Err(frame) => {
                trailers = frame.into_trailers().ok();
                continue;
            }
        };
        messages.take(&data);
        recorder.add(&data);
        if recorder.len() > limits.body {
            return Err(SpoolError::TooLarge(limits.body));
        }
        let room = if rest.is_some() {
            0
        } else {
            limits.memory.max(limits.record).saturating_sub(near.len())
        };
        let (kept, spilled) = data.split_at(data.len().min(room));
        if !kept.is_empty() {
            if !share.grow(near.len() + kept.len(), limits.body_idle).await {
                return Err(SpoolError::Memory);
            }
            near.extend_from_slice(kept);
        }
        if !spilled.is_empty() {
            let file = match &mut rest {
                Some(file) => file,
                none => none.insert(unlinked(dir).await?),
            };
            file.write_all(spilled).await?;
        }
    }
    if let Some(file) = &mut rest {
        file.flush().await?;
        file.seek(SeekFrom::Start(0)).await?;
    }
    let near = near.freeze();
    let mut record = recorder.finish();
    record.kept = near.slice(..near.len().min(limits.record));
    Ok(Spooled {
        memory: near,
        rest,
        record,
        trailers,
        more: open.then(|| {
            body.map_err(|error| io::Error::other(error.to_string()))
                .boxed_unsync()
        }),
        share: Some(share),
    })
}

/// Follows the messages of a gRPC body: a flag, a length of four bytes, and so many bytes.
#[derive(Default)]
struct Messages {
    prefix: [u8; 5],
    prefix_len: usize,
    left: u64,
}

impl Messages {
    fn take(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.left > 0 {
                let n = usize::try_from(self.left)
                    .unwrap_or(usize::MAX)
                    .min(bytes.len());
                self.left -= n as u64;
                bytes = &bytes[n..];
                continue;
            }
            self.prefix[self.prefix_len] = bytes[0];
            self.prefix_len += 1;
            bytes = &bytes[1..];
            if self.prefix_len == self.prefix.len() {
                let [_, a, b, c, d] = self.prefix;
                self.left = u64::from(u32::from_be_bytes([a, b, c, d]));
                self.prefix_len = 0;
            }
        }
    }

    fn is_between(&self) -> bool {
        self.left == 0 && self.prefix_len == 0
    }
}

async fn unlinked(dir: &Path) -> io::Result<File> {
    let dir = dir.to_owned();
    tokio::task::spawn_blocking(move || tempfile::tempfile_in(dir))
        .await
        .map_err(io::Error::other)?
        .map(File::from_std)
}

/// A spooled body on its way upstream.
pub(crate) struct SpooledBody {
    spooled: Spooled,
    sent: u64,
    trailers_sent: bool,
}

impl From<Spooled> for SpooledBody {
    fn from(spooled: Spooled) -> Self {
        Self {
            spooled,
            sent: 0,
            trailers_sent: false,
        }
    }
}

impl Body for SpooledBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        const CHUNK: usize = 64 * 1024;
        let this = &mut *self;
        let len = this.spooled.record.len;
        if this.sent == 0 && !this.spooled.memory.is_empty() {
            this.sent = this.spooled.memory.len() as u64;
            return Poll::Ready(Some(Ok(Frame::data(this.spooled.memory.clone()))));
        }
        if this.sent < len
            && let Some(file) = &mut this.spooled.rest
        {
            let mut chunk = vec![0; CHUNK];
            let mut buf = ReadBuf::new(&mut chunk);
            ready!(Pin::new(file).poll_read(cx, &mut buf))?;
            let n = buf.filled().len();
            if n == 0 {
                return Poll::Ready(Some(Err(io::ErrorKind::UnexpectedEof.into())));
            }
            chunk.truncate(n);
            this.sent += n as u64;
            return Poll::Ready(Some(Ok(Frame::data(chunk.into()))));
        }
        if !this.trailers_sent
            && let Some(trailers) = this.spooled.trailers.take()
        {
            this.trailers_sent = true;
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        if let Some(more) = &mut this.spooled.more {
            return Pin::new(more).poll_frame(cx);
        }
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        self.sent >= self.spooled.record.len
            && self.spooled.trailers.is_none()
            && self.spooled.more.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        if self.spooled.is_open() {
            return SizeHint::default();
        }
        SizeHint::with_exact(self.spooled.record.len.saturating_sub(self.sent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::{Full, StreamBody};

    fn limits() -> Limits {
        Limits {
            memory: 10,
            record: 4,
            body: 100,
            body_idle: Duration::from_millis(50),
            ..Limits::default()
        }
    }

    async fn spooled(bytes: &[u8]) -> Result<Spooled, SpoolError> {
        let memory = Memory::new(1 << 20);
        let chunks: Vec<_> = bytes
            .chunks(3)
            .map(|c| Ok::<_, io::Error>(Frame::data(Bytes::copy_from_slice(c))))
            .collect();
        let body = StreamBody::new(futures_util::stream::iter(chunks));
        spool(body, &limits(), &std::env::temp_dir(), &memory, None).await
    }

    #[tokio::test]
    async fn a_body_comes_out_as_it_went_in() {
        for len in [0, 1, 4, 9, 10, 11, 12, 99, 100] {
            let bytes: Vec<u8> = (0..len).collect();
            let mut body = spooled(&bytes).await.unwrap();
            assert_eq!(body.rest.is_some(), len > 10, "{len}");
            assert_eq!(body.record().len, u64::from(len));
            assert_eq!(body.record().digest, words::Digest::of(&bytes));
            assert_eq!(&body.record().kept[..], &bytes[..bytes.len().min(4)]);
            assert_eq!(
                body.in_memory(100, &Memory::new(1 << 20), Duration::ZERO)
                    .await
                    .unwrap()
                    .unwrap(),
                bytes
            );
            let sent = SpooledBody::from(body).collect().await.unwrap().to_bytes();
            assert_eq!(sent, bytes, "{len}");
        }
    }

    #[tokio::test]
    async fn a_body_over_the_bound_is_refused() {
        assert!(matches!(
            spooled(&[0; 101]).await,
            Err(SpoolError::TooLarge(100))
        ));
        let memory = Memory::new(1 << 20);
        let declared = Full::new(Bytes::from(vec![0; 101]));
        let result = spool(declared, &limits(), &std::env::temp_dir(), &memory, None).await;
        assert!(matches!(result, Err(SpoolError::TooLarge(100))));
    }

    #[tokio::test]
    async fn an_agent_that_waits_between_messages_streams_both_ways() {
        let memory = Memory::new(1 << 20);
        let duplex = Some(Duration::from_millis(20));
        for (sent, is_open) in [
            (&b"\0\0\0\0\x02ab"[..], true),
            (b"", true),
            (b"\0\0\0\0\x02a", false),
        ] {
            let (sender, receiver) = tokio::sync::mpsc::channel::<io::Result<Frame<Bytes>>>(4);
            let stream = futures_util::stream::unfold(receiver, |mut receiver| async move {
                receiver.recv().await.map(|frame| (frame, receiver))
            });
            if !sent.is_empty() {
                sender.send(Ok(Frame::data(sent.into()))).await.unwrap();
            }
            let body = StreamBody::new(Box::pin(stream));
            let dir = std::env::temp_dir();
            let spooled = spool(body, &limits(), &dir, &memory, duplex).await;
            if !is_open {
                assert!(
                    matches!(spooled, Err(SpoolError::Idle(_))),
                    "half a message is no message"
                );
                continue;
            }
            let spooled = spooled.unwrap();
            assert!(spooled.is_open());
            sender.send(Ok(Frame::data("more".into()))).await.unwrap();
            drop(sender);
            let all = SpooledBody::from(spooled)
                .collect()
                .await
                .unwrap()
                .to_bytes();
            assert_eq!(all, [sent, b"more"].concat());
        }
    }

    #[tokio::test]
    async fn memory_in_all_is_bounded() {
        let memory = Memory::new(0);
        let body = Full::new(Bytes::from_static(b"abc"));
        let result = spool(body, &limits(), &std::env::temp_dir(), &memory, None).await;
        assert!(matches!(result, Err(SpoolError::Memory)));
    }
}
