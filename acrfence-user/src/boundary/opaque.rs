//! Bytes that are passed on without being understood: admitted first, counted, reported.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::OpaqueFlow;
use super::listener::Shared;
use super::stream::{BoxTransport, Counted};
use crate::words::{Digest, Origin, Refusal};

/// An admitted flow. However it ends, the arbiter hears of it.
pub(crate) struct Flow {
    shared: Arc<Shared>,
    about: OpaqueFlow,
    sent: Arc<AtomicU64>,
    received: Arc<AtomicU64>,
    hash: Arc<Mutex<Sha256>>,
}

/// Asks whether bytes may flow.
pub(crate) async fn admit(
    shared: &Arc<Shared>,
    origin: &Origin,
    peer: SocketAddr,
    why: &str,
) -> Result<Flow, Refusal> {
    let about = OpaqueFlow {
        origin: origin.clone(),
        peer,
        why: why.to_owned(),
        sent: 0,
        received: 0,
        digest: None,
        began: false,
    };
    shared.arbiter.admit_opaque(&about).await?;
    Ok(Flow {
        shared: shared.clone(),
        about,
        sent: Arc::default(),
        received: Arc::default(),
        hash: Arc::default(),
    })
}

impl Flow {
    /// Passes bytes both ways until both sides ended, the boundary is closed, or the arbiter takes its
    /// leave back.
    pub(crate) async fn relay(mut self, agent: BoxTransport, mut upstream: BoxTransport) {
        self.about.began = true;
        self.shared.arbiter.opaque_began(&self.about);
        let agent = Counted::new(agent, self.sent.clone(), self.received.clone());
        let mut agent = Hashed {
            inner: agent,
            hash: self.hash.clone(),
        };
        let stop = self.shared.stop.clone();
        tokio::select! {
            // Who may not go on moves no further byte.
            biased;
            () = self.shared.arbiter.opaque_revoked(&self.about) => {}
            // Nobody can say when it would end.
            () = stop.cancelled() => {}
            ended = tokio::io::copy_bidirectional(&mut agent, &mut upstream) => {
                if let Err(error) = ended {
                    tracing::debug!("an opaque flow broke: {error}");
                }
            }
        }
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        let mut about = self.about.clone();
        about.sent = self.sent.load(Ordering::Relaxed);
        about.received = self.received.load(Ordering::Relaxed);
        about.digest = Some(Digest(self.hash.lock().clone().finalize().into()));
        self.shared.arbiter.opaque_ended(about);
    }
}

/// Hashes what is read from a transport.
struct Hashed<T> {
    inner: T,
    hash: Arc<Mutex<Sha256>>,
}

impl<T: AsyncRead + Unpin> AsyncRead for Hashed<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buf))?;
        self.hash.lock().update(&buf.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Hashed<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
