//! What a stdio server says, on its way to the agent: passed on as it comes, but held line by line
//! while an answer is awaited.

use bytes::{Bytes, BytesMut};

use crate::boundary::mcp::{answer, jsonrpc};
use crate::words::McpResponse;

/// A piece of the server's output, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Bytes that nobody needs to read.
    Bytes(Bytes),
    /// A whole line (the last one perhaps without newline) that may be an awaited answer.
    Line(Bytes),
    /// The end of a line too long to be read, of which the rest has passed.
    EndOfLongLine(Bytes),
}

/// Cuts the server's output into pieces.
#[derive(Debug)]
pub(crate) struct Outbound {
    /// The beginning of a line that is held.
    held: BytesMut,
    /// Where in a line the last byte passed on was.
    at: At,
    bound: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Between lines.
    Boundary,
    /// In a line that is passed on as it comes.
    Middle,
    /// In a line that is passed on because it is too long; its end is told.
    LongLine,
}

impl Outbound {
    /// Lines up to `bound` bytes are read.
    pub(crate) fn new(bound: usize) -> Self {
        Self {
            held: BytesMut::new(),
            at: At::Boundary,
            bound,
        }
    }

    /// Whether a line of our own can go to the agent now without tearing one of the server's.
    pub(crate) fn at_boundary(&self) -> bool {
        self.at == At::Boundary
    }

    /// Takes what came. With `look`, lines that begin from here on are given whole.
    pub(crate) fn push(&mut self, bytes: &[u8], look: bool) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let end = memchr::memchr(b'\n', rest).map(|at| at + 1);
            match self.at {
                At::Middle | At::LongLine => {
                    // Not looking, all of it passes, and only its last line matters.
                    let end = match (self.at, look) {
                        (At::Middle, false) => memchr::memrchr(b'\n', rest).map(|at| at + 1),
                        _ => end,
                    };
                    let was = self.at;
                    let (line, after) = rest.split_at(end.unwrap_or(rest.len()));
                    rest = after;
                    if end.is_some() {
                        self.at = At::Boundary;
                    }
                    let line = Bytes::copy_from_slice(line);
                    pieces.push(match (was, end) {
                        (At::LongLine, Some(_)) => Piece::EndOfLongLine(line),
                        _ => Piece::Bytes(line),
                    });
                }
                At::Boundary if !look && self.held.is_empty() => {
                    self.at = At::Middle;
                }
                At::Boundary => {
                    let (line, after) = rest.split_at(end.unwrap_or(rest.len()));
                    rest = after;
                    self.held.extend_from_slice(line);
                    if self.held.len() > self.bound {
                        let held = self.held.split().freeze();
                        self.at = At::LongLine;
                        if end.is_some() {
                            self.at = At::Boundary;
                            pieces.push(Piece::EndOfLongLine(held));
                        } else {
                            pieces.push(Piece::Bytes(held));
                        }
                    } else if end.is_some() {
                        pieces.push(Piece::Line(self.held.split().freeze()));
                    }
                }
            }
        }
        pieces
    }

    /// What is left when the output has ended.
    pub(crate) fn finish(&mut self) -> Option<Piece> {
        let rest = self.held.split().freeze();
        (!rest.is_empty()).then_some(Piece::Line(rest))
    }
}

/// What the messages of a line answer.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Answers {
    /// For awaited calls: what the id is compared by, and the answer.
    pub(crate) calls: Vec<(String, McpResponse)>,
    /// For requests that asked which tools there are: what the id is compared by, and the JSON text
    /// of the array, where there is one.
    pub(crate) tools: Vec<(String, Option<String>)>,
}

/// Finds answers in a line: to the calls `calls` and the tool lists `lists`, each given by what its
/// id is compared by.
pub(crate) fn answers(line: &[u8], calls: &[String], lists: &[String]) -> Answers {
    let mut found = Answers::default();
    // A response has one of these members. Names are not written with escapes by any serialiser;
    // an answer that did would be taken as none, and its effect as in doubt.
    let may_answer = memchr::memmem::find(line, b"\"result\"").is_some()
        || memchr::memmem::find(line, b"\"error\"").is_some();
    let Some(text) = std::str::from_utf8(line).ok().filter(|_| may_answer) else {
        return found;
    };
    for message in jsonrpc::parse_messages(text) {
        let Some((id, answer)) = answer::answer_of(&message) else {
            continue;
        };
        if lists.contains(&id) {
            let tools = jsonrpc::member(&answer.answer, "tools")
                .filter(|tools| tools.starts_with('['))
                .map(str::to_owned);
            found.tools.push((id.clone(), tools));
        }
        if calls.contains(&id) {
            found.calls.push((id, answer));
        }
    }
    found
}

