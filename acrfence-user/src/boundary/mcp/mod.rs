//! MCP over HTTP: `tools/call` taken out of request bodies, its answer out of responses.

pub(super) mod answer;
pub(super) mod events;
pub(super) mod exchange;
pub mod jsonrpc;
pub mod sse;
pub(super) mod streams;
pub(super) mod wait;

use std::time::Duration;

use http::{Method, Response};

use super::TroubleKind;
use super::http::body::AgentBody;
use super::http::encoding;
use super::http::exchange::{Asked, Leg};
use super::http::spool::{SpoolError, Spooled};
use crate::words::McpRequest;
use jsonrpc::{Message, Parsed};

/// What a request turned out to be.
pub(crate) enum Understood {
    /// No `tools/call`.
    Plain {
        /// JSON-RPC methods in it.
        rpc: Vec<String>,
    },
    /// It must not be sent; this is the answer.
    Refused(Box<Response<AgentBody>>),
    /// It is JSON-RPC, by its beginning, and too large to tell what it asks for.
    TooLarge,
    /// Tool calls, alone or in a batch.
    Calls(Calls),
}

/// The messages of a body with at least one tool call.
pub(crate) struct Calls {
    pub(crate) messages: Vec<Part>,
    /// Whether they came as an array.
    pub(crate) batch: bool,
}

/// One message of a body.
pub(crate) enum Part {
    /// A tool call.
    Call(Call),
    /// Anything else, as JSON text, with its method.
    Other { text: String, method: String },
}

/// A tool call and what its answer needs.
pub(crate) struct Call {
    /// JSON text of the id.
    pub(crate) id: String,
    pub(crate) request: McpRequest,
    /// The whole message as JSON text.
    pub(crate) text: String,
}

/// Stands for an answer to the server's own request in lists of methods.
const RESPONSE: &str = "(response)";

/// Stands for the end of a session that a server gave out (DELETE).
const SESSION_END: &str = "(session end)";

/// How long the answer to a call may take after the agent cancelled it.
const AFTER_CANCEL: Duration = Duration::from_secs(5);

/// Finds out what a request is, from its body alone.
pub(crate) async fn understand(
    leg: &Leg,
    asked: &Asked,
    body: &mut Spooled,
) -> Result<Understood, SpoolError> {
    let plain = |rpc| Understood::Plain { rpc };
    if asked.method == Method::DELETE
        && events::session_of(leg, asked).is_some_and(|it| leg.shared.streams.is_session(&it))
    {
        return Ok(plain(vec![SESSION_END.to_owned()]));
    }
    if asked.method != Method::POST || body.is_open() {
        return Ok(plain(Vec::new()));
    }
    let limits = leg.shared.limits();
    let bound = limits.rpc;
    let memory = &leg.shared.memory;
    let Some(bytes) = body.in_memory(bound, memory, limits.body_idle).await? else {
        // A call must not become another thing by being large.
        let beginning = &body.record().kept[..];
        return Ok(if begins_as_rpc(beginning) {
            Understood::TooLarge
        } else {
            plain(Vec::new())
        });
    };
    let encodings = encoding::applied(&asked.headers);
    let decoded;
    let text = if encodings.is_empty() {
        &bytes[..]
    } else {
        decoded = encoding::decoded(&bytes, &encodings, bound).await;
        match &decoded {
            Some(decoded) => decoded.as_slice(),
            None => return Ok(plain(Vec::new())),
        }
    };
    let (messages, batch) = match jsonrpc::parse(text) {
        Parsed::NotRpc => return Ok(plain(Vec::new())),
        Parsed::Ambiguous { id, why } => {
            leg.trouble(
                TroubleKind::BadRequest,
                format!("a JSON-RPC message was refused because {why}: readers would disagree about what it asks for"),
            );
            let error = answer::error(
                id.as_deref(),
                jsonrpc::INVALID_REQUEST,
                &format!("ACRFence: {why}; nothing was sent"),
            );
            return Ok(Understood::Refused(Box::new(answer::respond(
                error,
                &asked.headers,
                None,
            ))));
        }
        Parsed::Single(message) => (vec![message], false),
        Parsed::Batch(messages) => (messages, true),
    };
    for id in messages.iter().filter_map(Message::cancels) {
        abandon(leg, asked, id);
    }
    let parts: Vec<Part> = messages
        .into_iter()
        .map(|message| part(message, asked))
        .collect();
    if parts.iter().any(|part| matches!(part, Part::Call(_))) {
        return Ok(Understood::Calls(Calls {
            messages: parts,
            batch,
        }));
    }
    let rpc: Vec<String> = parts
        .into_iter()
        .map(|part| match part {
            Part::Other { method, .. } => method,
            Part::Call(call) => call.request.name,
        })
        .collect();
    Ok(plain(rpc))
}

/// The agent gave a running call up without closing its stream, as clients of sessions do when a tool
/// takes too long: what comes of it does not reach the model any more. Servers need not answer it
/// either, so after a while it counts as never answered.
fn abandon(leg: &Leg, asked: &Asked, id: &str) {
    let id = jsonrpc::id_key(id);
    let places = [
        events::session_of(leg, asked),
        events::endpoint_of(leg, asked),
    ];
    for scope in places.into_iter().flatten() {
        leg.shared.streams.cancel(&scope, &id);
        let Some((number, effect)) = leg.shared.streams.waits(&scope, &id) else {
            continue;
        };
        if let Some(effect) = effect {
            leg.shared.arbiter.abandoned(&leg.origin, effect);
        }
        let (shared, id) = (leg.shared.clone(), id.clone());
        leg.shared.tasks.spawn(async move {
            tokio::select! {
                () = tokio::time::sleep(AFTER_CANCEL) => {}
                () = shared.stop.cancelled() => {}
            }
            if let Some(ticket) = shared.streams.take_wait(&scope, &id, number) {
                streams::broken(ticket, "the agent cancelled it, and no answer came").await;
            }
        });
    }
}

/// Whether a message whose end was not seen is JSON-RPC. Its members come in any order, so the
/// version or the method is enough.
fn begins_as_rpc(beginning: &[u8]) -> bool {
    const SIGNS: [&[u8]; 2] = [b"\"jsonrpc\"", b"\"tools/call\""];
    let start = beginning.trim_ascii_start();
    (start.starts_with(b"{") || start.starts_with(b"["))
        && SIGNS
            .iter()
            .any(|sign| start.windows(sign.len()).any(|window| window == *sign))
}

/// What an MCP server is called: its URL without query.
pub(crate) fn server_of(url: &str) -> String {
    url.split(['?', '#']).next().unwrap_or(url).to_owned()
}

fn part(message: Message<'_>, asked: &Asked) -> Part {
    let text = message.text.to_owned();
    match message.tool_call() {
        Some(call) => Part::Call(Call {
            id: call.id.to_owned(),
            request: McpRequest {
                server: server_of(&asked.url),
                name: call.name,
                arguments: call.arguments.unwrap_or("{}").to_owned(),
                meta: call.meta.map(str::to_owned),
                extra: call.extra,
                headers: asked.fields.clone(),
            },
            text,
        }),
        None => Part::Other {
            method: message.method.unwrap_or_else(|| RESPONSE.to_owned()),
            text,
        },
    }
}
