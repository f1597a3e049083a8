//! What is LLM traffic, and what is read from it.

use serde_json::{Value, json};

use super::agent::{Agent, check, pay};
use super::wire::{ALL, Client, Dress, Message, reply};
use crate::lineage::conversation::{
    Format, Marker, ModelTraffic, Reply, ReplyReader, Turned, Unreadable, What, read_request,
    read_response, recognise,
};
use crate::words::Header;

fn post(url: &str, body: &Value) -> Option<ModelTraffic> {
    recognise("POST", url, body.to_string().as_bytes(), false)
}

#[test]
fn a_path_alone_is_no_conversation() {
    let sms = json!({"from": "+1", "to": "+2", "text": "hello", "messages": ["hello"]});
    assert_eq!(post("https://sms.test/v1/messages", &sms), None);
    let mail = json!({"model": "mail", "messages": [{"to": "a", "body": "b"}]});
    assert_eq!(post("https://mail.test/v1/messages", &mail), None);
    let empty = json!({"model": "m", "messages": []});
    assert_eq!(post("https://x.test/v1/chat/completions", &empty), None);
    let survey = json!({"input": "yes"});
    assert_eq!(post("https://survey.test/v1/responses", &survey), None);
    let no_parts = json!({"contents": [{"role": "user"}]});
    assert_eq!(
        post("https://x.test/v1/models/m:generateContent", &no_parts),
        None
    );
    // And a conversation at any other path is none.
    let chat = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    assert_eq!(post("https://x.test/v1/tickets", &chat), None);
    for method in ["GET", "PUT", "DELETE"] {
        let body = chat.to_string();
        assert_eq!(
            recognise(
                method,
                "https://x.test/v1/chat/completions",
                body.as_bytes(),
                false
            ),
            None
        );
    }
    for body in ["", "{", "[]", "null", "\"x\"", "\u{0}\u{1}"] {
        assert_eq!(
            recognise("POST", "https://x.test/v1/messages", body.as_bytes(), false),
            None
        );
    }
}

#[test]
fn conversations_at_the_paths_that_gateways_use() {
    let chat = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    let unnamed = json!({"messages": [{"role": "user", "content": "hi"}]});
    let contents = json!({"contents": [{"role": "user", "parts": [{"text": "hi"}]}]});
    for (url, body, format) in [
        (
            "https://a.test/v1/messages?beta=true",
            &chat,
            Format::AnthropicMessages,
        ),
        (
            "https://gateway.test/anthropic/v1/messages/",
            &chat,
            Format::AnthropicMessages,
        ),
        (
            "http://127.0.0.1:8080/v1/chat/completions",
            &chat,
            Format::OpenAiChat,
        ),
        (
            "https://x.openai.azure.test/openai/deployments/d/chat/completions?api-version=1",
            &unnamed,
            Format::OpenAiChat,
        ),
        ("http://127.0.0.1:11434/api/chat", &chat, Format::OllamaChat),
        (
            "https://g.test/v1beta/models/g:generateContent",
            &contents,
            Format::Gemini,
        ),
        (
            "https://eu-aiplatform.test/v1/projects/p/locations/l/publishers/google/models/g:streamGenerateContent?alt=sse",
            &contents,
            Format::Gemini,
        ),
    ] {
        assert_eq!(
            post(url, body),
            Some(ModelTraffic::Conversation(format)),
            "{url}"
        );
    }
    let previous = json!({"model": "m", "previous_response_id": "resp_1", "input": "go on"});
    assert_eq!(
        post("https://o.test/v1/responses", &previous),
        Some(ModelTraffic::Conversation(Format::OpenAiResponses))
    );
    let vertex = json!({"anthropic_version": "v", "messages": [{"role": "user", "content": "hi"}]});
    assert_eq!(
        post(
            "https://v.test/v1/publishers/anthropic/models/c:streamRawPredict",
            &vertex
        ),
        Some(ModelTraffic::Conversation(Format::AnthropicMessages))
    );
}

#[test]
fn side_endpoints() {
    let chat = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    let side = Some(ModelTraffic::Side);
    assert_eq!(post("https://a.test/v1/messages/count_tokens", &chat), side);
    assert_eq!(
        post(
            "https://a.test/v1/embeddings",
            &json!({"model": "m", "input": ["a"]})
        ),
        side
    );
    assert_eq!(post("http://o.test/api/show", &json!({"model": "m"})), side);
    let count = json!({"contents": [{"parts": [{"text": "x"}]}]});
    assert_eq!(post("https://g.test/v1/models/g:countTokens", &count), side);
    // On a host nobody named, an action that only looks so by its path is an effect.
    assert_eq!(
        post("https://shop.test/v1/embeddings", &json!({"sku": 1})),
        None
    );
    assert_eq!(
        post(
            "http://x.test/api/show",
            &json!({"model": "m", "buy": true})
        ),
        None
    );
    assert_eq!(
        recognise("GET", "https://x.test/v1/models", b"", false),
        None
    );
    assert_eq!(
        recognise("GET", "https://x.test/v1/models", b"", true),
        side
    );
    assert_eq!(recognise("GET", "https://x.test/v1/files", b"", true), None);
}

