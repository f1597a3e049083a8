//! Anthropic Messages.

use axum::response::Response;
use serde_json::{Value, json};

use super::script::{Asked, Entry, Reply, Tool};
use super::{ARGUMENTS, Calls, Memory, document, events, named, object, with_arguments, words};

pub(super) fn read(body: &Value) -> Option<Asked> {
    let mut calls = Calls::default();
    let mut history = Vec::new();
    for message in body["messages"].as_array()? {
        let assistant = message["role"] == "assistant";
        let content = &message["content"];
        let said = |text: String| match assistant {
            true => Entry::Said(text),
            false => Entry::User(text),
        };
        let Some(blocks) = content.as_array() else {
            history.push(said(words(content)));
            continue;
        };
        for block in blocks {
            match block["type"].as_str() {
                Some("text") => {
                    let text = block["text"].as_str().unwrap_or_default();
                    // What clients add on their own is no word of anybody.
                    if !text.starts_with("<system-reminder>") {
                        history.push(said(text.into()));
                    }
                }
                Some("tool_use") => {
                    let tool = block["name"].as_str().unwrap_or_default();
                    history.push(calls.call(&block["id"], tool, block["input"].clone()));
                }
                Some("tool_result") => {
                    history.push(calls.result(&block["tool_use_id"], words(&block["content"])));
                }
                _ => {}
            }
        }
    }
    let tools = body["tools"].as_array().into_iter().flatten();
    Some(Asked {
        tools: tools
            .filter_map(|tool| {
                Some(Tool {
                    name: tool["name"].as_str()?.into(),
                    namespace: None,
                })
            })
            .collect(),
        history,
        stream: body["stream"] == true,
    })
}

pub(super) fn write(body: &Value, asked: &Asked, reply: &Reply, memory: &mut Memory) -> Response {
    let hand = &mut memory.hand;
    let (block, reason) = match reply {
        Reply::Text(text) => (json!({"type": "text", "text": text}), "end_turn"),
        Reply::Call(call) => {
            let (id, name) = (hand.id("toolu_01"), &call.tool.name);
            (
                json!({"type": "tool_use", "id": id, "name": name, "input": ARGUMENTS}),
                "tool_use",
            )
        }
    };
    let none = Vec::new();
    let arguments = match reply {
        Reply::Call(call) => &call.arguments,
        Reply::Text(_) => &none,
    };
    let mut message = json!({
        "id": hand.id("msg_01"), "type": "message", "role": "assistant", "model": body["model"],
        "content": [block], "stop_reason": reason, "stop_sequence": null,
        "usage": {"input_tokens": 1000, "output_tokens": 50},
    });
    if !asked.stream {
        return document(with_arguments(&message, arguments));
    }
    let mut begun = block;
    let deltas: Vec<Value> = match reply {
        Reply::Text(text) => {
            begun["text"] = "".into();
            let pieces = hand.pieces(text).into_iter();
            pieces
                .map(|piece| json!({"type": "text_delta", "text": piece}))
                .collect()
        }
        Reply::Call(_) => {
            begun["input"] = json!({});
            let text = object(arguments);
            let pieces = hand.pieces(&text).into_iter();
            pieces
                .map(|piece| json!({"type": "input_json_delta", "partial_json": piece}))
                .collect()
        }
    };
    message["content"] = json!([]);
    message["stop_reason"] = Value::Null;
    let mut all = vec![
        json!({"type": "message_start", "message": message}),
        json!({"type": "content_block_start", "index": 0, "content_block": begun}),
    ];
    for delta in deltas {
        all.push(json!({"type": "content_block_delta", "index": 0, "delta": delta}));
    }
    all.extend([
        json!({"type": "content_block_stop", "index": 0}),
        json!({
            "type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": null},
            "usage": {"output_tokens": 50},
        }),
        json!({"type": "message_stop"}),
    ]);
    events(
        all.iter()
            .map(|event| {
                named(
                    &event.to_string(),
                    event["type"].as_str().unwrap_or_default(),
                )
            })
            .collect(),
    )
}
