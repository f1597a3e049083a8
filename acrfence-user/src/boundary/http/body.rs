//! Response bodies on their way to the agent, and what is kept of any body for the record.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use sha2::Digest as _;
use tokio::sync::mpsc;

use super::budget::Share;
use crate::words;

/// Pieces that wait for a slow agent at most.
const WAITING: usize = 8;

/// A response was cut off before its end; the agent must not take it for complete.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the response was cut off: {0}")]
pub(crate) struct Cut(pub(crate) String);

/// Tells when a response did not get to the agent: unless it is taken, dropping it tells so.
pub(crate) struct Receipt(Option<Box<dyn FnOnce() + Send>>);

impl Receipt {
    /// `lost` is called once, if the response is lost.
    pub(crate) fn new(lost: impl FnOnce() + Send + 'static) -> Self {
        Self(Some(Box::new(lost)))
    }

    fn taken(&mut self) {
        self.0 = None;
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        if let Some(lost) = self.0.take() {
            lost();
        }
    }
}

/// What goes from a [`Feed`] to its body.
enum Piece {
    Frame {
        frame: Frame<Bytes>,
        /// The agent knows the outcome of its call once it has this frame.
        tells: bool,
        /// For the outcomes of other calls that this frame carries.
        receipts: Vec<Receipt>,
    },
    End,
    Cut(Cut),
}

/// The body of a response to the agent.
pub(crate) struct AgentBody {
    content: Content,
    receipts: Vec<Receipt>,
}

enum Content {
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
        Self {
            content: Content::Whole {
                bytes: Some(bytes).filter(|bytes| !bytes.is_empty()),
                trailers: trailers.filter(|trailers| !trailers.is_empty()),
            },
            receipts: Vec::new(),
        }
    }

    /// A body that comes piece by piece; `length` where it was declared.
    pub(crate) fn flowing(length: Option<u64>) -> (Feed, Self) {
        let (sender, pieces) = mpsc::channel(WAITING);
        let content = Content::Flowing {
            pieces,
            left: length,
            ended: false,
        };
        let body = Self {
            content,
            receipts: Vec::new(),
        };
        (Feed { pieces: sender }, body)
    }

    /// Tells through `receipts` when this body does not get to the agent.
    pub(crate) fn with_receipts(mut self, receipts: impl IntoIterator<Item = Receipt>) -> Self {
        self.receipts.extend(receipts);
        self
    }

    /// Takes the receipts along, for a response that this body becomes a part of.
    pub(crate) fn take_receipts(&mut self) -> Vec<Receipt> {
        std::mem::take(&mut self.receipts)
    }

    /// The HTTP library has the response; of one without a body, nothing more will be heard.
    pub(crate) fn handed_over(&mut self) {
        if self.is_end_stream() {
            self.heard();
        }
    }

    fn heard(&mut self) {
        for mut receipt in self.receipts.drain(..) {
            receipt.taken();
        }
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
        let this = &mut *self;
        match &mut this.content {
            Content::Whole { bytes, trailers } => {
                let frame = bytes
                    .take()
                    .map(Frame::data)
                    .or_else(|| trailers.take().map(Frame::trailers));
                if bytes.is_none() && trailers.is_none() {
                    this.heard();
                }
                Poll::Ready(frame.map(Ok))
            }
            Content::Flowing { ended: true, .. } => Poll::Ready(None),
            Content::Flowing {
                pieces,
                left,
                ended,
            } => match ready!(pieces.poll_recv(cx)) {
                Some(Piece::Frame {
                    frame,
                    tells,
                    receipts,
                }) => {
                    for mut receipt in receipts {
                        receipt.taken();
                    }
                    if let (Some(left), Some(data)) = (left.as_mut(), frame.data_ref()) {
                        *left = left.saturating_sub(data.len() as u64);
                    }
                    if tells || *left == Some(0) {
                        this.heard();
                    }
                    Poll::Ready(Some(Ok(frame)))
                }
                Some(Piece::End) => {
                    *ended = true;
                    this.heard();
                    Poll::Ready(None)
                }
                Some(Piece::Cut(cut)) => Poll::Ready(Some(Err(cut))),
                None => Poll::Ready(Some(Err(Cut("it was given up before its end".to_owned())))),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Whole { bytes, trailers } => bytes.is_none() && trailers.is_none(),
            Content::Flowing { ended, .. } => *ended,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            // A known length would leave no place for trailers in HTTP/1.
            Content::Whole {
                trailers: Some(_), ..
            } => SizeHint::default(),
            Content::Whole { bytes, .. } => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64))
            }
            Content::Flowing { left, .. } => {
                left.map_or_else(SizeHint::default, SizeHint::with_exact)
            }
        }
    }
}

