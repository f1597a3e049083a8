//! Entry point for fuzzers: a hostile model request or answer, in every format. Nothing may panic, and a
//! note changes nothing but what it adds.

use serde_json::Value;

use super::{Format, Marker, append_words, decode_change, read_request, read_response};
use crate::words::Header;

const FORMATS: [(Format, &str); 5] = [
    (Format::AnthropicMessages, "messages"),
    (Format::OpenAiChat, "messages"),
    (Format::OpenAiResponses, "input"),
    (Format::OllamaChat, "messages"),
    (Format::Gemini, "contents"),
];

/// Reads the bytes as a request, as an answer, and as a record of the log.
pub fn fuzz_conversation(data: &[u8]) {
    let marker = Marker::new(&[7; 32]);
    let headers = [Header::new("session-id", data.to_vec())];
    for (format, list) in FORMATS {
        std::hint::black_box(read_request(&marker, format, &headers, data).is_ok());
        std::hint::black_box(read_response(&marker, format, 200, data));
        let Some(longer) = append_words(format, data, "a note") else {
            continue;
        };
        let parsed = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap_or_default();
        let (mut before, mut after) = (parsed(data), parsed(&longer));
        let messages = after.get_mut(list).and_then(Value::as_array_mut);
        let note = messages.and_then(Vec::pop);
        assert!(note.is_some_and(|n| n.to_string().contains("a note")));
        if before[list].is_string() {
            let text = before[list].take();
            assert_eq!(after[list][0]["content"], text);
            after[list].take();
        }
        assert_eq!(before, after);
    }
    std::hint::black_box(decode_change(data).is_ok());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            super::fuzz_conversation(&bytes);
        }

        #[test]
        fn nearly_conversations(pieces in proptest::collection::vec(proptest::sample::select(vec![
            "{", "}", "[", "]", ",", ":", "\"messages\"", "\"input\"", "\"contents\"", "\"role\"", "\"user\"",
            "\"assistant\"", "\"content\"", "\"parts\"", "\"text\"", "\"tool_use\"", "\"id\"", "\"toolu_01\"",
            "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}", "]}", "{\"input\":\"hi\"}", "null", "1e999",
            "data: ", "event: ", "\n\n", "\\u0000", "\"type\"", "\"function_call\"", "\"previous_response_id\"",
        ]), 0..24)) {
            super::fuzz_conversation(pieces.concat().as_bytes());
        }
    }
}
