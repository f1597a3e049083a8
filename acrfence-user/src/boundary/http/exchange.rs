//! One call from its request to its settled outcome. Runs in a task of its own: an agent that
//! hangs up neither cancels a call that was sent nor loses its outcome.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, HeaderValue};
use http::uri::Authority;
use http::{HeaderMap, Method, Response, Uri, Version};
use tokio::time::timeout;

use super::body::{AgentBody, Receipt};
use super::outlet::Reply;
use super::replay;
use super::spool::{Spooled, SpooledBody};
use super::upstream::{Outgoing, Received, SendError, Upstream};
use super::{encoding, headers, relay};
use crate::boundary::connection::Place;
use crate::boundary::courier::LegCourier;
use crate::boundary::listener::Shared;
use crate::boundary::mcp;
use crate::boundary::refusal::{self, Failure};
use crate::boundary::{Admission, Ticket, Trouble, TroubleKind};
use crate::words::{
    EffectId, Ending, Header, HttpRequest, HttpResponse, Origin, Request, Response as Recorded,
    Timestamp, ToolCall,
};

/// One agent connection that speaks HTTP, as its exchanges see it.
pub(crate) struct Leg {
    pub(crate) place: Place,
    pub(crate) shared: Arc<Shared>,
    pub(crate) origin: Origin,
    /// `http` or `https`.
    pub(crate) scheme: &'static str,
    /// Where the agent dialled.
    pub(crate) peer: std::net::SocketAddr,
    pub(crate) sni: Option<String>,
    pub(crate) upstream: Arc<Upstream>,
}

/// A request that arrived, without its body.
pub(crate) struct Asked {
    pub(crate) method: Method,
    /// As the agent wrote it.
    pub(crate) uri: Uri,
    pub(crate) authority: Authority,
    /// Absolute, for the record.
    pub(crate) url: String,
    pub(crate) headers: HeaderMap,
    /// The same as they were on the wire, for the record.
    pub(crate) fields: Vec<Header>,
    pub(crate) version: Version,
    pub(crate) extensions: http::Extensions,
}

impl Leg {
    /// Tells what kept the boundary from its work.
    pub(crate) fn trouble(&self, kind: TroubleKind, detail: String) {
        self.shared.arbiter.trouble(Trouble {
            origin: self.origin.clone(),
            kind,
            detail,
        });
    }

    /// Tells the arbiter when a response of `effect` does not get to the agent.
    pub(crate) fn receipt(&self, effect: EffectId) -> Receipt {
        let arbiter = self.shared.arbiter.clone();
        let origin = self.origin.clone();
        Receipt::new(move || arbiter.undelivered(&origin, effect))
    }

    /// Answers an HTTP request from the record of `effect`, or says why that cannot be.
    pub(crate) async fn answer_from_record(
        &self,
        reply: Reply,
        asked: &Asked,
        effect: EffectId,
        recorded: Recorded,
    ) {
        let bound = self.shared.limits().rpc;
        let answer = match recorded {
            Recorded::Http(recorded) => {
                replay::answer(effect, recorded, &asked.method, &asked.headers, bound).await
            }
            _ => Err("it was answered over another transport".to_owned()),
        };
        match answer {
            Ok(response) => self.send_replay(reply, effect, response),
            Err(why) => {
                // It was not played back after all.
                self.shared.arbiter.undelivered(&self.origin, effect);
                let refused = reply.tongue.refuse(&refusal::cannot_replay(effect, &why));
                reply.send(refused);
            }
        }
    }

    /// Sends an answer from the record of `effect`.
    pub(crate) fn send_replay(
        &self,
        reply: Reply,
        effect: EffectId,
        response: Response<AgentBody>,
    ) {
        let receipt = self.receipt(effect);
        reply.send(response.map(|body| body.with_receipts([receipt])));
    }

    /// A call of this connection.
    pub(crate) fn call(&self, request: Request) -> ToolCall {
        ToolCall {
            at: now(),
            request,
            origin: self.origin.clone(),
        }
    }

    /// What to do when the agent hangs up on a running effect.
    pub(crate) fn on_hangup(&self, effect: Option<EffectId>) -> Option<Box<dyn FnOnce() + Send>> {
        let effect = effect?;
        let arbiter = self.shared.arbiter.clone();
        let origin = self.origin.clone();
        Some(Box::new(move || arbiter.abandoned(&origin, effect)))
    }

