//! Reads requests and replies of every format into the one form of [`history`](super::history).

mod anthropic;
mod arguments;
mod gemini;
mod ollama;
mod openai_chat;
mod openai_responses;
mod pieces;
mod reply;

use serde_json::{Map, Value};

use super::format::Format;
use super::history::{Reply, Turned};
use super::mark::Marker;
use super::session;
use crate::words::Header;

pub use arguments::values_of_body;
pub(super) use arguments::{command_values, mark_arguments};
pub use reply::ReplyReader;

/// Largest body that is read.
pub const LARGEST_BODY: usize = 64 << 20;

/// Why a body could not be read. The thread is then placed by process and time alone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// It is too large.
    #[error(
        "a model request of {0} bytes is too large to be read for its history; raise the recording bound or shorten the conversation"
    )]
    TooLarge(usize),
    /// It is no JSON object.
    #[error("a model request is not a JSON object ({0}); its history cannot be read")]
    NotJson(String),
    /// It is JSON, but no conversation of that format.
    #[error("a model request is no conversation of its format: {0}")]
    NotThatFormat(&'static str),
}

/// Reads the history that a request shows. The body must be content-decoded.
pub fn read_request(
    marker: &Marker,
    format: Format,
    headers: &[Header],
    body: &[u8],
) -> Result<Turned, Unreadable> {
    if body.len() > LARGEST_BODY {
        return Err(Unreadable::TooLarge(body.len()));
    }
    let body: Map<String, Value> =
        serde_json::from_slice(body).map_err(|e| Unreadable::NotJson(e.to_string()))?;
    let mut into = pieces::Pieces::new(marker);
    match format {
        Format::AnthropicMessages => anthropic::request(&body, &mut into)?,
        Format::OpenAiChat => openai_chat::request(&body, &mut into)?,
        Format::OpenAiResponses => openai_responses::request(&body, &mut into)?,
        Format::OllamaChat => ollama::request(&body, &mut into)?,
        Format::Gemini => gemini::request(&body, &mut into)?,
    }
    Ok(into.turned(format, session::read(marker, headers, &body)))
}

/// Reads a whole response. The body must be content-decoded; streamed or not is seen from its form.
pub fn read_response(marker: &Marker, format: Format, status: u16, body: &[u8]) -> Reply {
    let mut reader = ReplyReader::new(marker.clone(), format, status);
    reader.push(body);
    reader.finish()
}

/// The object that a body is; none when it is none.
pub(super) fn object(body: &[u8]) -> Option<Map<String, Value>> {
    serde_json::from_slice(body).ok()
}

fn text_of<'v>(value: &'v Value, key: &str) -> Option<&'v str> {
    value.get(key)?.as_str()
}

fn list(value: Option<&Value>) -> &[Value] {
    match value {
        Some(Value::Array(items)) => items,
        _ => &[],
    }
}
