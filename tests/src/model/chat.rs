//! OpenAI Chat Completions.

use axum::response::Response;
use serde_json::{Value, json};

use super::script::{Asked, Entry, Reply};
use super::{Calls, Memory, document, events, functions, object, parsed, words};

pub(super) fn read(body: &Value) -> Option<Asked> {
    let mut calls = Calls::default();
    let mut history = Vec::new();
    for message in body["messages"].as_array()? {
        let text = words(&message["content"]);
        match message["role"].as_str() {
            Some("user") => history.push(Entry::User(text)),
            Some("tool") => history.push(calls.result(&message["tool_call_id"], text)),
            Some("assistant") => {
                if !text.is_empty() {
                    history.push(Entry::Said(text));
                }
                for call in message["tool_calls"].as_array().into_iter().flatten() {
                    let function = &call["function"];
                    let tool = function["name"].as_str().unwrap_or_default();
                    let arguments = parsed(&function["arguments"]);
                    history.push(calls.call(&call["id"], tool, arguments));
                }
            }
            _ => {}
        }
    }
    Some(Asked {
        tools: functions(body),
        history,
        stream: body["stream"] == true,
    })
}

pub(super) fn write(body: &Value, asked: &Asked, reply: &Reply, memory: &mut Memory) -> Response {
    let hand = &mut memory.hand;
    let id = hand.id("chatcmpl-");
    let usage = json!({"prompt_tokens": 1000, "completion_tokens": 50, "total_tokens": 1050});
    let reason = match reply {
        Reply::Text(_) => "stop",
        Reply::Call(_) => "tool_calls",
    };
    if !asked.stream {
        let message = match reply {
            Reply::Text(text) => json!({"role": "assistant", "content": text}),
            Reply::Call(call) => json!({
                "role": "assistant", "content": null,
                "tool_calls": [{
                    "id": hand.id("call_"), "type": "function",
                    "function": {"name": call.tool.name, "arguments": object(&call.arguments)},
                }],
            }),
        };
        let answer = json!({
            "id": id, "object": "chat.completion", "created": 1_800_000_000, "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": reason}],
            "usage": usage,
        });
        return document(answer.to_string());
    }
    let mut deltas = Vec::new();
    match reply {
        Reply::Text(text) => {
            deltas.push(json!({"role": "assistant", "content": ""}));
            let pieces = hand.pieces(text).into_iter();
            deltas.extend(pieces.map(|piece| json!({"content": piece})));
        }
        Reply::Call(call) => {
            let function = json!({"name": call.tool.name, "arguments": ""});
            let begun = json!({"index": 0, "id": hand.id("call_"), "type": "function", "function": function});
            deltas.push(json!({"role": "assistant", "content": null, "tool_calls": [begun]}));
            let text = object(&call.arguments);
            deltas.extend(hand.pieces(&text).into_iter().map(
                |piece| json!({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}),
            ));
        }
    }
    let chunk = |choices: Value| {
        json!({
            "id": id, "object": "chat.completion.chunk", "created": 1_800_000_000,
            "model": body["model"], "choices": choices,
        })
    };
    let mut all: Vec<Value> = deltas
        .into_iter()
        .map(|delta| chunk(json!([{"index": 0, "delta": delta, "finish_reason": null}])))
        .collect();
    all.push(chunk(
        json!([{"index": 0, "delta": {}, "finish_reason": reason}]),
    ));
    if body["stream_options"]["include_usage"] == true {
        let mut last = chunk(json!([]));
        last["usage"] = usage;
        all.push(last);
    }
    events(
        all.iter()
            .map(|event| format!("data: {event}\n\n"))
            .chain(["data: [DONE]\n\n".to_owned()])
            .collect(),
    )
}