    /// Sends a request, of this effect where it is one.
    pub(crate) async fn send(
        &self,
        outgoing: Outgoing,
        effect: Option<EffectId>,
        mut reply: Reply,
    ) -> Result<(Received, Reply), Unsent> {
        if reply.is_gone() {
            return Err(Unsent {
                reply,
                failure: Failure::NotSent,
                why: "the agent hung up before the request was sent".to_owned(),
            });
        }
        let within = self.shared.limits().response_head;
        let sending = self.upstream.send(outgoing, effect.is_some());
        let sent = if let Some(effect) = effect {
            let sending = timeout(within, sending);
            tokio::pin!(sending);
            let answered = tokio::select! {
                answered = &mut sending => answered,
                () = reply.gone() => {
                    self.shared.arbiter.abandoned(&self.origin, effect);
                    sending.await
                }
            };
            answered.unwrap_or_else(|_| {
                Err(SendError::Broken {
                    why: format!("{} did not answer within {within:?}", self.upstream.name()),
                })
            })
        } else {
            tokio::select! {
                sent = sending => sent,
                () = reply.gone() => Err(SendError::Broken { why: "the agent hung up".to_owned() }),
            }
        };
        let (failure, why) = match sent {
            Ok(received) => return Ok((received, reply)),
            Err(SendError::NotSent { kind, why }) => {
                self.trouble(kind, why.clone());
                (Failure::NotSent, why)
            }
            Err(SendError::Broken { why }) => (Failure::InDoubt, why),
        };
        Err(Unsent {
            reply,
            failure,
            why,
        })
    }

    /// Settles the ticket of a call that got no response.
    pub(crate) async fn unanswered(&self, ticket: Box<dyn Ticket>, unsent: Unsent) -> Unanswered {
        let effect = ticket.effect();
        let why = unsent.why.clone();
        let ending = if unsent.failure == Failure::NotSent {
            Ending::NotSent { why }
        } else {
            Ending::Broken { why, partial: None }
        };
        if let Err(error) = ticket.settle(ending).await {
            tracing::error!("the outcome of a call could not be recorded: {error}");
        }
        Unanswered {
            effect,
            receipt: effect
                .filter(|_| unsent.failure != Failure::NotSent)
                .map(|effect| self.receipt(effect)),
            unsent,
        }
    }
}

/// A request that got no response.
pub(crate) struct Unsent {
    pub(crate) reply: Reply,
    /// Whether it certainly was not sent.
    pub(crate) failure: Failure,
    pub(crate) why: String,
}

/// A call that got no response; its ticket is settled.
pub(crate) struct Unanswered {
    pub(crate) unsent: Unsent,
    pub(crate) effect: Option<EffectId>,
    /// For a call that may have been carried out: an agent that does not hear so may call again.
    receipt: Option<Receipt>,
}

impl Unanswered {
    /// Tells the agent in its own tongue.
    pub(crate) fn tell(self) {
        let tongue = self.unsent.reply.tongue;
        let response = tongue.fail(self.unsent.failure, &self.unsent.why, self.effect);
        self.tell_as(response);
    }

    /// Tells the agent in these words.
    pub(crate) fn tell_as(self, response: Response<AgentBody>) {
        let receipt = self.receipt;
        self.unsent
            .reply
            .send(response.map(|body| body.with_receipts(receipt)));
    }
}

impl Asked {
    /// The request as the effect log keeps it.
    pub(crate) fn recorded(&self, body: &Spooled, rpc: Vec<String>) -> HttpRequest {
        HttpRequest {
            method: self.method.as_str().to_owned(),
            url: self.url.clone(),
            headers: self.fields.clone(),
            body: body.record().clone(),
            rpc,
        }
    }

    /// The request for the upstream.
    pub(crate) fn outgoing(&self, body: Spooled, upgrade: bool) -> Outgoing {
        Outgoing {
            method: self.method.clone(),
            uri: self.uri.clone(),
            authority: self.authority.clone(),
            headers: self.headers.clone(),
            version: self.version,
            extensions: self.extensions.clone(),
            upgrade,
            body: SpooledBody::from(body),
        }
    }
}

/// Decides and carries out one request.
pub(crate) async fn run(leg: Arc<Leg>, asked: Asked, mut body: Spooled, reply: Reply) {
    let understood = match mcp::understand(&leg, &asked, &mut body).await {
        Ok(understood) => understood,
        Err(error) => return reply.fail(Failure::Overloaded, &error.to_string(), None),
    };
    match understood {
        mcp::Understood::Plain { rpc } => plain(leg, asked, body, reply, rpc).await,
        mcp::Understood::Refused(answer) => reply.send(*answer),
        mcp::Understood::TooLarge => {
            let why = "a JSON-RPC message of this size cannot be taken apart";
            reply.fail(Failure::TooLarge, why, None);
        }
        mcp::Understood::Calls(calls) => mcp::exchange::run(leg, asked, body, reply, calls).await,
    }
}

