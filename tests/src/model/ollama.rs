//! Ollama's `/api/chat`. Its calls have no ids, and it streams unless told not to.

use axum::response::Response;
use serde_json::{Value, json};

use super::script::{Asked, Entry, Reply};
use super::{ARGUMENTS, Memory, document, functions, json_lines, with_arguments};

pub(super) fn read(body: &Value) -> Option<Asked> {
    let mut history = Vec::new();
    let mut open: Vec<(String, Value)> = Vec::new();
    for message in body["messages"].as_array()? {
        let text = message["content"].as_str().unwrap_or_default().to_owned();
        match message["role"].as_str() {
            Some("user") => history.push(Entry::User(text)),
            Some("assistant") => {
                if !text.is_empty() {
                    history.push(Entry::Said(text));
                }
                for call in message["tool_calls"].as_array().into_iter().flatten() {
                    let function = &call["function"];
                    let tool = function["name"].as_str().unwrap_or_default().to_owned();
                    let arguments = function["arguments"].clone();
                    open.push((tool.clone(), arguments.clone()));
                    history.push(Entry::Call { tool, arguments });
                }
            }
            Some("tool") if !open.is_empty() => {
                // By name where it is given, else by order.
                let named = |(name, _): &(String, Value)| message["tool_name"] == name.as_str();
                let (tool, arguments) = open.remove(open.iter().position(named).unwrap_or(0));
                history.push(Entry::Result {
                    tool,
                    arguments,
                    text,
                });
            }
            _ => {}
        }
    }
    Some(Asked {
        tools: functions(body),
        history,
        stream: body["stream"] != false,
    })
}

pub(super) fn write(body: &Value, asked: &Asked, reply: &Reply, memory: &mut Memory) -> Response {
    let line = |message: Value, done: bool| {
        let mut line = json!({
            "model": body["model"], "created_at": "2027-01-15T08:00:00Z", "message": message,
            "done": done,
        });
        if done {
            line["done_reason"] = "stop".into();
            line["eval_count"] = 50.into();
            line["prompt_eval_count"] = 1000.into();
        }
        line
    };
    let says = |text: &str| json!({"role": "assistant", "content": text});
    let none = Vec::new();
    let arguments = match reply {
        Reply::Call(call) => &call.arguments,
        Reply::Text(_) => &none,
    };
    let whole = match reply {
        Reply::Text(text) => says(text),
        Reply::Call(call) => json!({
            "role": "assistant", "content": "",
            "tool_calls": [{"function": {"name": call.tool.name, "arguments": ARGUMENTS}}],
        }),
    };
    if !asked.stream {
        return document(with_arguments(&line(whole, true), arguments));
    }
    let parts: Vec<Value> = match reply {
        Reply::Text(text) => memory.hand.pieces(text).into_iter().map(says).collect(),
        Reply::Call(_) => vec![whole],
    };
    let mut lines: Vec<Value> = parts.into_iter().map(|part| line(part, false)).collect();
    lines.push(line(says(""), true));
    json_lines(
        lines
            .iter()
            .map(|line| with_arguments(line, arguments) + "\n")
            .collect(),
    )
}
