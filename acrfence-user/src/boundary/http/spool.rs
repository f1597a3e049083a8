//! Request bodies: read whole before the call is decided, in memory while they are small.

use std::io::{self, SeekFrom};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use tokio::fs::File;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::body::Recorder;
use crate::boundary::config::Limits;
use crate::words;

/// Memory is accounted for in blocks of this size.
pub(crate) const BLOCK: usize = 16 * 1024;

/// A request body that arrived whole.
pub(crate) struct Spooled {
    memory: Bytes,
    rest: Option<File>,
    record: words::Body,
    trailers: Option<HeaderMap>,
    _memory: Option<OwnedSemaphorePermit>,
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
            _memory: None,
        }
    }

    /// What the record keeps of it.
    pub(crate) fn record(&self) -> &words::Body {
        &self.record
    }

    /// All of it in memory, when it is not longer than `bound`.
    pub(crate) async fn in_memory(&mut self, bound: usize) -> io::Result<Option<Bytes>> {
        if self.record.len > bound as u64 {
            return Ok(None);
        }
        let Some(rest) = &mut self.rest else {
            return Ok(Some(self.memory.clone()));
        };
        let mut all = Vec::with_capacity(usize::try_from(self.record.len).unwrap_or_default());
        all.extend_from_slice(&self.memory);
        rest.seek(SeekFrom::Start(0)).await?;
        rest.read_to_end(&mut all).await?;
        rest.seek(SeekFrom::Start(0)).await?;
        Ok(Some(all.into()))
    }
}

/// Reads a body to its end.
pub(crate) async fn spool<B>(
    mut body: B,
    limits: &Limits,
    dir: &Path,
    budget: &Arc<Semaphore>,
) -> Result<Spooled, SpoolError>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Display,
{
    let declared = body.size_hint().exact();
    if declared.is_some_and(|len| len > limits.body) {
        return Err(SpoolError::TooLarge(limits.body));
    }
    let mut memory = BytesMut::new();
    let mut permit: Option<OwnedSemaphorePermit> = None;
    let mut rest: Option<File> = None;
    let mut recorder = Recorder::new(0);
    let mut trailers = None;
    loop {
        let frame = match timeout(limits.body_idle, body.frame()).await {
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
        recorder.add(&data);
        if recorder.len() > limits.body {
            return Err(SpoolError::TooLarge(limits.body));
        }
        let room = if rest.is_some() {
            0
        } else {
            limits
                .memory
                .max(limits.record)
                .saturating_sub(memory.len())
        };
        let (near, far) = data.split_at(data.len().min(room));
        if !near.is_empty() {
            reserve(&mut permit, memory.len() + near.len(), limits, budget).await?;
            memory.extend_from_slice(near);
        }
        if !far.is_empty() {
            let file = match &mut rest {
                Some(file) => file,
                none => none.insert(unlinked(dir).await?),
            };
            file.write_all(far).await?;
        }
    }
    if let Some(file) = &mut rest {
        file.flush().await?;
        file.seek(SeekFrom::Start(0)).await?;
    }
    let memory = memory.freeze();
    let mut record = recorder.finish();
    record.kept = memory.slice(..memory.len().min(limits.record));
    Ok(Spooled {
        memory,
        rest,
        record,
        trailers,
        _memory: permit,
    })
}

/// Waits until there is memory for `size` bytes in all.
async fn reserve(
    permit: &mut Option<OwnedSemaphorePermit>,
    size: usize,
    limits: &Limits,
    budget: &Arc<Semaphore>,
) -> Result<(), SpoolError> {
    let have = permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
    let want = size.div_ceil(BLOCK);
    let Some(more) = want.checked_sub(have).filter(|more| *more > 0) else {
        return Ok(());
    };
    let more = u32::try_from(more).map_err(|_| SpoolError::Memory)?;
    let got = timeout(limits.body_idle, budget.clone().acquire_many_owned(more))
        .await
        .map_err(|_| SpoolError::Memory)?
        .map_err(|_| SpoolError::Memory)?;
    match permit {
        Some(permit) => permit.merge(got),
        none => *none = Some(got),
    }
    Ok(())
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
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        self.sent >= self.spooled.record.len && self.spooled.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
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
        let budget = Arc::new(Semaphore::new(10));
        let chunks: Vec<_> = bytes
            .chunks(3)
            .map(|c| Ok::<_, io::Error>(Frame::data(Bytes::copy_from_slice(c))))
            .collect();
        let body = StreamBody::new(futures_util::stream::iter(chunks));
        spool(body, &limits(), &std::env::temp_dir(), &budget).await
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
            assert_eq!(body.in_memory(100).await.unwrap().unwrap(), bytes);
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
        let budget = Arc::new(Semaphore::new(10));
        let declared = Full::new(Bytes::from(vec![0; 101]));
        let result = spool(declared, &limits(), &std::env::temp_dir(), &budget).await;
        assert!(matches!(result, Err(SpoolError::TooLarge(100))));
    }

    #[tokio::test]
    async fn memory_in_all_is_bounded() {
        let budget = Arc::new(Semaphore::new(0));
        let body = Full::new(Bytes::from_static(b"abc"));
        let result = spool(body, &limits(), &std::env::temp_dir(), &budget).await;
        assert!(matches!(result, Err(SpoolError::Memory)));
    }
}
