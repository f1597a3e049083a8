//! Attempts of one call: what an agent sends again, to the byte, after a definite refusal or a question.
//!
//! A client that is told 401 gets itself a new token and sends the same again; one that is asked for a
//! confirmation (MCP's `input_required`) makes the same call with the answer. What the model made up for the
//! call was seen at the first attempt already. It is no less made up for that: where the last attempt is
//! compared with what a restored agent sends, only what was known before the first one counts as known.

use super::pipeline::Inner;
use crate::effect::{EffectFilter, LogError};
use crate::words::{Effect, Request, Seq, Status};

/// So many effects of the same tool before it are looked at.
const MOST: usize = 64;

/// Where the first attempt of the effect's call stands: its own place, or that of an earlier one.
pub(super) fn first(inner: &Inner, effect: &Effect) -> Result<Seq, LogError> {
    // All of the thread's, since the list of those that failed is of the whole log and may be long.
    let before = inner.log.effects(&EffectFilter {
        thread: Some(effect.thread),
        branch: Some(effect.branch),
        tool: Some(effect.key.0.clone()),
        after: Some(effect.id.0),
        limit: Some(MOST),
        ..EffectFilter::default()
    })?;
    let mut first = effect.id.0;
    let failed = before
        .items
        .iter()
        .filter(|row| row.status == Status::Failed);
    for row in failed {
        let Some(earlier) = inner.log.effect(row.id)? else {
            break;
        };
        // The filter takes part of a key for the key.
        if earlier.key != effect.key {
            continue;
        }
        if !is_sent_again(&earlier.call.request, &effect.call.request) {
            break;
        }
        first = first.min(earlier.id.0);
    }
    Ok(first)
}

/// Whether two calls say the same to the byte, but for what lets them in.
fn is_sent_again(one: &Request, other: &Request) -> bool {
    match (one, other) {
        (Request::Http(one), Request::Http(other)) => {
            one.method == other.method
                && one.url == other.url
                && one.body.len == other.body.len
                && one.body.digest == other.body.digest
        }
        (Request::Mcp(one), Request::Mcp(other)) => {
            one.server == other.server && one.name == other.name && one.arguments == other.arguments
        }
        // A command that was refused has not run; what runs later is another one.
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::{Body, Header, HttpRequest, McpRequest};

    fn post(body: &str, token: &str) -> Request {
        Request::Http(HttpRequest {
            method: "POST".into(),
            url: "https://bank.test/v1/transfers".into(),
            headers: vec![Header::new("authorization", token.as_bytes().to_vec())],
            body: Body::whole(body.as_bytes().to_vec()),
            rpc: Vec::new(),
        })
    }

    fn tool(arguments: &str, extra: Option<&str>) -> Request {
        Request::Mcp(McpRequest {
            server: "https://bank.test/mcp".into(),
            name: "transfer".into(),
            arguments: arguments.into(),
            meta: None,
            extra: extra.map(Into::into),
            headers: Vec::new(),
        })
    }

    #[test]
    fn another_token_or_an_answer_makes_it_no_other_call() {
        assert!(is_sent_again(
            &post("{}", "Bearer a"),
            &post("{}", "Bearer b")
        ));
        let answered = r#"{"requestState":"s","inputResponses":{"sure":{}}}"#;
        assert!(is_sent_again(
            &tool("{}", None),
            &tool("{}", Some(answered))
        ));
    }

    #[test]
    fn another_byte_makes_it_another_call() {
        assert!(!is_sent_again(
            &post(r#"{"ref":1}"#, ""),
            &post(r#"{"ref":2}"#, "")
        ));
        assert!(!is_sent_again(
            &tool(r#"{"ref":1}"#, None),
            &tool(r#"{"ref":2}"#, None)
        ));
        assert!(!is_sent_again(&tool("{}", None), &post("{}", "")));
    }
}
