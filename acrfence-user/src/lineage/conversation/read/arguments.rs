//! Arguments of tool calls in a normal form, and the values inside them.

use std::borrow::Cow;
use std::fmt::Write as _;

use serde_json::Value;

use crate::lineage::conversation::mark::{Kind, Mark, Marker};
use crate::lineage::conversation::words::plain;

/// Most values of one call that are remembered.
const MOST_VALUES: usize = 48;

/// Deepest nesting that is looked into (serde_json refuses more than 128).
const DEEPEST: usize = 64;

/// Marks of arguments: of all of them in their normal form, and of the values inside.
pub(in super::super) fn mark_arguments(marker: &Marker, arguments: &Value) -> (Mark, Vec<Mark>) {
    let arguments = &*opened(arguments);
    let mut normal = String::new();
    normal_form(arguments, &mut normal);
    let mut values = Vec::new();
    leaves(marker, arguments, 0, &mut values);
    sorted(&mut values);
    (marker.mark(Kind::Arguments, normal.as_bytes()), values)
}

/// Arguments as a tree: chat formats put JSON into a string.
fn opened(arguments: &Value) -> Cow<'_, Value> {
    match arguments {
        Value::String(text) => match serde_json::from_str::<Value>(text) {
            Ok(inner) => Cow::Owned(inner),
            Err(_) if text.trim().is_empty() => Cow::Owned(Value::Null),
            Err(_) => Cow::Borrowed(arguments),
        },
        other => Cow::Borrowed(other),
    }
}

/// How often arguments say that something is to be done (`{"spec": "small", "count": 3}`), with the mark
/// of that value; none where they do not, or say once.
pub(super) fn mark_times(marker: &Marker, arguments: &Value) -> Option<(u32, Mark)> {
    const NAMES: &[&str] = &[
        "count",
        "times",
        "copies",
        "repeat",
        "repeats",
        "repetitions",
        "iterations",
        "replicas",
        "instances",
        "quantity",
        "qty",
        "how_many",
        "howmany",
    ];
    let arguments = opened(arguments);
    let said = arguments.as_object()?.iter().filter_map(|(name, value)| {
        let name = name.to_ascii_lowercase();
        let last = name.rsplit(['_', '-']).next().unwrap_or_default();
        let is_count = NAMES.contains(&&*name) || last == "count" || name.starts_with("num_");
        let times = u32::try_from(value.as_u64()?).ok()?;
        (is_count && times > 1).then(|| (times, value_mark(marker, &times.to_string())))
    });
    said.max_by_key(|(times, _)| *times)
}

/// Marks of the values in a request body or URL query: JSON or form.
pub fn values_of_body(marker: &Marker, body: &[u8]) -> Vec<Mark> {
    let mut values = Vec::new();
    match serde_json::from_slice::<Value>(body) {
        Ok(json) => leaves(marker, &json, 0, &mut values),
        Err(_) => {
            let form = url::form_urlencoded::parse(body);
            values.extend(
                form.take(MOST_VALUES)
                    .filter(|(_, value)| !value.is_empty())
                    .map(|(_, value)| value_mark(marker, &value)),
            );
        }
    }
    sorted(&mut values);
    values
}

/// Marks by which a command is found in the arguments of the call that ran it.
pub(in super::super) fn command_values(marker: &Marker, argv: &[String]) -> Vec<Mark> {
    let Some((program, arguments)) = argv.split_first() else {
        return Vec::new();
    };
    let name = program.rsplit('/').next().unwrap_or(program);
    let mut values: Vec<Mark> = [name, program]
        .into_iter()
        .map(|program| {
            let mut line = String::from(program);
            for argument in arguments {
                line.push(' ');
                line.push_str(argument);
            }
            value_mark(marker, &unquoted(&line))
        })
        .collect();
    sorted(&mut values);
    values
}

/// The mark of one value.
pub(super) fn value_mark(marker: &Marker, text: &str) -> Mark {
    marker.mark(Kind::Value, plain(text).as_bytes())
}

fn sorted(values: &mut Vec<Mark>) {
    values.sort_unstable();
    values.dedup();
    values.truncate(MOST_VALUES);
}

fn leaves(marker: &Marker, value: &Value, depth: usize, into: &mut Vec<Mark>) {
    if depth > DEEPEST || into.len() >= 4 * MOST_VALUES {
        return;
    }
    match value {
        Value::Null | Value::Bool(_) => {}
        Value::Number(number) => into.push(value_mark(marker, &plain_number(number))),
        Value::String(text) => {
            if text.is_empty() {
                return;
            }
            into.push(value_mark(marker, text));
            commands(marker, text, into);
        }
        Value::Array(items) => {
            for item in items {
                leaves(marker, item, depth + 1, into);
            }
        }
        Value::Object(fields) => {
            for field in fields.values() {
                leaves(marker, field, depth + 1, into);
            }
        }
    }
}

