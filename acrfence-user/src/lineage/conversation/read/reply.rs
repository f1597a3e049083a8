//! Replies, whole or while they stream.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::pieces::Pieces;
use super::{gemini, list, ollama, openai_chat, openai_responses, text_of};
use crate::lineage::conversation::format::Format;
use crate::lineage::conversation::history::{From, Reply};
use crate::lineage::conversation::mark::Marker;

/// Most bytes of a reply that are kept while it streams.
const MOST_KEPT: usize = 16 << 20;

/// Most blocks, calls or items of one reply.
const MOST_PARTS: usize = 4096;

/// Reads a reply as it comes in: server-sent events, JSON lines, or one JSON document.
///
/// Calls are there as soon as they are whole: an agent may run a tool before the answer has ended.
pub struct ReplyReader {
    marker: Marker,
    format: Format,
    failed: bool,
    /// Bytes of the line that is not complete yet.
    line: Vec<u8>,
    /// Data lines of the event that is not complete yet.
    data: Vec<u8>,
    form: Option<Form>,
    kept: usize,
    overflowed: bool,
    so_far: SoFar,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Events,
    Lines,
    Document,
}

/// What was put together so far.
#[derive(Default)]
struct SoFar {
    id: Option<String>,
    blocks: BTreeMap<u64, Block>,
    /// Items and parts that came whole.
    whole: Vec<Value>,
    ended: bool,
    error: bool,
}

#[derive(Default)]
struct Block {
    kind: Kind,
    id: Option<String>,
    name: String,
    /// Text, arguments, or a signature.
    text: String,
    done: bool,
    /// Arguments that came at once.
    given: Option<Value>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Text,
    Call,
    Sealed,
}

impl ReplyReader {
    /// Begins to read a reply with that HTTP status.
    pub fn new(marker: Marker, format: Format, status: u16) -> Self {
        Self {
            marker,
            format,
            failed: !(200..300).contains(&status),
            line: Vec::new(),
            data: Vec::new(),
            form: None,
            kept: 0,
            overflowed: false,
            so_far: SoFar::default(),
        }
    }

    /// Takes in more of the (content-decoded) body. Says whether a call was completed by it.
    pub fn push(&mut self, bytes: &[u8]) -> bool {
        if self.failed || self.overflowed {
            return false;
        }
        let before = self.calls();
        for chunk in bytes.split_inclusive(|b| *b == b'\n') {
            self.kept += chunk.len();
            if self.kept > MOST_KEPT {
                self.overflowed = true;
                self.line = Vec::new();
                break;
            }
            self.line.extend_from_slice(chunk);
            if chunk.ends_with(b"\n") && self.form() != Some(Form::Document) {
                let line = std::mem::take(&mut self.line);
                self.take_line(&line);
            }
        }
        self.calls() > before
    }

    /// What came so far.
    pub fn so_far(&self) -> Reply {
        self.reply(self.so_far.ended)
    }

    /// The reply, now that nothing more comes.
    pub fn finish(mut self) -> Reply {
        let rest = std::mem::take(&mut self.line);
        if !self.failed && !self.overflowed {
            match self.form {
                Some(Form::Events) => {
                    self.take_line(&rest);
                    self.take_line(b"\n");
                }
                Some(Form::Lines) => self.take_line(&rest),
                Some(Form::Document) | None => self.take_document(&rest),
            }
        }
        let complete = self.so_far.ended && !self.overflowed;
        self.reply(complete)
    }

    fn calls(&self) -> usize {
        let blocks = self.so_far.blocks.values();
        let is_call = |value: &&Value| match self.format {
            Format::OpenAiResponses => {
                text_of(value, "type").is_some_and(|kind| kind.ends_with("_call"))
            }
            Format::Gemini => {
                value.get("functionCall").is_some() || value.get("function_call").is_some()
            }
            _ => true,
        };
        blocks.filter(|b| b.kind == Kind::Call && b.done).count()
            + self.so_far.whole.iter().filter(is_call).count()
    }

    /// The form of the body, seen from its first bytes.
    fn form(&mut self) -> Option<Form> {
        if self.form.is_none() {
            let first = self.line.iter().find(|b| !b.is_ascii_whitespace())?;
            self.form = Some(match first {
                b'{' if self.format == Format::OllamaChat => Form::Lines,
                b'{' | b'[' => Form::Document,
                _ => Form::Events,
            });
        }
        self.form
    }

    fn take_line(&mut self, line: &[u8]) {
        let line = line.trim_ascii_end();
        match self.form() {
            Some(Form::Lines) => {
                if line.is_empty() {
                    return;
                }
                match serde_json::from_slice::<Value>(line) {
                    Ok(value) => self.take_event(&value),
                    // One document over several lines.
                    Err(_) if !self.so_far.ended && self.so_far.blocks.is_empty() => {
                        self.form = Some(Form::Document);
                        self.line = line.to_vec();
                        self.line.push(b'\n');
                    }
                    Err(_) => {}
                }
            }
            _ => {
                if let Some(data) = line.strip_prefix(b"data:") {
                    if !self.data.is_empty() {
                        self.data.push(b'\n');
                    }
                    self.data.extend_from_slice(data.trim_ascii_start());
                } else if line.is_empty() && !self.data.is_empty() {
                    let data = std::mem::take(&mut self.data);
                    if data == b"[DONE]" {
                        self.end_blocks();
                        self.so_far.ended = true;
                    } else if let Ok(value) = serde_json::from_slice::<Value>(&data) {
                        self.take_event(&value);
                    }
                }
            }
        }
    }

