//! What policy asks about an effect in doubt, and what an answer says. Pure: nothing is sent here.

use std::borrow::Cow;

use serde_json::Value;

use super::in_doubt::{InDoubt, Query, Resend, Tells};
use super::template::{self, Template};
use super::units::Duration;
use crate::words::{
    Body, Effect, Ending, Header, HttpRequest, HttpResponse, McpRequest, McpResponse, Outcome,
    Request, Response, Status, Timestamp,
};

/// A question that policy allows.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What to send. Its credentials are those of the original as they were recorded, that is
    /// fingerprints: whoever sends it puts the caller's own in where they are the same.
    pub question: Request,
    /// How long the answer may take.
    pub timeout: Duration,
}

/// What an answer says of the effect.
#[derive(Clone, Debug, PartialEq)]
pub enum Finding {
    /// It happened, and this is what equal calls get.
    Happened(Response),
    /// It did not happen.
    DidNotHappen,
    /// It does not tell; why.
    Unknown(String),
}

/// Fields of the original that a question by GET is sent with, besides its credentials.
const KEPT: &[&str] = &["user-agent", "accept-language"];

impl InDoubt {
    /// What to send about this effect; the error says why nothing can be asked.
    ///
    /// `is_secret` says which header fields carry credentials.
    pub fn plan(
        &self,
        effect: &Effect,
        now: Timestamp,
        is_secret: impl Fn(&str) -> bool,
    ) -> Result<Plan, String> {
        match self {
            Self::Query(query) => query.plan(effect, is_secret),
            Self::Resend(resend) => resend.plan(effect, now),
        }
    }

    /// What the answer to [`Self::plan`]'s question says.
    pub fn read(&self, effect: &Effect, ending: Ending, now: Timestamp) -> Finding {
        let response = match ending {
            Ending::Response(response) => response,
            Ending::NotSent { why } | Ending::Broken { why, .. } => return Finding::Unknown(why),
        };
        match self {
            Self::Query(query) => query.read(effect, &response, now),
            Self::Resend(_) => reread(response),
        }
    }

    /// A word for what is done.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Query(_) => "query",
            Self::Resend(_) => "resend",
        }
    }
}

impl Query {
    fn plan(&self, effect: &Effect, is_secret: impl Fn(&str) -> bool) -> Result<Plan, String> {
        let original = &effect.call.request;
        let question = match (&self.url, &self.tool, original) {
            (Some(url), _, Request::Http(http)) => {
                self.get(url, &http.url, &http.headers, original, is_secret)?
            }
            (Some(url), _, Request::Mcp(mcp)) => {
                self.get(url, &mcp.server, &mcp.headers, original, is_secret)?
            }
            (_, Some(tool), Request::Mcp(mcp)) => {
                let arguments = Value::Object(self.arguments.clone());
                Request::Mcp(McpRequest {
                    server: mcp.server.clone(),
                    name: tool.clone(),
                    arguments: Template::fill_value(&arguments, original)?.to_string(),
                    meta: None,
                    extra: None,
                    headers: mcp.headers.clone(),
                })
            }
            _ => return Err("the rule asks in a way that does not go with such a call".to_owned()),
        };
        // An answer can only be compared with what the request had.
        for tells in [Some(&self.happened), self.did_not_happen.as_ref()]
            .into_iter()
            .flatten()
        {
            tells.filled(original)?;
        }
        Ok(Plan {
            question,
            timeout: self.timeout,
        })
    }

    fn get(
        &self,
        path: &Template,
        base: &str,
        headers: &[Header],
        original: &Request,
        is_secret: impl Fn(&str) -> bool,
    ) -> Result<Request, String> {
        for place in path.places() {
            let alone = Template::parse(&place.to_string())?.fill(original, str::to_owned)?;
            if matches!(&alone[..], "." | "..") {
                return Err(format!("`{place}` would lead to another path"));
            }
        }
        let path = path.fill(original, encoded)?;
        let mut url = url::Url::parse(base).map_err(|e| format!("`{base}` is no URL: {e}"))?;
        let origin = url.origin();
        url.set_fragment(None);
        let url = url
            .join(&path)
            .map_err(|e| format!("`{path}` makes no URL: {e}"))?;
        if url.origin() != origin {
            return Err(format!("`{path}` leads to another host"));
        }
        let mut kept = vec![Header::new("accept", "application/json")];
        kept.extend(
            headers
                .iter()
                .filter(|h| {
                    let hidden = h.text().is_some_and(|text| text.contains("redacted:"));
                    hidden || is_secret(&h.name) || KEPT.iter().any(|name| h.is(name))
                })
                .cloned(),
        );
        Ok(Request::Http(HttpRequest {
            method: "GET".into(),
            url: url.into(),
            headers: kept,
            body: Body::empty(),
            rpc: Vec::new(),
        }))
    }

