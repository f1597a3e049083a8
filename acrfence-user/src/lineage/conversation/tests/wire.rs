//! What clients put on the wire, written anew after what they were seen to send.

use serde_json::{Value, json};

use crate::lineage::conversation::Format;
use crate::words::Header;

/// A program that talks to a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// A coding agent over Messages: session in header and metadata, cache markers, reminders.
    ClaudeCode,
    /// A plain program over Messages.
    AnthropicSdk,
    /// A coding agent over Responses: session and thread in headers, ids on every item.
    Codex,
    /// A plain program over Responses that sends all of its input again.
    ResponsesFull,
    /// A plain program over Responses that names the response before.
    ResponsesChained,
    /// A plain program over Chat Completions.
    ChatSdk,
    /// A plain program over Ollama's own API: no ids.
    Ollama,
    /// A plain program over Gemini: no ids.
    Gemini,
}

pub const ALL: [Client; 8] = [
    Client::ClaudeCode,
    Client::AnthropicSdk,
    Client::Codex,
    Client::ResponsesFull,
    Client::ResponsesChained,
    Client::ChatSdk,
    Client::Ollama,
    Client::Gemini,
];

impl Client {
    pub fn format(self) -> Format {
        match self {
            Self::ClaudeCode | Self::AnthropicSdk => Format::AnthropicMessages,
            Self::Codex | Self::ResponsesFull | Self::ResponsesChained => Format::OpenAiResponses,
            Self::ChatSdk => Format::OpenAiChat,
            Self::Ollama => Format::OllamaChat,
            Self::Gemini => Format::Gemini,
        }
    }

    pub fn has_ids(self) -> bool {
        !matches!(self, Self::Ollama | Self::Gemini)
    }

    pub fn has_session(self) -> bool {
        matches!(self, Self::ClaudeCode | Self::Codex)
    }

    pub fn url(self) -> &'static str {
        match self {
            Self::ClaudeCode | Self::AnthropicSdk => {
                "https://api.anthropic.test/v1/messages?beta=true"
            }
            Self::Codex | Self::ResponsesFull | Self::ResponsesChained => {
                "https://api.openai.test/v1/responses"
            }
            Self::ChatSdk => "https://llm.test/v1/chat/completions",
            Self::Ollama => "http://127.0.0.1:11434/api/chat",
            Self::Gemini => "https://gemini.test/v1beta/models/g-2:streamGenerateContent?alt=sse",
        }
    }
}

/// A message of a history.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    User { text: String, id: String },
    Model(Answer),
    Results(Vec<ToolResult>),
}

