//! JSON with comments and trailing commas, as editors keep it: where everything stands in the
//! text, so that a value can be changed and nothing else moves.

use std::ops::Range;

/// A value and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct Node {
    pub(in crate::cli) span: Range<usize>,
    pub(in crate::cli) value: Value,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) enum Value {
    Object(Vec<Member>),
    Array(Vec<Node>),
    /// Its text without escapes.
    String(String),
    /// A number or a word.
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct Member {
    pub(in crate::cli) name: String,
    pub(in crate::cli) value: Node,
}

/// What is wrong with a text, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub(in crate::cli) struct Malformed {
    line: usize,
    what: &'static str,
}

/// Deeper nesting is refused: a configuration has none, and recursion must end.
const DEPTH: usize = 128;

impl Node {
    /// Reads a whole text.
    pub(in crate::cli) fn read(text: &str) -> Result<Self, Malformed> {
        let mut reader = Reader {
            text,
            at: if text.starts_with('\u{feff}') { 3 } else { 0 },
        };
        let node = reader.value(0)?;
        reader.skip()?;
        if reader.at < text.len() {
            return Err(reader.wrong("something stands behind the end"));
        }
        Ok(node)
    }

    /// The member of that name; the last one, as readers take it.
    pub(in crate::cli) fn get(&self, name: &str) -> Option<&Node> {
        self.members()
            .iter()
            .rev()
            .find(|member| member.name == name)
            .map(|member| &member.value)
    }

    pub(in crate::cli) fn members(&self) -> &[Member] {
        match &self.value {
            Value::Object(members) => members,
            _ => &[],
        }
    }

    pub(in crate::cli) fn as_str(&self) -> Option<&str> {
        match &self.value {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    pub(in crate::cli) fn as_array(&self) -> Option<&[Node]> {
        match &self.value {
            Value::Array(items) => Some(items),
            _ => None,
        }
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn value(&mut self, depth: usize) -> Result<Node, Malformed> {
        if depth > DEPTH {
            return Err(self.wrong("it is nested too deeply"));
        }
        self.skip()?;
        let start = self.at;
        let value = match self.peek() {
            Some(b'{') => self.object(depth)?,
            Some(b'[') => self.array(depth)?,
            Some(b'"') => Value::String(self.string()?),
            Some(b) if b == b'-' || b.is_ascii_alphanumeric() => {
                let word = |b: u8| b.is_ascii_alphanumeric() || b"+-.".contains(&b);
                let rest = &self.text.as_bytes()[self.at..];
                self.at += rest.iter().position(|b| !word(*b)).unwrap_or(rest.len());
                Value::Other
            }
            Some(_) => return Err(self.wrong("a value is expected")),
            None => return Err(self.wrong("it ends too early")),
        };
        Ok(Node {
            span: start..self.at,
            value,
        })
    }

    fn object(&mut self, depth: usize) -> Result<Value, Malformed> {
        self.at += 1;
        let mut members = Vec::new();
        loop {
            self.skip()?;
            match self.peek() {
                Some(b'}') => {
                    self.at += 1;
                    return Ok(Value::Object(members));
                }
                Some(b'"') => {}
                Some(_) => return Err(self.wrong("a member name in quotes is expected")),
                None => return Err(self.wrong("it ends inside an object")),
            }
            let name = self.string()?;
            self.skip()?;
            if self.peek() != Some(b':') {
                return Err(self.wrong("a colon is expected"));
            }
            self.at += 1;
            let value = self.value(depth + 1)?;
            members.push(Member { name, value });
            self.comma_or(b'}')?;
        }
    }

    fn array(&mut self, depth: usize) -> Result<Value, Malformed> {
        self.at += 1;
        let mut items = Vec::new();
        loop {
            self.skip()?;
            if self.peek() == Some(b']') {
                self.at += 1;
                return Ok(Value::Array(items));
            }
            items.push(self.value(depth + 1)?);
            self.comma_or(b']')?;
        }
    }

    fn comma_or(&mut self, end: u8) -> Result<(), Malformed> {
        self.skip()?;
        match self.peek() {
            Some(b',') => {
                self.at += 1;
                Ok(())
            }
            Some(b) if b == end => Ok(()),
            _ => Err(self.wrong("a comma or an end is expected")),
        }
    }

    fn string(&mut self) -> Result<String, Malformed> {
        let start = self.at;
        let bytes = self.text.as_bytes();
        let mut at = start + 1;
        loop {
            match bytes.get(at) {
                Some(b'"') => break,
                Some(b'\\') => at += 2,
                Some(_) => at += 1,
                None => return Err(self.wrong("it ends inside a string")),
            }
        }
        let Some(text) = self.text.get(start..=at) else {
            return Err(self.wrong("a string is not closed"));
        };
        self.at = at + 1;
        serde_json::from_str(text).map_err(|_| self.wrong("a string has an invalid escape"))
    }

    /// Skips white space and comments.
    fn skip(&mut self) -> Result<(), Malformed> {
        loop {
            let rest = &self.text[self.at..];
            let trimmed = rest.trim_start_matches([' ', '\t', '\r', '\n']);
            self.at += rest.len() - trimmed.len();
            if trimmed.starts_with("//") {
                self.at += trimmed.find('\n').unwrap_or(trimmed.len());
            } else if trimmed.starts_with("/*") {
                let Some(end) = trimmed.find("*/") else {
                    return Err(self.wrong("a comment is not closed"));
                };
                self.at += end + 2;
            } else {
                return Ok(());
            }
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn wrong(&self, what: &'static str) -> Malformed {
        let before = &self.text.as_bytes()[..self.at.min(self.text.len())];
        Malformed {
            line: 1 + before.iter().filter(|b| **b == b'\n').count(),
            what,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn everything_is_where_it_says() {
        let text =
            "\u{feff}// top\n{ \"a\" : [1, \"x\\\"y\",], /* b */ \"b\":{\"c\":true}, }\n// end";
        let node = Node::read(text).unwrap();
        let items = node.get("a").unwrap().as_array().unwrap();
        assert_eq!(&text[items[0].span.clone()], "1");
        assert_eq!(&text[items[1].span.clone()], "\"x\\\"y\"");
        assert_eq!(items[1].as_str(), Some("x\"y"));
        let b = node.get("b").unwrap();
        assert_eq!(&text[b.span.clone()], "{\"c\":true}");
    }

    #[test]
    fn errors_say_where() {
        for (text, line) in [
            ("{\n\"a\" 1}", 2),
            ("", 1),
            ("{", 1),
            ("{\"a\":\"x", 1),
            ("[1 2]", 1),
            ("{}\n\nx", 3),
            ("/* ", 1),
            ("\"\\", 1),
            ("\"\\q\"", 1),
        ] {
            assert_eq!(Node::read(text).unwrap_err().line, line, "{text}");
        }
        let deep = "[".repeat(100_000);
        assert!(Node::read(&deep).is_err());
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(text in "[{}\\[\\]\":,/*\\\\a1é \n]{0,60}") {
            let _ = Node::read(&text);
        }

        #[test]
        fn what_strict_readers_read_is_read(numbers in prop::collection::vec(any::<i32>(), 0..5), text: String) {
            let json = serde_json::json!({"a": numbers, text: {"b": null}});
            for written in [json.to_string(), serde_json::to_string_pretty(&json).unwrap()] {
                let node = Node::read(&written).unwrap();
                prop_assert_eq!(node.span, 0..written.len());
            }
        }
    }
}
