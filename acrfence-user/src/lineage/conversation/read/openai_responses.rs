//! OpenAI Responses.

use serde_json::{Map, Value};

use super::anthropic::content_text;
use super::pieces::Pieces;
use super::{Unreadable, list, text_of};
use crate::lineage::conversation::history::From;

pub(super) fn request(body: &Map<String, Value>, into: &mut Pieces<'_>) -> Result<(), Unreadable> {
    if let Some(text) = body.get("instructions").and_then(Value::as_str) {
        into.system(text);
    }
    tools(list(body.get("tools")), into, 0);
    into.no_calls = body.get("tool_choice").and_then(Value::as_str) == Some("none");
    match body.get("input") {
        Some(Value::String(text)) => into.words(From::Agent, text, Vec::new()),
        Some(Value::Array(items)) => {
            for item in items {
                read_item(item, into);
            }
        }
        None | Some(Value::Null) => {}
        Some(_) => {
            return Err(Unreadable::NotThatFormat(
                "its `input` is no text and no list",
            ));
        }
    }
    Ok(())
}

/// Tools stand in name spaces in some clients.
fn tools(tools: &[Value], into: &mut Pieces<'_>, depth: u8) {
    for tool in tools {
        if depth < 4 && tool.get("tools").is_some() {
            self::tools(list(tool.get("tools")), into, depth + 1);
        } else if let Some(name) = text_of(tool, "name").or_else(|| text_of(tool, "type")) {
            into.tool(name);
        }
    }
}

/// One item of an input, or of a response's output.
pub(super) fn read_item(item: &Value, into: &mut Pieces<'_>) {
    let kind = text_of(item, "type").unwrap_or("message");
    let id = into.ids([text_of(item, "id")]);
    match kind {
        "message" => message(item, id, into),
        "reasoning" => {
            let mut ids = id;
            ids.extend(into.ids([text_of(item, "encrypted_content")]));
            if !ids.is_empty() {
                into.other(From::Model, &Value::Null, ids);
            }
        }
        kind if kind.contains("compaction") => into.stands_for_history(item),
        kind if kind.ends_with("_call_output") => {
            let mut text = String::new();
            let output = item.get("output");
            match output.filter(|o| o.is_object()) {
                // Older clients wrap what a shell brought.
                Some(wrapped) if wrapped.get("content").is_some() => {
                    content_text(wrapped.get("content"), &mut text);
                }
                _ => content_text(output, &mut text),
            }
            let failed = text_of(item, "status") == Some("incomplete");
            into.result(text_of(item, "call_id"), None, &text, failed, id);
        }
        kind if kind.ends_with("_call") => {
            let name = text_of(item, "name").unwrap_or(kind);
            let name = match text_of(item, "namespace") {
                Some(space) => format!("{space}__{name}"),
                None => name.to_owned(),
            };
            let arguments = ["arguments", "input", "action"]
                .iter()
                .find_map(|key| item.get(*key))
                .unwrap_or(&Value::Null);
            // Hosted tools have no call id; their item's id is the call's.
            let call = text_of(item, "call_id").or_else(|| text_of(item, "id"));
            into.call(call, &name, arguments, id);
        }
        "item_reference" => into.other(From::Model, &Value::Null, id),
        _ => into.other(From::Model, item, id),
    }
}

fn message(
    item: &Value,
    id: Vec<crate::lineage::conversation::ids::ProviderId>,
    into: &mut Pieces<'_>,
) {
    let from = match text_of(item, "role") {
        Some("assistant") => From::Model,
        Some("system" | "developer") => {
            let mut text = String::new();
            content_text(item.get("content"), &mut text);
            into.system(&text);
            return;
        }
        _ => From::Agent,
    };
    match item.get("content") {
        Some(Value::String(text)) => into.words(from, text, id),
        Some(Value::Array(parts)) => {
            let mut id = Some(id);
            for part in parts {
                let ids = || Vec::new();
                match text_of(part, "text").or_else(|| text_of(part, "refusal")) {
                    Some(text) => into.words(from, text, id.take().unwrap_or_else(ids)),
                    None => into.other(from, part, id.take().unwrap_or_else(ids)),
                }
            }
        }
        _ => {}
    }
}
