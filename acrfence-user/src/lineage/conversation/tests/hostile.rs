//! Whatever comes in: no panic, nothing without bounds.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::agent::{Agent, check, pay};
use super::wire::{ALL, Client, Wire, reply};
use super::world::World;
use crate::lineage::conversation::{
    Format, Marker, ReplyReader, read_request, read_response, recognise, values_of_body,
};

const FORMATS: [Format; 5] = [
    Format::AnthropicMessages,
    Format::OpenAiChat,
    Format::OpenAiResponses,
    Format::OllamaChat,
    Format::Gemini,
];

/// JSON made of the words that the formats use, in any order and nesting.
fn json_of_words() -> impl Strategy<Value = Value> {
    let word = prop_oneof![
        Just("user"),
        Just("assistant"),
        Just("tool"),
        Just("system"),
        Just("model"),
        Just("text"),
        Just("tool_use"),
        Just("tool_result"),
        Just("function_call"),
        Just("function_call_output"),
        Just("message"),
        Just("reasoning"),
        Just("compaction"),
        Just("call_1"),
        Just("toolu_0123456789abcdef01"),
        Just("<system-reminder>"),
        Just(""),
        Just("{\"a\":[1]}"),
        Just("\u{0}\u{fffd}ü"),
        Just("thinking"),
    ]
    .prop_map(|w| json!(w));
    let key = prop_oneof![
        Just("model"),
        Just("messages"),
        Just("role"),
        Just("content"),
        Just("type"),
        Just("text"),
        Just("id"),
        Just("tool_use_id"),
        Just("tool_calls"),
        Just("function"),
        Just("name"),
        Just("arguments"),
        Just("input"),
        Just("output"),
        Just("call_id"),
        Just("contents"),
        Just("parts"),
        Just("functionCall"),
        Just("functionResponse"),
        Just("response"),
        Just("metadata"),
        Just("user_id"),
        Just("previous_response_id"),
        Just("conversation"),
        Just("system"),
        Just("tools"),
        Just("delta"),
        Just("index"),
        Just("choices"),
        Just("content_block"),
        Just("candidates"),
        Just("item"),
        Just("done"),
        Just("error"),
    ];
    let leaf = prop_oneof![
        4 => word,
        1 => any::<i64>().prop_map(|n| json!(n)),
        1 => any::<f64>().prop_map(|n| json!(n)),
        1 => any::<bool>().prop_map(|b| json!(b)),
        1 => Just(Value::Null),
        1 => Just(json!(u64::MAX)),
    ];
    leaf.prop_recursive(6, 96, 8, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::Array),
            prop::collection::vec((key.clone(), inner), 0..6)
                .prop_map(|fields| fields.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()),
        ]
    })
}

