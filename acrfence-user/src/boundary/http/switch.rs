//! Requests after which a connection is no longer HTTP: upgrades (WebSocket) and CONNECT.

use std::sync::Arc;

use http::header::{CONNECTION, UPGRADE};
use http::{Response, StatusCode};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::body::AgentBody;
use super::exchange::{Asked, Leg};
use super::headers;
use super::outlet::Reply;
use super::relay::{self, Reading};
use super::spool::Spooled;
use super::tunnel::{self, Tunnel};
use super::upstream::{Received, Route, SendError};
use crate::boundary::refusal::{Failure, Tongue};
use crate::boundary::{Admission, connection, opaque};
use crate::words::{Body, Ending, HttpResponse, Request, Response as Recorded};

/// Decides a request to upgrade as a call, then passes the bytes on as an opaque flow.
pub(crate) async fn upgrade(
    leg: Arc<Leg>,
    asked: Asked,
    body: Spooled,
    reply: Reply,
    agent: OnUpgrade,
) {
    let protocol = asked
        .headers
        .get(UPGRADE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or("?")
        .to_owned();
    let call = leg.call(Request::Http(asked.recorded(&body, Vec::new())));
    let ticket = match leg.shared.arbiter.admit(call).await {
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
    let why = if protocol.eq_ignore_ascii_case("websocket") {
        "WebSocket".to_owned()
    } else {
        format!("upgrade to {protocol}")
    };
    let flow = match opaque::admit(&leg.shared, &leg.origin, leg.peer, &why).await {
        Ok(flow) => flow,
        Err(refusal) => {
            let ending = Ending::NotSent {
                why: refusal.title.clone(),
            };
            if let Err(error) = ticket.settle(ending).await {
                tracing::error!("the outcome of a call could not be recorded: {error}");
            }
            let response = reply.tongue.refuse(&refusal);
            return reply.send(response);
        }
    };
    let outgoing = asked.outgoing(body, true);
    let (received, reply) = match leg.send(outgoing, ticket.effect(), reply).await {
        Ok(sent) => sent,
        Err(unsent) => return leg.unanswered(ticket, unsent).await.tell(),
    };
    let Received { response, lease } = received;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        let reading = Reading::http(leg.shared.limits());
        if relay::pass(response, &asked.method, ticket, reply, &leg, reading)
            .await
            .is_some()
        {
            leg.upstream.give_back(lease);
        }
        return;
    }
    let mut switched = Response::new(AgentBody::empty());
    *switched.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *switched.headers_mut() = headers::back(response.headers());
    for name in [CONNECTION, UPGRADE] {
        for value in response.headers().get_all(&name) {
            switched.headers_mut().append(name.clone(), value.clone());
        }
    }
    *switched.extensions_mut() = {
        let mut extensions = response.extensions().clone();
        extensions.remove::<OnUpgrade>();
        extensions
    };
    let recorded = HttpResponse {
        status: response.status().as_u16(),
        headers: headers::recorded(response.headers()),
        body: Body::empty(),
        trailers: Vec::new(),
    };
    let effect = ticket.effect();
    if let Err(error) = ticket
        .settle(Ending::Response(Recorded::Http(recorded)))
        .await
    {
        tracing::error!("the outcome of a call could not be recorded: {error}");
        return reply.fail(Failure::NotRecorded, &error.to_string(), effect);
    }
    let upstream = tunnel::upgraded(Received { response, lease });
    reply.send(switched);
    match tokio::try_join!(
        async { agent.await.map_err(std::io::Error::other) },
        upstream
    ) {
        Ok((agent, upstream)) => {
            flow.relay(Box::new(TokioIo::new(agent)), upstream).await;
        }
        Err(error) => tracing::debug!("an upgrade came to nothing: {error}"),
    }
}

/// Opens a tunnel through the agent's own proxy and treats what is inside as a new connection.
pub(crate) async fn connect(leg: Arc<Leg>, asked: Asked, agent: OnUpgrade) -> Response<AgentBody> {
    const TONGUE: Tongue = Tongue::Problem;
    let target = asked.uri.clone();
    if target.authority().and_then(|a| a.port_u16()).is_none() {
        let why = "a CONNECT request names a host and a port";
        return TONGUE.fail(Failure::BadRequest, why, None);
    }
    let outgoing = tunnel::request(&target, &asked.headers, asked.version);
    let received = match leg.upstream.send(outgoing, false).await {
        Ok(received) => received,
        Err(SendError::NotSent { kind, why }) => {
            leg.trouble(kind, why.clone());
            return TONGUE.fail(Failure::NotSent, &why, None);
        }
        Err(SendError::Broken { why }) => {
            return TONGUE.fail(Failure::NotSent, &why, None);
        }
    };
    if !received.response.status().is_success() {
        // The proxy's own answer (it may want to know who asks) belongs to the agent.
        let (reply, answer) = Reply::new(TONGUE);
        let leg = leg.clone();
        leg.shared.clone().tasks.spawn(async move {
            let Received { response, lease } = received;
            let reading = Reading::http(leg.shared.limits());
            // CONNECT itself causes nothing; what goes through the tunnel is recorded.
            let ticket = Box::new(relay::Unrecorded);
            if relay::pass(response, &asked.method, ticket, reply, &leg, reading)
                .await
                .is_some()
            {
                leg.upstream.give_back(lease);
            }
        });
        return answer.await.unwrap_or_else(|_| {
            TONGUE.fail(Failure::NotSent, "the proxy's answer was lost", None)
        });
    }
    let mut opened = Response::new(AgentBody::empty());
    *opened.status_mut() = received.response.status();
    *opened.headers_mut() = headers::back(received.response.headers());
    leg.shared.clone().tasks.spawn(async move {
        let both = tokio::try_join!(
            async { agent.await.map_err(std::io::Error::other) },
            tunnel::upgraded(received)
        );
        let (agent, first) = match both {
            Ok(both) => both,
            Err(error) => return tracing::debug!("a tunnel came to nothing: {error}"),
        };
        let tunnel = Tunnel::new(
            leg.upstream.clone(),
            target,
            asked.headers,
            asked.version,
            first,
        );
        let inside = leg.inside(Route::Tunnel(Arc::new(tunnel)));
        connection::serve(inside, Box::new(TokioIo::new(agent))).await;
    });
    opened
}
