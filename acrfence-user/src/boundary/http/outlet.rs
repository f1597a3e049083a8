//! The way of a response to the agent: nothing, then its head, then its frames.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Response, response};
use http_body::Frame;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::body::{AgentBody, Feed, Receipt};
use crate::boundary::config::Limits;
use crate::boundary::refusal::{Failure, Tongue};
use crate::words::EffectId;

/// The agent's wait for an answer.
pub(crate) struct Reply {
    answer: oneshot::Sender<Response<AgentBody>>,
    /// How failures are told.
    pub(crate) tongue: Tongue,
}

impl Reply {
    pub(crate) fn new(tongue: Tongue) -> (Self, oneshot::Receiver<Response<AgentBody>>) {
        let (answer, receiver) = oneshot::channel();
        (Self { answer, tongue }, receiver)
    }

    /// Answers. An agent that is gone does not hear it.
    pub(crate) fn send(self, response: Response<AgentBody>) {
        let _ = self.answer.send(response);
    }

    /// Answers with a failure.
    pub(crate) fn fail(self, failure: Failure, detail: &str, effect: Option<EffectId>) {
        let response = self.tongue.fail(failure, detail, effect);
        self.send(response);
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.answer.is_closed()
    }

    /// Resolves when the agent hung up.
    pub(crate) async fn gone(&mut self) {
        self.answer.closed().await;
    }
}

/// Where a response goes: first its head, then its frames; nothing before it is opened.
pub(crate) struct Outlet {
    state: State,
    /// How long the agent may leave it unread.
    unread: Option<Duration>,
    /// Until it is handed over with the head.
    receipt: Option<Receipt>,
}

enum State {
    /// The agent has not seen anything.
    Closed(Reply, Box<response::Parts>, Option<u64>),
    /// The agent has the head.
    Open(Feed),
    /// The agent is gone.
    Gone,
}

impl Outlet {
    /// `length` as declared to the agent; `receipt` for an effect.
    pub(crate) fn new(
        reply: Reply,
        head: response::Parts,
        length: Option<u64>,
        receipt: Option<Receipt>,
        limits: &Limits,
    ) -> Self {
        Self {
            state: State::Closed(reply, Box::new(head), length),
            // Only an outcome cannot wait for ever.
            unread: receipt.is_some().then_some(limits.unread),
            receipt,
        }
    }

    /// Passes a frame on, the head before the first one.
    pub(crate) async fn frame(&mut self, frame: Frame<Bytes>) {
        self.pass(frame, false, Vec::new()).await;
    }

    /// Passes a frame on after which the agent knows the outcome of its call (`tells`), or those
    /// of other calls, which have their own receipts.
    pub(crate) async fn telling_frame(
        &mut self,
        frame: Frame<Bytes>,
        tells: bool,
        receipts: Vec<Receipt>,
    ) {
        self.pass(frame, tells, receipts).await;
    }

    async fn pass(&mut self, frame: Frame<Bytes>, tells: bool, receipts: Vec<Receipt>) {
        self.open();
        let State::Open(feed) = &self.state else {
            return;
        };
        if within(self.unread, feed.receipted(frame, tells, receipts)).await != Some(true) {
            self.state = State::Gone;
        }
    }

    /// Shows the head.
    pub(crate) fn open(&mut self) {
        let state = std::mem::replace(&mut self.state, State::Gone);
        self.state = match state {
            State::Closed(reply, _, _) if reply.is_gone() => State::Gone,
            State::Closed(reply, head, length) => {
                let (feed, body) = AgentBody::flowing(length);
                let body = body.with_receipts(self.receipt.take());
                reply.send(Response::from_parts(*head, body));
                State::Open(feed)
            }
            other => other,
        };
    }

    /// Ends the response with these frames. In one piece when nothing was shown yet.
    pub(crate) async fn end(mut self, last: Vec<Frame<Bytes>>) {
        match std::mem::replace(&mut self.state, State::Gone) {
            State::Closed(reply, head, _) => {
                let mut bytes = BytesMut::new();
                let mut trailers = None;
                for frame in last {
                    match frame.into_data() {
                        Ok(data) => bytes.extend_from_slice(&data),
                        Err(frame) => trailers = frame.into_trailers().ok(),
                    }
                }
                let body = AgentBody::with_trailers(bytes.freeze(), trailers)
                    .with_receipts(self.receipt.take());
                reply.send(Response::from_parts(*head, body));
            }
            State::Open(feed) => {
                for frame in last {
                    if within(self.unread, feed.frame(frame, false)).await != Some(true) {
                        return;
                    }
                }
                within(self.unread, feed.end()).await;
            }
            State::Gone => {}
        }
    }

    /// Makes sure the agent does not take the response for complete.
    pub(crate) async fn cut(mut self, failure: Failure, why: &str, effect: Option<EffectId>) {
        match std::mem::replace(&mut self.state, State::Gone) {
            State::Closed(reply, _, _) => {
                let response = reply
                    .tongue
                    .fail(failure, why, effect)
                    .map(|body| body.with_receipts(self.receipt.take()));
                reply.send(response);
            }
            State::Open(feed) => {
                within(self.unread, feed.cut(why.to_owned())).await;
            }
            State::Gone => {}
        }
    }

    pub(crate) fn is_gone(&self) -> bool {
        match &self.state {
            State::Closed(reply, _, _) => reply.is_gone(),
            State::Open(feed) => feed.is_gone(),
            State::Gone => true,
        }
    }

    /// Resolves when the agent is gone.
    pub(crate) async fn gone(&mut self) {
        match &mut self.state {
            State::Closed(reply, _, _) => reply.gone().await,
            State::Open(feed) => feed.gone().await,
            State::Gone => {}
        }
    }
}

/// The output of `doing`, unless it takes longer than `limit`.
async fn within<T>(limit: Option<Duration>, doing: impl Future<Output = T>) -> Option<T> {
    match limit {
        Some(limit) => timeout(limit, doing).await.ok(),
        None => Some(doing.await),
    }
}
