//! A real model in place of the scripted one: any endpoint that speaks OpenAI's, Anthropic's or Ollama's
//! API. Agents get the address of a relay, which passes their requests on under the endpoint's own model
//! name and key, and notes what was asked and answered. So what the model ordered can be counted, and the
//! key is in no agent's environment and in no log.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, http};
use serde_json::{Value, json};
use tokio_stream::StreamExt as _;

use super::heard::heard;
use super::script::Reply;
use super::{Memory, Mind, Seen, Source, lines};

/// Which API an endpoint speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Api {
    /// OpenAI's: Chat Completions, and Responses where the server has them.
    Openai,
    /// Anthropic's Messages.
    Anthropic,
    /// Ollama's.
    Ollama,
}

/// Where a real model is served.
#[derive(Clone)]
pub struct Endpoint {
    /// URL before `/v1/…` or `/api/…`.
    pub url: String,
    /// The name it is asked for by.
    pub name: String,
    /// What it speaks.
    pub api: Api,
    /// The key it wants, if any.
    pub key: Option<String>,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key is nobody's business.
        write!(f, "{} at {} ({:?})", self.name, self.url, self.api)
    }
}

/// How long a model may take for one answer: small ones on busy machines take minutes.
const PATIENCE: Duration = Duration::from_secs(600);

/// The largest request.
const LARGEST: usize = 64 << 20;

/// Passes requests on to an endpoint.
pub(super) struct Relay {
    client: reqwest::Client,
    base: String,
    name: String,
    key: Option<(HeaderName, HeaderValue)>,
}

impl Relay {
    pub(super) fn new(endpoint: &Endpoint) -> Result<Self> {
        let base = endpoint.url.trim_end_matches('/');
        let base = base.strip_suffix("/v1").unwrap_or(base);
        ensure!(
            base.starts_with("http://") || base.starts_with("https://"),
            "the model's URL begins with http:// or https://"
        );
        let key = match (&endpoint.key, endpoint.api) {
            (None, _) => None,
            (Some(key), Api::Anthropic) => {
                Some((HeaderName::from_static("x-api-key"), key.clone()))
            }
            (Some(key), _) => Some((header::AUTHORIZATION, format!("Bearer {key}"))),
        };
        let key = key
            .map(|(name, value)| {
                let mut value = HeaderValue::from_str(&value)?;
                value.set_sensitive(true);
                Ok::<_, http::header::InvalidHeaderValue>((name, value))
            })
            .transpose()
            .context("the model's key cannot be sent in a header")?;
        Ok(Self {
            client: reqwest::Client::builder()
                .timeout(PATIENCE)
                .redirect(reqwest::redirect::Policy::none())
                .build()
                .context("making a client for the model")?,
            base: base.to_owned(),
            name: endpoint.name.clone(),
            key,
        })
    }

    /// Headers of a request without what is between the agent and the relay, and with the key.
    fn headers(&self, headers: &HeaderMap) -> HeaderMap {
        let kept = |name: &HeaderName| {
            ["content-type", "accept", "user-agent"].contains(&name.as_str())
                || name.as_str().starts_with("anthropic-")
                || name.as_str().starts_with("openai-")
        };
        let mut passed: HeaderMap = headers
            .iter()
            .filter(|(name, _)| kept(name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        if let Some((name, value)) = &self.key {
            passed.insert(name.clone(), value.clone());
        }
        passed
    }
}

/// Passes one request on, and the answer back as it comes.
pub(super) async fn pass_on(State(mind): State<Arc<Mind>>, request: Request) -> Response {
    let trouble = |why: &dyn fmt::Display| {
        let problem = json!({"error": {"type": "api_error", "message": why.to_string()}});
        (StatusCode::BAD_GATEWAY, Json(problem)).into_response()
    };
    let Source::Relay(relay) = &mind.source else {
        return trouble(&"this is no relay");
    };
    let (parts, body) = request.into_parts();
    let target = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let path = parts.uri.path().to_owned();
    let body = match to_bytes(body, LARGEST).await {
        Ok(body) => body,
        Err(why) => return trouble(&why),
    };
    let mut wish: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let mut passed = relay
        .client
        .request(parts.method, format!("{}{target}", relay.base))
        .headers(relay.headers(&parts.headers));
    // What an agent calls its model is its own affair.
    passed = match wish.get_mut("model") {
        Some(name) => {
            *name = relay.name.as_str().into();
            passed.body(wish.to_string())
        }
        None => passed.body(body),
    };
    let place = mind.notice(&path, &parts.headers, wish);
    let answer = match passed.send().await {
        Ok(answer) => answer,
        Err(why) => return trouble(&why.without_url()),
    };
    let status = answer.status();
    let content = answer.headers().get(header::CONTENT_TYPE).cloned();
    let (sender, pieces) = tokio::sync::mpsc::channel(16);
    // An agent that hangs up does not keep what the model said from being noted.
    tokio::spawn(async move {
        let mut stream = answer.bytes_stream();
        let mut whole = Vec::new();
        while let Some(Ok(piece)) = stream.next().await {
            whole.extend_from_slice(&piece);
            let _ = sender.send(piece).await;
        }
        if let Some(place) = place
            && status.is_success()
        {
            mind.note(place, heard(&path, &whole));
        }
    });
    let body = tokio_stream::wrappers::ReceiverStream::new(pieces).map(Ok::<_, Infallible>);
    let mut response = (status, Body::from_stream(body)).into_response();
    if let Some(content) = content {
        response.headers_mut().insert(header::CONTENT_TYPE, content);
    }
    response
}

impl Mind {
    /// Writes down a request, if it is a conversation; returns where.
    fn notice(&self, path: &str, headers: &HeaderMap, body: Value) -> Option<usize> {
        let mut memory = self.lock();
        let asked = read(path, &body, &mut memory)?;
        let now = Instant::now();
        memory.seen.push(Seen {
            path: path.into(),
            headers: lines(headers),
            body,
            at: now,
            asked: Some(asked),
            answered: now,
            replies: Vec::new(),
        });
        Some(memory.seen.len() - 1)
    }

    /// Writes down what was answered.
    fn note(&self, place: usize, replies: Vec<Reply>) {
        if let Some(seen) = self.lock().seen.get_mut(place) {
            seen.answered = Instant::now();
            seen.replies = replies;
        }
    }
}

fn read(path: &str, body: &Value, memory: &mut Memory) -> Option<super::Asked> {
    match path {
        "/v1/chat/completions" => super::chat::read(body),
        "/v1/messages" => super::anthropic::read(body),
        "/v1/responses" => super::responses::read(body, memory),
        "/api/chat" => super::ollama::read(body),
        _ => None,
    }
}
