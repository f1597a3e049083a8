//! Tool calls carried out: alone, or one after the other out of a batch.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};

use super::streams::{self, Injected, Scope};
use super::wait::{Kind, Wait};
use super::{Call, Calls, Part, answer, events, jsonrpc};
use crate::boundary::courier::LegCourier;
use crate::boundary::http::body::{AgentBody, Receipt};
use crate::boundary::http::exchange::{Asked, Leg, Unsent};
use crate::boundary::http::outlet::Reply;
use crate::boundary::http::relay::{self, Reading};
use crate::boundary::http::spool::Spooled;
use crate::boundary::http::upstream::Received;
use crate::boundary::http::{encoding, headers};
use crate::boundary::refusal::{self, Failure, Tongue};
use crate::boundary::{Admission, Ticket};
use crate::words::{EffectId, Request, Response as Recorded};

/// JSON-RPC's code for errors that a server defines.
const SERVER_ERROR: i32 = -32000;

/// Carries out the calls of one request.
pub(crate) async fn run(leg: Arc<Leg>, asked: Asked, body: Spooled, reply: Reply, calls: Calls) {
    if calls.batch {
        return batch(leg, asked, reply, calls).await;
    }
    for part in calls.messages {
        if let Part::Call(call) = part {
            return one(&leg, &asked, call, body, reply).await;
        }
    }
}

async fn one(leg: &Arc<Leg>, asked: &Asked, call: Call, body: Spooled, reply: Reply) {
    // In the older transport, answers come over the stream that told this endpoint.
    let endpoint = events::endpoint_of(leg, asked).filter(|it| leg.shared.streams.is_open(it));
    let request = Request::Mcp(call.request.clone());
    let undecided = events::session_of(leg, asked).map(|scope| {
        leg.shared
            .streams
            .decide(&scope, &jsonrpc::id_key(&call.id))
    });
    let courier = LegCourier {
        leg,
        asked,
        meta: call.request.meta.as_deref(),
        reply: &reply,
        undecided: undecided.as_ref(),
    };
    let arbiter = &leg.shared.arbiter;
    let admitted = match &endpoint {
        None => arbiter.admit_asking(leg.call(request), &courier).await,
        // The answer to a question would come over the agent's own stream.
        Some(_) => arbiter.admit(leg.call(request)).await,
    };
    let ticket = match admitted {
        Admission::Forward(ticket) => ticket,
        Admission::Refuse(refusal) => {
            let text = refusal::in_words(&refusal);
            let message = answer::tool_error(&call, &asked.headers, &text);
            return own_answer(leg, asked, endpoint, message, None, reply).await;
        }
        Admission::Replay { effect, response } => {
            let (message, replayed) = match &response {
                Recorded::Mcp(recorded) => (answer::replayed(&call.id, recorded), Some(effect)),
                _ => {
                    // It was not played back after all.
                    leg.shared.arbiter.undelivered(&leg.origin, effect);
                    let why = "its recorded response carries no tool result";
                    let text = refusal::in_words(&refusal::cannot_replay(effect, why));
                    (answer::tool_error(&call, &asked.headers, &text), None)
                }
            };
            return own_answer(leg, asked, endpoint, message, replayed, reply).await;
        }
    };
    let effect = ticket.effect();
    let wait = Wait::begin(leg, asked, endpoint, &call, ticket);
    // From here on a cancellation finds the wait; one that came before it is passed on.
    if let (Some(undecided), Some(effect)) = (undecided, effect)
        && undecided.is_cancelled()
    {
        leg.shared.arbiter.abandoned(&leg.origin, effect);
    }
    let mut outgoing = asked.outgoing(body, false);
    // The answer must be read while it streams.
    outgoing.headers.remove(ACCEPT_ENCODING);
    let (received, reply) = match leg.send(outgoing, effect, reply).await {
        Ok(sent) => sent,
        Err(unsent) => return unanswered(leg, asked, &call, &wait, unsent).await,
    };
    let Received { response, lease } = received;
    let limits = leg.shared.limits();
    let whole = if headers::is_plain_events(&response) {
        let (scope, id) = (wait.scope.clone(), wait.id.clone());
        let ended = events::answer(response, scope, id, effect, reply, leg).await;
        if ended.resumable && wait.kind == Kind::Session {
            wait.on(leg, limits.resume);
        } else if let Some(ticket) = wait.take(leg) {
            streams::broken(ticket, "the stream of events ended without the result").await;
        }
        ended.whole
    } else {
        let ticket: Box<dyn Ticket> =
            if wait.kind == Kind::Endpoint && response.status().is_success() {
                wait.on(leg, limits.response_head);
                Box::new(relay::Unrecorded)
            } else {
                wait.take(leg)
                    .unwrap_or_else(|| Box::new(relay::Unrecorded))
            };
        let reading = reading(call.id, limits.rpc);
        relay::pass(response, &asked.method, ticket, reply, leg, reading)
            .await
            .is_some()
    };
    if whole {
        leg.upstream.give_back(lease);
    }
}