impl Feed {
    /// Passes a frame on, waiting for a slow agent. False when the agent is gone. `tells`: the
    /// agent knows the outcome once it has it.
    pub(crate) async fn frame(&self, frame: Frame<Bytes>, tells: bool) -> bool {
        self.receipted(frame, tells, Vec::new()).await
    }

    /// The same, with receipts for the outcomes of other calls that the frame carries.
    pub(crate) async fn receipted(
        &self,
        frame: Frame<Bytes>,
        tells: bool,
        receipts: Vec<Receipt>,
    ) -> bool {
        let piece = Piece::Frame {
            frame,
            tells,
            receipts,
        };
        self.pieces.send(piece).await.is_ok()
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
    /// Without a share, the bound is small enough.
    share: Option<Share>,
    kept: BytesMut,
    len: u64,
    hasher: sha2::Sha256,
}

impl Recorder {
    pub(crate) fn new(bound: usize, share: Option<Share>) -> Self {
        Self {
            bound,
            share,
            kept: BytesMut::new(),
            len: 0,
            hasher: sha2::Sha256::new(),
        }
    }

    /// Takes more of the body. False when it is not kept whole from here on.
    pub(crate) fn add(&mut self, bytes: &[u8]) -> bool {
        self.hasher.update(bytes);
        self.len += bytes.len() as u64;
        let room = self.bound.saturating_sub(self.kept.len());
        let kept = &bytes[..bytes.len().min(room)];
        let size = self.kept.len() + kept.len();
        if let Some(share) = &mut self.share
            && !share.try_grow(size)
        {
            self.bound = self.kept.len();
            return bytes.is_empty();
        }
        self.kept.extend_from_slice(kept);
        kept.len() == bytes.len()
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
    use super::super::budget::Memory;
    use super::*;
    use http_body_util::BodyExt as _;

    #[tokio::test]
    async fn a_body_without_an_explicit_end_is_cut_off() {
        let (feed, body) = AgentBody::flowing(None);
        assert!(
            feed.frame(Frame::data(Bytes::from_static(b"half")), false)
                .await
        );
        drop(feed);
        assert!(body.collect().await.is_err());

        let (feed, body) = AgentBody::flowing(None);
        assert!(
            feed.frame(Frame::data(Bytes::from_static(b"all")), false)
                .await
        );
        feed.end().await;
        assert_eq!(body.collect().await.unwrap().to_bytes(), "all");
    }

    #[tokio::test]
    async fn a_receipt_tells_what_was_lost() {
        use std::sync::Arc;
        use std::sync::atomic::{AtomicUsize, Ordering};
        let lost = Arc::new(AtomicUsize::new(0));
        let receipt = || {
            let lost = lost.clone();
            [Receipt::new(move || {
                lost.fetch_add(1, Ordering::Relaxed);
            })]
        };
        let count = || lost.swap(0, Ordering::Relaxed);
        let data = || Frame::data(Bytes::from_static(b"x"));

        drop(AgentBody::from(Bytes::from_static(b"x")).with_receipts(receipt()));
        assert_eq!(count(), 1);
        let whole = AgentBody::from(Bytes::from_static(b"x")).with_receipts(receipt());
        whole.collect().await.unwrap();
        assert_eq!(count(), 0);
        let mut empty = AgentBody::empty().with_receipts(receipt());
        empty.handed_over();
        drop(empty);
        assert_eq!(count(), 0);

        let (feed, body) = AgentBody::flowing(None);
        let mut body = body.with_receipts(receipt());
        feed.frame(data(), false).await;
        body.frame().await;
        drop(body);
        assert_eq!(count(), 1, "half of it is not all of it");

        for (length, tells) in [(Some(1), false), (None, true)] {
            let (feed, body) = AgentBody::flowing(length);
            let mut body = body.with_receipts(receipt());
            feed.frame(data(), tells).await;
            body.frame().await;
            drop(body);
            assert_eq!(count(), 0, "{length:?} {tells}");
        }
        let (feed, body) = AgentBody::flowing(None);
        let body = body.with_receipts(receipt());
        feed.cut("broke".to_owned()).await;
        assert!(body.collect().await.is_err());
        assert_eq!(count(), 1);
    }

    #[test]
    fn a_recorder_keeps_the_beginning_and_the_digest_of_all() {
        let mut recorder = Recorder::new(4, None);
        assert!(recorder.add(b"abc"));
        assert!(!recorder.add(b"defg"));
        let body = recorder.finish();
        assert_eq!(body.kept, "abcd");
        assert_eq!(body.len, 7);
        assert_eq!(body.digest, words::Digest::of(b"abcdefg"));
        assert!(!body.is_whole());

        let mut recorder = Recorder::new(4, Some(Memory::new(0).share()));
        assert!(!recorder.add(b"abc"));
        assert!(!recorder.add(b"d"));
        let body = recorder.finish();
        assert_eq!((&body.kept[..], body.len), (&b""[..], 4));
    }
}
