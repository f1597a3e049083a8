//! A scripted model behind the HTTP interfaces of real ones. It has no opinion of its own: a
//! [`Script`] says what it does, and a seeded [`Hand`] how it words that.
//!
//! It stands in for a language model where a test needs one that never fails to fall for the attack. Where
//! a real one is wanted, a [`relay`] to it takes its place.

mod anthropic;
mod chat;
mod gemini;
pub mod hand;
mod heard;
mod ollama;
pub mod relay;
mod responses;
pub mod script;

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::Result;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

use crate::authority::Authority;
use crate::server::Server;
use hand::Hand;
use relay::{Endpoint, Relay};
use script::{Arguments, Asked, Entry, Reply, Script, Tool};

/// A running model. Its interfaces are Anthropic Messages, OpenAI Chat Completions and Responses,
/// Gemini and Ollama, with and without streaming.
pub struct Model {
    mind: Arc<Mind>,
    server: Server,
}

/// A request that the model received.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Path and query.
    pub path: String,
    /// Headers, as `name: value` lines.
    pub headers: String,
    /// Body.
    pub body: Value,
    /// When.
    pub at: Instant,
    /// What it shows, whatever format it came in.
    pub asked: Option<Asked>,
    /// When its answer had left.
    pub answered: Instant,
    /// What it answered: words, calls, or several of these. Nothing where it refused, or never ended.
    pub replies: Vec<Reply>,
}

struct Mind {
    source: Source,
    state: Mutex<Memory>,
}

/// Where answers come from.
enum Source {
    Script(Script),
    Relay(Relay),
}

struct Memory {
    hand: Hand,
    seen: Vec<Seen>,
    /// Conversations that the provider keeps, by response id.
    kept: HashMap<String, Vec<Value>>,
    /// Items that the provider keeps, by id.
    items: HashMap<String, Value>,
    /// Requests that an overloaded provider has refused once.
    refused: HashSet<String>,
}

impl Model {
    /// Starts a model that follows `script` and words things as `seed` says, in the clear.
    pub fn start(script: Script, seed: u64) -> Result<Self> {
        Self::serve(script, seed, None)
    }

    /// The same over HTTPS.
    pub fn start_secure(script: Script, seed: u64, authority: &Authority) -> Result<Self> {
        Self::serve(script, seed, Some(authority))
    }

    /// Starts a relay to a real model, in the clear.
    pub fn relay(endpoint: &Endpoint) -> Result<Self> {
        let mind = Mind::new(Source::Relay(Relay::new(endpoint)?), 0);
        let router = Router::new().fallback(relay::pass_on);
        Ok(Self {
            server: Server::start(router.with_state(mind.clone()), None, 0, true)?,
            mind,
        })
    }

    fn serve(script: Script, seed: u64, authority: Option<&Authority>) -> Result<Self> {
        let mind = Mind::new(Source::Script(script), seed);
        let router = Router::new()
            .route("/v1/messages", post(messages))
            .route("/v1/messages/count_tokens", post(count_tokens))
            .route("/v1/chat/completions", post(completions))
            .route("/v1/responses", post(responses))
            .route("/v1beta/models/{call}", post(gemini))
            .route("/api/chat", post(ollama))
            .route("/v1/models", get(models))
            .with_state(mind.clone());
        let tls = authority.map(Authority::server).transpose()?;
        Ok(Self {
            mind,
            server: Server::start(router, tls, 0, true)?,
        })
    }

    /// URL of `path` at this model.
    pub fn url(&self, path: &str) -> String {
        self.server.url(path)
    }

    /// Every conversation request it received, oldest first.
    pub fn seen(&self) -> Vec<Seen> {
        self.mind.lock().seen.clone()
    }

    /// How many calls it told its agent to make.
    pub fn calls(&self) -> usize {
        let seen = &self.mind.lock().seen;
        let replies = seen.iter().flat_map(|seen| &seen.replies);
        replies
            .filter(|reply| matches!(reply, Reply::Call(_)))
            .count()
    }

    /// Its port on loopback.
    pub fn port(&self) -> u16 {
        self.server.port()
    }
}

