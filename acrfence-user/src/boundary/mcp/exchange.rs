//! Tool calls carried out: alone, or one after the other out of a batch.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::HeaderMap;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, TRANSFER_ENCODING};
use http_body_util::{BodyExt as _, Limited};

use super::{Call, Calls, Part, answer, events};
use crate::boundary::Admission;
use crate::boundary::http::exchange::{Asked, Leg};
use crate::boundary::http::relay::{self, Reading, Reply};
use crate::boundary::http::spool::Spooled;
use crate::boundary::http::upstream::Received;
use crate::boundary::http::{encoding, headers};
use crate::boundary::refusal::{self, Failure, Tongue};
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
    let request = Request::Mcp(call.request.clone());
    let ticket = match leg.shared.arbiter.admit(leg.call(request)).await {
        Admission::Forward(ticket) => ticket,
        Admission::Refuse(refusal) => {
            let text = refusal::in_words(&refusal);
            return reply.send(tell(&call, asked, &text));
        }
        Admission::Replay { effect, response } => {
            return reply.send(replay(&call, asked, effect, &response));
        }
    };
    let mut outgoing = asked.outgoing(body, false);
    // The answer must be read while it streams.
    outgoing.headers.remove(ACCEPT_ENCODING);
    let (received, ticket, reply) = match leg.send(outgoing, ticket, reply).await {
        Ok(sent) => sent,
        Err(unanswered) if unanswered.failure == Failure::InDoubt => {
            let text = in_doubt(unanswered.effect, &unanswered.why);
            let response = tell(&call, asked, &text);
            return unanswered.reply.send(response);
        }
        Err(unanswered) => return unanswered.tell(),
    };
    let Received { response, lease } = received;
    let limits = leg.shared.limits();
    let is_plain = !response.headers().contains_key(CONTENT_ENCODING);
    let kind = headers::media_type(response.headers());
    let whole = if response.status() == 200 && kind == "text/event-stream" && is_plain {
        events::pass(response, &call.id, ticket, reply, limits).await
    } else {
        let reading = reading(call.id, limits.rpc);
        relay::pass(response, &asked.method, ticket, reply, limits, reading)
            .await
            .is_some()
    };
    if whole {
        leg.upstream.give_back(lease);
    }
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
            let answer = (response.body.is_whole())
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

fn replay(
    call: &Call,
    asked: &Asked,
    effect: EffectId,
    recorded: &Recorded,
) -> http::Response<crate::boundary::http::body::AgentBody> {
    match recorded {
        Recorded::Mcp(recorded) => {
            let message = answer::replayed(&call.id, recorded);
            answer::respond(message, &asked.headers, Some(effect))
        }
        _ => {
            let why = "its recorded response carries no tool result";
            let text = refusal::in_words(&refusal::cannot_replay(effect, why));
            tell(call, asked, &text)
        }
    }
}

fn tell(
    call: &Call,
    asked: &Asked,
    text: &str,
) -> http::Response<crate::boundary::http::body::AgentBody> {
    let message = answer::tool_error(call, &asked.headers, text);
    answer::respond(message, &asked.headers, None)
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
            Ok(response) => answers.extend(gather(response, id.as_deref(), bound).await),
            Err(_) => answers.extend(
                id.map(|id| answer::error(Some(&id), SERVER_ERROR, "ACRFence: the call failed")),
            ),
        }
        drop(task);
    }
    if answers.is_empty() {
        let mut accepted = http::Response::new(crate::boundary::http::body::AgentBody::empty());
        *accepted.status_mut() = http::StatusCode::ACCEPTED;
        return reply.send(accepted);
    }
    let message = format!("[{}]", answers.join(","));
    reply.send(answer::respond(message, &asked.headers, None));
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
        headers,
        version: asked.version,
        extensions: asked.extensions.clone(),
    }
}

/// The messages in the response to one message of a batch.
async fn gather(
    response: http::Response<crate::boundary::http::body::AgentBody>,
    id: Option<&str>,
    bound: usize,
) -> Vec<String> {
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
