//! OpenAI Responses.

use axum::response::Response;
use serde_json::{Value, json};

use super::script::{Asked, Entry, Reply, Tool};
use super::{Calls, Memory, document, events, named, object, parsed, words};

pub(super) fn read(body: &Value, memory: &mut Memory) -> Option<Asked> {
    let mut calls = Calls::default();
    let mut history = Vec::new();
    for item in items(body, memory)? {
        match item["type"].as_str().unwrap_or("message") {
            "message" => {
                let text = words(&item["content"]);
                match item["role"].as_str() {
                    Some("assistant") => history.push(Entry::Said(text)),
                    // What clients add on their own is no word of anybody.
                    Some("user") if !text.starts_with('<') => history.push(Entry::User(text)),
                    _ => {}
                }
            }
            "function_call" => {
                let tool = item["name"].as_str().unwrap_or_default();
                history.push(calls.call(&item["call_id"], tool, parsed(&item["arguments"])));
            }
            "function_call_output" => {
                let text = match &item["output"] {
                    Value::String(text) => text.clone(),
                    other => words(other),
                };
                history.push(calls.result(&item["call_id"], text));
            }
            _ => {}
        }
    }
    let mut tools = Vec::new();
    for tool in body["tools"].as_array().into_iter().flatten() {
        gather(tool, None, &mut tools);
    }
    Some(Asked {
        tools,
        history,
        stream: body["stream"] == true,
    })
}

/// What the request shows, behind what the provider kept.
fn items(body: &Value, memory: &Memory) -> Option<Vec<Value>> {
    let input = match &body["input"] {
        Value::String(text) => vec![json!({"role": "user", "content": text})],
        Value::Array(items) => items.clone(),
        _ => return None,
    };
    let input = input.into_iter().map(|item| {
        let named = item["type"] == "item_reference";
        let kept = item["id"].as_str().and_then(|id| memory.items.get(id));
        if named {
            kept.cloned().unwrap_or(item)
        } else {
            item
        }
    });
    let input: Vec<Value> = input.collect();
    let earlier = body["previous_response_id"]
        .as_str()
        .map(|id| memory.kept.get(id).cloned().unwrap_or_default());
    Some([earlier.unwrap_or_default(), input].concat())
}

/// Tools, also those in namespaces.
fn gather(tool: &Value, namespace: Option<&str>, tools: &mut Vec<Tool>) {
    if let Some(inner) = tool["tools"].as_array() {
        for inner_tool in inner {
            gather(inner_tool, tool["name"].as_str(), tools);
        }
    } else if let Some(name) = tool["name"].as_str() {
        tools.push(Tool {
            name: name.into(),
            namespace: namespace.map(Into::into),
        });
    }
}

pub(super) fn write(body: &Value, asked: &Asked, reply: &Reply, memory: &mut Memory) -> Response {
    let id = memory.hand.id("resp_");
    let item = match reply {
        Reply::Text(text) => json!({
            "type": "message", "id": memory.hand.id("msg_"), "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": text, "annotations": []}],
        }),
        Reply::Call(call) => {
            let mut item = json!({
                "type": "function_call", "id": memory.hand.id("fc_"), "status": "completed",
                "call_id": memory.hand.id("call_"), "name": call.tool.name,
                "arguments": object(&call.arguments),
            });
            if let Some(namespace) = &call.tool.namespace {
                item["namespace"] = namespace.as_str().into();
            }
            item
        }
    };
    if body["store"] != false
        && let Some(mut kept) = items(body, memory)
    {
        let item_id = item["id"].as_str().unwrap_or_default();
        memory.items.insert(item_id.into(), item.clone());
        kept.push(item.clone());
        memory.kept.insert(id.clone(), kept);
    }
    let response = |status: &str, output: Value| {
        json!({
            "id": id, "object": "response", "created_at": 1_800_000_000, "status": status,
            "model": body["model"], "output": output, "error": null, "incomplete_details": null,
            "instructions": null, "metadata": {}, "parallel_tool_calls": false,
            "tool_choice": "auto", "tools": [], "previous_response_id": body["previous_response_id"],
            "usage": {
                "input_tokens": 1000, "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": 50, "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": 1050,
            },
        })
    };
    if !asked.stream {
        return document(response("completed", json!([item])).to_string());
    }
    let mut all =
        vec![json!({"type": "response.created", "response": response("in_progress", json!([]))})];
    let mut begun = item.clone();
    begun["status"] = "in_progress".into();
    let item_id = &item["id"];
    match reply {
        Reply::Text(text) => {
            begun["content"] = json!([]);
            let part = |text: &str| json!({"type": "output_text", "text": text, "annotations": []});
            all.push(
                json!({"type": "response.output_item.added", "output_index": 0, "item": begun}),
            );
            all.push(json!({
                "type": "response.content_part.added", "item_id": item_id, "output_index": 0,
                "content_index": 0, "part": part(""),
            }));
            for piece in memory.hand.pieces(text) {
                all.push(json!({
                    "type": "response.output_text.delta", "item_id": item_id, "output_index": 0,
                    "content_index": 0, "delta": piece, "logprobs": [],
                }));
            }
            all.push(json!({
                "type": "response.output_text.done", "item_id": item_id, "output_index": 0,
                "content_index": 0, "text": text, "logprobs": [],
            }));
            all.push(json!({
                "type": "response.content_part.done", "item_id": item_id, "output_index": 0,
                "content_index": 0, "part": part(text),
            }));
        }
        Reply::Call(call) => {
            begun["arguments"] = "".into();
            all.push(
                json!({"type": "response.output_item.added", "output_index": 0, "item": begun}),
            );
            let text = object(&call.arguments);
            for piece in memory.hand.pieces(&text) {
                all.push(json!({
                    "type": "response.function_call_arguments.delta", "item_id": item_id,
                    "output_index": 0, "delta": piece,
                }));
            }
            all.push(json!({
                "type": "response.function_call_arguments.done", "item_id": item_id,
                "output_index": 0, "name": call.tool.name, "arguments": text,
            }));
        }
    }
    all.push(json!({"type": "response.output_item.done", "output_index": 0, "item": item}));
    all.push(
        json!({"type": "response.completed", "response": response("completed", json!([item]))}),
    );
    for (n, event) in all.iter_mut().enumerate() {
        event["sequence_number"] = n.into();
    }
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
