//! Streams of events: each event passes through as it comes, but one that carries the answer to a
//! call waits until the outcome is on disk.

use std::future::pending;

use bytes::Bytes;
use http::{HeaderMap, Response};
use http_body::Frame;
use hyper::body::Incoming;
use tokio::sync::mpsc;
use url::Url;

use super::streams::{Injected, Scope};
use super::{answer, jsonrpc, sse};
use crate::boundary::Ticket;
use crate::boundary::http::body::Recorder;
use crate::boundary::http::budget::Share;
use crate::boundary::http::exchange::{Asked, Leg};
use crate::boundary::http::headers;
use crate::boundary::http::inflow::{Inflow, Inflowing, Patience};
use crate::boundary::http::outlet::{Outlet, Reply};
use crate::boundary::http::relay;
use crate::boundary::refusal::Failure;
use crate::effect::LogError;
use crate::words::{EffectId, Ending, HttpResponse, Response as Recorded};

/// How the events of a call's own stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    /// The stream came to its end, so that its connection can be used again.
    pub(crate) whole: bool,
    /// Its events had ids: it can be taken up again.
    pub(crate) resumable: bool,
}

/// Passes the events on that answer a call whose ticket waits in `scope` under `id`.
pub(crate) async fn answer(
    response: Response<Incoming>,
    scope: Scope,
    id: String,
    effect: Option<EffectId>,
    reply: Reply,
    leg: &Leg,
) -> Ended {
    let (head, body) = response.into_parts();
    let mut outlet = Outlet::new(
        reply,
        relay::head_for_agent(&head),
        None,
        effect.map(|effect| leg.receipt(effect)),
        leg.shared.limits(),
    );
    outlet.open();
    let inflow =
        Inflow::new(body, effect.is_some(), leg.shared.limits()).on_hangup(leg.on_hangup(effect));
    let mut stream = Stream::new(leg, outlet, inflow, effect);
    stream.scopes.push(scope.clone());
    stream.own = Some((scope, id));
    let whole = match stream.run().await {
        Ok(()) => {
            stream.outlet.end(Vec::new()).await;
            true
        }
        Err(end) => {
            end.tell(stream.outlet, effect).await;
            false
        }
    };
    Ended {
        whole,
        resumable: stream.has_ids,
    }
}

/// Passes on a stream that an agent opened to listen. Answers to calls may come over it.
pub(crate) async fn listen(
    response: Response<Incoming>,
    asked: &Asked,
    ticket: Box<dyn Ticket>,
    reply: Reply,
    leg: &Leg,
) -> bool {
    let limits = leg.shared.limits();
    let (head, body) = response.into_parts();
    let mut outlet = Outlet::new(reply, relay::head_for_agent(&head), None, None, limits);
    outlet.open();
    let mut inflow = Inflow::new(body, false, limits);
    inflow.wait_as(Patience::Agent);
    let mut stream = Stream::new(leg, outlet, inflow, None);
    stream.recorder = Some(Recorder::new(
        limits.record,
        Some(leg.shared.memory.share()),
    ));
    stream.base = Url::parse(&asked.url).ok();
    stream.scopes.extend(session_of(leg, asked));
    let ended = stream.run().await;
    if let Some((endpoint, _, _)) = stream.endpoint.take() {
        let why = "the stream of events that carries answers ended without this one";
        leg.shared.streams.close(&endpoint, why).await;
    }
    let recorded = HttpResponse {
        status: head.status.as_u16(),
        headers: headers::recorded(&head.headers),
        body: stream
            .recorder
            .take()
            .map(Recorder::finish)
            .unwrap_or_default(),
        trailers: Vec::new(),
    };
    let whole = ended.is_ok();
    let ending = match &ended {
        Ok(()) => Ending::Response(Recorded::Http(recorded)),
        Err(end) => Ending::Broken {
            why: end.to_string(),
            partial: Some(Recorded::Http(recorded)),
        },
    };
    match ended {
        Ok(()) => stream.outlet.end(Vec::new()).await,
        Err(end) => end.tell(stream.outlet, None).await,
    }
    if let Err(error) = ticket.settle(ending).await {
        tracing::error!("the outcome of a call could not be recorded: {error}");
    }
    whole
}

/// The session that a request belongs to.
pub(crate) fn session_of(leg: &Leg, asked: &Asked) -> Option<Scope> {
    session_in(leg, asked, &asked.headers)
}

