//! What a line from the agent asks of a stdio server.

use crate::boundary::mcp::jsonrpc::{self, Message, Parsed};
use crate::boundary::mcp::{Call, Calls, Part, answer};
use crate::words::McpRequest;

/// JSON-RPC's code for text that is no JSON.
const PARSE_ERROR: i32 = -32700;
/// JSON-RPC's code for parameters that do not fit the method.
const INVALID_PARAMS: i32 = -32602;
/// Stands for an answer to the server's own request in lists of methods.
const RESPONSE: &str = "(response)";

/// What to do with a line.
pub(crate) enum Inbound {
    /// Send it as it is.
    Pass {
        /// Ids of requests in it that ask which tools there are.
        lists_tools: Vec<String>,
    },
    /// Its sender no longer wants the answer to the request `id`.
    Cancels { id: String },
    /// Tool calls: each must be admitted first.
    Calls(Calls),
    /// Do not send it.
    Refused {
        /// The answer to give, where it wants one.
        answer: Option<String>,
        /// Why.
        why: String,
    },
}

/// Understands one line, with or without its newline.
pub(crate) fn understand(line: &[u8], server: &str) -> Inbound {
    let body = line.trim_ascii_end();
    let (messages, batch) = match jsonrpc::parse(body) {
        Parsed::NotRpc if may_be_call(body) => {
            return refused(
                Some("null"),
                PARSE_ERROR,
                "it is no valid JSON-RPC message, and a lenient server could take it for a tool call".to_owned(),
            );
        }
        Parsed::NotRpc => return pass(),
        Parsed::Ambiguous { id, why } => {
            let id = id.unwrap_or_else(|| "null".to_owned());
            return refused(
                Some(&id),
                jsonrpc::INVALID_REQUEST,
                format!("{why}, so that servers would disagree about what it asks for"),
            );
        }
        Parsed::Single(message) => (vec![message], false),
        Parsed::Batch(messages) => (messages, true),
    };
    // Some servers take a carriage return for the end of a line.
    if memchr::memchr(b'\r', body).is_some() {
        return refused(
            messages.first().and_then(|message| message.id),
            jsonrpc::INVALID_REQUEST,
            "it goes over several lines".to_owned(),
        );
    }
    if let [message] = &messages[..]
        && !batch
        && let Some(id) = message.cancels().map(str::to_owned)
    {
        return Inbound::Cancels { id };
    }
    for message in &messages {
        let is_call = message.method.as_deref() == Some("tools/call");
        let is_nothing =
            message.method.is_none() && message.result.is_none() && message.error.is_none();
        if is_call && message.tool_call().is_none() {
            return refused(
                message.id,
                INVALID_PARAMS,
                "it is a tool call without an id or a tool's name".to_owned(),
            );
        }
        if is_nothing && may_be_call(message.text.as_bytes()) {
            return refused(
                message.id,
                jsonrpc::INVALID_REQUEST,
                "it names no method, and a lenient server could take it for a tool call".to_owned(),
            );
        }
    }
    let lists_tools = messages
        .iter()
        .filter(|message| message.method.as_deref() == Some("tools/list"))
        .filter_map(|message| message.id.map(str::to_owned))
        .collect();
    let parts: Vec<Part> = messages
        .into_iter()
        .map(|message| part(message, server))
        .collect();
    if parts.iter().any(|part| matches!(part, Part::Call(_))) {
        return Inbound::Calls(Calls {
            messages: parts,
            batch,
        });
    }
    Inbound::Pass { lists_tools }
}

/// The answer to a line that was too long to be read.
pub(crate) fn too_long(length: u64, bound: usize) -> Inbound {
    refused(
        Some("null"),
        jsonrpc::INVALID_REQUEST,
        format!("the message has {length} bytes, and at most {bound} are read"),
    )
}

fn pass() -> Inbound {
    Inbound::Pass {
        lists_tools: Vec::new(),
    }
}

fn refused(id: Option<&str>, code: i32, why: String) -> Inbound {
    let text = format!("ACRFence did not pass this message on: {why}");
    Inbound::Refused {
        answer: id.map(|id| answer::error(Some(id), code, &text)),
        why,
    }
}

fn part(message: Message<'_>, server: &str) -> Part {
    let text = message.text.to_owned();
    match message.tool_call() {
        Some(call) => Part::Call(Call {
            id: call.id.to_owned(),
            request: McpRequest {
                server: server.to_owned(),
                name: call.name,
                arguments: call.arguments.unwrap_or("{}").to_owned(),
                meta: call.meta.map(str::to_owned),
                extra: call.extra,
                headers: Vec::new(),
            },
            text,
        }),
        None => Part::Other {
            method: message.method.unwrap_or_else(|| RESPONSE.to_owned()),
            text,
        },
    }
}

