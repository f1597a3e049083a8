//! Byte streams: any transport in one type, and reading ahead without losing what was read.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

/// Anything bytes flow over.
pub(crate) trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

/// A transport of any kind.
pub(crate) type BoxTransport = Box<dyn Transport>;

/// A transport of which some bytes can be looked at before anyone reads them.
pub(crate) struct Peeked {
    inner: BoxTransport,
    ahead: BytesMut,
    /// What was read since [`Self::keep`], so that it can be read again.
    kept: Option<BytesMut>,
}

impl Peeked {
    pub(crate) fn new(inner: BoxTransport) -> Self {
        Self {
            inner,
            ahead: BytesMut::new(),
            kept: None,
        }
    }

    /// The bytes that arrived and were not read.
    pub(crate) fn ahead(&self) -> &[u8] {
        &self.ahead
    }

    /// Waits for more bytes to look at; 0 at the end. Nothing is lost when this is cancelled.
    pub(crate) async fn fill(&mut self) -> io::Result<usize> {
        self.ahead.reserve(1024);
        self.inner.read_buf(&mut self.ahead).await
    }

    /// From now on, remembers what is read.
    pub(crate) fn keep(&mut self) {
        self.kept = Some(BytesMut::new());
    }

    /// Stops remembering.
    pub(crate) fn forget(&mut self) {
        self.kept = None;
    }

    /// Makes everything that was read since [`Self::keep`] readable again.
    pub(crate) fn rewind(&mut self) {
        if let Some(mut kept) = self.kept.take() {
            kept.extend_from_slice(&self.ahead);
            self.ahead = kept;
        }
    }
}

impl AsyncRead for Peeked {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buf.filled().len();
        if this.ahead.is_empty() {
            ready!(Pin::new(&mut this.inner).poll_read(cx, buf))?;
        } else {
            let n = this.ahead.len().min(buf.remaining());
            buf.put_slice(&this.ahead[..n]);
            this.ahead.advance(n);
        }
        if let Some(kept) = &mut this.kept {
            kept.extend_from_slice(&buf.filled()[before..]);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Peeked {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

/// Counts what is read from and written to a transport.
pub(crate) struct Counted<T> {
    inner: T,
    read: Arc<AtomicU64>,
    written: Arc<AtomicU64>,
}

impl<T> Counted<T> {
    pub(crate) fn new(inner: T, read: Arc<AtomicU64>, written: Arc<AtomicU64>) -> Self {
        Self {
            inner,
            read,
            written,
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Counted<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buf))?;
        let n = buf.filled().len() - before;
        self.read.fetch_add(n as u64, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Counted<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let n = ready!(Pin::new(&mut self.inner).poll_write(cx, buf))?;
        self.written.fetch_add(n as u64, Ordering::Relaxed);
        Poll::Ready(Ok(n))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let n = ready!(Pin::new(&mut self.inner).poll_write_vectored(cx, bufs))?;
        self.written.fetch_add(n as u64, Ordering::Relaxed);
        Poll::Ready(Ok(n))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt as _;

    #[tokio::test]
    async fn what_was_looked_at_or_kept_is_read_again() {
        let (mut far, near) = tokio::io::duplex(64);
        far.write_all(b"hello world").await.unwrap();
        drop(far);
        let mut peeked = Peeked::new(Box::new(near));
        while peeked.fill().await.unwrap() > 0 {}
        assert_eq!(peeked.ahead(), b"hello world");
        peeked.keep();
        let mut five = [0; 5];
        peeked.read_exact(&mut five).await.unwrap();
        assert_eq!(&five, b"hello");
        peeked.rewind();
        let mut all = Vec::new();
        peeked.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"hello world");
    }
}