impl Mind {
    fn new(source: Source, seed: u64) -> Arc<Self> {
        Arc::new(Self {
            source,
            state: Mutex::new(Memory {
                hand: Hand::new(seed),
                seen: Vec::new(),
                kept: HashMap::new(),
                items: HashMap::new(),
                refused: HashSet::new(),
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Memory> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a request with `read`, answers it as the script says, and writes that with `write`.
    fn answer(
        &self,
        path: &str,
        headers: &HeaderMap,
        body: &[u8],
        read: impl FnOnce(&Value, &mut Memory) -> Option<Asked>,
        write: impl FnOnce(&Value, &Asked, &Reply, &mut Memory) -> Response,
    ) -> Response {
        let refuse = |why: &str| {
            let problem = json!({"error": {"type": "invalid_request_error", "message": why}});
            (StatusCode::BAD_REQUEST, Json(problem)).into_response()
        };
        let Ok(body) = serde_json::from_slice::<Value>(body) else {
            return refuse("the body is no JSON");
        };
        let Source::Script(script) = &self.source else {
            return refuse("this is no scripted model");
        };
        let mut memory = self.lock();
        if script.flaky && memory.refused.insert(body.to_string()) {
            let problem = json!({"error": {"type": "overloaded_error", "message": "Overloaded"}});
            return (StatusCode::SERVICE_UNAVAILABLE, Json(problem)).into_response();
        }
        let asked = read(&body, &mut memory);
        let reply = asked
            .as_ref()
            .map(|asked| script.reply(asked, &mut memory.hand));
        memory.seen.push(Seen {
            path: path.into(),
            headers: lines(headers),
            body: body.clone(),
            at: Instant::now(),
            asked: asked.clone(),
            answered: Instant::now(),
            replies: reply.clone().into_iter().collect(),
        });
        match (asked, reply) {
            (Some(asked), Some(reply)) => write(&body, &asked, &reply, &mut memory),
            _ => refuse("the body is no conversation"),
        }
    }
}

fn lines(headers: &HeaderMap) -> String {
    headers
        .iter()
        .map(|(name, value)| format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes())))
        .collect()
}

async fn messages(State(mind): State<Arc<Mind>>, headers: HeaderMap, body: Bytes) -> Response {
    mind.answer(
        "/v1/messages",
        &headers,
        &body,
        |body, _| anthropic::read(body),
        anthropic::write,
    )
}

async fn count_tokens() -> Json<Value> {
    Json(json!({"input_tokens": 1000}))
}

async fn completions(State(mind): State<Arc<Mind>>, headers: HeaderMap, body: Bytes) -> Response {
    mind.answer(
        "/v1/chat/completions",
        &headers,
        &body,
        |body, _| chat::read(body),
        chat::write,
    )
}

async fn responses(State(mind): State<Arc<Mind>>, headers: HeaderMap, body: Bytes) -> Response {
    mind.answer(
        "/v1/responses",
        &headers,
        &body,
        responses::read,
        responses::write,
    )
}

async fn gemini(
    State(mind): State<Arc<Mind>>,
    Path(call): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let stream = call.ends_with(":streamGenerateContent");
    mind.answer(
        &format!("/v1beta/models/{call}"),
        &headers,
        &body,
        |body, _| gemini::read(body, stream),
        gemini::write,
    )
}

async fn ollama(State(mind): State<Arc<Mind>>, headers: HeaderMap, body: Bytes) -> Response {
    mind.answer(
        "/api/chat",
        &headers,
        &body,
        |body, _| ollama::read(body),
        ollama::write,
    )
}

async fn models() -> Json<Value> {
    Json(json!({"object": "list", "data": [], "models": []}))
}

/// Arguments as JSON text, in the order in which the model wrote them.
fn object(arguments: &Arguments) -> String {
    let members: Vec<String> = arguments
        .iter()
        .map(|(name, value)| format!("{}: {value}", Value::from(name.as_str())))
        .collect();
    format!("{{{}}}", members.join(", "))
}

/// `document` as text, with `arguments` in the order in which the model wrote them wherever the
/// document says [`ARGUMENTS`].
fn with_arguments(document: &Value, arguments: &Arguments) -> String {
    document
        .to_string()
        .replace(&Value::from(ARGUMENTS).to_string(), &object(arguments))
}

/// Stands for arguments in a document.
const ARGUMENTS: &str = "[arguments]";

/// Words of something that is text, or a list of blocks of which some are text.
fn words(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => blocks
            .iter()
            .filter_map(|block| block["text"].as_str())
            .collect::<Vec<_>>()
            .join("\n"),
        _ => String::new(),
    }
}

/// Tools that a request offers as functions.
fn functions(body: &Value) -> Vec<Tool> {
    let tools = body["tools"].as_array().into_iter().flatten();
    tools
        .filter_map(|tool| {
            Some(Tool {
                name: tool["function"]["name"].as_str()?.into(),
                namespace: None,
            })
        })
        .collect()
}

/// Arguments that a format carries as JSON in a string.
fn parsed(arguments: &Value) -> Value {
    match arguments.as_str() {
        Some(text) => serde_json::from_str(text).unwrap_or_else(|_| text.into()),
        None => arguments.clone(),
    }
}

/// Calls by id, to which results refer.
#[derive(Default)]
struct Calls(HashMap<String, (String, Value)>);

impl Calls {
    fn call(&mut self, id: &Value, tool: &str, arguments: Value) -> Entry {
        if let Some(id) = id.as_str() {
            self.0.insert(id.into(), (tool.into(), arguments.clone()));
        }
        Entry::Call {
            tool: tool.into(),
            arguments,
        }
    }

    fn result(&self, id: &Value, text: String) -> Entry {
        let call = id.as_str().and_then(|id| self.0.get(id)).cloned();
        let (tool, arguments) = call.unwrap_or_default();
        Entry::Result {
            tool,
            arguments,
            text,
        }
    }
}

/// An answer that is one JSON document.
fn document(text: String) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

/// An answer that is a stream of server-sent events.
fn events(events: Vec<String>) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, chunks(events)).into_response()
}

/// An answer that is one JSON document a line.
fn json_lines(lines: Vec<String>) -> Response {
    let headers = [(header::CONTENT_TYPE, "application/x-ndjson")];
    (headers, chunks(lines)).into_response()
}

/// A body in chunks, one a piece, as a provider sends them.
fn chunks(pieces: Vec<String>) -> Body {
    Body::from_stream(tokio_stream::iter(
        pieces.into_iter().map(Ok::<_, Infallible>),
    ))
}

/// An event with the type of its data as its name.
fn named(data: &str, kind: &str) -> String {
    format!("event: {kind}\ndata: {data}\n\n")
}
