//! The response on its way back: recorded, and held back where the effect must be on disk before
//! the agent can take it for done.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Method, Response, StatusCode, response};
use http_body::Frame;
use hyper::body::Incoming;

use super::body::Recorder;
use super::budget::Share;
use super::exchange::Leg;
use super::headers;
use super::inflow::{Inflow, Inflowing};
use super::outlet::{Outlet, Reply};
use crate::boundary::Ticket;
use crate::boundary::config::Limits;
use crate::boundary::refusal::Failure;
use crate::effect::LogError;
use crate::words::{EffectId, Ending, HttpResponse, Response as Recorded};

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

/// The ticket of what causes nothing that is recorded.
pub(crate) struct Unrecorded;

#[async_trait::async_trait]
impl Ticket for Unrecorded {
    fn effect(&self) -> Option<EffectId> {
        None
    }

    fn holds_end(&self) -> bool {
        false
    }

    async fn settle(self: Box<Self>, _: Ending) -> Result<(), LogError> {
        Ok(())
    }
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

    /// A response to a request that the agent was still sending: what was answered to what is
    /// not known, so nothing of it is kept that could be played back.
    pub(crate) fn duplex() -> Self {
        Self {
            bound: 0,
            hold: None,
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
    leg: &Leg,
    mut reading: Reading,
) -> Option<HttpResponse> {
    let limits = leg.shared.limits();
    let kept = ticket.keeps().unwrap_or(limits.record);
    reading.bound = reading.bound.max(ticket.keeps().unwrap_or(0));
    let (head, body) = response.into_parts();
    let declared = declared_length(&head, method);
    let effect = ticket.effect();
    let holds = ticket.holds_end();
    let mut outlet = Outlet::new(
        reply,
        head_for_agent(&head),
        declared,
        effect.map(|effect| leg.receipt(effect)),
        limits,
    );
    let mut inflow = Inflow::new(body, effect.is_some(), limits).on_hangup(leg.on_hangup(effect));
    let memory = &leg.shared.memory;
    let mut recorder = Recorder::new(reading.bound, Some(memory.share()));
    let mut trailers = HeaderMap::new();
    let mut held = Held::new(holds, &head, declared, &reading, memory.share());
    let mut complete = declared == Some(0);
    // A head that is all there is goes in one piece with its end: gRPC looks for its status there, and
    // takes a head that something follows for the beginning of an answer.
    if !held.whole && !inflow.is_end() {
        outlet.open();
    }

    let broken = loop {
        match inflow.next(&mut outlet, held.until()).await {
            Inflowing::End => break None,
            // An agent that has all it was promised may turn away.
            Inflowing::Broken(_) | Inflowing::Deserted if complete && outlet.is_gone() => {
                break None;
            }
            Inflowing::Deserted => break Some("the agent hung up".to_owned()),
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
            partial: Some(Recorded::Http(bounded(recorded, kept))),
        };
        if let Err(error) = ticket.settle(ending).await {
            tracing::error!("the outcome of a call could not be recorded: {error}");
        }
        outlet.cut(Failure::InDoubt, &why, effect).await;
        return None;
    }
    let ending = Ending::Response(match (reading.interpret)(&recorded) {
        Recorded::Http(response) => Recorded::Http(bounded(response, kept)),
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
    share: Share,
    frames: Vec<Frame<Bytes>>,
}

impl Held {
    fn new(
        holds: bool,
        head: &response::Parts,
        declared: Option<u64>,
        reading: &Reading,
        share: Share,
    ) -> Self {
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
            share,
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
        if self.whole && (self.bytes > self.bound || !self.share.try_grow(self.bytes)) {
            self.release(outlet).await;
        }
        if self.whole || (self.holds && last) {
            self.frames.push(frame);
        } else {
            outlet.frame(frame).await;
        }
    }
}

/// Cuts what is kept of a body to the recording bound.
fn bounded(mut response: HttpResponse, bound: usize) -> HttpResponse {
    response.body.kept.truncate(bound);
    response
}