    fn read(&self, effect: &Effect, response: &Response, now: Timestamp) -> Finding {
        let original = &effect.call.request;
        let said = |tells: &Tells, allowed: &dyn Fn(u16) -> bool| -> Result<bool, String> {
            tells.fits(original, response, allowed)
        };
        let found = said(&self.happened, &|code| (200..300).contains(&code)).and_then(|yes| {
            let no = match &self.did_not_happen {
                Some(tells) => said(tells, &|code| {
                    (200..300).contains(&code) || matches!(code, 404 | 410)
                })?,
                None => false,
            };
            Ok((yes, no))
        });
        let ended = effect.ended.unwrap_or(effect.call.at);
        match found {
            Ok((true, false)) => match self.answer(original, response) {
                Ok(response) => Finding::Happened(response),
                Err(why) => Finding::Unknown(why),
            },
            Ok((false, true)) if now.0.saturating_sub(ended.0) < self.settled_after.nanos() => {
                Finding::Unknown(format!(
                    "it is not there, and the call ended less than {} ago: it may still be on its way",
                    self.settled_after
                ))
            }
            Ok((false, true)) => Finding::DidNotHappen,
            Ok((true, true)) => Finding::Unknown("the answer says both".to_owned()),
            Ok((false, false)) => {
                Finding::Unknown(format!("the answer ({}) says neither", brief(response)))
            }
            Err(why) => Finding::Unknown(why),
        }
    }

    /// What equal calls are answered with.
    fn answer(&self, original: &Request, response: &Response) -> Result<Response, String> {
        if let (None, Request::Mcp(_), Response::Mcp(mcp)) = (&self.response, original, response) {
            return Ok(Response::Mcp(mcp.clone()));
        }
        let text = match &self.response {
            Some(pointer) => content(response)?
                .pointer(pointer)
                .ok_or_else(|| format!("the answer has nothing at `{pointer}`"))?
                .to_string(),
            None => plain(response)?.into_owned(),
        };
        Ok(match original {
            Request::Mcp(mcp) => Response::Mcp(McpResponse::of_text(mcp, &text)),
            _ => Response::Http(HttpResponse {
                status: 200,
                headers: vec![Header::new("content-type", "application/json")],
                body: Body::whole(text),
                trailers: Vec::new(),
            }),
        })
    }
}

impl Tells {
    fn filled(&self, original: &Request) -> Result<(Option<String>, Option<String>), String> {
        let fill = |text: &Option<Template>| {
            text.as_ref()
                .map(|text| text.fill(original, str::to_owned))
                .transpose()
        };
        Ok((fill(&self.is)?, fill(&self.contains)?))
    }

    /// Whether the answer says this; an error when it does not read.
    fn fits(
        &self,
        original: &Request,
        response: &Response,
        allowed: &dyn Fn(u16) -> bool,
    ) -> Result<bool, String> {
        match response {
            Response::Http(http) => {
                let wanted = self.status.as_ref().is_none_or(|s| s.has(http.status));
                if !allowed(http.status) || !wanted {
                    return Ok(false);
                }
            }
            Response::Mcp(_) => {
                // An error is no answer to the question.
                let ending = Ending::Response(response.clone());
                let answered = crate::fence::outcome_of(ending).status() == Status::Completed;
                if self.status.is_some() || !answered {
                    return Ok(false);
                }
            }
            Response::Exec(_) => return Ok(false),
        }
        let (is, contains) = self.filled(original)?;
        if let Some(text) = contains
            && (text.is_empty() || !plain(response)?.contains(text.as_str()))
        {
            return Ok(false);
        }
        let Some(pointer) = &self.json else {
            return Ok(true);
        };
        let content = content(response)?;
        let found = content.pointer(pointer).filter(|value| !value.is_null());
        Ok(match (found, is) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(Value::String(text)), Some(wanted)) => *text == wanted,
            (Some(value), Some(wanted)) => {
                serde_json::to_string(value).is_ok_and(|compact| compact == wanted)
            }
        })
    }
}

