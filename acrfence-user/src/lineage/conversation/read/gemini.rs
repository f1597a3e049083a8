//! Gemini `generateContent`.

use serde_json::{Map, Value};

use super::pieces::Pieces;
use super::{Unreadable, list, text_of};
use crate::lineage::conversation::history::From;

pub(super) fn request(body: &Map<String, Value>, into: &mut Pieces<'_>) -> Result<(), Unreadable> {
    for tool in list(body.get("tools")) {
        let declared = field(tool, "functionDeclarations", "function_declarations");
        for function in list(declared) {
            if let Some(name) = text_of(function, "name") {
                into.tool(name);
            }
        }
    }
    let system = body
        .get("systemInstruction")
        .or_else(|| body.get("system_instruction"));
    for part in parts(system.unwrap_or(&Value::Null)) {
        if let Some(text) = text_of(part, "text") {
            into.system(text);
        }
    }
    let mode = body
        .get("toolConfig")
        .or_else(|| body.get("tool_config"))
        .and_then(|c| field(c, "functionCallingConfig", "function_calling_config"))
        .and_then(|c| text_of(c, "mode"));
    into.no_calls = mode == Some("NONE");
    match body.get("contents") {
        Some(Value::Array(contents)) => {
            for content in contents {
                read_content(content, into);
            }
        }
        Some(content @ Value::Object(_)) => read_content(content, into),
        _ => return Err(Unreadable::NotThatFormat("it has no `contents`")),
    }
    Ok(())
}

/// One content of a request, or of a reply's candidate.
pub(super) fn read_content(content: &Value, into: &mut Pieces<'_>) {
    let from = match text_of(content, "role") {
        Some("model") => From::Model,
        _ => From::Agent,
    };
    for part in parts(content) {
        read_part(from, part, into);
    }
}

pub(super) fn read_part(from: From, part: &Value, into: &mut Pieces<'_>) {
    let sealed = field(part, "thoughtSignature", "thought_signature").and_then(Value::as_str);
    let ids = into.ids([sealed]);
    if let Some(call) = field(part, "functionCall", "function_call") {
        let name = text_of(call, "name").unwrap_or_default();
        let arguments = call.get("args").unwrap_or(&Value::Null);
        into.call(text_of(call, "id"), name, arguments, ids);
    } else if let Some(response) = field(part, "functionResponse", "function_response") {
        let brought = response.get("response").unwrap_or(&Value::Null);
        // Plain text is wrapped as `{"result": …}` or `{"output": …}`.
        let inner = brought
            .as_object()
            .filter(|fields| fields.len() == 1)
            .and_then(|fields| fields.get("result").or_else(|| fields.get("output")))
            .and_then(Value::as_str);
        let text = inner.map_or_else(|| brought.to_string(), str::to_owned);
        let is_error = brought.get("error").is_some();
        into.result(
            text_of(response, "id"),
            text_of(response, "name"),
            &text,
            is_error,
            ids,
        );
    } else if let Some(text) = text_of(part, "text") {
        if part.get("thought") == Some(&Value::Bool(true)) {
            if !ids.is_empty() {
                into.other(From::Model, &Value::Null, ids);
            }
        } else {
            into.words(from, text, ids);
        }
    } else {
        into.other(from, part, ids);
    }
}

fn parts(content: &Value) -> &[Value] {
    match content.get("parts") {
        Some(Value::Array(parts)) => parts,
        Some(part @ Value::Object(_)) => std::slice::from_ref(part),
        _ => &[],
    }
}

/// The REST form writes names in one case, some clients in the other.
fn field<'v>(value: &'v Value, camel: &str, snake: &str) -> Option<&'v Value> {
    value.get(camel).or_else(|| value.get(snake))
}