/// The single commands of a shell line, each as it would stand in an argument vector.
fn commands(marker: &Marker, text: &str, into: &mut Vec<Mark>) {
    if !text.contains([' ', '\n']) || text.len() > 16 << 10 {
        return;
    }
    for command in text.split(['\n', ';', '|', '&']).take(16) {
        let command = unquoted(command);
        if command.contains(' ') {
            into.push(value_mark(marker, &command));
        }
    }
}

fn unquoted(text: &str) -> String {
    text.trim()
        .chars()
        .filter(|c| !['"', '\'', '\\'].contains(c))
        .collect()
}

/// Keys sorted, numbers as a program that knows only doubles would write them: a client that reads
/// and writes the arguments again leaves the form as it is.
fn normal_form(value: &Value, into: &mut String) {
    match value {
        Value::Null => into.push_str("null"),
        Value::Bool(b) => into.push_str(if *b { "true" } else { "false" }),
        Value::Number(n) => into.push_str(&plain_number(n)),
        Value::String(s) => {
            let _ = write!(into, "{s:?}");
        }
        Value::Array(items) => {
            into.push('[');
            for item in items {
                normal_form(item, into);
                into.push(',');
            }
            into.push(']');
        }
        Value::Object(fields) => {
            let mut keys: Vec<_> = fields.iter().collect();
            keys.sort_by_key(|(key, _)| *key);
            into.push('{');
            for (key, field) in keys {
                let _ = write!(into, "{key:?}:");
                normal_form(field, into);
                into.push(',');
            }
            into.push('}');
        }
    }
}

fn plain_number(number: &serde_json::Number) -> String {
    match number.as_f64() {
        Some(f) => format!("{f}"),
        None => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn marker() -> Marker {
        Marker::new(&[3; 32])
    }

    #[test]
    fn a_client_that_rewrites_arguments_leaves_their_mark() {
        let m = marker();
        let same = [
            json!({"to": "alice", "amount": 100, "deep": {"b": 1, "a": [1, 2]}}),
            json!({"amount": 100.0, "deep": {"a": [1.0, 2], "b": 1}, "to": "alice"}),
            json!("{\"to\": \"alice\", \"amount\": 1e2, \"deep\": {\"a\": [1, 2], \"b\": 1}}"),
        ];
        let first = mark_arguments(&m, &same[0]);
        for other in &same {
            assert_eq!(mark_arguments(&m, other), first, "{other}");
        }
        for different in [
            json!({"to": "alice", "amount": 101, "deep": {"b": 1, "a": [1, 2]}}),
            json!({"to": "alice", "amount": "100", "deep": {"b": 1, "a": [1, 2]}}),
            json!({"to": "alice", "amount": 100, "deep": {"b": 1, "a": [2, 1]}}),
        ] {
            assert_ne!(mark_arguments(&m, &different).0, first.0, "{different}");
        }
        assert_eq!(
            mark_arguments(&m, &json!("")).0,
            mark_arguments(&m, &Value::Null).0
        );
    }

    #[test]
    fn a_command_is_found_in_the_shell_line_that_runs_it() {
        let m = marker();
        let (_, line) = mark_arguments(
            &m,
            &json!({"command": "cd repo && git push origin 'main' | tee log"}),
        );
        let argv = |words: &[&str]| {
            let argv: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
            command_values(&m, &argv)
        };
        assert!(
            argv(&["/usr/bin/git", "push", "origin", "main"])
                .iter()
                .any(|v| line.contains(v))
        );
        assert!(
            !argv(&["git", "push", "origin", "dev"])
                .iter()
                .any(|v| line.contains(v))
        );
    }

    #[test]
    fn how_often_a_call_is_meant_stands_in_it() {
        let m = marker();
        let times = |arguments: Value| mark_times(&m, &arguments).map(|(times, _)| times);
        for (arguments, said) in [
            (json!({"spec": "small", "count": 3}), Some(3)),
            (
                json!("{\"spec\": \"small\", \"instance_count\": 4}"),
                Some(4),
            ),
            (json!({"to": "alice", "num_copies": 2}), Some(2)),
            (json!({"count": 1}), None),
            (json!({"amount": 100, "account": 3, "discount": 5}), None),
            (json!({"count": "three"}), None),
            (json!([3]), None),
        ] {
            assert_eq!(times(arguments.clone()), said, "{arguments}");
        }
        // It is the mark under which a request that says it by itself has it.
        let (_, mark) = mark_times(&m, &json!({"count": 3})).unwrap();
        assert!(values_of_body(&m, b"count=3").contains(&mark));
        assert!(values_of_body(&m, br#"{"count": 3}"#).contains(&mark));
    }

    #[test]
    fn values_are_found_in_json_and_forms() {
        let m = marker();
        let (_, call) = mark_arguments(&m, &json!({"to": "alice", "amount": 100}));
        assert_eq!(values_of_body(&m, br#"{"amount":100,"to":"alice"}"#), call);
        assert_eq!(values_of_body(&m, b"to=alice&amount=100"), call);
    }
}
