//! Is it JSON-RPC? Told from the first line of what an agent sends to a program it started.

use super::inbound::may_be_call;
use crate::boundary::mcp::jsonrpc::{self, Parsed};

/// What the beginning of a stream tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Nothing yet: more bytes are needed.
    Undecided,
    /// Not newline-delimited JSON-RPC, and never will be.
    Raw,
    /// JSON-RPC.
    Rpc,
}

/// Classifies the beginning of a stream: `head` is all that came so far, `ended` whether more can
/// come, `bound` how much may be kept before giving up.
///
/// Bytes are kept from the program only while they may still become a JSON-RPC message, so that a
/// program which answers to less than a line is not starved.
pub fn classify(head: &[u8], ended: bool, bound: usize) -> Class {
    let start = head
        .iter()
        .position(|b| !b" \t\r\n".contains(b))
        .unwrap_or(head.len());
    let rest = &head[start..];
    match rest.first() {
        None if ended => return Class::Raw,
        None if head.len() > bound => return Class::Raw,
        None => return Class::Undecided,
        Some(b'{' | b'[') => {}
        Some(_) => return Class::Raw,
    }
    if let Some(end) = memchr::memchr(b'\n', rest) {
        return line(&rest[..end]);
    }
    // A whole JSON value can only end so. Asking the parser less often would do as well; asking
    // it at every piece is quadratic only for a long first line in many pieces.
    let may_be_whole =
        rest.trim_ascii_end().ends_with(b"}") || rest.trim_ascii_end().ends_with(b"]");
    if ended || (may_be_whole && serde_json::from_slice::<serde::de::IgnoredAny>(rest).is_ok()) {
        return line(rest);
    }
    if rest.len() > bound {
        return Class::Raw;
    }
    Class::Undecided
}

fn line(line: &[u8]) -> Class {
    match jsonrpc::parse(line) {
        Parsed::Single(_) | Parsed::Batch(_) | Parsed::Ambiguous { .. } => Class::Rpc,
        Parsed::NotRpc if may_be_call(line) => Class::Rpc,
        Parsed::NotRpc => Class::Raw,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MESSAGE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}"#;

    fn open(head: &str) -> Class {
        classify(head.as_bytes(), false, 1000)
    }

    #[test]
    fn json_rpc_is_known_at_its_first_line() {
        assert_eq!(open(&format!("{MESSAGE}\n")), Class::Rpc);
        assert_eq!(open(&format!("\n  {MESSAGE}\r\n{{")), Class::Rpc);
        assert_eq!(open(&format!("[{MESSAGE}]\n")), Class::Rpc);
        // Without its newline as well: nothing that could follow changes what it is.
        assert_eq!(open(MESSAGE), Class::Rpc);
        // Not for us, but perhaps for a lenient server.
        let lenient = r#"{"id":1,"method":"tools/call","params":{}}"#;
        assert_eq!(open(lenient), Class::Rpc);
        let twice = r#"{"jsonrpc":"2.0","method":"ping","method":"tools/call"}"#;
        assert_eq!(open(twice), Class::Rpc);
        assert_eq!(classify(MESSAGE.as_bytes(), true, 10), Class::Rpc);
    }

    #[test]
    fn anything_else_is_let_through_at_once() {
        for text in [
            "ls -l\n",
            "SELECT 1",
            "\0\0",
            "Content-Length: 12",
            "5:hello,",
            "{}",
            "{\"a\":1}",
            "[1,2]\n",
            "{\n",
            "{\"a\":[\n",
            "nul",
            "\"x\"",
        ] {
            assert_eq!(open(text), Class::Raw, "{text:?}");
        }
        assert_eq!(classify(b"", true, 1000), Class::Raw);
        assert_eq!(classify(b"{\"a\":", true, 1000), Class::Raw);
    }

    #[test]
    fn what_may_still_become_json_rpc_waits_up_to_the_bound() {
        for text in ["", "\n", "{", "[", "{\"jsonrpc\":", "{\"a\":{}"] {
            assert_eq!(open(text), Class::Undecided, "{text:?}");
        }
        let long = format!("{{\"a\":\"{}", "x".repeat(1000));
        assert_eq!(open(&long), Class::Raw);
        assert_eq!(open(&" ".repeat(2000)), Class::Raw);
    }

    proptest! {
        /// What is let through too early could never have become JSON-RPC.
        #[test]
        fn a_verdict_is_given_only_when_it_is_sure(
            text in prop_oneof![
                Just(MESSAGE.to_owned()),
                Just(format!("[{MESSAGE},{MESSAGE}]")),
                Just("{\"a\":1}{\"jsonrpc\":\"2.0\"}".to_owned()),
                "[ {}\\[\\]a:\"]{0,20}",
            ],
        ) {
            let whole = open(&format!("{text}\n"));
            for end in 0..=text.len() {
                let now = open(&text[..end]);
                prop_assert!(now != Class::Raw || whole != Class::Rpc, "{:?}", &text[..end]);
            }
        }
    }
}