/// Whether a lenient reader could find the method `tools/call` in a text: it is there once escapes
/// are undone.
pub(super) fn may_be_call(text: &[u8]) -> bool {
    const NAME: &[u8] = b"tools/call";
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            plain.push(byte);
            continue;
        }
        let escaped = (rest.first() == Some(&b'u'))
            .then(|| rest.get(1..5))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        // Of the other escapes, `\/` is `/`, and the rest are no letters of the name either way.
        if let Some(byte) = escaped {
            plain.push(byte);
            rest = &rest[5..];
        }
    }
    memchr::memmem::find(&plain, NAME).is_some()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn one(line: &str) -> Inbound {
        understand(line.as_bytes(), "python server.py")
    }

    fn is_refused(line: &str) -> bool {
        matches!(one(line), Inbound::Refused { .. })
    }

    #[test]
    fn a_call_is_taken_out_with_its_context() {
        let line = r#"{"method":"tools/call","params":{"name":"pay","arguments":{"amount":1.50},"_meta":{"claudecode/toolUseId":"toolu_1"}},"jsonrpc":"2.0","id":3}"#;
        let Inbound::Calls(calls) = one(&format!("{line}\r\n")) else {
            panic!("not a call");
        };
        let [Part::Call(call)] = &calls.messages[..] else {
            panic!("not one call");
        };
        assert!(!calls.batch);
        assert_eq!(call.text, line);
        assert_eq!(call.id, "3");
        assert_eq!(call.request.server, "python server.py");
        assert_eq!(call.request.name, "pay");
        assert_eq!(call.request.arguments, r#"{"amount":1.50}"#);
        assert_eq!(
            call.request.meta.as_deref(),
            Some(r#"{"claudecode/toolUseId":"toolu_1"}"#)
        );
    }

    #[test]
    fn other_traffic_passes() {
        for line in [
            r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
            r#"{"jsonrpc":"2.0","id":5,"result":{"roots":[]}}"#,
            r#"{"jsonrpc":"2.0","id":5,"result":{"text":"use \"method\": \"tools/call\""}}"#,
            r#"[{"jsonrpc":"2.0","id":5,"method":"ping"},{"jsonrpc":"2.0","method":"x"}]"#,
            "",
            "\n",
            "{\"a\":1}",
            "half a li",
        ] {
            assert!(matches!(one(line), Inbound::Pass { .. }), "{line}");
        }
        let list = r#"{"jsonrpc":"2.0","id":"L","method":"tools/list"}"#;
        assert!(matches!(one(list), Inbound::Pass { lists_tools } if lists_tools == ["\"L\""]));
        let cancel =
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3}}"#;
        assert!(matches!(one(cancel), Inbound::Cancels { id } if id == "3"));
    }

    #[test]
    fn a_batch_with_a_call_is_taken_apart() {
        let line = r#"[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"a"}}]"#;
        let Inbound::Calls(calls) = one(line) else {
            panic!("no calls");
        };
        assert!(calls.batch);
        assert!(matches!(&calls.messages[0], Part::Other { method, .. } if method == "ping"));
        assert!(matches!(&calls.messages[1], Part::Call(call) if call.id == "2"));
    }

    #[test]
    fn what_only_a_lenient_server_takes_for_a_call_is_refused() {
        for line in [
            r#"{"id":1,"method":"tools/call","params":{"name":"a"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools\/call","params":{"name":"a","arguments":{"n":NaN}}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"t\u006fols\u002Fcall","params":{"name":"a"},}"#,
            r#"{"jsonrpc":"2.0","id":1,"Method":"tools/call","params":{"name":"a"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/call"}"#,
            r#"{"jsonrpc":"2.0","method":"tools/call","params":{"name":"a"}}"#,
            r#"{"jsonrpc":"2.0","id":null,"method":"tools/call","params":{"name":"a"}}"#,
            "{\"jsonrpc\":\"2.0\",\"id\":1,\r\"method\":\"tools/call\",\"params\":{\"name\":\"a\"}}",
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\r\"x\":1}",
            r#"{"jsonrpc":"2.0","id":1}{"jsonrpc":"2.0","id":1,"method":"tools/call"}"#,
        ] {
            assert!(is_refused(line), "{line}");
        }
        let Inbound::Refused { answer, .. } =
            one(r#"{"jsonrpc":"2.0","id":"q","method":"ping","id":"q"}"#)
        else {
            panic!("let through");
        };
        assert!(answer.unwrap().contains(r#""id":"q""#));
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(line in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = understand(&line, "server");
        }

        /// However a call is mangled, it is a call, refused, or has lost the word that makes it one.
        #[test]
        fn a_mangled_call_never_passes_as_something_else(
            at in 0..100usize,
            byte in any::<u8>(),
            cut in any::<bool>(),
        ) {
            let mut line = br#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"pay","arguments":{"a":1}}}"#.to_vec();
            let at = at % line.len();
            if cut { line.remove(at); } else { line[at] = byte; }
            if let Inbound::Pass { .. } | Inbound::Cancels { .. } = understand(&line, "server") {
                prop_assert!(memchr::memmem::find(&line, b"tools/call").is_none(), "{}", line.escape_ascii());
            }
        }
    }
}
