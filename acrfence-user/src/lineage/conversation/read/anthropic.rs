//! Anthropic Messages.

use serde_json::{Map, Value};

use super::pieces::Pieces;
use super::{Unreadable, list, text_of};
use crate::lineage::conversation::history::From;

pub(super) fn request(body: &Map<String, Value>, into: &mut Pieces<'_>) -> Result<(), Unreadable> {
    match body.get("system") {
        Some(Value::String(text)) => into.system(text),
        Some(Value::Array(blocks)) => {
            for text in blocks.iter().filter_map(|block| text_of(block, "text")) {
                into.system(text);
            }
        }
        _ => {}
    }
    for tool in list(body.get("tools")) {
        if let Some(name) = text_of(tool, "name") {
            into.tool(name);
        }
    }
    into.no_calls = body
        .get("tool_choice")
        .and_then(|choice| text_of(choice, "type"))
        == Some("none");
    let messages = body
        .get("messages")
        .and_then(Value::as_array)
        .ok_or(Unreadable::NotThatFormat("it has no `messages`"))?;
    for message in messages {
        let from = match text_of(message, "role") {
            Some("assistant") => From::Model,
            Some("system") => {
                if let Some(text) = text_of(message, "content") {
                    into.system(text);
                }
                for block in list(message.get("content")) {
                    if let Some(text) = text_of(block, "text") {
                        into.system(text);
                    }
                }
                continue;
            }
            _ => From::Agent,
        };
        match message.get("content") {
            Some(Value::String(text)) => into.words(from, text, Vec::new()),
            Some(Value::Array(blocks)) => {
                for block in blocks {
                    read_block(from, block, into);
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn read_block(from: From, block: &Value, into: &mut Pieces<'_>) {
    match text_of(block, "type").unwrap_or("text") {
        "text" => into.words(from, text_of(block, "text").unwrap_or_default(), Vec::new()),
        "tool_use" | "server_tool_use" | "mcp_tool_use" => into.call(
            text_of(block, "id"),
            text_of(block, "name").unwrap_or_default(),
            block.get("input").unwrap_or(&Value::Null),
            Vec::new(),
        ),
        kind if kind.ends_with("tool_result") => {
            let mut text = String::new();
            content_text(block.get("content"), &mut text);
            let is_error = block.get("is_error") == Some(&Value::Bool(true));
            into.result(
                text_of(block, "tool_use_id"),
                None,
                &text,
                is_error,
                Vec::new(),
            );
        }
        "thinking" | "redacted_thinking" => {
            let sealed = text_of(block, "signature").or_else(|| text_of(block, "data"));
            let ids = into.ids([sealed]);
            if !ids.is_empty() {
                into.other(from, &Value::Null, ids);
            }
        }
        "compaction" => into.stands_for_history(block),
        _ => {
            // A picture or document: its cache marker is no part of it.
            let mut bare = block.clone();
            if let Some(fields) = bare.as_object_mut() {
                fields.remove("cache_control");
            }
            into.other(from, &bare, Vec::new());
        }
    }
}

/// The text of a result's content: a string, or blocks of text; other blocks as their JSON.
pub(super) fn content_text(content: Option<&Value>, into: &mut String) {
    match content {
        None | Some(Value::Null) => {}
        Some(Value::String(text)) => into.push_str(text),
        Some(Value::Array(blocks)) => {
            for block in blocks {
                if !into.is_empty() {
                    into.push('\n');
                }
                match text_of(block, "text").or(block.as_str()) {
                    Some(text) => into.push_str(text),
                    None => into.push_str(&block.to_string()),
                }
            }
        }
        Some(other) => into.push_str(&other.to_string()),
    }
}
