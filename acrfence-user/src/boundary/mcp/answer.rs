//! JSON-RPC answers: made for replays and refusals, and read out of responses.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use serde_json::json;

use super::{Call, jsonrpc, sse};
use crate::boundary::http::body::AgentBody;
use crate::boundary::http::{encoding, headers, replay};
use crate::words::{EffectId, HttpResponse, McpResponse};
use jsonrpc::Message;

/// The first revision whose results say of which type they are.
const TYPED_RESULTS: &str = "2026-07-28";
const VERSION_IN_META: &str = "io.modelcontextprotocol/protocolVersion";

/// A recorded answer under a new id, as JSON text.
pub(crate) fn replayed(id: &str, recorded: &McpResponse) -> String {
    let member = if recorded.is_result {
        "result"
    } else {
        "error"
    };
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"{member}":{}}}"#,
        recorded.answer
    )
}

/// A tool result that says in words why there is none. Clients show it to the model; a transport
/// error would make them send the call again.
pub(crate) fn tool_error(call: &Call, asked: &HeaderMap, text: &str) -> String {
    let mut result = json!({
        "content": [{"type": "text", "text": text}],
        "isError": true,
    });
    if speaks_typed_results(call, asked) {
        result["resultType"] = json!("complete");
    }
    format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, call.id)
}

/// A JSON-RPC error.
pub(crate) fn error(id: Option<&str>, code: i32, text: &str) -> String {
    let error = json!({"code": code, "message": text});
    format!(
        r#"{{"jsonrpc":"2.0","id":{},"error":{error}}}"#,
        id.unwrap_or("null")
    )
}

/// Wraps an answer in the content type that the agent asked for.
pub(crate) fn respond(
    message: String,
    asked: &HeaderMap,
    replay_of: Option<EffectId>,
) -> Response<AgentBody> {
    let events = headers::wants_only_events(asked);
    let (kind, body) = if events {
        ("text/event-stream", sse::message_event(&message))
    } else {
        ("application/json", message)
    };
    let mut response = Response::new(AgentBody::from(Bytes::from(body)));
    let fields = response.headers_mut();
    fields.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(effect) = replay_of {
        mark(fields, effect);
    }
    response
}

fn mark(fields: &mut HeaderMap, effect: EffectId) {
    const NAME: HeaderName = replay::MARK;
    if let Ok(value) = HeaderValue::from_str(&effect.to_string()) {
        fields.insert(NAME, value);
    }
}

/// The answer that `message` carries, and what the id it answers is compared by.
pub(crate) fn answer_of(message: &Message<'_>) -> Option<(String, McpResponse)> {
    if message.method.is_some() {
        return None;
    }
    let id = jsonrpc::id_key(message.id?);
    let answer = match (message.result, message.error) {
        (Some(result), None) => McpResponse {
            is_result: true,
            answer: result.to_owned(),
            is_error: jsonrpc::member(result, "isError") == Some("true"),
        },
        (None, Some(error)) => McpResponse {
            is_result: false,
            answer: error.to_owned(),
            is_error: false,
        },
        _ => return None,
    };
    Some((id, answer))
}

/// The answer to `id` in a JSON body.
pub(crate) fn answer_in(body: &[u8], id: &str) -> Option<McpResponse> {
    let text = std::str::from_utf8(body).ok()?;
    let wanted = jsonrpc::id_key(id);
    jsonrpc::parse_messages(text)
        .iter()
        .filter_map(answer_of)
        .find_map(|(id, answer)| (id == wanted).then_some(answer))
}

/// The messages of a response body, JSON or events, as JSON texts.
pub(crate) fn messages_in(fields: &HeaderMap, body: &[u8]) -> Vec<String> {
    let Ok(text) = std::str::from_utf8(body) else {
        return Vec::new();
    };
    if headers::media_type(fields) != "text/event-stream" {
        return texts(text);
    }
    let mut splitter = sse::Splitter::new(body.len());
    let events = splitter.push(body).unwrap_or_default();
    events
        .into_iter()
        .chain(splitter.finish())
        .filter_map(|event| event.data)
        .flat_map(|data| texts(&data))
        .collect()
}

