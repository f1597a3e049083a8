//! Response bodies on their way to the agent, and what is kept of any body for the record.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use sha2::Digest as _;
use tokio::sync::mpsc;

use crate::words;

/// Pieces that wait for a slow agent at most.
const WAITING: usize = 8;

/// A response was cut off before its end; the agent must not take it for complete.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the response was cut off: {0}")]
pub(crate) struct Cut(pub(crate) String);

/// What goes from a [`Feed`] to its body.
pub(crate) enum Piece {
    Frame(Frame<Bytes>),
    End,
    Cut(Cut),
}

/// The body of a response to the agent.
pub(crate) enum AgentBody {
    /// All of it.
    Whole {
        bytes: Option<Bytes>,
        trailers: Option<HeaderMap>,
    },
    /// As it comes. Without an explicit end it counts as cut off.
    Flowing {
        pieces: mpsc::Receiver<Piece>,
        left: Option<u64>,
        ended: bool,
    },
}

/// Feeds a flowing body.
pub(crate) struct Feed {
    pieces: mpsc::Sender<Piece>,
}

impl AgentBody {
    /// No bytes.
    pub(crate) fn empty() -> Self {
        Self::from(Bytes::new())
    }

    /// All of it, with fields that come after it.
    pub(crate) fn with_trailers(bytes: Bytes, trailers: Option<HeaderMap>) -> Self {
        Self::Whole {
            bytes: Some(bytes).filter(|bytes| !bytes.is_empty()),
            trailers: trailers.filter(|trailers| !trailers.is_empty()),
        }
    }

    /// A body that comes piece by piece; `length` where it was declared.
    pub(crate) fn flowing(length: Option<u64>) -> (Feed, Self) {
        let (sender, pieces) = mpsc::channel(WAITING);
        let body = Self::Flowing {
            pieces,
            left: length,
            ended: false,
        };
        (Feed { pieces: sender }, body)
    }
}

impl From<Bytes> for AgentBody {
    fn from(bytes: Bytes) -> Self {
        Self::with_trailers(bytes, None)
    }
}

impl Body for AgentBody {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        match &mut *self {
            Self::Whole { bytes, trailers } => Poll::Ready(
                bytes
                    .take()
                    .map(Frame::data)
                    .or_else(|| trailers.take().map(Frame::trailers))
                    .map(Ok),
            ),
            Self::Flowing {
                pieces,
                left,
                ended,
            } => {
                if *ended {
                    return Poll::Ready(None);
                }
                match ready!(pieces.poll_recv(cx)) {
                    Some(Piece::Frame(frame)) => {
                        if let (Some(left), Some(data)) = (left, frame.data_ref()) {
                            *left = left.saturating_sub(data.len() as u64);
                        }
                        Poll::Ready(Some(Ok(frame)))
                    }
                    Some(Piece::End) => {
                        *ended = true;
                        Poll::Ready(None)
                    }
                    Some(Piece::Cut(cut)) => Poll::Ready(Some(Err(cut))),
                    None => {
                        Poll::Ready(Some(Err(Cut("it was given up before its end".to_owned()))))
                    }
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole { bytes, trailers } => bytes.is_none() && trailers.is_none(),
            Self::Flowing { ended, .. } => *ended,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole { bytes, .. } => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64))
            }
            Self::Flowing { left, .. } => left.map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}

impl Feed {
    /// Passes a frame on, waiting for a slow agent. False when the agent is gone.
    pub(crate) async fn frame(&self, frame: Frame<Bytes>) -> bool {
        self.pieces.send(Piece::Frame(frame)).await.is_ok()
    }

    /// Ends the body: all of it was passed on.
    pub(crate) async fn end(self) {
        let _ = self.pieces.send(Piece::End).await;
    }

    /// Cuts the body off: the agent sees a broken connection or a reset stream.
    pub(crate) async fn cut(self, why: String) {
        let _ = self.pieces.send(Piece::Cut(Cut(why))).await;
    }

    /// Whether the agent is gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.pieces.is_closed()
    }

    /// Resolves when the agent is gone.
    pub(crate) async fn gone(&self) {
        self.pieces.closed().await;
    }
}

/// Keeps the beginning of a body and the digest of all of it.
pub(crate) struct Recorder {
    bound: usize,
    kept: BytesMut,
    len: u64,
    hasher: sha2::Sha256,
}

impl Recorder {
    pub(crate) fn new(bound: usize) -> Self {
        Self {
            bound,
            kept: BytesMut::new(),
            len: 0,
            hasher: sha2::Sha256::new(),
        }
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.len += bytes.len() as u64;
        let room = self.bound.saturating_sub(self.kept.len());
        self.kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn finish(self) -> words::Body {
        words::Body {
            kept: self.kept.freeze(),
            len: self.len,
            digest: words::Digest(self.hasher.finalize().into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;

    #[tokio::test]
    async fn a_body_without_an_explicit_end_is_cut_off() {
        let (feed, body) = AgentBody::flowing(None);
        assert!(feed.frame(Frame::data(Bytes::from_static(b"half"))).await);
        drop(feed);
        assert!(body.collect().await.is_err());

        let (feed, body) = AgentBody::flowing(None);
        assert!(feed.frame(Frame::data(Bytes::from_static(b"all"))).await);
        feed.end().await;
        assert_eq!(body.collect().await.unwrap().to_bytes(), "all");
    }

    #[test]
    fn a_recorder_keeps_the_beginning_and_the_digest_of_all() {
        let mut recorder = Recorder::new(4);
        recorder.add(b"abc");
        recorder.add(b"defg");
        let body = recorder.finish();
        assert_eq!(body.kept, "abcd");
        assert_eq!(body.len, 7);
        assert_eq!(body.digest, words::Digest::of(b"abcdefg"));
        assert!(!body.is_whole());
    }
}
