//! JSON-RPC 2.0 messages, read strictly: where readers could disagree about what a message asks
//! for, it is told so instead of guessing.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// JSON-RPC's code for a message that is no valid request.
pub const INVALID_REQUEST: i32 = -32600;
/// More messages in one batch are refused.
const BATCH_MAX: usize = 1000;

/// What a body is.
#[derive(Debug)]
pub enum Parsed<'a> {
    /// No JSON-RPC.
    NotRpc,
    /// JSON-RPC that readers would understand differently.
    Ambiguous {
        /// JSON text of the id, where there is one.
        id: Option<String>,
        /// What is wrong with it.
        why: String,
    },
    /// One message.
    Single(Message<'a>),
    /// Several in an array.
    Batch(Vec<Message<'a>>),
}

/// One message.
#[derive(Debug)]
pub struct Message<'a> {
    /// All of it as sent.
    pub text: &'a str,
    /// JSON text of the id.
    pub id: Option<&'a str>,
    /// The method; none in a response.
    pub method: Option<String>,
    /// JSON text of the result.
    pub result: Option<&'a str>,
    /// JSON text of the error.
    pub error: Option<&'a str>,
    params: Option<&'a RawValue>,
}

/// A `tools/call` request.
#[derive(Debug, PartialEq, Eq)]
pub struct ToolsCall<'a> {
    /// JSON text of the id.
    pub id: &'a str,
    /// Tool name.
    pub name: String,
    /// JSON text of the arguments.
    pub arguments: Option<&'a str>,
    /// JSON text of `_meta`.
    pub meta: Option<&'a str>,
    /// The other members as one JSON object.
    pub extra: Option<String>,
}

/// Reads a body.
pub fn parse(body: &[u8]) -> Parsed<'_> {
    // A body that spells the word with escapes is no JSON-RPC to us; then it is plain HTTP, which
    // counts as an effect whatever it says.
    if !body
        .windows(9)
        .any(|w| w.eq_ignore_ascii_case(b"\"jsonrpc\""))
    {
        return Parsed::NotRpc;
    }
    let Ok(text) = std::str::from_utf8(body) else {
        return Parsed::NotRpc;
    };
    let start = text.trim_start_matches([' ', '\t', '\r', '\n']);
    if start.starts_with('[') {
        return batch(text);
    }
    match serde_json::from_str::<&RawValue>(text) {
        Ok(raw) if start.starts_with('{') => match message(raw.get()) {
            Ok(Some(message)) => Parsed::Single(message),
            Ok(None) => Parsed::NotRpc,
            Err(problem) => problem,
        },
        _ => Parsed::NotRpc,
    }
}

/// Reads one message of a response; none when it is no valid JSON-RPC.
pub fn parse_message(text: &str) -> Option<Message<'_>> {
    let raw = serde_json::from_str::<&RawValue>(text).ok()?;
    message(raw.get()).ok().flatten()
}

/// The messages of a response body: one, or an array of them.
pub fn parse_messages(text: &str) -> Vec<Message<'_>> {
    match parse(text.as_bytes()) {
        Parsed::Single(message) => vec![message],
        Parsed::Batch(messages) => messages,
        Parsed::NotRpc | Parsed::Ambiguous { .. } => Vec::new(),
    }
}

/// What an id (JSON text) is compared by: `1` and ` 1.0`, `"a"` and `"\u0061"` are the same.
pub fn id_key(id: &str) -> String {
    use serde_json::Value;
    match serde_json::from_str(id) {
        Ok(Value::String(text)) => format!("s{text}"),
        // A server that keeps ids as floats answers 1 with 1.0.
        Ok(Value::Number(number)) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => format!("n{whole}"),
            (None, Some(float)) if float.fract() == 0.0 && float.abs() < 9.0e15 => {
                format!("n{}", float as i64)
            }
            _ => format!("n{number}"),
        },
        _ => format!("?{}", id.trim()),
    }
}

/// The value of the one member of that name; none when it is missing, repeated, or `object` is none.
pub fn member<'a>(object: &'a str, name: &str) -> Option<&'a str> {
    let members = serde_json::from_str::<Members<'a>>(object).ok()?.0;
    let mut found = members.into_iter().filter(|(key, _)| key == name);
    let (_, value) = found.next()?;
    found.next().is_none().then(|| value.get())
}

