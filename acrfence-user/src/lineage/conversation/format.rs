//! Which requests are LLM traffic, and in which format.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::read::{LARGEST_BODY, object};

/// The wire format of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Anthropic Messages.
    AnthropicMessages,
    /// OpenAI Chat Completions, and the many servers that speak it.
    OpenAiChat,
    /// OpenAI Responses.
    OpenAiResponses,
    /// Ollama `/api/chat`.
    OllamaChat,
    /// Gemini `generateContent` and `streamGenerateContent`.
    Gemini,
}

/// What a request to a model is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelTraffic {
    /// It carries a conversation.
    Conversation(Format),
    /// It is addressed to a model, but nobody talks: counting tokens, embeddings, listing models.
    Side,
}

/// Whether a request is LLM traffic.
///
/// Path shape and body shape must both be right: an SMS service has a `/v1/messages` too, and a call
/// that is taken for model traffic is not fenced. `known_host` says that policy names the host as a
/// model's; then endpoints whose body tells nothing (listing models) count as well. The body must
/// be content-decoded.
pub fn recognise(method: &str, url: &str, body: &[u8], known_host: bool) -> Option<ModelTraffic> {
    let path = path_of(url);
    let path = path.trim_end_matches('/');
    if method != "POST" {
        return (known_host && is_listing(path)).then_some(ModelTraffic::Side);
    }
    if is_side(path) {
        let fits = known_host || object(body).is_some_and(|body| side_body(&body));
        return fits.then_some(ModelTraffic::Side);
    }
    let format = format_by_path(path)?;
    if body.len() > LARGEST_BODY {
        return None;
    }
    let body = object(body)?;
    fits(format, path, &body).then_some(ModelTraffic::Conversation(format))
}

/// Whether a request may be model traffic, by method and URL alone: then its body is worth a look.
pub fn may_be_model(method: &str, url: &str) -> bool {
    let path = path_of(url);
    method == "POST" && (is_side(path) || format_by_path(path).is_some())
}

fn path_of(url: &str) -> &str {
    let after = url.find("://").map_or(url, |at| &url[at + 3..]);
    let path = after.find('/').map_or("", |at| &after[at..]);
    let path = if url.starts_with('/') { url } else { path };
    path.split(['?', '#']).next().unwrap_or_default()
}

fn format_by_path(path: &str) -> Option<Format> {
    let last = path.rsplit('/').next().unwrap_or_default();
    if path.ends_with("/v1/messages")
        || last.ends_with(":rawPredict")
        || last.ends_with(":streamRawPredict")
    {
        Some(Format::AnthropicMessages)
    } else if path.ends_with("/chat/completions") {
        Some(Format::OpenAiChat)
    } else if path.ends_with("/responses") {
        Some(Format::OpenAiResponses)
    } else if path.ends_with("/api/chat") {
        Some(Format::OllamaChat)
    } else if last.ends_with(":generateContent") || last.ends_with(":streamGenerateContent") {
        Some(Format::Gemini)
    } else {
        None
    }
}

fn is_side(path: &str) -> bool {
    path.ends_with("/messages/count_tokens")
        || path.ends_with("/responses/input_tokens")
        || path.ends_with("/responses/compact")
        || path.ends_with("/embeddings")
        || path.ends_with("/moderations")
        || path.ends_with("/api/embed")
        || path.ends_with("/api/show")
        || [":countTokens", ":embedContent", ":batchEmbedContents"]
            .iter()
            .any(|verb| path.ends_with(verb))
}

fn is_listing(path: &str) -> bool {
    path.contains("/models") || path.ends_with("/api/tags") || path.ends_with("/api/version")
}

/// Whether the body of a side endpoint on a host nobody named is really one.
fn side_body(body: &serde_json::Map<String, Value>) -> bool {
    let named = body.get("model").is_some_and(Value::is_string);
    let talks = ["messages", "input", "contents", "content", "requests"]
        .iter()
        .any(|key| {
            body.get(*key)
                .is_some_and(|v| v.is_array() || v.is_string() || v.is_object())
        });
    let only = |allowed: &[&str]| body.keys().all(|key| allowed.contains(&key.as_str()));
    named && (talks || only(&["model", "name", "verbose", "system", "template", "options"]))
        || body.contains_key("contents") && talks
}

/// Whether a body is a conversation in `format`.
fn fits(format: Format, path: &str, body: &serde_json::Map<String, Value>) -> bool {
    let named = body.get("model").is_some_and(Value::is_string);
    match format {
        // Vertex has the model in the path and a version in the body.
        Format::AnthropicMessages => {
            (named || body.get("anthropic_version").is_some_and(Value::is_string))
                && messages(body, &["user", "assistant", "system"])
        }
        // Azure has the model in the path.
        Format::OpenAiChat => {
            (named || path.contains("/deployments/"))
                && messages(
                    body,
                    &[
                        "user",
                        "assistant",
                        "system",
                        "developer",
                        "tool",
                        "function",
                    ],
                )
        }
        Format::OllamaChat => named && messages(body, &["user", "assistant", "system", "tool"]),
        Format::OpenAiResponses => {
            named
                && match body.get("input") {
                    Some(Value::String(_)) => true,
                    Some(Value::Array(items)) => items.iter().all(|item| {
                        item.get("type").is_some_and(Value::is_string)
                            || item.get("role").is_some_and(Value::is_string)
                    }),
                    _ => {
                        body.get("previous_response_id")
                            .is_some_and(Value::is_string)
                            || body.contains_key("conversation")
                    }
                }
        }
        Format::Gemini => match body.get("contents") {
            Some(Value::Array(contents)) => {
                !contents.is_empty()
                    && contents.iter().all(|c| {
                        c.get("parts")
                            .is_some_and(|p| p.is_array() || p.is_object())
                    })
            }
            Some(Value::Object(content)) => content.contains_key("parts"),
            _ => false,
        },
    }
}

fn messages(body: &serde_json::Map<String, Value>, roles: &[&str]) -> bool {
    let Some(Value::Array(messages)) = body.get("messages") else {
        return false;
    };
    !messages.is_empty()
        && messages.iter().all(|message| {
            message
                .get("role")
                .and_then(Value::as_str)
                .is_some_and(|role| roles.contains(&role))
        })
}