/// The arrays of tools that a response to `tools/list` tells, as JSON texts.
pub(crate) async fn tools_told(response: &HttpResponse, bound: usize) -> Vec<String> {
    let fields: HeaderMap = response
        .headers
        .iter()
        .filter_map(|field| {
            let name = HeaderName::from_bytes(field.name.as_bytes()).ok()?;
            Some((name, HeaderValue::from_bytes(&field.value).ok()?))
        })
        .collect();
    if response.status != 200 || !response.body.is_whole() {
        return Vec::new();
    }
    let encodings = encoding::applied(&fields);
    let Some(body) = encoding::decoded(&response.body.kept, &encodings, bound).await else {
        return Vec::new();
    };
    messages_in(&fields, &body)
        .iter()
        .filter_map(|text| tools_in(&jsonrpc::parse_message(text)?).map(str::to_owned))
        .collect()
}

/// The array of tools in an answer, as JSON text.
pub(crate) fn tools_in<'a>(message: &Message<'a>) -> Option<&'a str> {
    jsonrpc::member(message.result?, "tools").filter(|tools| tools.starts_with('['))
}

fn texts(text: &str) -> Vec<String> {
    jsonrpc::parse_messages(text)
        .iter()
        .map(|message| message.text.to_owned())
        .collect()
}

fn speaks_typed_results(call: &Call, asked: &HeaderMap) -> bool {
    let in_meta = call
        .request
        .meta
        .as_deref()
        .and_then(|meta| jsonrpc::member(meta, VERSION_IN_META))
        .and_then(|text| serde_json::from_str::<String>(text).ok());
    let in_header = asked
        .get("mcp-protocol-version")
        .and_then(|value| value.to_str().ok())
        .map(str::to_owned);
    in_meta
        .or(in_header)
        .is_some_and(|version| version.as_str() >= TYPED_RESULTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_found_by_its_id_alone() {
        let body = br#"[{"jsonrpc":"2.0","id":2,"result":{"a":1}},{"jsonrpc":"2.0","id":"2","result":{"b":1,"isError":true}},{"jsonrpc":"2.0","id":3,"error":{"code":1}}]"#;
        let found = answer_in(body, "\"2\"").unwrap();
        assert_eq!(found.answer, r#"{"b":1,"isError":true}"#);
        assert!(found.is_error && found.is_result);
        assert!(!answer_in(body, "3").unwrap().is_result);
        assert_eq!(answer_in(body, "4"), None);
        // A request of the server's own may have the same id.
        let request = br#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#;
        assert_eq!(answer_in(request, "2"), None);
    }

    #[test]
    fn a_result_that_says_twice_whether_it_is_an_error_counts_as_done() {
        let body = br#"{"jsonrpc":"2.0","id":2,"result":{"isError":false,"isError":true}}"#;
        assert!(!answer_in(body, "2").unwrap().is_error);
    }

    #[test]
    fn a_replay_carries_the_new_id_and_the_recorded_text() {
        let recorded = McpResponse {
            is_result: true,
            answer: r#"{"n":1.10,"n":2}"#.to_owned(),
            is_error: false,
        };
        assert_eq!(
            replayed("\"x\"", &recorded),
            r#"{"jsonrpc":"2.0","id":"x","result":{"n":1.10,"n":2}}"#
        );
    }

    #[tokio::test]
    async fn tools_are_learned_from_json_and_from_events() {
        use crate::words::{Body, Header};
        let message = r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"pay"}]}}"#;
        for (kind, body) in [
            ("application/json", message.to_owned()),
            (
                "text/event-stream; charset=utf-8",
                sse::message_event(message),
            ),
        ] {
            let response = HttpResponse {
                status: 200,
                headers: vec![Header::new("content-type", kind.to_owned())],
                body: Body::whole(body),
                trailers: Vec::new(),
            };
            assert_eq!(
                tools_told(&response, 1000).await,
                [r#"[{"name":"pay"}]"#],
                "{kind}"
            );
        }
    }
}