/// Sends a body that may be anything through the whole way, as far as it gets.
fn send(world: &mut World, agent: &Agent, wire: &Wire) {
    let client = wire.client;
    if recognise("POST", client.url(), &wire.body, false).is_some()
        && read_request(&world.marker, client.format(), &wire.headers, &wire.body).is_ok()
    {
        let asked = world.ask(&agent.who, wire);
        let answer = agent.answer_of(Some("So"), &[check()]);
        world.answer(
            &agent.who,
            &asked,
            client,
            &reply(&agent.dress, &answer),
            50,
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn any_json_as_request_and_reply(
        values in prop::collection::vec(json_of_words(), 1..5),
        status in any::<u16>(),
        piece in 1..50_usize,
    ) {
        let marker = Marker::new(&[9; 32]);
        for value in &values {
            let plain = value.to_string();
            let events: String = values.iter().map(|v| format!("data: {v}\n\n")).collect();
            let lines: String = values.iter().map(|v| format!("{v}\n")).collect();
            for format in FORMATS {
                let _ = read_request(&marker, format, &[], plain.as_bytes());
                for body in [&plain, &events, &lines] {
                    let _ = read_response(&marker, format, status, body.as_bytes());
                    let mut reader = ReplyReader::new(marker.clone(), format, 200);
                    for chunk in body.as_bytes().chunks(piece) {
                        reader.push(chunk);
                    }
                    let _ = reader.so_far();
                    let _ = reader.finish();
                }
            }
            let _ = values_of_body(&marker, plain.as_bytes());
        }
    }

    #[test]
    fn any_json_inside_a_conversation(
        bodies in prop::collection::vec((0..8_usize, prop::collection::vec(json_of_words(), 0..4)), 1..6),
    ) {
        let mut world = World::new();
        for (client, items) in bodies {
            let agent = Agent::new(ALL[client], 10);
            let body = json!({"model": "m", "messages": items, "input": items, "contents": items,
                "tools": items, "metadata": items.first(), "previous_response_id": "resp_0123456789abc"});
            let wire = Wire { client: ALL[client], headers: Vec::new(), body: body.to_string().into_bytes() };
            send(&mut world, &agent, &wire);
        }
        world.check();
    }

    #[test]
    fn broken_copies_of_real_traffic(
        client in 0..8_usize,
        cuts in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        end in any::<prop::sample::Index>(),
        truncate in any::<bool>(),
    ) {
        let client = ALL[client];
        let mut world = World::new();
        let mut agent = Agent::new(client, 10);
        agent.say("pay alice");
        agent.round(&mut world, Some("So"), &[check(), pay("alice", 1)]);
        let mut wire = agent.wire();
        for (at, byte) in &cuts {
            let at = at.index(wire.body.len());
            wire.body[at] = *byte;
        }
        if truncate {
            wire.body.truncate(end.index(wire.body.len()));
        }
        send(&mut world, &agent, &wire);
        world.check();

        let answer = agent.answer_of(Some("So"), &[pay("alice", 1)]);
        let mut bytes = reply(&agent.dress, &answer);
        for (at, byte) in &cuts {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        let marker = Marker::new(&[9; 32]);
        for format in FORMATS {
            let _ = read_response(&marker, format, 200, &bytes);
        }
    }
}

#[test]
fn deep_and_long_bodies() {
    let marker = Marker::new(&[9; 32]);
    let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
    let many = format!(
        r#"{{"model":"m","messages":[{}]}}"#,
        vec![r#"{"role":"user","content":"x"}"#; 60_000].join(",")
    );
    for format in FORMATS {
        assert!(read_request(&marker, format, &[], deep.as_bytes()).is_err());
        let _ = read_response(&marker, format, 200, deep.as_bytes());
    }
    let turned = read_request(&marker, Format::OpenAiChat, &[], many.as_bytes()).unwrap();
    assert!(turned.clipped && turned.pieces.len() <= 16_384);
    // A reply that never ends is not kept for ever.
    let mut reader = ReplyReader::new(marker.clone(), Format::AnthropicMessages, 200);
    let chunk = format!(
        "data: {{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{{\"type\":\"text_delta\",\"text\":\"{}\"}}}}\n\n",
        "x".repeat(100_000)
    );
    for _ in 0..400 {
        reader.push(chunk.as_bytes());
    }
    assert!(!reader.finish().complete);
    let mut reader = ReplyReader::new(marker, Format::OpenAiChat, 200);
    for index in 0..20_000_u64 {
        reader.push(
            format!("data: {{\"choices\":[{{\"delta\":{{\"tool_calls\":[{{\"index\":{index},\"function\":{{\"name\":\"f\"}}}}]}}}}]}}\n\n")
                .as_bytes(),
        );
    }
    assert!(reader.finish().calls.len() <= 4097);
}

#[test]
fn a_history_of_thousands_of_turns_is_read_fast_enough() {
    let mut world = World::new();
    let mut agent = Agent::new(Client::ChatSdk, 10);
    agent.say("poll");
    for _ in 0..300 {
        agent.round(&mut world, Some("Still waiting"), &[check()]);
    }
    let mut other = agent.restored(11);
    other.history.truncate(3);
    assert!(other.ask(&mut world).rewind().is_some());
}
