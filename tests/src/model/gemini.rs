//! Gemini, `generateContent` and `streamGenerateContent`. Its calls have no ids.

use axum::response::Response;
use serde_json::{Value, json};

use super::script::{Asked, Entry, Reply, Tool};
use super::{ARGUMENTS, Memory, document, events, with_arguments};

pub(super) fn read(body: &Value, stream: bool) -> Option<Asked> {
    let mut history = Vec::new();
    let mut open: Vec<(String, Value)> = Vec::new();
    for content in body["contents"].as_array()? {
        let model = content["role"] == "model";
        for part in content["parts"].as_array().into_iter().flatten() {
            if let Some(text) = part["text"].as_str() {
                history.push(match model {
                    true => Entry::Said(text.into()),
                    false => Entry::User(text.into()),
                });
            }
            if let Some(tool) = part["functionCall"]["name"].as_str() {
                let arguments = part["functionCall"]["args"].clone();
                open.push((tool.into(), arguments.clone()));
                history.push(Entry::Call {
                    tool: tool.into(),
                    arguments,
                });
            }
            if let Some(tool) = part["functionResponse"]["name"].as_str() {
                // By name and order, as there is nothing else.
                let call = open.iter().position(|(name, _)| name == tool);
                let arguments = call.map(|n| open.remove(n).1).unwrap_or_default();
                history.push(Entry::Result {
                    tool: tool.into(),
                    arguments,
                    text: part["functionResponse"]["response"].to_string(),
                });
            }
        }
    }
    let tools = body["tools"].as_array().into_iter().flatten();
    Some(Asked {
        tools: tools
            .filter_map(|tool| tool["functionDeclarations"].as_array())
            .flatten()
            .filter_map(|function| {
                Some(Tool {
                    name: function["name"].as_str()?.into(),
                    namespace: None,
                })
            })
            .collect(),
        history,
        stream,
    })
}

pub(super) fn write(_: &Value, asked: &Asked, reply: &Reply, memory: &mut Memory) -> Response {
    let none = Vec::new();
    let (part, arguments) = match reply {
        Reply::Text(text) => (json!({"text": text}), &none),
        Reply::Call(call) => (
            json!({"functionCall": {"name": call.tool.name, "args": ARGUMENTS}}),
            &call.arguments,
        ),
    };
    let answer = json!({
        "candidates": [{
            "content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0,
        }],
        "usageMetadata": {"promptTokenCount": 1000, "candidatesTokenCount": 50, "totalTokenCount": 1050},
        "modelVersion": "scripted", "responseId": memory.hand.id(""),
    });
    let text = with_arguments(&answer, arguments);
    if asked.stream {
        events(vec![format!("data: {text}\n\n")])
    } else {
        document(text)
    }
}
