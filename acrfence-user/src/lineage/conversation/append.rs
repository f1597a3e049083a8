//! Words added to the end of a conversation, in every format, with no other byte of it changed.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::Format;

/// Who spoke last.
#[derive(Deserialize)]
struct Spoken<'a> {
    #[serde(borrow, default)]
    role: Cow<'a, str>,
}

/// The request body with a last message of the user's side that says `words`. None when the body is not
/// such a conversation, or when the model is to go on with words of its own, which a message behind
/// them would break off.
pub fn append_words(format: Format, body: &[u8], words: &str) -> Option<Vec<u8>> {
    let text = str::from_utf8(body).ok()?;
    let fields: HashMap<Cow<'_, str>, &RawValue> = serde_json::from_str(text).ok()?;
    let list = match format {
        Format::AnthropicMessages | Format::OpenAiChat | Format::OllamaChat => "messages",
        Format::OpenAiResponses => "input",
        Format::Gemini => "contents",
    };
    let raw = fields.get(list)?.get();
    let words = serde_json::Value::from(words);
    let message = match format {
        Format::Gemini => format!(r#"{{"role":"user","parts":[{{"text":{words}}}]}}"#),
        Format::OpenAiResponses => {
            format!(
                r#"{{"type":"message","role":"user","content":[{{"type":"input_text","text":{words}}}]}}"#
            )
        }
        _ => format!(r#"{{"role":"user","content":{words}}}"#),
    };
    let longer = if raw.starts_with('"') {
        if format != Format::OpenAiResponses {
            return None;
        }
        format!(r#"[{{"type":"message","role":"user","content":{raw}}},{message}]"#)
    } else {
        let messages: Vec<&RawValue> = serde_json::from_str(raw).ok()?;
        let last: Spoken<'_> = serde_json::from_str(messages.last()?.get()).ok()?;
        if matches!(&*last.role, "assistant" | "model") {
            return None;
        }
        let open = raw.strip_suffix(']')?;
        format!("{open},{message}]")
    };
    // A raw value is borrowed from the text, so it has a place there.
    let at = (raw.as_ptr() as usize).checked_sub(text.as_ptr() as usize)?;
    let (before, after) = (text.get(..at)?, text.get(at + raw.len()..)?);
    Some([before, &longer, after].concat().into_bytes())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn appended(format: Format, body: &str) -> Option<Value> {
        let bytes = append_words(format, body.as_bytes(), "he said \"no\"\n")?;
        Some(serde_json::from_slice(&bytes).unwrap())
    }

    #[test]
    fn every_format_gets_a_last_message() {
        let content = json!("he said \"no\"\n");
        let user = json!({"role": "user", "content": content});
        for format in [
            Format::AnthropicMessages,
            Format::OpenAiChat,
            Format::OllamaChat,
        ] {
            let said = appended(
                format,
                r#"{"messages": [{"role": "user", "content": "hi"}]}"#,
            );
            assert_eq!(said.unwrap()["messages"][1], user);
        }
        let said = appended(
            Format::Gemini,
            r#"{"contents":[{"role":"user","parts":[]}]}"#,
        )
        .unwrap();
        assert_eq!(
            said["contents"][1],
            json!({"role": "user", "parts": [{"text": content}]})
        );
        for input in [r#""hi""#, r#"[{"role":"user","content":"hi"}]"#] {
            let body = format!(r#"{{"input":{input},"model":"m"}}"#);
            let said = appended(Format::OpenAiResponses, &body).unwrap();
            assert_eq!(said["input"][0]["content"], "hi");
            assert_eq!(said["input"][1]["content"][0]["text"], content);
        }
    }

    #[test]
    fn nothing_else_changes() {
        let body = "{ \"temperature\":1.0,\"temperature\": 1e0, \"messages\" : [ {\"role\":\"tool\",\
                    \"n\":12345678901234567890123} ] ,\"z\":[ ] }";
        let bytes = append_words(Format::OpenAiChat, body.as_bytes(), "x").unwrap();
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(text.replace(r#",{"role":"user","content":"x"}"#, ""), body);
    }

    #[test]
    fn a_model_that_is_to_go_on_with_its_own_words_is_left_alone() {
        let prefilled =
            r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}"#;
        assert_eq!(appended(Format::AnthropicMessages, prefilled), None);
        let said = r#"{"contents":[{"role":"model","parts":[]}]}"#;
        assert_eq!(appended(Format::Gemini, said), None);
    }

    #[test]
    fn what_is_no_conversation_stays() {
        for body in [
            "",
            "[]",
            "{}",
            r#"{"messages":[]}"#,
            r#"{"messages":"a"}"#,
            "{\"messages\":[",
        ] {
            assert_eq!(append_words(Format::OpenAiChat, body.as_bytes(), "x"), None);
        }
        assert_eq!(append_words(Format::OpenAiChat, b"\xff", "x"), None);
    }
}
