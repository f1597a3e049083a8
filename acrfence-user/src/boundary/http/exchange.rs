//! One call from its request to its settled outcome. Runs in a task of its own: an agent that
//! hangs up neither cancels a call that was sent nor loses its outcome.

use std::sync::Arc;
use std::time::SystemTime;

use http::uri::Authority;
use http::{HeaderMap, Method, Uri, Version};
use tokio::time::timeout;

use super::headers;
use super::relay::{self, Reply};
use super::replay;
use super::spool::{Spooled, SpooledBody};
use super::upstream::{Outgoing, Received, SendError, Upstream};
use crate::boundary::connection::Place;
use crate::boundary::listener::Shared;
use crate::boundary::mcp;
use crate::boundary::refusal::{self, Failure};
use crate::boundary::{Admission, Ticket, Trouble, TroubleKind};
use crate::words::{
    Ending, HttpRequest, HttpResponse, Origin, Request, Response as Recorded, Timestamp, ToolCall,
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

    /// A call of this connection.
    pub(crate) fn call(&self, request: Request) -> ToolCall {
        ToolCall {
            at: now(),
            request,
            origin: self.origin.clone(),
        }
    }

    /// Sends a request for a ticket. When that fails, the ticket is settled and the agent told by
    /// `tell`; otherwise both come back with the response.
    pub(crate) async fn send(
        &self,
        outgoing: Outgoing,
        ticket: Box<dyn Ticket>,
        mut reply: Reply,
    ) -> Result<(Received, Box<dyn Ticket>, Reply), Unanswered> {
        let is_effect = ticket.effect().is_some();
        if reply.is_gone() {
            let why = "the agent hung up before the request was sent".to_owned();
            return Err(Unanswered::settled(ticket, reply, Failure::NotSent, why).await);
        }
        let within = self.shared.limits().response_head;
        let sending = self.upstream.send(outgoing, is_effect);
        let sent = if is_effect {
            timeout(within, sending).await.unwrap_or_else(|_| {
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
        match sent {
            Ok(received) => Ok((received, ticket, reply)),
            Err(SendError::NotSent { kind, why }) => {
                self.trouble(kind, why.clone());
                Err(Unanswered::settled(ticket, reply, Failure::NotSent, why).await)
            }
            Err(SendError::Broken { why }) => {
                Err(Unanswered::settled(ticket, reply, Failure::InDoubt, why).await)
            }
        }
    }
}

/// A call that got no response; its ticket is settled.
pub(crate) struct Unanswered {
    pub(crate) reply: Reply,
    pub(crate) failure: Failure,
    pub(crate) why: String,
    pub(crate) effect: Option<crate::words::EffectId>,
}

impl Unanswered {
    async fn settled(ticket: Box<dyn Ticket>, reply: Reply, failure: Failure, why: String) -> Self {
        let effect = ticket.effect();
        let ending = if failure == Failure::NotSent {
            Ending::NotSent { why: why.clone() }
        } else {
            Ending::Broken {
                why: why.clone(),
                partial: None,
            }
        };
        if let Err(error) = ticket.settle(ending).await {
            tracing::error!("the outcome of a call could not be recorded: {error}");
        }
        Self {
            reply,
            failure,
            why,
            effect,
        }
    }

    /// Tells the agent in its own tongue.
    pub(crate) fn tell(self) {
        self.reply.fail(self.failure, &self.why, self.effect);
    }
}

impl Asked {
    /// The request as the effect log keeps it.
    pub(crate) fn recorded(&self, body: &Spooled, rpc: Vec<String>) -> HttpRequest {
        HttpRequest {
            method: self.method.as_str().to_owned(),
            url: self.url.clone(),
            headers: headers::recorded(&self.headers),
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
        Err(error) => {
            let detail = format!("a spooled body could not be read: {error}");
            return reply.fail(Failure::Overloaded, &detail, None);
        }
    };
    match understood {
        mcp::Understood::Plain { rpc } => plain(leg, asked, body, reply, rpc).await,
        mcp::Understood::Refused(answer) => reply.send(answer),
        mcp::Understood::Calls(calls) => mcp::exchange::run(leg, asked, body, reply, calls).await,
    }
}

/// A request that is decided and recorded as HTTP.
pub(crate) async fn plain(
    leg: Arc<Leg>,
    asked: Asked,
    body: Spooled,
    reply: Reply,
    rpc: Vec<String>,
) {
    let lists = rpc.iter().any(|method| method == "tools/list");
    let call = leg.call(Request::Http(asked.recorded(&body, rpc)));
    let ticket = match leg.shared.arbiter.admit(call).await {
        Admission::Forward(ticket) => ticket,
        Admission::Refuse(refusal) => {
            let response = reply.tongue.refuse(&refusal);
            return reply.send(response);
        }
        Admission::Replay { effect, response } => {
            let bound = leg.shared.limits().rpc;
            let answer = match response {
                Recorded::Http(recorded) => {
                    replay::answer(effect, recorded, &asked.method, &asked.headers, bound).await
                }
                _ => Err("it was answered over another transport".to_owned()),
            };
            let answer = answer
                .unwrap_or_else(|why| reply.tongue.refuse(&refusal::cannot_replay(effect, &why)));
            return reply.send(answer);
        }
    };
    let outgoing = asked.outgoing(body, false);
    let (received, ticket, reply) = match leg.send(outgoing, ticket, reply).await {
        Ok(sent) => sent,
        Err(unanswered) => return unanswered.tell(),
    };
    let Received { response, lease } = received;
    let limits = leg.shared.limits();
    let reading = relay::Reading::http(limits);
    let whole = relay::pass(response, &asked.method, ticket, reply, limits, reading).await;
    if let Some(recorded) = whole {
        leg.upstream.give_back(lease);
        if lists {
            learn(&leg, &asked, &recorded).await;
        }
    }
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