impl<'a> Message<'a> {
    /// JSON text of the id of the request that this message cancels.
    pub fn cancels(&self) -> Option<&'a str> {
        if self.method.as_deref() != Some("notifications/cancelled") {
            return None;
        }
        member(self.params?.get(), "requestId")
    }

    /// This message as a `tools/call` request. One without an id, a name or proper parameters is
    /// none: no server answers it as such.
    pub fn tool_call(&self) -> Option<ToolsCall<'a>> {
        if self.method.as_deref() != Some("tools/call") {
            return None;
        }
        let id = self.id.filter(|id| *id != "null")?;
        let params = serde_json::from_str::<Members<'a>>(self.params?.get()).ok()?;
        let mut call = ToolsCall {
            id,
            name: String::new(),
            arguments: None,
            meta: None,
            extra: None,
        };
        let mut named = false;
        for (key, value) in params.0 {
            match &*key {
                "name" => {
                    call.name = serde_json::from_str(value.get()).ok()?;
                    named = true;
                }
                "arguments" => call.arguments = Some(value.get()).filter(|text| *text != "null"),
                "_meta" => call.meta = Some(value.get()),
                other => {
                    let name = serde_json::to_string(other).ok()?;
                    let extra = call.extra.get_or_insert_with(|| "{".to_owned());
                    if extra.len() > 1 {
                        extra.push(',');
                    }
                    extra.push_str(&name);
                    extra.push(':');
                    extra.push_str(value.get());
                }
            }
        }
        if let Some(extra) = &mut call.extra {
            extra.push('}');
        }
        named.then_some(call)
    }
}

fn batch(text: &str) -> Parsed<'_> {
    let Ok(raws) = serde_json::from_str::<Vec<&RawValue>>(text) else {
        return Parsed::NotRpc;
    };
    if raws.len() > BATCH_MAX {
        return Parsed::Ambiguous {
            id: None,
            why: format!("it holds more than {BATCH_MAX} messages"),
        };
    }
    let mut messages = Vec::with_capacity(raws.len());
    for raw in raws {
        match message(raw.get()) {
            Ok(Some(message)) => messages.push(message),
            // An array that holds anything else is no batch.
            Ok(None) => return Parsed::NotRpc,
            Err(problem) => return problem,
        }
    }
    if messages.is_empty() {
        return Parsed::NotRpc;
    }
    Parsed::Batch(messages)
}

fn message(text: &str) -> Result<Option<Message<'_>>, Parsed<'_>> {
    let Ok(Members(members)) = serde_json::from_str::<Members<'_>>(text) else {
        return Ok(None);
    };
    if !members.iter().any(|(key, _)| folded(key) == "jsonrpc") {
        return Ok(None);
    }
    let id = members
        .iter()
        .find(|(key, _)| key == "id")
        .map(|(_, value)| value.get());
    let ambiguous = |why: String| {
        Err(Parsed::Ambiguous {
            id: id
                .filter(|id| {
                    serde_json::from_str::<serde_json::Value>(id)
                        .is_ok_and(|v| v.is_string() || v.is_number())
                })
                .map(str::to_owned),
            why,
        })
    };
    if let Some(name) = repeated(&members) {
        return ambiguous(format!("its member `{name}` is there twice"));
    }
    let mut message = Message {
        text,
        id,
        method: None,
        result: None,
        error: None,
        params: None,
    };
    for (key, value) in &members {
        match &**key {
            "method" => match serde_json::from_str(value.get()) {
                Ok(method) => message.method = Some(method),
                Err(_) => return Ok(None),
            },
            "params" => message.params = Some(value),
            "result" => message.result = Some(value.get()),
            "error" => message.error = Some(value.get()),
            _ => {}
        }
    }
    if let Some(params) = message.params
        && let Ok(Members(members)) = serde_json::from_str::<Members<'_>>(params.get())
        && let Some(name) = repeated(&members)
    {
        return ambiguous(format!("the member `{name}` of its params is there twice"));
    }
    Ok(Some(message))
}

