//! Entry points for fuzzers: hostile bytes for what reads bytes of a connection. None may panic, and
//! none may read differently what comes in pieces.

use super::http::heads::Watch;
use super::mcp::jsonrpc::{self, Parsed};
use super::mcp::sse::{Event, Splitter};
use super::sniff;

/// The pieces that a connection's bytes come in: the first byte of `data` says how long they are.
fn pieces(data: &[u8]) -> (&[u8], usize) {
    match data.split_first() {
        Some((first, rest)) => (rest, usize::from(*first) + 1),
        None => (data, 1),
    }
}

/// Reads the bytes as the agent's side of an HTTP/1 connection.
pub fn fuzz_http(data: &[u8]) {
    let (bytes, length) = pieces(data);
    let _ = sniff::sniff(bytes);
    let _ = sniff::guess(bytes);
    let mut whole = Watch::new(4096, 64);
    let mut cut = Watch::new(4096, 64);
    let heads = whole.feed(bytes);
    let in_pieces: Vec<_> = bytes.chunks(length).flat_map(|c| cut.feed(c)).collect();
    assert_eq!(heads, in_pieces, "heads do not depend on where reads end");
}

/// Reads the bytes as a stream of server-sent events.
pub fn fuzz_sse(data: &[u8]) {
    const BOUND: usize = 1 << 20;
    let (bytes, length) = pieces(data);
    let read = |length: usize| {
        let mut splitter = Splitter::new(BOUND);
        let mut events: Vec<Event> = Vec::new();
        for piece in bytes.chunks(length.max(1)) {
            match splitter.push(piece) {
                Ok(more) => events.extend(more),
                Err(_) => return None,
            }
        }
        events.extend(splitter.finish());
        Some(events)
    };
    let whole = read(bytes.len());
    let cut = read(length);
    for events in [&whole, &cut].into_iter().flatten() {
        let raw: Vec<u8> = events.iter().flat_map(|e| e.raw.to_vec()).collect();
        assert_eq!(raw, bytes, "every byte of the stream is passed on");
    }
    // The line feed of a late pair may come alone; what events say must not depend on it.
    let said = |events: Vec<Event>| -> Vec<_> {
        let with_data = events.into_iter().filter(|e| e.data.is_some());
        with_data.map(|e| (e.kind, e.id, e.data)).collect()
    };
    assert_eq!(whole.map(said), cut.map(said));
}

/// Reads the bytes as JSON-RPC, and takes everything out of it that the boundary looks at.
pub fn fuzz_jsonrpc(data: &[u8]) {
    let messages = match jsonrpc::parse(data) {
        Parsed::Single(message) => vec![message],
        Parsed::Batch(messages) => messages,
        Parsed::NotRpc | Parsed::Ambiguous { .. } => Vec::new(),
    };
    for message in messages {
        let _ = message.id.map(jsonrpc::id_key);
        if let Some(call) = message.tool_call() {
            assert_eq!(message.method.as_deref(), Some("tools/call"));
            assert!(message.text.contains(call.id));
            let _ = call.arguments.map(|a| jsonrpc::member(a, "a"));
        }
    }
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = jsonrpc::parse_message(text);
        let _ = jsonrpc::parse_messages(text);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bytes that look a little like what they are read as.
    fn likely(words: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
        let word = prop_oneof![
            4 => proptest::sample::select(words).prop_map(|w| w.as_bytes().to_vec()),
            1 => proptest::collection::vec(any::<u8>(), 0..4),
        ];
        (any::<u8>(), proptest::collection::vec(word, 0..40))
            .prop_map(|(first, words)| [vec![first], words.concat()].concat())
    }

    proptest! {
        #[test]
        fn http(data in likely(&[
            "GET", "POST", " ", "/", "HTTP/1.1", "\r\n", "\n", ":", "Content-Length", "3", "0",
            "Transfer-Encoding", "chunked", "a;x", "\r\n\r\n", "abc", "Connection", "close",
        ])) {
            fuzz_http(&data);
        }

        #[test]
        fn sse(data in likely(&[
            "data", "event", "id", ":", " ", "\n", "\r", "\r\n", "\n\n", "retry", "{}", "\u{feff}",
        ])) {
            fuzz_sse(&data);
        }

        #[test]
        fn json_rpc(data in likely(&[
            "{", "}", "[", "]", ",", ":", "\"jsonrpc\"", "\"2.0\"", "\"id\"", "1", "\"method\"",
            "\"tools/call\"", "\"params\"", "\"name\"", "\"arguments\"", "null", "\"\\u0061\"",
        ])) {
            fuzz_jsonrpc(data.get(1..).unwrap_or_default());
        }
    }
}
