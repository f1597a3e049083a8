//! Text in lines: calendars and contacts as blocks of named lines, other files line by line.

use std::borrow::Cow;

use super::super::value::Value;
use super::Undecodable;

/// Most lines that are read.
const MOST_LINES: usize = 20_000;

/// Deepest nesting of blocks.
const DEEPEST: usize = 16;

/// Reads `BEGIN:X … END:X` with `NAME;PARAMETERS:value` lines, folded lines joined.
pub(in crate::analyzer) fn blocks(text: &str) -> Result<Value<'static>, Undecodable> {
    type Entries = Vec<(Cow<'static, str>, Value<'static>)>;
    let mut logical: Vec<String> = Vec::new();
    for line in text.lines() {
        let line = line.trim_end_matches('\r');
        if logical.len() > MOST_LINES {
            return Err(Undecodable);
        }
        match line.strip_prefix([' ', '\t']) {
            Some(folded) => logical.last_mut().ok_or(Undecodable)?.push_str(folded),
            None if line.trim().is_empty() => {}
            None => logical.push(line.to_owned()),
        }
    }
    let mut open: Vec<(String, Entries)> = vec![(String::new(), Vec::new())];
    for line in logical {
        let (name, value) = line.split_once(':').ok_or(Undecodable)?;
        if open.len() > DEEPEST {
            return Err(Undecodable);
        }
        match name.to_ascii_uppercase().as_str() {
            "BEGIN" => open.push((value.trim().to_ascii_uppercase(), Vec::new())),
            "END" => {
                let (kind, entries) = open.pop().ok_or(Undecodable)?;
                if kind != value.trim().to_ascii_uppercase() {
                    return Err(Undecodable);
                }
                let (_, parent) = open.last_mut().ok_or(Undecodable)?;
                super::add_repeatable(parent, Cow::Owned(kind), Value::Map(entries));
            }
            _ => {
                let (_, entries) = open.last_mut().ok_or(Undecodable)?;
                let (name, parameters) = name.split_once(';').unwrap_or((name, ""));
                let value = if parameters.is_empty() {
                    Value::text(value.trim())
                } else {
                    Value::Map(vec![
                        ("parameters".into(), Value::text(parameters)),
                        ("value".into(), Value::text(value.trim())),
                    ])
                };
                super::add_repeatable(entries, Cow::Owned(name.to_ascii_uppercase()), value);
            }
        }
    }
    match open.as_mut_slice() {
        [(_, entries)] if !entries.is_empty() => {
            let entries = std::mem::take(entries);
            if entries
                .iter()
                .any(|(_, v)| !matches!(v, Value::Map(_) | Value::List(_)))
            {
                return Err(Undecodable);
            }
            Ok(Value::Map(entries))
        }
        _ => Err(Undecodable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calendars_are_blocks() {
        let text = "BEGIN:VCALENDAR\r\nBEGIN:VEVENT\r\nUID:1\r\nDTSTART;TZID=Europe/Berlin:20320309T130000\r\nSUMMARY:Long\r\n  er\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n";
        let value = blocks(text).unwrap();
        let event = value
            .get("VCALENDAR")
            .and_then(|c| c.get("VEVENT"))
            .unwrap();
        assert_eq!(
            event.get("SUMMARY").and_then(Value::as_text),
            Some("Long er")
        );
        for bad in [
            "",
            "BEGIN:A\nEND:B\n",
            "BEGIN:A\n",
            "END:A\n",
            "A:1\n",
            "BEGIN:A\nnope\nEND:A\n",
        ] {
            assert!(blocks(bad).is_err(), "{bad}");
        }
    }
}