/// Settles a call that got no response, and tells the model rather than the transport where it may
/// have been carried out.
async fn unanswered(leg: &Leg, asked: &Asked, call: &Call, wait: &Wait, unsent: Unsent) {
    let Some(ticket) = wait.take(leg) else {
        // The answer came over another stream before this one broke.
        return unsent.reply.send(accepted());
    };
    let unanswered = leg.unanswered(ticket, unsent).await;
    if unanswered.unsent.failure != Failure::InDoubt {
        return unanswered.tell();
    }
    let text = in_doubt(unanswered.effect, &unanswered.unsent.why);
    let message = answer::tool_error(call, &asked.headers, &text);
    unanswered.tell_as(answer::respond(message, &asked.headers, None));
}

/// Gives an answer that was made here, over the stream where the agent expects it.
async fn own_answer(
    leg: &Leg,
    asked: &Asked,
    endpoint: Option<Scope>,
    message: String,
    replayed: Option<EffectId>,
    reply: Reply,
) {
    let receipt = replayed.map(|effect| leg.receipt(effect));
    let Some(endpoint) = endpoint else {
        let response = answer::respond(message, &asked.headers, replayed);
        return reply.send(response.map(|body| body.with_receipts(receipt)));
    };
    reply.send(accepted());
    // A stream that is gone by now takes the receipt with it.
    leg.shared
        .streams
        .inject(&endpoint, Injected { message, receipt })
        .await;
}

fn accepted() -> Response<AgentBody> {
    let mut response = Response::new(AgentBody::empty());
    *response.status_mut() = StatusCode::ACCEPTED;
    response
}

/// A body that is read for the answer to `id`, and recorded as HTTP where it carries none.
fn reading(id: String, bound: usize) -> Reading {
    Reading {
        bound,
        hold: None,
        interpret: Box::new(move |response| {
            let fields: HeaderMap = response
                .headers
                .iter()
                .filter_map(|field| {
                    let name = http::HeaderName::from_bytes(field.name.as_bytes()).ok()?;
                    Some((name, http::HeaderValue::from_bytes(&field.value).ok()?))
                })
                .collect();
            let encodings = encoding::applied(&fields);
            // A server that fails may have done anything, whatever its body says.
            let answer = (response.body.is_whole() && response.status < 500)
                .then(|| {
                    encoding::decoded(&response.body.kept, &encodings, bound)
                        .now_or_never()
                        .flatten()
                })
                .flatten()
                .and_then(|body| {
                    answer::messages_in(&fields, &body)
                        .iter()
                        .find_map(|text| answer::answer_in(text.as_bytes(), &id))
                });
            answer.map_or_else(|| Recorded::Http(response.clone()), Recorded::Mcp)
        }),
    }
}