/// A name that is there twice. Some readers take names that differ only in case for the same.
fn repeated<'a>(members: &'a [(Cow<'_, str>, &RawValue)]) -> Option<&'a str> {
    let mut names: Vec<(String, &str)> = members
        .iter()
        .map(|(key, _)| (folded(key), &**key))
        .collect();
    names.sort();
    names
        .windows(2)
        .find(|pair| pair[0].0 == pair[1].0)
        .map(|pair| pair[1].1)
}

fn folded(name: &str) -> String {
    name.chars()
        .flat_map(char::to_lowercase)
        // Unicode's simple folding, as Go's reader does it.
        .map(|c| if c == 'ſ' { 's' } else { c })
        .collect()
}

/// The members of an object in order, repeated ones included.
struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut members = Vec::new();
                while let Some(key) = map.next_key::<Name<'de>>()? {
                    members.push((key.0, map.next_value()?));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

/// A member name, borrowed where it has no escapes.
struct Name<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Name<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a member name")
            }

            fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Self::Value, E> {
                Ok(Name(Cow::Borrowed(name)))
            }

            fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
                Ok(Name(Cow::Owned(name.to_owned())))
            }
        }
        deserializer.deserialize_str(Read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn single(text: &str) -> Message<'_> {
        match parse(text.as_bytes()) {
            Parsed::Single(message) => message,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn a_cancellation_names_its_request() {
        let cancels = |text: &str| single(text).cancels().map(str::to_owned);
        let notice = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7,"reason":"slow"}}"#;
        assert_eq!(cancels(notice).as_deref(), Some("7"));
        let text = notice.replace('7', r#""a""#);
        assert_eq!(cancels(&text).as_deref(), Some(r#""a""#));
        assert_eq!(cancels(&notice.replace("cancelled", "progress")), None);
        assert_eq!(
            cancels(r#"{"jsonrpc":"2.0","method":"notifications/cancelled"}"#),
            None
        );
    }

    #[test]
    fn a_tool_call_is_read_as_it_was_sent() {
        let text = r#"{"jsonrpc":"2.0","id":"a\u0062","method":"tools\/call","params":{"name":"pay","arguments":{"a":1,"a":12345678901234567890},"_meta":{"x":1},"requestState":"s","inputResponses":{"q":{}}}}"#;
        let call = single(text).tool_call().unwrap();
        assert_eq!(call.name, "pay");
        assert_eq!(call.arguments, Some(r#"{"a":1,"a":12345678901234567890}"#));
        assert_eq!(call.meta, Some(r#"{"x":1}"#));
        assert_eq!(
            call.extra.as_deref(),
            Some(r#"{"requestState":"s","inputResponses":{"q":{}}}"#)
        );
        assert_eq!(id_key(call.id), id_key("\"ab\""));
    }

    #[test]
    fn ids_are_compared_by_value_and_kind() {
        for (one, other, same) in [
            ("1", " 1", true),
            ("1", "1.0", true),
            ("1", "\"1\"", false),
            ("\"a\"", "\"\\u0061\"", true),
            ("9007199254740993", "9007199254740992", false),
            ("1.5", "1.5", true),
            ("1", "null", false),
        ] {
            assert_eq!(id_key(one) == id_key(other), same, "{one} {other}");
        }
    }

    #[test]
    fn readers_that_disagree_are_not_given_a_choice() {
        for text in [
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/call"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","Method":"tools/call"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","meth\u006fd":"tools/call"}"#,
            r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","name":"b"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{},"paramſ":{"name":"b"}}"#,
            r#"[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","NAME":"b"}}]"#,
        ] {
            assert!(
                matches!(parse(text.as_bytes()), Parsed::Ambiguous { .. }),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_no_json_rpc_is_left_alone() {
        for text in [
            "",
            "{",
            "[]",
            "{}",
            "null",
            "\"jsonrpc\"",
            r#"{"jsonrpc":"2.0"} x"#,
            r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}, 5]"#,
            r#"{"jsonrpc":"2.0","method":5}"#,
            r#"{"a":{"jsonrpc":"2.0"}}"#,
        ] {
            assert!(matches!(parse(text.as_bytes()), Parsed::NotRpc), "{text}");
        }
        assert!(matches!(parse(b"\xff{\"jsonrpc\":1}"), Parsed::NotRpc));
    }

    #[test]
    fn a_call_that_nobody_answers_is_no_tool_call() {
        for text in [
            r#"{"jsonrpc":"2.0","method":"tools/call","params":{"name":"a"}}"#,
            r#"{"jsonrpc":"2.0","id":null,"method":"tools/call","params":{"name":"a"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":7}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":["a"]}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call"}"#,
        ] {
            assert_eq!(single(text).tool_call(), None, "{text}");
        }
    }

    #[test]
    fn deep_nesting_is_no_danger() {
        let deep = "[".repeat(100_000);
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":{deep}"#);
        assert!(matches!(parse(text.as_bytes()), Parsed::NotRpc));
        let closed = format!("{text}{}}}", "]".repeat(100_000));
        let _ = parse(closed.as_bytes());
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut body = br#"{"jsonrpc":"2.0","#.to_vec();
            body.extend(bytes);
            let _ = parse(&body);
        }

        /// Whatever a lenient reader (last member wins) takes for a tool call is one for us, or
        /// refused, or no JSON-RPC at all; never housekeeping.
        #[test]
        fn no_call_hides_behind_another_method(
            members in proptest::collection::vec((
                prop_oneof![Just("method"), Just("Method"), Just("id"), Just("params"), Just("x")],
                prop_oneof![Just(r#""ping""#), Just(r#""tools/call""#), Just("1"), Just(r#"{"name":"a"}"#)],
            ), 0..6)
        ) {
            let mut text = r#"{"jsonrpc":"2.0""#.to_owned();
            for (name, value) in &members {
                text.push_str(&format!(r#","{name}":{value}"#));
            }
            text.push('}');
            let lenient = members.iter().rev()
                .find(|(name, _)| name.eq_ignore_ascii_case("method"))
                .map(|(_, value)| *value);
            if lenient == Some(r#""tools/call""#)
                && let Parsed::Single(message) = parse(text.as_bytes())
            {
                let method = message.method.as_deref();
                prop_assert!(method == Some("tools/call") || method.is_none(), "{}", text);
            }
        }
    }
}
