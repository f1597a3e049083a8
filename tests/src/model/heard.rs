//! What a real model said, read out of its answer: one document or a stream, in each of the formats.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::script::{Call, Entry, Reply, Tool};
use super::{anthropic, chat, ollama, parsed};

/// What the answer `body` to a request to `path` says. What cannot be read says nothing.
pub(super) fn heard(path: &str, body: &[u8]) -> Vec<Reply> {
    let text = String::from_utf8_lossy(body);
    let whole = serde_json::from_str::<Value>(&text).ok();
    let messages = |message: Value| json!({"messages": [message]});
    let asked = match path {
        "/v1/chat/completions" => {
            let message = match whole {
                Some(document) => document["choices"][0]["message"].clone(),
                None => of_chunks(&events(&text)),
            };
            chat::read(&messages(message))
        }
        "/v1/messages" => {
            let content = match whole {
                Some(document) => document["content"].clone(),
                None => of_blocks(&events(&text)),
            };
            anthropic::read(&messages(json!({"role": "assistant", "content": content})))
        }
        "/api/chat" => {
            let lines = text
                .lines()
                .filter_map(|line| serde_json::from_str(line).ok());
            ollama::read(&messages(of_lines(&lines.collect::<Vec<_>>())))
        }
        "/v1/responses" => {
            let document = whole.or_else(|| {
                let last = events(&text).into_iter().rev();
                last.into_iter()
                    .find(|event| event["type"] == "response.completed")
                    .map(|event| event["response"].clone())
            });
            return document
                .map(|document| of_items(&document))
                .unwrap_or_default();
        }
        _ => None,
    };
    let said = asked.map(|asked| asked.history).unwrap_or_default();
    said.into_iter().filter_map(reply).collect()
}

fn reply(entry: Entry) -> Option<Reply> {
    match entry {
        Entry::Said(text) => Some(Reply::Text(text)),
        Entry::Call { tool, arguments } => Some(call(&tool, &arguments)),
        Entry::User(_) | Entry::Result { .. } => None,
    }
}

fn call(tool: &str, arguments: &Value) -> Reply {
    let arguments = arguments.as_object().into_iter().flatten();
    Reply::Call(Call {
        tool: Tool {
            name: tool.into(),
            namespace: None,
        },
        arguments: arguments
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect(),
    })
}

/// Documents of a stream of server-sent events.
fn events(text: &str) -> Vec<Value> {
    let data = text.lines().filter_map(|line| line.strip_prefix("data:"));
    data.filter_map(|data| serde_json::from_str(data.trim()).ok())
        .collect()
}

/// A message of Chat Completions from its pieces.
fn of_chunks(events: &[Value]) -> Value {
    let mut text = String::new();
    let mut calls: BTreeMap<u64, [String; 3]> = BTreeMap::new();
    for delta in events.iter().map(|event| &event["choices"][0]["delta"]) {
        text += delta["content"].as_str().unwrap_or_default();
        for piece in delta["tool_calls"].as_array().into_iter().flatten() {
            let call = calls.entry(piece["index"].as_u64().unwrap_or_default());
            let [id, name, arguments] = call.or_default();
            *id += piece["id"].as_str().unwrap_or_default();
            *name += piece["function"]["name"].as_str().unwrap_or_default();
            *arguments += piece["function"]["arguments"].as_str().unwrap_or_default();
        }
    }
    let calls: Vec<Value> = calls
        .into_values()
        .map(|[id, name, arguments]| json!({"id": id, "function": {"name": name, "arguments": arguments}}))
        .collect();
    json!({"role": "assistant", "content": text, "tool_calls": calls})
}

/// Content blocks of Anthropic Messages from their pieces.
fn of_blocks(events: &[Value]) -> Value {
    let mut blocks: BTreeMap<u64, (Value, String)> = BTreeMap::new();
    for event in events {
        let index = event["index"].as_u64().unwrap_or_default();
        if event["type"] == "content_block_start" {
            blocks.insert(index, (event["content_block"].clone(), String::new()));
        } else if event["type"] == "content_block_delta"
            && let Some((_, pieces)) = blocks.get_mut(&index)
        {
            let delta = &event["delta"];
            let piece = delta["text"].as_str().or(delta["partial_json"].as_str());
            *pieces += piece.unwrap_or_default();
        }
    }
    let whole = blocks.into_values().map(|(mut block, pieces)| {
        match block["type"].as_str() {
            Some("text") => block["text"] = pieces.into(),
            Some("tool_use") if !pieces.is_empty() => block["input"] = parsed(&pieces.into()),
            _ => {}
        }
        block
    });
    whole.collect()
}