/// The session that the header fields of a request or its response name.
pub(crate) fn session_in(leg: &Leg, asked: &Asked, fields: &HeaderMap) -> Option<Scope> {
    let session = fields.get("mcp-session-id")?.to_str().ok()?;
    let server = super::server_of(&asked.url);
    Some(Scope::session(&leg.origin.agent, &server, session))
}

/// The endpoint of the older transport that a request is sent to.
pub(crate) fn endpoint_of(leg: &Leg, asked: &Asked) -> Option<Scope> {
    let url = Url::parse(&asked.url).ok()?;
    Some(Scope::endpoint(&leg.origin.agent, url.as_str()))
}

struct Stream<'a> {
    leg: &'a Leg,
    outlet: Outlet,
    inflow: Inflow,
    /// The one call that this stream was opened for.
    own: Option<(Scope, String)>,
    effect: Option<EffectId>,
    /// Where ids of answers are looked up.
    scopes: Vec<Scope>,
    /// URL of a stream whose first event may name an endpoint.
    base: Option<Url>,
    /// Set once it did: with the name of the server, and what is to be put into the stream.
    endpoint: Option<(Scope, String, mpsc::Receiver<Injected>)>,
    splitter: Option<sse::Splitter>,
    /// Memory for what the splitter holds.
    share: Share,
    recorder: Option<Recorder>,
    has_ids: bool,
}

/// Why a stream was left before its end.
#[derive(Debug, thiserror::Error)]
enum Left {
    #[error("{0}")]
    Broken(String),
    #[error("{0}")]
    NotRecorded(#[from] LogError),
    #[error("the agent hung up")]
    NobodyListens,
}

impl Left {
    async fn tell(self, outlet: Outlet, effect: Option<EffectId>) {
        let failure = match self {
            Self::NobodyListens => return,
            Self::Broken(_) => Failure::InDoubt,
            Self::NotRecorded(_) => Failure::NotRecorded,
        };
        outlet.cut(failure, &self.to_string(), effect).await;
    }
}

impl<'a> Stream<'a> {
    fn new(leg: &'a Leg, outlet: Outlet, inflow: Inflow, effect: Option<EffectId>) -> Self {
        Self {
            leg,
            outlet,
            inflow,
            own: None,
            effect,
            scopes: Vec::new(),
            base: None,
            endpoint: None,
            splitter: Some(sse::Splitter::new(leg.shared.limits().rpc)),
            share: leg.shared.memory.share(),
            recorder: None,
            has_ids: false,
        }
    }

    /// Passes events on until the stream ends.
    async fn run(&mut self) -> Result<(), Left> {
        loop {
            if self.outlet.is_gone() && !self.is_awaited() {
                return Err(Left::NobodyListens);
            }
            if self.own.is_none() {
                // A stream to listen on may be idle; only calls that wait keep it without an agent.
                self.inflow.wait_as(if self.is_awaited() {
                    Patience::Outcome { idle: None }
                } else {
                    Patience::Agent
                });
            }
            let stops = self.own.is_none() && !self.is_awaited();
            let leg = self.leg;
            let injected = async {
                match &mut self.endpoint {
                    Some((_, _, injected)) => injected.recv().await,
                    None => pending().await,
                }
            };
            let inflowing = tokio::select! {
                // Nobody can say when a stream to listen on would end.
                () = leg.shared.stop.cancelled(), if stops => return Err(Left::NobodyListens),
                inflowing = self.inflow.next(&mut self.outlet, None) => inflowing,
                Some(injected) = injected => {
                    self.inject(injected).await;
                    continue;
                }
            };
            match inflowing {
                Inflowing::Frame(frame) => self.frame(frame).await?,
                Inflowing::End => {
                    if let Some(left) = self.splitter.take().and_then(sse::Splitter::finish) {
                        self.event(left).await?;
                    }
                    return Ok(());
                }
                Inflowing::Broken(why) => return Err(Left::Broken(why)),
                Inflowing::Deserted if self.own.is_some() => return Err(Left::NobodyListens),
                // Unless a call waits by now, the next round ends it.
                Inflowing::Deserted | Inflowing::Woken => {}
            }
        }
    }