    fn take_document(&mut self, bytes: &[u8]) {
        let Ok(document) = serde_json::from_slice::<Value>(bytes) else {
            return;
        };
        match document {
            Value::Array(chunks) => chunks.iter().for_each(|chunk| self.take_event(chunk)),
            Value::Object(object) => self.take_object(object),
            _ => {}
        }
    }

    /// One event of a stream.
    fn take_event(&mut self, event: &Value) {
        if self.so_far.blocks.len() + self.so_far.whole.len() >= MOST_PARTS {
            self.overflowed = true;
            return;
        }
        let so_far = &mut self.so_far;
        if event.get("error").is_some_and(|e| !e.is_null())
            && event.get("type").is_none_or(|t| t == "error")
        {
            so_far.error = true;
        }
        match self.format {
            Format::AnthropicMessages => anthropic_event(event, so_far),
            Format::OpenAiChat => chat_chunk(event, so_far),
            Format::OpenAiResponses => responses_event(event, so_far),
            Format::OllamaChat => {
                if let Some(message) = event.get("message") {
                    if let Some(text) = text_of(message, "content") {
                        so_far.blocks.entry(0).or_default().text.push_str(text);
                    }
                    for call in list(message.get("tool_calls")) {
                        so_far.whole.push(call.clone());
                    }
                }
                so_far.ended |= event.get("done") == Some(&Value::Bool(true));
            }
            Format::Gemini => gemini_chunk(event, so_far),
        }
    }

    /// A reply that is one document.
    fn take_object(&mut self, object: Map<String, Value>) {
        let value = Value::Object(object);
        let so_far = &mut self.so_far;
        let id = text_of(&value, "id").map(str::to_owned);
        match self.format {
            Format::AnthropicMessages => {
                so_far.id = id;
                for (at, block) in (0..).zip(list(value.get("content"))) {
                    so_far.blocks.insert(at, anthropic_block(block, true));
                }
                so_far.ended = value.get("content").is_some();
            }
            Format::OpenAiResponses => {
                so_far.id = id;
                so_far.whole = list(value.get("output")).to_vec();
                so_far.ended = value.get("output").is_some()
                    && matches!(
                        text_of(&value, "status"),
                        None | Some("completed" | "incomplete")
                    );
            }
            Format::OpenAiChat => {
                if let Some(choice) = list(value.get("choices")).first() {
                    so_far.whole = choice.get("message").cloned().into_iter().collect();
                    so_far.ended = true;
                }
            }
            Format::OllamaChat | Format::Gemini => self.take_event(&value),
        }
        if self.so_far.blocks.len() + self.so_far.whole.len() > MOST_PARTS {
            self.overflowed = true;
            self.so_far = SoFar::default();
        }
    }

    fn end_blocks(&mut self) {
        for block in self.so_far.blocks.values_mut() {
            block.done = true;
        }
    }

    fn reply(&self, complete: bool) -> Reply {
        let so_far = &self.so_far;
        let mut into = Pieces::new(&self.marker);
        for block in so_far.blocks.values() {
            match block.kind {
                Kind::Text => into.words(From::Model, &block.text, Vec::new()),
                Kind::Sealed => {
                    let ids = into.ids([Some(block.text.as_str())]);
                    if !ids.is_empty() {
                        into.other(From::Model, &Value::Null, ids);
                    }
                }
                Kind::Call if block.done => {
                    let text = Value::String(block.text.clone());
                    let arguments = match &block.given {
                        Some(given) if block.text.is_empty() => given,
                        _ => &text,
                    };
                    into.call(block.id.as_deref(), &block.name, arguments, Vec::new());
                }
                Kind::Call => {}
            }
        }
        for value in &so_far.whole {
            match self.format {
                Format::OpenAiChat => openai_chat::model_message(value, &mut into),
                Format::OpenAiResponses => openai_responses::read_item(value, &mut into),
                Format::OllamaChat => {
                    let message = serde_json::json!({"tool_calls": [value]});
                    ollama::model_message(&message, &mut into);
                }
                Format::Gemini => gemini::read_part(From::Model, value, &mut into),
                Format::AnthropicMessages => {}
            }
        }
        let ids = into.ids([so_far.id.as_deref()]);
        let mut reply = into.reply(complete && !so_far.error);
        reply.ids.splice(0..0, ids);
        reply.failed =
            self.failed || so_far.error && reply.said.is_none() && reply.calls.is_empty();
        if reply.failed {
            reply = Reply {
                failed: true,
                ..Reply::default()
            };
        }
        reply
    }
}

