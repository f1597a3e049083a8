//! Ollama `/api/chat`.

use serde_json::{Map, Value};

use super::pieces::Pieces;
use super::{Unreadable, list, text_of};
use crate::lineage::conversation::history::From;

pub(super) fn request(body: &Map<String, Value>, into: &mut Pieces<'_>) -> Result<(), Unreadable> {
    for tool in list(body.get("tools")) {
        if let Some(name) = tool.get("function").and_then(|f| text_of(f, "name")) {
            into.tool(name);
        }
    }
    let messages = body
        .get("messages")
        .and_then(Value::as_array)
        .ok_or(Unreadable::NotThatFormat("it has no `messages`"))?;
    for message in messages {
        let text = text_of(message, "content").unwrap_or_default();
        match text_of(message, "role") {
            Some("assistant") => model_message(message, into),
            Some("tool") => {
                let name = text_of(message, "tool_name").or_else(|| text_of(message, "name"));
                let call = text_of(message, "tool_call_id");
                into.result(call, name, text, false, Vec::new());
            }
            Some("system") => into.system(text),
            _ => {
                into.words(From::Agent, text, Vec::new());
                for image in list(message.get("images")) {
                    into.other(From::Agent, image, Vec::new());
                }
            }
        }
    }
    Ok(())
}

/// A message of the model, in a request or in a reply.
pub(super) fn model_message(message: &Value, into: &mut Pieces<'_>) {
    into.words(
        From::Model,
        text_of(message, "content").unwrap_or_default(),
        Vec::new(),
    );
    for call in list(message.get("tool_calls")) {
        let function = call.get("function").unwrap_or(&Value::Null);
        let name = text_of(function, "name").unwrap_or_default();
        let arguments = function.get("arguments").unwrap_or(&Value::Null);
        into.call(text_of(call, "id"), name, arguments, Vec::new());
    }
}