    async fn frame(&mut self, frame: Frame<Bytes>) -> Result<(), Left> {
        let data = match frame.into_data() {
            Ok(data) => data,
            Err(frame) => {
                self.outlet.frame(frame).await;
                return Ok(());
            }
        };
        if let Some(recorder) = &mut self.recorder {
            recorder.add(&data);
        }
        let Some(splitter) = &mut self.splitter else {
            self.outlet.frame(Frame::data(data)).await;
            return Ok(());
        };
        let held = splitter.held() + data.len();
        if !self.share.try_grow(held) {
            let why = "no memory was left for an event that may carry a result";
            return self.unread(data, why).await;
        }
        match splitter.push(&data) {
            Ok(events) => {
                self.events(events).await?;
                if self.base.is_none() && self.scopes.is_empty() {
                    // None of MCP: no need to look any further.
                    let left = self.splitter.take().and_then(sse::Splitter::finish);
                    if let Some(left) = left {
                        self.outlet.frame(Frame::data(left.raw)).await;
                    }
                }
                Ok(())
            }
            Err(too_long) => {
                let why = too_long.to_string();
                self.events(too_long.before).await?;
                self.unread(too_long.raw, &why).await
            }
        }
    }

    /// Passes on what cannot be looked at. In a stream of MCP it could be an answer, which must
    /// not pass unrecorded.
    async fn unread(&mut self, data: Bytes, why: &str) -> Result<(), Left> {
        if self.base.is_none() && !self.scopes.is_empty() {
            return Err(Left::Broken(why.to_owned()));
        }
        let left = self.splitter.take().and_then(sse::Splitter::finish);
        if let Some(left) = left {
            self.outlet.frame(Frame::data(left.raw)).await;
        }
        self.outlet.frame(Frame::data(data)).await;
        Ok(())
    }

    async fn events(&mut self, events: Vec<sse::Event>) -> Result<(), Left> {
        for event in events {
            self.event(event).await?;
        }
        Ok(())
    }

    /// Passes an event on, after settling the calls it answers.
    async fn event(&mut self, event: sse::Event) -> Result<(), Left> {
        self.has_ids |= event.id.is_some();
        if let Some(base) = self.base.take() {
            self.first(&base, &event);
        }
        let mut tells = false;
        let mut receipts = Vec::new();
        let mut afterwards = Vec::new();
        for (ticket, answer) in self.answered(&event) {
            let ending = Ending::Response(Recorded::Mcp(answer));
            let effect = ticket.effect();
            if ticket.holds_end() {
                ticket.settle(ending).await?;
            } else {
                afterwards.push((ticket, ending));
            }
            if self.effect.is_some() && effect == self.effect {
                tells = true;
            } else if let Some(effect) = effect {
                receipts.push(self.leg.receipt(effect));
            }
        }
        let frame = Frame::data(event.raw);
        self.outlet.telling_frame(frame, tells, receipts).await;
        for (ticket, ending) in afterwards {
            if let Err(error) = ticket.settle(ending).await {
                tracing::error!("the outcome of a call could not be recorded: {error}");
            }
        }
        Ok(())
    }

    fn answered(&self, event: &sse::Event) -> Vec<(Box<dyn Ticket>, crate::words::McpResponse)> {
        let Some(data) = &event.data else {
            return Vec::new();
        };
        let mut found = Vec::new();
        for message in jsonrpc::parse_messages(data) {
            let Some((id, answer)) = answer::answer_of(&message) else {
                continue;
            };
            if let Some((_, endpoint, _)) = &self.endpoint
                && let Some(tools) = answer::tools_in(&message)
            {
                let leg = self.leg;
                leg.shared.arbiter.tools_seen(&leg.origin, endpoint, tools);
            }
            let ticket = self
                .scopes
                .iter()
                .find_map(|scope| self.leg.shared.streams.take(scope, &id));
            found.extend(ticket.map(|ticket| (ticket, answer)));
        }
        found
    }

    /// The first event tells whether a stream is one of the older transport; without a session,
    /// any other stream is none of MCP.
    fn first(&mut self, base: &Url, event: &sse::Event) {
        let url = event
            .data
            .as_deref()
            .filter(|_| event.kind.as_deref() == Some("endpoint"))
            .and_then(|data| base.join(data.trim()).ok());
        if let Some(url) = url {
            let scope = Scope::endpoint(&self.leg.origin.agent, url.as_str());
            let injected = self.leg.shared.streams.open(&scope);
            self.scopes.push(scope.clone());
            let server = super::server_of(url.as_str());
            self.endpoint = Some((scope, server, injected));
        }
    }

    async fn inject(&mut self, injected: Injected) {
        let event = sse::message_event(&injected.message);
        let receipts = injected.receipt.into_iter().collect();
        self.outlet
            .telling_frame(Frame::data(event.into()), false, receipts)
            .await;
    }

    fn is_awaited(&self) -> bool {
        let streams = &self.leg.shared.streams;
        match &self.own {
            Some((scope, id)) => streams.is_awaited_for(scope, id),
            None => self.scopes.iter().any(|scope| streams.is_awaited(scope)),
        }
    }
}