fn read(client: Client, agent: &Agent) -> Turned {
    let wire = agent.wire();
    read_request(
        &Marker::new(&[1; 32]),
        client.format(),
        &wire.headers,
        &wire.body,
    )
    .unwrap()
}

#[test]
fn every_format_tells_the_same_history() {
    let mut shapes = Vec::new();
    for client in ALL {
        if client == Client::ResponsesChained {
            continue;
        }
        let mut agent = Agent::new(client, 1);
        agent.say("pay alice");
        let answer = agent.answer_of(Some("I will"), &[check(), ("pay", json!({"to": "alice"}))]);
        agent.history.push(Message::Model(answer.clone()));
        let results = answer
            .calls
            .iter()
            .map(|call| super::wire::ToolResult {
                id: call.id.clone(),
                name: call.name.clone(),
                text: "fine".into(),
                is_error: false,
            })
            .collect();
        agent.history.push(Message::Results(results));
        agent.say("and now?");
        let turned = read(client, &agent);
        let shape: Vec<String> = turned
            .pieces
            .iter()
            .filter_map(|piece| match &piece.what {
                What::Words(said) => Some(format!("words {:?} {:?}", piece.from, said.mark)),
                What::Call(call) => {
                    assert_eq!(call.id.is_some(), client.has_ids(), "{client:?}");
                    Some(format!("call {} {:?}", call.name, call.arguments))
                }
                What::Result(result) => {
                    assert!(result.text.contains("fine"), "{client:?} {}", result.text);
                    Some("result".into())
                }
                What::Other(_) => None,
            })
            .collect();
        assert!(turned.may_call, "{client:?}");
        assert_eq!(
            turned.session.line.is_some(),
            client.has_session(),
            "{client:?}"
        );
        shapes.push((client, shape));
    }
    assert_eq!(shapes[0].1.len(), 7);
    for (client, shape) in &shapes[1..] {
        assert_eq!(shape, &shapes[0].1, "{client:?}");
    }
}

fn reply_of(client: Client, bytes: &[u8], piece: usize) -> Reply {
    let mut reader = ReplyReader::new(Marker::new(&[1; 32]), client.format(), 200);
    for chunk in bytes.chunks(piece) {
        reader.push(chunk);
    }
    reader.finish()
}

#[test]
fn replies_streamed_or_not_in_pieces_of_any_size() {
    for client in ALL {
        let agent = Agent::new(client, 1);
        let answer = agent.answer_of(Some("I will päy\nand tell"), &[check(), pay("älice", 100)]);
        let mut all = Vec::new();
        for stream in [true, false] {
            let mut dress = Dress::new(client, "s");
            dress.stream = stream;
            let bytes = reply(&dress, &answer);
            for piece in [1, 2, 7, 64, 100_000] {
                all.push(reply_of(client, &bytes, piece));
            }
        }
        let first = all[0].clone();
        assert!(first.complete, "{client:?}");
        assert_eq!(first.calls.len(), 2, "{client:?}");
        assert!(first.said.is_some());
        for other in all {
            assert_eq!(other.calls, first.calls, "{client:?}");
            assert_eq!(
                other.said.map(|s| s.mark),
                first.said.as_ref().map(|s| s.mark),
                "{client:?}"
            );
            assert_eq!(other.complete, first.complete, "{client:?}");
        }
    }
}

#[test]
fn a_call_is_known_before_the_stream_ends() {
    for client in [
        Client::ClaudeCode,
        Client::Codex,
        Client::ChatSdk,
        Client::Ollama,
        Client::Gemini,
    ] {
        let agent = Agent::new(client, 1);
        let answer = agent.answer_of(Some("I pay"), &[pay("alice", 1), pay("bob", 2)]);
        let bytes = reply(&Dress::new(client, "s"), &answer);
        let mut reader = ReplyReader::new(Marker::new(&[1; 32]), client.format(), 200);
        let mut first_at = None;
        for (at, byte) in bytes.chunks(1).enumerate() {
            if reader.push(byte) && first_at.is_none() {
                first_at = Some(at);
                let so_far = reader.so_far();
                assert_eq!(so_far.calls.len(), 1, "{client:?}");
                assert!(!so_far.complete, "{client:?}");
            }
        }
        assert!(first_at.unwrap() < bytes.len() - 20, "{client:?}");
        assert_eq!(reader.finish().calls.len(), 2);
    }
}

#[test]
fn a_broken_stream_gives_what_was_whole() {
    for client in ALL {
        let agent = Agent::new(client, 1);
        let answer = agent.answer_of(Some("I pay"), &[pay("alice", 1)]);
        let bytes = reply(&Dress::new(client, "s"), &answer);
        for cut in 0..bytes.len() - 1 {
            let reply = reply_of(client, &bytes[..cut], 33);
            assert!(reply.calls.len() <= 1);
            for call in &reply.calls {
                // Never half of one.
                assert_eq!(
                    call.arguments,
                    reply_of(client, &bytes, 9).calls[0].arguments,
                    "{client:?} {cut}"
                );
            }
        }
    }
}

