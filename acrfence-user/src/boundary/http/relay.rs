//! The response on its way back: recorded, and held back where the effect must be on disk before
//! the agent can take it for done.

use std::future::pending;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Method, Response, StatusCode, response};
use http_body::{Body as _, Frame};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::sync::oneshot;
use tokio::time::{sleep_until, timeout};

use super::body::{AgentBody, Feed, Recorder};
use super::headers;
use super::upstream::chain;
use crate::boundary::Ticket;
use crate::boundary::config::Limits;
use crate::boundary::refusal::{Failure, Tongue};
use crate::words::{EffectId, Ending, HttpResponse, Response as Recorded};

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
    unread: Duration,
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
    /// `length` as declared to the agent.
    pub(crate) fn new(
        reply: Reply,
        head: response::Parts,
        length: Option<u64>,
        limits: &Limits,
    ) -> Self {
        Self {
            state: State::Closed(reply, Box::new(head), length),
            unread: limits.unread,
        }
    }

    /// Passes a frame on, the head before the first one.
    pub(crate) async fn frame(&mut self, frame: Frame<Bytes>) {
        self.open();
        let State::Open(feed) = &self.state else {
            return;
        };
        let taken = timeout(self.unread, feed.frame(frame)).await;
        if !matches!(taken, Ok(true)) {
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
                reply.send(Response::from_parts(*head, body));
                State::Open(feed)
            }
            other => other,
        };
    }

    /// Ends the response with these frames. In one piece when nothing was shown yet.
    pub(crate) async fn end(mut self, last: Vec<Frame<Bytes>>) {
        if let State::Closed(..) = &self.state {
            let State::Closed(reply, head, _) = std::mem::replace(&mut self.state, State::Gone)
            else {
                return;
            };
            let mut bytes = BytesMut::new();
            let mut trailers = None;
            for frame in last {
                match frame.into_data() {
                    Ok(data) => bytes.extend_from_slice(&data),
                    Err(frame) => trailers = frame.into_trailers().ok(),
                }
            }
            let body = AgentBody::with_trailers(bytes.freeze(), trailers);
            reply.send(Response::from_parts(*head, body));
            return;
        }
        for frame in last {
            self.frame(frame).await;
        }
        if let State::Open(feed) = self.state {
            let _ = timeout(self.unread, feed.end()).await;
        }
    }

    /// Makes sure the agent does not take the response for complete.
    pub(crate) async fn cut(self, failure: Failure, why: &str, effect: Option<EffectId>) {
        match self.state {
            State::Closed(reply, _, _) => reply.fail(failure, why, effect),
            State::Open(feed) => {
                let _ = timeout(self.unread, feed.cut(why.to_owned())).await;
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

/// A response body as it comes in, with the time-outs of the call it answers.
pub(crate) struct Inflow {
    body: Incoming,
    idle: Duration,
    after_hangup: Duration,
    is_effect: bool,
    gone_since: Option<Instant>,
}

/// What came in next.
pub(crate) enum Inflowing {
    Frame(Frame<Bytes>),
    End,
    /// It will not come to its end.
    Broken(String),
    /// `wake` came first.
    Woken,
}

impl Inflow {
    pub(crate) fn new(body: Incoming, is_effect: bool, limits: &Limits) -> Self {
        Self {
            body,
            idle: limits.response_idle,
            after_hangup: limits.after_hangup,
            is_effect,
            gone_since: None,
        }
    }

    /// Whether the last frame is known to have come.
    pub(crate) fn is_end(&self) -> bool {
        self.body.is_end_stream()
    }

    /// Waits for the next frame. For what is no effect, an agent that hangs up ends it; an
    /// effect's outcome is waited for, within bounds.
    pub(crate) async fn next(&mut self, outlet: &mut Outlet, wake: Option<Instant>) -> Inflowing {
        if outlet.is_gone() && self.is_effect {
            let since = *self.gone_since.get_or_insert_with(Instant::now);
            if since.elapsed() > self.after_hangup {
                return Inflowing::Broken(
                    "the agent hung up, and the response did not end for long after that"
                        .to_owned(),
                );
            }
        }
        let idle = Instant::now() + self.idle;
        let at = |time: Option<Instant>| async move {
            match time {
                Some(time) => sleep_until(time.into()).await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            frame = self.body.frame() => match frame {
                Some(Ok(frame)) => Inflowing::Frame(frame),
                None => Inflowing::End,
                Some(Err(error)) => Inflowing::Broken(format!(
                    "the response broke off: {}",
                    chain(&error)
                )),
            },
            () = outlet.gone(), if !self.is_effect => {
                Inflowing::Broken("the agent hung up".to_owned())
            }
            () = at(wake) => Inflowing::Woken,
            () = at(Some(idle)), if self.is_effect => Inflowing::Broken(format!(
                "no byte of the response came for {:?}", self.idle
            )),
        }
    }
}

/// The head of a response for the agent.
pub(crate) fn head_for_agent(head: &response::Parts) -> response::Parts {
    let (mut out, ()) = Response::new(()).into_parts();
    out.status = head.status;
    out.headers = headers::back(&head.headers);
    out.extensions = head.extensions.clone();
    out
}

/// How long the body is that goes with this head, where that is known.
pub(crate) fn declared_length(head: &response::Parts, method: &Method) -> Option<u64> {
    let bodiless = *method == Method::HEAD
        || head.status == StatusCode::NO_CONTENT
        || head.status == StatusCode::NOT_MODIFIED;
    if bodiless {
        Some(0)
    } else if head.headers.contains_key(http::header::TRANSFER_ENCODING) {
        None
    } else {
        headers::content_length(&head.headers)
    }
}

/// Whether this kind of response is meant to be read while it comes.
pub(crate) fn is_streamed(fields: &HeaderMap) -> bool {
    let kind = headers::media_type(fields);
    matches!(
        kind.as_str(),
        "text/event-stream"
            | "application/x-ndjson"
            | "application/jsonl"
            | "application/stream+json"
            | "application/json-seq"
            | "multipart/x-mixed-replace"
    ) || kind.starts_with("application/grpc")
        || (fields.get(CONTENT_TYPE).is_none() && fields.contains_key("x-accel-buffering"))
}

/// What a response body is taken for when it is recorded.
pub(crate) struct Reading {
    /// How much of the body is kept for [`Self::interpret`].
    pub(crate) bound: usize,
    /// How long a response of unknown length is held whole; none: until it ends.
    pub(crate) hold: Option<Duration>,
    /// Makes the record of a response that came whole.
    pub(crate) interpret: Box<dyn FnOnce(&HttpResponse) -> Recorded + Send>,
}

impl Reading {
    /// An HTTP response is recorded as what it is.
    pub(crate) fn http(limits: &Limits) -> Self {
        Self {
            bound: limits.record,
            hold: Some(limits.hold),
            interpret: Box::new(|response| Recorded::Http(response.clone())),
        }
    }
}

/// Passes a response on and settles its ticket. Returns the response when it came whole.
pub(crate) async fn pass(
    response: Response<Incoming>,
    method: &Method,
    ticket: Box<dyn Ticket>,
    reply: Reply,
    limits: &Limits,
    reading: Reading,
) -> Option<HttpResponse> {
    let (head, body) = response.into_parts();
    let declared = declared_length(&head, method);
    let effect = ticket.effect();
    let holds = ticket.holds_end();
    let mut outlet = Outlet::new(reply, head_for_agent(&head), declared, limits);
    let mut inflow = Inflow::new(body, effect.is_some(), limits);
    let mut recorder = Recorder::new(reading.bound);
    let mut trailers = HeaderMap::new();
    let mut held = Held::new(holds, &head, declared, &reading);
    let mut complete = declared == Some(0);
    if !holds {
        outlet.open();
    }

    let broken = loop {
        match inflow.next(&mut outlet, held.until()).await {
            Inflowing::End => break None,
            // An agent that has all it was promised may turn away.
            Inflowing::Broken(_) if complete && outlet.is_gone() => break None,
            Inflowing::Broken(why) => break Some(why),
            Inflowing::Woken => {
                held.release(&mut outlet).await;
            }
            Inflowing::Frame(frame) => {
                if let Some(data) = frame.data_ref() {
                    recorder.add(data);
                    complete = declared.is_some_and(|length| recorder.len() >= length);
                } else if let Some(fields) = frame.trailers_ref() {
                    trailers.clone_from(fields);
                }
                let last = complete || inflow.is_end() || frame.is_trailers();
                held.take(frame, last, &mut outlet).await;
            }
        }
    };

    let recorded = HttpResponse {
        status: head.status.as_u16(),
        headers: headers::recorded(&head.headers),
        body: recorder.finish(),
        trailers: headers::recorded(&trailers),
    };
    if let Some(why) = broken {
        let ending = Ending::Broken {
            why: why.clone(),
            partial: Some(Recorded::Http(bounded(recorded, limits))),
        };
        if let Err(error) = ticket.settle(ending).await {
            tracing::error!("the outcome of a call could not be recorded: {error}");
        }
        outlet.cut(Failure::InDoubt, &why, effect).await;
        return None;
    }
    let ending = Ending::Response(match (reading.interpret)(&recorded) {
        Recorded::Http(response) => Recorded::Http(bounded(response, limits)),
        other => other,
    });
    if holds {
        match ticket.settle(ending).await {
            Ok(()) => outlet.end(held.frames).await,
            Err(error) => {
                tracing::error!("the outcome of a call could not be recorded: {error}");
                outlet
                    .cut(Failure::NotRecorded, &error.to_string(), effect)
                    .await;
                return None;
            }
        }
    } else {
        outlet.end(held.frames).await;
        if let Err(error) = ticket.settle(ending).await {
            tracing::error!("the outcome of a call could not be recorded: {error}");
        }
    }
    Some(recorded)
}

/// Frames that the agent must not see before the outcome is on disk: all of them while the
/// response is small and comes at once, afterwards only its end.
struct Held {
    holds: bool,
    whole: bool,
    until: Option<Instant>,
    bound: usize,
    bytes: usize,
    frames: Vec<Frame<Bytes>>,
}

impl Held {
    fn new(holds: bool, head: &response::Parts, declared: Option<u64>, reading: &Reading) -> Self {
        let whole = holds
            && !is_streamed(&head.headers)
            && declared.is_none_or(|length| length <= reading.bound as u64);
        Self {
            holds,
            whole,
            until: reading
                .hold
                .filter(|_| whole && declared.is_none())
                .map(|hold| Instant::now() + hold),
            bound: reading.bound,
            bytes: 0,
            frames: Vec::new(),
        }
    }

    /// When to stop holding the whole response.
    fn until(&self) -> Option<Instant> {
        self.until.filter(|_| self.whole)
    }

    /// From now on, only the end is held.
    async fn release(&mut self, outlet: &mut Outlet) {
        self.whole = false;
        outlet.open();
        for frame in self.frames.drain(..) {
            outlet.frame(frame).await;
        }
    }

    /// Holds a frame or passes it on. `last`: nothing but fields can come after it.
    async fn take(&mut self, frame: Frame<Bytes>, last: bool, outlet: &mut Outlet) {
        self.bytes += frame.data_ref().map_or(0, Bytes::len);
        if self.whole && self.bytes > self.bound {
            self.release(outlet).await;
        }
        if self.whole || (self.holds && last) {
            self.frames.push(frame);
        } else {
            outlet.frame(frame).await;
        }
        if !self.whole && self.holds {
            outlet.open();
        }
    }
}

/// Cuts what is kept of a body to the recording bound.
fn bounded(mut response: HttpResponse, limits: &Limits) -> HttpResponse {
    response.body.kept.truncate(limits.record);
    response
}
