//! OpenAI Chat Completions.

use serde_json::{Map, Value};

use super::anthropic::content_text;
use super::pieces::Pieces;
use super::{Unreadable, list, text_of};
use crate::lineage::conversation::history::From;

pub(super) fn request(body: &Map<String, Value>, into: &mut Pieces<'_>) -> Result<(), Unreadable> {
    for tool in list(body.get("tools")) {
        let named = tool.get("function").or_else(|| tool.get("custom"));
        if let Some(name) = named.and_then(|t| text_of(t, "name")) {
            into.tool(name);
        }
    }
    for function in list(body.get("functions")) {
        if let Some(name) = text_of(function, "name") {
            into.tool(name);
        }
    }
    into.no_calls = ["tool_choice", "function_call"]
        .iter()
        .any(|key| body.get(*key).and_then(Value::as_str) == Some("none"));
    let messages = body
        .get("messages")
        .and_then(Value::as_array)
        .ok_or(Unreadable::NotThatFormat("it has no `messages`"))?;
    for message in messages {
        match text_of(message, "role") {
            Some("assistant") => model_message(message, into),
            Some("tool") => {
                let mut text = String::new();
                content_text(message.get("content"), &mut text);
                let call = text_of(message, "tool_call_id");
                into.result(call, text_of(message, "name"), &text, false, Vec::new());
            }
            Some("function") => {
                let mut text = String::new();
                content_text(message.get("content"), &mut text);
                into.result(None, text_of(message, "name"), &text, false, Vec::new());
            }
            Some("system" | "developer") => {
                let mut text = String::new();
                content_text(message.get("content"), &mut text);
                into.system(&text);
            }
            _ => content(From::Agent, message.get("content"), into),
        }
    }
    Ok(())
}

/// A message of the model, in a request or in a reply.
pub(super) fn model_message(message: &Value, into: &mut Pieces<'_>) {
    content(From::Model, message.get("content"), into);
    if let Some(refusal) = text_of(message, "refusal") {
        into.words(From::Model, refusal, Vec::new());
    }
    for call in list(message.get("tool_calls")) {
        let custom = call.get("custom");
        let function = call.get("function").or(custom).unwrap_or(&Value::Null);
        let arguments = function
            .get("arguments")
            .or_else(|| function.get("input"))
            .unwrap_or(&Value::Null);
        let name = text_of(function, "name").unwrap_or_default();
        into.call(text_of(call, "id"), name, arguments, Vec::new());
    }
    if let Some(call) = message.get("function_call").filter(|c| c.is_object()) {
        let name = text_of(call, "name").unwrap_or_default();
        into.call(
            None,
            name,
            call.get("arguments").unwrap_or(&Value::Null),
            Vec::new(),
        );
    }
}

fn content(from: From, content: Option<&Value>, into: &mut Pieces<'_>) {
    match content {
        Some(Value::String(text)) => into.words(from, text, Vec::new()),
        Some(Value::Array(parts)) => {
            for part in parts {
                match text_of(part, "text").or_else(|| text_of(part, "refusal")) {
                    Some(text) => into.words(from, text, Vec::new()),
                    None => into.other(from, part, Vec::new()),
                }
            }
        }
        _ => {}
    }
}