fn in_doubt(effect: Option<EffectId>, why: &str) -> String {
    let mut text = format!(
        "ACRFence: the call was sent, and its outcome is unknown: {why}. It may have been carried out; find out before \
         you call again."
    );
    if let Some(effect) = effect {
        text.push_str(&format!(" (effect: {effect})"));
    }
    text
}

/// Carries out the messages one after the other, each by itself, and puts the answers together.
/// By itself, because each call is decided and settled alone, and a call may have to wait for the
/// outcome of the one before it.
async fn batch(leg: Arc<Leg>, asked: Asked, reply: Reply, calls: Calls) {
    let bound = leg.shared.limits().rpc;
    let mut answers: Vec<String> = Vec::new();
    let mut receipts: Vec<Receipt> = Vec::new();
    for part in calls.messages {
        if reply.is_gone() {
            return;
        }
        let (text, id) = match &part {
            Part::Call(call) => (call.text.clone(), Some(call.id.clone())),
            Part::Other { text, .. } => {
                let id = super::jsonrpc::parse_message(text)
                    .filter(|message| message.method.is_some())
                    .and_then(|message| message.id.map(str::to_owned));
                (text.clone(), id)
            }
        };
        let alone = alone(&asked, text.len());
        let body = Spooled::whole(Bytes::from(text));
        let (sub, answer) = Reply::new(Tongue::Problem);
        let leg = leg.clone();
        // In a task of its own, so that a panic in one does not lose the others.
        let task = leg.shared.clone().tasks.spawn(async move {
            match part {
                Part::Call(call) => one(&leg, &alone, call, body, sub).await,
                Part::Other { method, .. } => {
                    crate::boundary::http::exchange::plain(leg, alone, body, sub, vec![method])
                        .await;
                }
            }
        });
        match answer.await {
            Ok(mut response) => {
                receipts.extend(response.body_mut().take_receipts());
                answers.extend(gather(response, id.as_deref(), bound).await);
            }
            Err(_) => answers.extend(
                id.map(|id| answer::error(Some(&id), SERVER_ERROR, "ACRFence: the call failed")),
            ),
        }
        drop(task);
    }
    if answers.is_empty() {
        return reply.send(accepted());
    }
    let message = format!("[{}]", answers.join(","));
    let response = answer::respond(message, &asked.headers, None);
    reply.send(response.map(|body| body.with_receipts(receipts)));
}

/// The same request for one message of its batch.
fn alone(asked: &Asked, length: usize) -> Asked {
    let mut headers = asked.headers.clone();
    headers.remove(CONTENT_ENCODING);
    headers.remove(TRANSFER_ENCODING);
    headers.insert(CONTENT_LENGTH, length.into());
    Asked {
        method: asked.method.clone(),
        uri: asked.uri.clone(),
        authority: asked.authority.clone(),
        url: asked.url.clone(),
        fields: asked.fields.clone(),
        headers,
        version: asked.version,
        extensions: asked.extensions.clone(),
    }
}

/// The messages in the response to one message of a batch.
async fn gather(response: Response<AgentBody>, id: Option<&str>, bound: usize) -> Vec<String> {
    let (head, body) = response.into_parts();
    let body = match Limited::new(body, bound).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => {
            return id
                .map(|id| answer::error(Some(id), SERVER_ERROR, &error.to_string()))
                .into_iter()
                .collect();
        }
    };
    let encodings = encoding::applied(&head.headers);
    let body = encoding::decoded(&body, &encodings, bound)
        .await
        .unwrap_or_default();
    let messages = answer::messages_in(&head.headers, &body);
    match id {
        Some(id) if messages.is_empty() => {
            let text = format!(
                "the server answered {}: {}",
                head.status,
                String::from_utf8_lossy(&body[..body.len().min(1000)])
            );
            vec![answer::error(Some(id), SERVER_ERROR, &text)]
        }
        _ => messages,
    }
}