/// The line with the answers to `ids` (by what they are compared by) replaced: `instead` is given
/// that and the id itself.
pub(crate) fn without_answers(
    line: &[u8],
    ids: &[String],
    instead: impl Fn(&str, &str) -> String,
) -> String {
    let text = String::from_utf8_lossy(line);
    let is_batch = text.trim_start().starts_with('[');
    let messages: Vec<String> = jsonrpc::parse_messages(&text)
        .iter()
        .map(|message| {
            let key = answer::answer_of(message).map(|(key, _)| key);
            match key.filter(|key| ids.contains(key)) {
                Some(key) => instead(&key, message.id.unwrap_or("null")),
                None => message.text.to_owned(),
            }
        })
        .collect();
    let joined = messages.join(",");
    if is_batch {
        format!("[{joined}]\n")
    } else {
        format!("{joined}\n")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(pieces: &[Piece]) -> Vec<u8> {
        pieces
            .iter()
            .flat_map(|piece| match piece {
                Piece::Bytes(b) | Piece::Line(b) | Piece::EndOfLongLine(b) => b.to_vec(),
            })
            .collect()
    }

    proptest! {
        #[test]
        fn bytes_stay_in_order_and_lines_that_begin_while_looking_come_whole(
            chunks in prop::collection::vec(("[ab\n]{0,12}", any::<bool>()), 0..12),
            bound in 1..8usize,
        ) {
            let mut cutter = Outbound::new(bound);
            let mut pieces = Vec::new();
            let mut whole = Vec::new();
            for (chunk, look) in &chunks {
                let new = cutter.push(chunk.as_bytes(), *look);
                whole.extend_from_slice(chunk.as_bytes());
                for piece in &new {
                    if let Piece::Line(line) = piece {
                        prop_assert!(line.ends_with(b"\n") && line.len() <= bound);
                        prop_assert_eq!(memchr::memchr(b'\n', line), Some(line.len() - 1));
                    }
                }
                pieces.extend(new);
                let passed = bytes(&pieces);
                prop_assert_eq!(cutter.at_boundary(), passed.last().is_none_or(|b| *b == b'\n'));
                prop_assert!(passed.len() + bound >= whole.len());
            }
            pieces.extend(cutter.finish());
            prop_assert_eq!(bytes(&pieces), whole);
        }

        #[test]
        fn looking_all_the_time_gives_every_line(
            text in "[ab\n]{0,60}",
            cuts in prop::collection::vec(0..60usize, 0..8),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|c| *c <= text.len()).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let mut cutter = Outbound::new(100);
            let mut pieces = Vec::new();
            for cut in cuts.windows(2) {
                pieces.extend(cutter.push(&text.as_bytes()[cut[0]..cut[1]], true));
            }
            pieces.extend(cutter.finish());
            let lines: Vec<Piece> = text
                .split_inclusive('\n')
                .map(|line| Piece::Line(Bytes::copy_from_slice(line.as_bytes())))
                .collect();
            prop_assert_eq!(pieces, lines);
        }
    }

    #[test]
    fn a_line_that_is_too_long_passes_and_its_end_is_told() {
        let mut cutter = Outbound::new(4);
        assert_eq!(cutter.push(b"abc", true), []);
        assert!(cutter.at_boundary());
        let pieces = cutter.push(b"def", true);
        assert_eq!(pieces, [Piece::Bytes(Bytes::from_static(b"abcdef"))]);
        assert!(!cutter.at_boundary());
        let pieces = cutter.push(b"g\nh\n", true);
        assert_eq!(
            pieces,
            [
                Piece::EndOfLongLine(Bytes::from_static(b"g\n")),
                Piece::Line(Bytes::from_static(b"h\n")),
            ]
        );
    }

    #[test]
    fn answers_are_found_by_id_in_either_member_order() {
        let calls = ["n3".to_owned(), "sx".to_owned()];
        let lists = ["n4".to_owned()];
        let line = br#"{"result":{"content":[],"isError":true},"jsonrpc":"2.0","id":3}"#;
        let found = answers(line, &calls, &lists);
        assert_eq!(found.calls.len(), 1);
        assert_eq!(found.calls[0].0, "n3");
        assert!(found.calls[0].1.is_error);
        let line = br#"[{"jsonrpc":"2.0","id":4,"result":{"tools":[{"name":"a"}]}},{"jsonrpc":"2.0","id":"x","error":{"code":1}}]"#;
        let found = answers(line, &calls, &lists);
        assert_eq!(found.calls[0].0, "sx");
        assert_eq!(
            found.tools,
            [("n4".to_owned(), Some(r#"[{"name":"a"}]"#.to_owned()))]
        );
        // The server's own request has ids of its own; noise is no answer.
        for line in [
            &br#"{"jsonrpc":"2.0","id":3,"method":"roots/list"}"#[..],
            br#"{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"\"result\""}}"#,
            b"\"result\" \xff",
        ] {
            assert_eq!(answers(line, &calls, &lists), Answers::default());
        }
    }

    #[test]
    fn an_answer_that_must_not_be_seen_is_replaced_alone() {
        let ids = ["n3".to_owned()];
        let instead = |_: &str, id: &str| format!("<{id}>");
        let line = b"{\"jsonrpc\":\"2.0\",\"id\":3,\"result\":{}}\n";
        assert_eq!(without_answers(line, &ids, instead), "<3>\n");
        let line = b"[{\"jsonrpc\":\"2.0\",\"id\":3,\"result\":{}},{\"jsonrpc\":\"2.0\",\"id\":4,\"result\":{}}]\n";
        assert_eq!(
            without_answers(line, &ids, instead),
            "[<3>,{\"jsonrpc\":\"2.0\",\"id\":4,\"result\":{}}]\n"
        );
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(line in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut text = b"{\"result\"".to_vec();
            text.extend(&line);
            answers(&text, &["n1".to_owned()], &[]);
            let _ = without_answers(&line, &["n1".to_owned()], |_, _| String::new());
        }
    }
}