fn anthropic_event(event: &Value, so_far: &mut SoFar) {
    let index = event.get("index").and_then(Value::as_u64).unwrap_or(0);
    match text_of(event, "type") {
        Some("message_start") => {
            so_far.id = event
                .get("message")
                .and_then(|m| text_of(m, "id"))
                .map(str::to_owned);
        }
        Some("content_block_start") => {
            if let Some(block) = event.get("content_block") {
                so_far.blocks.insert(index, anthropic_block(block, false));
            }
        }
        Some("content_block_delta") => {
            let block = so_far.blocks.entry(index).or_default();
            let delta = event.get("delta").unwrap_or(&Value::Null);
            let wanted = match block.kind {
                Kind::Text => "text",
                Kind::Call => "partial_json",
                Kind::Sealed => "signature",
            };
            block
                .text
                .push_str(text_of(delta, wanted).unwrap_or_default());
        }
        Some("content_block_stop") => so_far.blocks.entry(index).or_default().done = true,
        Some("message_stop") => so_far.ended = true,
        _ => {}
    }
}

fn anthropic_block(block: &Value, done: bool) -> Block {
    let kind = match text_of(block, "type") {
        Some("tool_use" | "server_tool_use" | "mcp_tool_use") => Kind::Call,
        Some("thinking" | "redacted_thinking") => Kind::Sealed,
        _ => Kind::Text,
    };
    let text = match kind {
        Kind::Text => text_of(block, "text"),
        Kind::Sealed => text_of(block, "signature").or_else(|| text_of(block, "data")),
        Kind::Call => None,
    };
    Block {
        kind,
        id: text_of(block, "id").map(str::to_owned),
        name: text_of(block, "name").unwrap_or_default().to_owned(),
        text: text.unwrap_or_default().to_owned(),
        done,
        given: block.get("input").cloned(),
    }
}

fn chat_chunk(chunk: &Value, so_far: &mut SoFar) {
    let Some(choice) = list(chunk.get("choices")).first() else {
        return;
    };
    let delta = choice.get("delta").unwrap_or(&Value::Null);
    if let Some(text) = text_of(delta, "content").or_else(|| text_of(delta, "refusal")) {
        so_far.blocks.entry(0).or_default().text.push_str(text);
    }
    for (position, call) in (0..).zip(list(delta.get("tool_calls"))) {
        let index = call
            .get("index")
            .and_then(Value::as_u64)
            .unwrap_or(position)
            .min(MOST_PARTS as u64);
        let function = call.get("function").unwrap_or(&Value::Null);
        // A call is whole once the next begins.
        for earlier in so_far.blocks.range_mut(1..index + 1) {
            earlier.1.done = true;
        }
        let block = so_far.blocks.entry(index + 1).or_default();
        block.kind = Kind::Call;
        block.done = false;
        if let Some(id) = text_of(call, "id").filter(|id| !id.is_empty()) {
            block.id = Some(id.to_owned());
        }
        block
            .name
            .push_str(text_of(function, "name").unwrap_or_default());
        block
            .text
            .push_str(text_of(function, "arguments").unwrap_or_default());
    }
    if text_of(choice, "finish_reason").is_some() {
        so_far.ended = true;
        for block in so_far.blocks.values_mut() {
            block.done = true;
        }
    }
}

fn responses_event(event: &Value, so_far: &mut SoFar) {
    let response = event.get("response");
    if let Some(id) = response.and_then(|r| text_of(r, "id")) {
        so_far.id = Some(id.to_owned());
    }
    match text_of(event, "type") {
        Some("response.output_item.done") => so_far.whole.extend(event.get("item").cloned()),
        Some("response.completed" | "response.incomplete") => {
            if so_far.whole.is_empty() {
                so_far.whole = list(response.and_then(|r| r.get("output"))).to_vec();
            }
            so_far.ended = true;
        }
        Some("response.failed") => so_far.error = true,
        _ => {}
    }
}

fn gemini_chunk(chunk: &Value, so_far: &mut SoFar) {
    if let Some(id) = text_of(chunk, "responseId") {
        so_far.id = Some(id.to_owned());
    }
    let Some(candidate) = list(chunk.get("candidates")).first() else {
        return;
    };
    let parts = match candidate.get("content").and_then(|c| c.get("parts")) {
        Some(Value::Array(parts)) => parts,
        Some(part @ Value::Object(_)) => std::slice::from_ref(part),
        _ => &[],
    };
    for part in parts {
        // Words stream as parts that are no parts of their own.
        let only_text = |p: &Value| p.as_object().is_some_and(|p| p.len() == 1);
        if let (Some(Value::String(before)), Some(more)) = (
            so_far
                .whole
                .last_mut()
                .filter(|last| only_text(last))
                .and_then(|last| last.get_mut("text")),
            text_of(part, "text").filter(|_| only_text(part)),
        ) {
            before.push_str(more);
        } else {
            so_far.whole.push(part.clone());
        }
    }
    so_far.ended |= text_of(candidate, "finishReason").is_some();
}