/// What the model answered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    pub response: String,
    pub text: Option<String>,
    pub calls: Vec<ToolUse>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ToolUse {
    pub id: String,
    pub name: String,
    pub arguments: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ToolResult {
    pub id: String,
    pub name: String,
    pub text: String,
    pub is_error: bool,
}

/// Everything about a request beside its history.
#[derive(Clone, Debug)]
pub struct Dress {
    pub client: Client,
    pub session: String,
    pub child: Option<String>,
    pub parent: Option<String>,
    pub system: String,
    pub reminder: String,
    pub tools: Vec<String>,
    pub stream: bool,
    pub window: u64,
    pub kind: &'static str,
    pub extra_headers: Vec<(String, String)>,
}

impl Dress {
    pub fn new(client: Client, session: &str) -> Self {
        Self {
            client,
            session: session.into(),
            child: None,
            parent: None,
            system: "You are a careful assistant.".into(),
            reminder: "today is monday".into(),
            tools: vec!["mcp__bank__check".into(), "mcp__bank__pay".into()],
            stream: true,
            window: 0,
            kind: "turn",
            extra_headers: Vec::new(),
        }
    }
}

/// A request as it crosses the boundary.
#[derive(Clone, Debug)]
pub struct Wire {
    pub client: Client,
    pub headers: Vec<Header>,
    pub body: Vec<u8>,
}

/// A request with this history. `since` is the response that a chained client names, and the number
/// of messages that lie before it.
pub fn request(dress: &Dress, history: &[Message], since: Option<(&str, usize)>) -> Wire {
    let body = match dress.client {
        Client::ClaudeCode | Client::AnthropicSdk => messages(dress, history),
        Client::Codex | Client::ResponsesFull => responses(dress, history, None),
        Client::ResponsesChained => match since {
            Some((id, known)) => responses(dress, &history[known..], Some(id)),
            None => responses(dress, history, None),
        },
        Client::ChatSdk => chat(dress, history),
        Client::Ollama => ollama(dress, history),
        Client::Gemini => gemini(dress, history),
    };
    Wire {
        client: dress.client,
        headers: headers(dress),
        body: serde_json::to_vec(&body).unwrap(),
    }
}

fn headers(dress: &Dress) -> Vec<Header> {
    let mut headers = vec![("content-type".to_owned(), "application/json".to_owned())];
    match dress.client {
        Client::ClaudeCode => {
            headers.push(("X-Claude-Code-Session-Id".into(), dress.session.clone()));
            if let Some(child) = &dress.child {
                headers.push(("x-claude-code-agent-id".into(), child.clone()));
            }
        }
        Client::Codex => {
            let thread = dress.child.as_ref().unwrap_or(&dress.session);
            headers.push(("originator".into(), "codex_exec".into()));
            headers.push(("session-id".into(), dress.session.clone()));
            headers.push(("thread-id".into(), thread.clone()));
            headers.push((
                "x-codex-window-id".into(),
                format!("{thread}:{}", dress.window),
            ));
            headers.push((
                "x-codex-turn-metadata".into(),
                codex_turn(dress).to_string(),
            ));
            if let Some(parent) = &dress.parent {
                headers.push(("x-codex-parent-thread-id".into(), parent.clone()));
            }
        }
        _ => {}
    }
    headers.extend(dress.extra_headers.clone());
    headers
        .into_iter()
        .map(|(name, value)| Header::new(name, value))
        .collect()
}

fn codex_turn(dress: &Dress) -> Value {
    let thread = dress.child.as_ref().unwrap_or(&dress.session);
    json!({
        "session_id": dress.session, "thread_id": thread, "agent_name": "/root",
        "request_kind": dress.kind, "window_number": dress.window, "history_initialization": "new",
    })
}

fn messages(dress: &Dress, history: &[Message]) -> Value {
    let is_coding = dress.client == Client::ClaudeCode;
    let mut out: Vec<Value> = Vec::new();
    let last = history.len().saturating_sub(1);
    for (at, message) in history.iter().enumerate() {
        let marker = is_coding && at == last;
        match message {
            Message::User { text, .. } => {
                // The client shows the newest message as blocks and older ones as text.
                if is_coding && at == 0 {
                    out.push(json!({"role": "user", "content": [
                        {"type": "text", "text": format!("<system-reminder>\n{}\n</system-reminder>\n\n", dress.reminder)},
                        {"type": "text", "text": text},
                    ]}));
                    out.push(json!({"role": "system", "content": "Available agent types for the Agent tool:\n- claude"}));
                } else if marker {
                    out.push(json!({"role": "user", "content": [{"type": "text", "text": text}]}));
                } else {
                    out.push(json!({"role": "user", "content": text}));
                }
            }
            Message::Model(answer) => {
                let mut blocks = Vec::new();
                if let Some(text) = &answer.text {
                    blocks.push(json!({"type": "text", "text": text}));
                }
                for call in &answer.calls {
                    blocks.push(json!({"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}));
                }
                out.push(json!({"role": "assistant", "content": blocks}));
            }
            Message::Results(results) => {
                let blocks: Vec<Value> = results
                    .iter()
                    .map(|r| {
                        let mut block = json!({"tool_use_id": r.id, "type": "tool_result", "content": [{"type": "text", "text": r.text}]});
                        if r.is_error {
                            block["is_error"] = json!(true);
                        }
                        block
                    })
                    .collect();
                out.push(json!({"role": "user", "content": blocks}));
            }
        }
        if marker
            && let Some(block) = out
                .last_mut()
                .and_then(|m| m["content"].as_array_mut())
                .and_then(|blocks| blocks.last_mut())
        {
            block["cache_control"] = json!({"type": "ephemeral"});
        }
    }
    let mut body = json!({
        "model": "claude-x", "max_tokens": 4096, "stream": dress.stream, "messages": out,
        "system": [
            {"type": "text", "text": "x-billing: 1"},
            {"type": "text", "text": dress.system, "cache_control": {"type": "ephemeral"}},
        ],
        "tools": dress.tools.iter().map(|name| json!({"name": name, "input_schema": {"type": "object"}})).collect::<Vec<_>>(),
    });
    if is_coding {
        let user = json!({"device_id": "d", "account_uuid": "", "session_id": dress.session});
        body["metadata"] = json!({"user_id": user.to_string()});
    }
    body
}

fn responses(dress: &Dress, history: &[Message], previous: Option<&str>) -> Value {
    let is_coding = dress.client == Client::Codex;
    let mut input: Vec<Value> = Vec::new();
    if is_coding {
        input.push(json!({"type": "message", "id": "msg_cbe2ba78-9ea1-59af-a082-b11ef89a3760", "role": "developer",
            "content": [{"type": "input_text", "text": dress.system}]}));
        input.push(json!({"type": "message", "id": format!("msg_env-{}", dress.session), "role": "user",
            "content": [{"type": "input_text", "text": format!("<environment_context>\n  <now>{}</now>\n</environment_context>", dress.reminder)}]}));
    }
    for message in history {
        match message {
            Message::User { text, id } => {
                let mut item = json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]});
                if is_coding {
                    item["id"] = json!(id);
                }
                input.push(item);
            }
            Message::Model(answer) => input.extend(output_items(answer)),
            Message::Results(results) => {
                for r in results {
                    let output = if is_coding && !r.is_error {
                        json!([
                            {"type": "input_text", "text": "Wall time: 0.0033 seconds\nOutput:"},
                            {"type": "input_text", "text": r.text},
                        ])
                    } else {
                        json!(r.text)
                    };
                    input.push(
                        json!({"type": "function_call_output", "call_id": r.id, "output": output}),
                    );
                }
            }
        }
    }
    let mut body = json!({
        "model": "gpt-x", "stream": dress.stream, "store": !is_coding, "input": input,
        "tools": dress.tools.iter().map(|name| json!({"type": "function", "name": name, "parameters": {"type": "object"}})).collect::<Vec<_>>(),
    });
    if !is_coding {
        body["instructions"] = json!(dress.system);
    }
    if is_coding {
        body["prompt_cache_key"] = json!(dress.session);
        body["client_metadata"] = json!({"x-codex-turn-metadata": codex_turn(dress).to_string()});
    }
    if let Some(id) = previous {
        body["previous_response_id"] = json!(id);
    }
    body
}

fn output_items(answer: &Answer) -> Vec<Value> {
    let mut items = Vec::new();
    if let Some(text) = &answer.text {
        items.push(json!({"type": "message", "id": format!("msg_{}", tail(&answer.response)), "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": text, "annotations": []}]}));
    }
    for call in &answer.calls {
        items.push(json!({"type": "function_call", "id": format!("fc_{}", tail(&call.id)), "status": "completed",
            "name": call.name, "arguments": call.arguments.to_string(), "call_id": call.id}));
    }
    items
}

