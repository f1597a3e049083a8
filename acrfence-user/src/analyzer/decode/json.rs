//! JSON that forgets nothing: numbers stay as written, a name that occurs twice stays twice.

use std::borrow::Cow;

use super::super::value::Value;
use super::{MOST_NODES, Undecodable};

/// Deepest nesting that is followed.
const DEEPEST: usize = 96;

/// Reads exactly one JSON text.
pub(in crate::analyzer) fn read(text: &str) -> Result<Value<'_>, Undecodable> {
    let mut reader = Reader {
        text,
        bytes: text.as_bytes(),
        at: 0,
        nodes: 0,
    };
    reader.blank();
    let value = reader.value(0)?;
    reader.blank();
    if reader.at == reader.bytes.len() {
        Ok(value)
    } else {
        Err(Undecodable)
    }
}

/// Reads newline-delimited JSON: at least two lines, each an object or a list.
pub(in crate::analyzer) fn read_lines(text: &str) -> Result<Value<'_>, Undecodable> {
    let mut items = Vec::new();
    for line in text.lines().filter(|l| !l.trim().is_empty()) {
        if items.len() >= MOST_NODES / 8 || !line.trim_start().starts_with(['{', '[']) {
            return Err(Undecodable);
        }
        items.push(read(line)?);
    }
    if items.len() < 2 {
        return Err(Undecodable);
    }
    Ok(Value::List(items))
}

struct Reader<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    nodes: usize,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn blank(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    fn expect(&mut self, wanted: u8) -> Result<(), Undecodable> {
        if self.peek() == Some(wanted) {
            self.at += 1;
            Ok(())
        } else {
            Err(Undecodable)
        }
    }

    fn word(&mut self, word: &str, value: Value<'a>) -> Result<Value<'a>, Undecodable> {
        if self.bytes[self.at..].starts_with(word.as_bytes()) {
            self.at += word.len();
            Ok(value)
        } else {
            Err(Undecodable)
        }
    }

    fn value(&mut self, depth: usize) -> Result<Value<'a>, Undecodable> {
        self.nodes += 1;
        if depth > DEEPEST || self.nodes > MOST_NODES {
            return Err(Undecodable);
        }
        match self.peek().ok_or(Undecodable)? {
            b'{' => self.map(depth),
            b'[' => self.list(depth),
            b'"' => Ok(Value::Text(self.string()?)),
            b't' => self.word("true", Value::Bool(true)),
            b'f' => self.word("false", Value::Bool(false)),
            b'n' => self.word("null", Value::Null),
            _ => self.number(),
        }
    }

    fn map(&mut self, depth: usize) -> Result<Value<'a>, Undecodable> {
        self.at += 1;
        let mut entries = Vec::new();
        self.blank();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Value::Map(entries));
        }
        loop {
            self.blank();
            let name = self.string()?;
            self.blank();
            self.expect(b':')?;
            self.blank();
            entries.push((name, self.value(depth + 1)?));
            self.blank();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(Value::Map(entries));
                }
                _ => return Err(Undecodable),
            }
        }
    }

    fn list(&mut self, depth: usize) -> Result<Value<'a>, Undecodable> {
        self.at += 1;
        let mut items = Vec::new();
        self.blank();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Value::List(items));
        }
        loop {
            self.blank();
            items.push(self.value(depth + 1)?);
            self.blank();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(Value::List(items));
                }
                _ => return Err(Undecodable),
            }
        }
    }

    fn number(&mut self) -> Result<Value<'a>, Undecodable> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.digits(),
            _ => return Err(Undecodable),
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.some_digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.some_digits()?;
        }
        Ok(Value::Number(Cow::Borrowed(&self.text[start..self.at])))
    }

    fn digits(&mut self) {
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
    }

    fn some_digits(&mut self) -> Result<(), Undecodable> {
        let start = self.at;
        self.digits();
        if self.at > start {
            Ok(())
        } else {
            Err(Undecodable)
        }
    }

    fn string(&mut self) -> Result<Cow<'a, str>, Undecodable> {
        self.expect(b'"')?;
        let start = self.at;
        loop {
            match self.peek().ok_or(Undecodable)? {
                b'"' => {
                    let text = &self.text[start..self.at];
                    self.at += 1;
                    return Ok(Cow::Borrowed(text));
                }
                b'\\' => break,
                0..=0x1f => return Err(Undecodable),
                _ => self.at += 1,
            }
        }
        let mut out = String::from(&self.text[start..self.at]);
        loop {
            let run = self.at;
            while !matches!(self.peek().ok_or(Undecodable)?, b'"' | b'\\' | 0..=0x1f) {
                self.at += 1;
            }
            out.push_str(&self.text[run..self.at]);
            match self.peek().ok_or(Undecodable)? {
                b'"' => {
                    self.at += 1;
                    return Ok(Cow::Owned(out));
                }
                b'\\' => {
                    self.at += 1;
                    out.push(self.escape()?);
                }
                _ => return Err(Undecodable),
            }
        }
    }

    fn escape(&mut self) -> Result<char, Undecodable> {
        let letter = self.peek().ok_or(Undecodable)?;
        self.at += 1;
        Ok(match letter {
            b'"' => '"',
            b'\\' => '\\',
            b'/' => '/',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let first = self.hex4()?;
                let code = if (0xd800..0xdc00).contains(&first) {
                    self.expect(b'\\')?;
                    self.expect(b'u')?;
                    let second = self.hex4()?;
                    if !(0xdc00..0xe000).contains(&second) {
                        return Err(Undecodable);
                    }
                    0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)
                } else {
                    first
                };
                // A lone surrogate is no character; two different ones must not become equal.
                char::from_u32(code).ok_or(Undecodable)?
            }
            _ => return Err(Undecodable),
        })
    }

    fn hex4(&mut self) -> Result<u32, Undecodable> {
        let digits = self.bytes.get(self.at..self.at + 4).ok_or(Undecodable)?;
        self.at += 4;
        digits.iter().try_fold(0, |sum, b| {
            let digit = char::from(*b).to_digit(16).ok_or(Undecodable)?;
            Ok(sum * 16 + digit)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_what_others_lose() {
        let value = read(r#"{"a":1234567890123456789,"a":1.50,"b":"\u00e9\ud83d\ude00"}"#);
        let Ok(Value::Map(entries)) = value else {
            panic!("{value:?}")
        };
        assert_eq!(entries.len(), 3);
        assert_eq!(entries[0].1, Value::Number("1234567890123456789".into()));
        assert_eq!(entries[1].1, Value::Number("1.50".into()));
        assert_eq!(entries[2].1, Value::Text("é😀".into()));
    }

    #[test]
    fn refuses_what_is_no_json() {
        for bad in [
            "",
            "{",
            "[1,]",
            "01",
            "1.",
            ".5",
            "+1",
            "nul",
            "{\"a\"}",
            "\"\\ud800\"",
            "\"a\nb\"",
            "{} {}",
            "\"\\x\"",
            "-",
            "1e",
            "[1 2]",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
        assert!(read(&"[".repeat(100_000)).is_err());
    }
}