#[test]
fn failures_are_no_answers() {
    let marker = Marker::new(&[1; 32]);
    for client in ALL {
        let body = br#"{"error":{"type":"overloaded","message":"later"}}"#;
        for status in [400, 401, 429, 500, 529] {
            let reply = read_response(&marker, client.format(), status, body);
            assert!(reply.failed && reply.calls.is_empty(), "{client:?}");
        }
        let reply = read_response(&marker, client.format(), 200, b"<html>no</html>");
        assert!(reply.calls.is_empty() && !reply.complete, "{client:?}");
    }
    let stream =
        b"event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n";
    let reply = read_response(&marker, Format::AnthropicMessages, 200, stream);
    assert!(reply.failed);
}

#[test]
fn sessions_as_clients_name_them() {
    let marker = Marker::new(&[1; 32]);
    let messages = json!([{"role": "user", "content": "hi"}]);
    let read = |headers: &[(&str, &str)], extra: Value| {
        let mut body = json!({"model": "m", "messages": messages});
        for (key, value) in extra.as_object().unwrap() {
            body[key] = value.clone();
        }
        let headers: Vec<Header> = headers
            .iter()
            .map(|(n, v)| Header::new(*n, v.as_bytes().to_vec()))
            .collect();
        let body = body.to_string();
        read_request(
            &marker,
            Format::AnthropicMessages,
            &headers,
            body.as_bytes(),
        )
        .unwrap()
        .session
    };
    let by_header = read(&[("X-Claude-Code-Session-Id", "s-1")], json!({}));
    let user = json!({"session_id": "s-1", "account_uuid": ""}).to_string();
    let by_metadata = read(&[], json!({"metadata": {"user_id": user}}));
    let by_old_metadata = read(
        &[],
        json!({"metadata": {"user_id": "user_ab_account__session_s-1"}}),
    );
    assert_eq!(by_header.line, by_metadata.line);
    assert_eq!(by_header.line, by_old_metadata.line);
    assert!(by_header.line.is_some());
    let child = read(
        &[
            ("x-claude-code-session-id", "s-1"),
            ("x-claude-code-agent-id", "a-1"),
        ],
        json!({}),
    );
    assert_eq!(child.family, by_header.family);
    assert_ne!(child.line, by_header.line);
    assert!(child.is_child && !by_header.is_child);
    // A key that may mean anything proves nothing.
    let hint = read(
        &[("x-session-id", "s-1")],
        json!({"prompt_cache_key": "app"}),
    );
    assert!(hint.family.is_empty() && hint.line.is_none() && hint.hints.len() == 2);
    let nothing = read(
        &[("x-codex-turn-metadata", "{not json")],
        json!({"metadata": 3}),
    );
    assert_eq!(nothing, read(&[], json!({})));
    let turn = json!({"session_id": "s", "thread_id": "t", "forked_from_thread_id": "o", "request_kind": "compaction", "window_number": 3});
    let codex = read(&[("x-codex-turn-metadata", &turn.to_string())], json!({}));
    assert!(codex.aside && codex.window == Some(3) && codex.origins.len() == 1);
}

#[test]
fn unreadable_requests_say_why() {
    let marker = Marker::new(&[1; 32]);
    let read = |body: &[u8]| read_request(&marker, Format::OpenAiChat, &[], body).unwrap_err();
    assert!(matches!(read(b"{\"model\":"), Unreadable::NotJson(_)));
    assert!(matches!(read(b"[1]"), Unreadable::NotJson(_)));
    assert!(matches!(read(b"{}"), Unreadable::NotThatFormat(_)));
    let huge = vec![b' '; crate::lineage::conversation::LARGEST_BODY + 1];
    assert!(matches!(read(&huge), Unreadable::TooLarge(_)));
}

#[test]
fn sealed_reasoning_identifies() {
    let marker = Marker::new(&[1; 32]);
    let body = json!({"model": "m", "messages": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "", "signature": "EqQBCgIYAhIkMTIzNDU2Nzg5"},
            {"type": "text", "text": "hello"}]},
    ]});
    let turned = read_request(
        &marker,
        Format::AnthropicMessages,
        &[],
        body.to_string().as_bytes(),
    )
    .unwrap();
    let stream = concat!(
        "data: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\"}}\n\n",
        "data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}}\n\n",
        "data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"thinking_delta\",\"thinking\":\"hm\"}}\n\n",
        "data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"signature_delta\",\"signature\":\"EqQBCgIYAhIkMTIzNDU2Nzg5\"}}\n\n",
        "data: {\"type\":\"content_block_stop\",\"index\":0}\n\n",
        "data: {\"type\":\"message_stop\"}\n\n",
    );
    let reply = read_response(&marker, Format::AnthropicMessages, 200, stream.as_bytes());
    let sealed: Vec<_> = turned.pieces.iter().flat_map(|p| &p.ids).collect();
    assert_eq!(sealed.len(), 1);
    assert!(reply.ids.contains(sealed[0]) && sealed[0].is_unique());
}