impl Resend {
    fn plan(&self, effect: &Effect, now: Timestamp) -> Result<Plan, String> {
        let original = &effect.call.request;
        self.key.fill(original, str::to_owned)?;
        if now.0.saturating_sub(effect.call.at.0) > self.valid_for.nanos() {
            return Err(format!(
                "the original call is more than {} old: the other side may have forgotten its key",
                self.valid_for
            ));
        }
        match original {
            Request::Http(http) if !http.body.is_whole() => {
                Err("the original body was not kept whole".to_owned())
            }
            Request::Http(http) if !http.rpc.is_empty() => {
                Err("the original is JSON-RPC that is no tool call".to_owned())
            }
            Request::Mcp(mcp) if mcp.extra.is_some() => {
                Err("the original belongs to a conversation with the server".to_owned())
            }
            Request::Exec(_) => Err("a command has no idempotency key".to_owned()),
            _ => Ok(Plan {
                question: original.clone(),
                timeout: self.timeout,
            }),
        }
    }
}

/// What the answer to the original bytes says. Only a success tells: a refusal may be about the second
/// time, not about the first.
fn reread(response: Response) -> Finding {
    let is_success = match &response {
        Response::Http(http) => (200..300).contains(&http.status),
        Response::Mcp(_) => true,
        Response::Exec(_) => false,
    };
    let said = brief(&response);
    match crate::fence::outcome_of(Ending::Response(response)) {
        Outcome::Completed(response) if is_success => Finding::Happened(response),
        _ => Finding::Unknown(format!(
            "the answer ({said}) may be about the second time only"
        )),
    }
}

/// What an answer says, as JSON: the body; of a tool result the structured content, or its one text.
fn content(response: &Response) -> Result<Value, String> {
    template::read(plain(response)?.as_bytes()).map_err(|why| format!("of the answer, {why}"))
}

fn plain(response: &Response) -> Result<Cow<'_, str>, String> {
    match response {
        Response::Http(http) if !http.body.is_whole() => {
            Err("the answer was not kept whole".to_owned())
        }
        Response::Http(http) if http.headers.iter().any(|h| h.is("content-encoding")) => {
            Err("the answer is compressed".to_owned())
        }
        Response::Http(http) => std::str::from_utf8(&http.body.kept)
            .map(Cow::Borrowed)
            .map_err(|_| "the answer is no text".to_owned()),
        Response::Mcp(mcp) => tool_text(&mcp.answer).map(Cow::Owned),
        Response::Exec(_) => Err("a command answered".to_owned()),
    }
}

/// The structured content of a tool result as JSON text, or its one text.
fn tool_text(answer: &str) -> Result<String, String> {
    #[derive(serde::Deserialize)]
    struct ToolResult {
        #[serde(rename = "structuredContent")]
        structured: Option<Box<serde_json::value::RawValue>>,
        #[serde(default)]
        content: Vec<Item>,
    }
    #[derive(serde::Deserialize)]
    struct Item {
        #[serde(default)]
        text: Option<String>,
    }
    let result: ToolResult =
        serde_json::from_str(answer).map_err(|e| format!("the tool result does not read: {e}"))?;
    match (result.structured, &mut result.content.into_iter()) {
        (Some(structured), _) => Ok(structured.get().to_owned()),
        (None, content) => match (content.next().and_then(|item| item.text), content.next()) {
            (Some(text), None) => Ok(text),
            _ => Err("the tool result has neither structured content nor one text".to_owned()),
        },
    }
}

fn brief(response: &Response) -> String {
    match response {
        Response::Http(http) => format!("HTTP {}", http.status),
        Response::Mcp(mcp) if !mcp.is_result => "a JSON-RPC error".to_owned(),
        Response::Mcp(mcp) if mcp.is_error => "a tool error".to_owned(),
        Response::Mcp(_) => "a tool result".to_owned(),
        Response::Exec(exec) => format!("exit status {}", exec.exit),
    }
}

/// A value for one part of a URL: everything but letters, digits and `-_.~` is encoded.
fn encoded(value: &str) -> String {
    value
        .bytes()
        .map(|b| match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                char::from(b).to_string()
            }
            _ => format!("%{b:02X}"),
        })
        .collect()
}