/// A request that is decided and recorded as HTTP.
pub(crate) async fn plain(
    leg: Arc<Leg>,
    asked: Asked,
    mut body: Spooled,
    reply: Reply,
    rpc: Vec<String>,
) {
    let shown = shown(&leg, &asked, &mut body).await;
    let lists = rpc.iter().any(|method| method == "tools/list");
    let begins = rpc.iter().any(|method| method == "initialize");
    let call = leg.call(Request::Http(asked.recorded(&body, rpc)));
    let courier = LegCourier {
        leg: &leg,
        asked: &asked,
        meta: None,
        reply: &reply,
        undecided: None,
    };
    let admission = match shown {
        Some(shown) => leg.shared.arbiter.admit_whole(call, shown, &courier).await,
        None => leg.shared.arbiter.admit_asking(call, &courier).await,
    };
    let ticket = match admission {
        Admission::Forward(ticket) => ticket,
        Admission::Refuse(refusal) => {
            let response = reply.tongue.refuse(&refusal);
            return reply.send(response);
        }
        Admission::Replay { effect, response } => {
            return leg
                .answer_from_record(reply, &asked, effect, response)
                .await;
        }
    };
    let is_open = body.is_open();
    let instead = ticket.instead().filter(|_| !is_open);
    let body = match &instead {
        Some(longer) => Spooled::whole(longer.clone()),
        None => body,
    };
    let mut outgoing = asked.outgoing(body, false);
    if let Some(longer) = instead {
        outgoing.headers.remove(CONTENT_ENCODING);
        if outgoing.headers.contains_key(CONTENT_LENGTH) {
            outgoing
                .headers
                .insert(CONTENT_LENGTH, HeaderValue::from(longer.len()));
        }
    }
    let listens = asked.method == Method::GET && headers::accepts_events(&asked.headers);
    if listens {
        // Answers that come over this stream must be read while it flows.
        outgoing.headers.remove(ACCEPT_ENCODING);
    }
    let effect = ticket.effect();
    let (received, reply) = match leg.send(outgoing, effect, reply).await {
        Ok(sent) => sent,
        Err(unsent) => return leg.unanswered(ticket, unsent).await.tell(),
    };
    let Received { response, lease } = received;
    if begins && let Some(session) = mcp::events::session_in(&leg, &asked, response.headers()) {
        leg.shared.streams.session_began(session);
    }
    if listens && effect.is_none() && headers::is_plain_events(&response) {
        if mcp::events::listen(response, &asked, ticket, reply, &leg).await {
            leg.upstream.give_back(lease);
        }
        return;
    }
    let reading = if is_open {
        relay::Reading::duplex()
    } else {
        relay::Reading::http(leg.shared.limits())
    };
    let whole = relay::pass(response, &asked.method, ticket, reply, &leg, reading).await;
    if let Some(recorded) = whole {
        leg.upstream.give_back(lease);
        if lists {
            learn(&leg, &asked, &recorded).await;
        }
    }
}

/// The whole body, decoded, where the arbiter wants that of such a request and it can be had.
async fn shown(leg: &Leg, asked: &Asked, body: &mut Spooled) -> Option<Bytes> {
    /// The longest histories are some tens of megabytes, pictures included.
    const BOUND: usize = 64 << 20;
    let wanted = leg
        .shared
        .arbiter
        .wants_whole(asked.method.as_str(), &asked.url);
    if !wanted || body.is_open() {
        return None;
    }
    let limits = leg.shared.limits();
    let memory = &leg.shared.memory;
    let bytes = match body.in_memory(BOUND, memory, limits.body_idle).await {
        Ok(bytes) => bytes?,
        Err(error) => {
            tracing::warn!("a model request cannot be read whole: {error}");
            return None;
        }
    };
    let encodings = encoding::applied(&asked.headers);
    if encodings.is_empty() {
        return Some(bytes);
    }
    let decoded = encoding::decoded(&bytes, &encodings, BOUND).await;
    decoded.map(Bytes::from)
}

async fn learn(leg: &Leg, asked: &Asked, recorded: &HttpResponse) {
    for tools in mcp::answer::tools_told(recorded, leg.shared.limits().rpc).await {
        leg.shared
            .arbiter
            .tools_seen(&leg.origin, &mcp::server_of(&asked.url), &tools);
    }
}

/// The time now.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