fn tail(id: &str) -> &str {
    id.split_once('_').map_or(id, |(_, tail)| tail)
}

fn chat(dress: &Dress, history: &[Message]) -> Value {
    let mut out = vec![json!({"role": "system", "content": dress.system})];
    for message in history {
        match message {
            Message::User { text, .. } => out.push(json!({"role": "user", "content": text})),
            Message::Model(answer) => out.push(chat_message(answer)),
            Message::Results(results) => {
                for r in results {
                    out.push(json!({"role": "tool", "tool_call_id": r.id, "content": r.text}));
                }
            }
        }
    }
    let mut body = json!({"model": "m", "messages": out, "stream": dress.stream});
    if !dress.tools.is_empty() {
        body["tools"] = dress
            .tools
            .iter()
            .map(|name| json!({"type": "function", "function": {"name": name, "parameters": {}}}))
            .collect();
    }
    body
}

fn chat_message(answer: &Answer) -> Value {
    let mut message = json!({"role": "assistant", "content": answer.text});
    if !answer.calls.is_empty() {
        message["tool_calls"] = answer
            .calls
            .iter()
            .map(|c| json!({"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments.to_string()}}))
            .collect();
    }
    message
}

fn ollama(dress: &Dress, history: &[Message]) -> Value {
    let mut out = vec![json!({"role": "system", "content": dress.system})];
    for message in history {
        match message {
            Message::User { text, .. } => out.push(json!({"role": "user", "content": text})),
            Message::Model(answer) => out.push(ollama_message(answer)),
            Message::Results(results) => {
                for r in results {
                    out.push(json!({"role": "tool", "tool_name": r.name, "content": r.text}));
                }
            }
        }
    }
    json!({"model": "qwen", "messages": out, "stream": dress.stream,
        "tools": dress.tools.iter().map(|name| json!({"type": "function", "function": {"name": name, "parameters": {}}})).collect::<Vec<_>>()})
}

fn ollama_message(answer: &Answer) -> Value {
    let calls: Vec<Value> = answer
        .calls
        .iter()
        .map(|c| json!({"function": {"name": c.name, "arguments": c.arguments}}))
        .collect();
    let mut message =
        json!({"role": "assistant", "content": answer.text.clone().unwrap_or_default()});
    if !calls.is_empty() {
        message["tool_calls"] = json!(calls);
    }
    message
}

fn gemini(dress: &Dress, history: &[Message]) -> Value {
    let mut contents = Vec::new();
    for message in history {
        match message {
            Message::User { text, .. } => {
                contents.push(json!({"role": "user", "parts": [{"text": text}]}));
            }
            Message::Model(answer) => {
                contents.push(json!({"role": "model", "parts": gemini_parts(answer)}));
            }
            Message::Results(results) => {
                let parts: Vec<Value> = results
                    .iter()
                    .map(|r| json!({"functionResponse": {"name": r.name, "response": gemini_response(r)}}))
                    .collect();
                contents.push(json!({"role": "user", "parts": parts}));
            }
        }
    }
    json!({
        "systemInstruction": {"parts": [{"text": dress.system}]},
        "contents": contents,
        "tools": [{"functionDeclarations": dress.tools.iter().map(|name| json!({"name": name})).collect::<Vec<_>>()}],
    })
}

fn gemini_response(result: &ToolResult) -> Value {
    match serde_json::from_str::<Value>(&result.text) {
        Ok(object @ Value::Object(_)) => object,
        _ => json!({"result": result.text}),
    }
}

fn gemini_parts(answer: &Answer) -> Vec<Value> {
    let mut parts = Vec::new();
    if let Some(text) = &answer.text {
        parts.push(json!({"text": text}));
    }
    for call in &answer.calls {
        parts.push(json!({"functionCall": {"name": call.name, "args": call.arguments}}));
    }
    parts
}

/// The reply that carries this answer.
pub fn reply(dress: &Dress, answer: &Answer) -> Vec<u8> {
    match (dress.client.format(), dress.stream) {
        (Format::AnthropicMessages, false) => anthropic_whole(answer).to_string().into_bytes(),
        (Format::AnthropicMessages, true) => anthropic_stream(answer),
        (Format::OpenAiChat, false) => {
            let finish = if answer.calls.is_empty() { "stop" } else { "tool_calls" };
            json!({"id": "chatcmpl-1", "object": "chat.completion",
                "choices": [{"index": 0, "finish_reason": finish, "message": chat_message(answer)}]})
            .to_string()
            .into_bytes()
        }
        (Format::OpenAiChat, true) => chat_stream(answer),
        (Format::OpenAiResponses, false) => {
            json!({"id": answer.response, "object": "response", "status": "completed", "output": output_items(answer)})
                .to_string()
                .into_bytes()
        }
        (Format::OpenAiResponses, true) => responses_stream(answer),
        (Format::OllamaChat, false) => {
            json!({"model": "qwen", "message": ollama_message(answer), "done": true})
                .to_string()
                .into_bytes()
        }
        (Format::OllamaChat, true) => ollama_stream(answer),
        (Format::Gemini, _) => gemini_stream(dress, answer),
    }
}

fn events(list: &[(&str, Value)]) -> Vec<u8> {
    list.iter()
        .map(|(name, data)| format!("event: {name}\ndata: {data}\n\n"))
        .collect::<String>()
        .into_bytes()
}

fn anthropic_whole(answer: &Answer) -> Value {
    let mut blocks = Vec::new();
    if let Some(text) = &answer.text {
        blocks.push(json!({"type": "text", "text": text}));
    }
    for call in &answer.calls {
        blocks.push(
            json!({"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}),
        );
    }
    json!({"id": answer.response, "type": "message", "role": "assistant", "content": blocks,
        "stop_reason": if answer.calls.is_empty() { "end_turn" } else { "tool_use" }})
}

fn anthropic_stream(answer: &Answer) -> Vec<u8> {
    let mut list = vec![(
        "message_start",
        json!({"type": "message_start", "message": {"id": answer.response, "role": "assistant", "content": []}}),
    )];
    let mut index = 0;
    if let Some(text) = &answer.text {
        list.push(("content_block_start", json!({"type": "content_block_start", "index": index, "content_block": {"type": "text", "text": ""}})));
        for half in halves(text) {
            list.push(("content_block_delta", json!({"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": half}})));
        }
        list.push((
            "content_block_stop",
            json!({"type": "content_block_stop", "index": index}),
        ));
        index += 1;
    }
    list.push(("ping", json!({"type": "ping"})));
    for call in &answer.calls {
        list.push(("content_block_start", json!({"type": "content_block_start", "index": index, "content_block": {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}})));
        for half in halves(&call.arguments.to_string()) {
            list.push(("content_block_delta", json!({"type": "content_block_delta", "index": index, "delta": {"type": "input_json_delta", "partial_json": half}})));
        }
        list.push((
            "content_block_stop",
            json!({"type": "content_block_stop", "index": index}),
        ));
        index += 1;
    }
    list.push((
        "message_delta",
        json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}),
    ));
    list.push(("message_stop", json!({"type": "message_stop"})));
    events(&list)
}

fn halves(text: &str) -> [&str; 2] {
    let mut middle = text.len() / 2;
    while !text.is_char_boundary(middle) {
        middle += 1;
    }
    let (a, b) = text.split_at(middle);
    [a, b]
}

fn chat_stream(answer: &Answer) -> Vec<u8> {
    let chunk = |delta: Value, finish: Value| {
        format!(
            "data: {}\n\n",
            json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
        )
    };
    let mut out = chunk(json!({"role": "assistant", "content": ""}), Value::Null);
    if let Some(text) = &answer.text {
        for half in halves(text) {
            out += &chunk(json!({"content": half}), Value::Null);
        }
    }
    for (index, call) in answer.calls.iter().enumerate() {
        out += &chunk(
            json!({"tool_calls": [{"index": index, "id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}]}),
            Value::Null,
        );
        for half in halves(&call.arguments.to_string()) {
            out += &chunk(
                json!({"tool_calls": [{"index": index, "function": {"arguments": half}}]}),
                Value::Null,
            );
        }
    }
    out += &chunk(json!({}), json!("stop"));
    out += "data: [DONE]\n\n";
    out.into_bytes()
}

fn responses_stream(answer: &Answer) -> Vec<u8> {
    let mut list = vec![(
        "response.created",
        json!({"type": "response.created", "response": {"id": answer.response, "status": "in_progress", "output": []}}),
    )];
    for (index, item) in output_items(answer).into_iter().enumerate() {
        list.push((
            "response.output_item.added",
            json!({"type": "response.output_item.added", "output_index": index, "item": item}),
        ));
        list.push((
            "response.output_item.done",
            json!({"type": "response.output_item.done", "output_index": index, "item": item}),
        ));
    }
    list.push(("response.completed", json!({"type": "response.completed", "response": {"id": answer.response, "status": "completed", "output": output_items(answer)}})));
    events(&list)
}

fn ollama_stream(answer: &Answer) -> Vec<u8> {
    let mut out = String::new();
    if let Some(text) = &answer.text {
        for half in halves(text) {
            out += &json!({"model": "qwen", "message": {"role": "assistant", "content": half}, "done": false}).to_string();
            out.push('\n');
        }
    }
    for call in &answer.calls {
        out += &json!({"model": "qwen", "message": {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": call.name, "arguments": call.arguments}}]}, "done": false}).to_string();
        out.push('\n');
    }
    out += &json!({"model": "qwen", "message": {"role": "assistant", "content": ""}, "done": true, "done_reason": "stop"}).to_string();
    out.push('\n');
    out.into_bytes()
}

fn gemini_stream(dress: &Dress, answer: &Answer) -> Vec<u8> {
    let mut parts = gemini_parts(answer);
    if dress.stream
        && let Some(text) = &answer.text
    {
        let [a, b] = halves(text);
        parts.splice(0..1, [json!({"text": a}), json!({"text": b})]);
    }
    let count = parts.len();
    let chunks: Vec<Value> = parts
        .into_iter()
        .enumerate()
        .map(|(at, part)| {
            let mut candidate = json!({"index": 0, "content": {"role": "model", "parts": [part]}});
            if at + 1 == count {
                candidate["finishReason"] = json!("STOP");
            }
            json!({"candidates": [candidate], "modelVersion": "g-2"})
        })
        .collect();
    if dress.stream {
        chunks
            .iter()
            .map(|c| format!("data: {c}\r\n\r\n"))
            .collect::<String>()
            .into_bytes()
    } else {
        Value::Array(chunks).to_string().into_bytes()
    }
}