/// A message of Ollama's from its lines.
fn of_lines(lines: &[Value]) -> Value {
    let (mut text, mut calls) = (String::new(), Vec::new());
    for message in lines.iter().map(|line| &line["message"]) {
        text += message["content"].as_str().unwrap_or_default();
        calls.extend(
            message["tool_calls"]
                .as_array()
                .cloned()
                .unwrap_or_default(),
        );
    }
    json!({"role": "assistant", "content": text, "tool_calls": calls})
}

/// Items of a response of OpenAI's.
fn of_items(response: &Value) -> Vec<Reply> {
    let items = response["output"].as_array().into_iter().flatten();
    items
        .filter_map(|item| match item["type"].as_str()? {
            "message" => Some(Reply::Text(super::words(&item["content"]))),
            "function_call" => {
                let name = item["name"].as_str().unwrap_or_default();
                Some(call(name, &parsed(&item["arguments"])))
            }
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transfer(replies: &[Reply]) -> Option<&Value> {
        replies.iter().find_map(|reply| match reply {
            Reply::Call(call) if call.tool.name == "transfer" => {
                let amount = call.arguments.iter().find(|(name, _)| name == "amount");
                amount.map(|(_, value)| value)
            }
            _ => None,
        })
    }

    #[test]
    fn calls_are_read_out_of_documents_and_streams() {
        let cases = [
            (
                "/v1/chat/completions",
                r#"{"choices":[{"message":{"role":"assistant","content":null,"tool_calls":[{"id":"c1","function":{"name":"transfer","arguments":"{\"amount\": 100}"}}]}}]}"#,
            ),
            (
                "/v1/chat/completions",
                "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"index\":0,\"id\":\"c1\",\"function\":{\"name\":\"transfer\",\"arguments\":\"\"}}]}}]}\n\ndata: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{\\\"amount\\\":\"}}]}}]}\n\ndata: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\" 100}\"}}]}}]}\n\ndata: [DONE]\n\n",
            ),
            (
                "/v1/messages",
                r#"{"content":[{"type":"text","text":"Well."},{"type":"tool_use","id":"t1","name":"transfer","input":{"amount":100}}]}"#,
            ),
            (
                "/v1/messages",
                "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":1,\"content_block\":{\"type\":\"tool_use\",\"id\":\"t1\",\"name\":\"transfer\",\"input\":{}}}\n\ndata: {\"type\":\"content_block_delta\",\"index\":1,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"{\\\"amount\\\": 100}\"}}\n\n",
            ),
            (
                "/api/chat",
                "{\"message\":{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"function\":{\"name\":\"transfer\",\"arguments\":{\"amount\":100}}}]},\"done\":false}\n{\"message\":{\"role\":\"assistant\",\"content\":\"\"},\"done\":true}\n",
            ),
            (
                "/v1/responses",
                "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"output\":[{\"type\":\"function_call\",\"name\":\"transfer\",\"arguments\":\"{\\\"amount\\\": 100}\"}]}}\n\n",
            ),
        ];
        for (path, body) in cases {
            let replies = heard(path, body.as_bytes());
            assert_eq!(transfer(&replies), Some(&json!(100)), "{path}: {replies:?}");
        }
    }

    #[test]
    fn a_call_that_is_only_written_out_is_none() {
        let body = r#"{"choices":[{"message":{"role":"assistant","content":"{\"name\": \"transfer\", \"arguments\": {\"amount\": 100}}"}}]}"#;
        let replies = heard("/v1/chat/completions", body.as_bytes());
        assert!(matches!(&replies[..], [Reply::Text(_)]), "{replies:?}");
        assert!(heard("/v1/messages", b"<html>").is_empty());
    }
}
