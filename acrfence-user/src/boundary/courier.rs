//! Carries a question about an effect in doubt to the side that the effect went to, over the upstream
//! leg of the call that repeats it, and brings the answer back. Never follows a redirect, never sends
//! anything twice, and keeps nothing of what it carried.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::{Instant, timeout_at};

use super::Courier;
use super::http::body::Recorder;
use super::http::exchange::{Asked, Leg};
use super::http::outlet::Reply;
use super::http::spool::{Spooled, SpooledBody};
use super::http::upstream::{Outgoing, Received, SendError};
use super::http::{encoding, headers};
use super::mcp::streams::Undecided;
use super::mcp::{self, answer};
use crate::words::{Ending, Header, HttpRequest, HttpResponse, McpRequest, Request, Response};

/// The id of a question over JSON-RPC. Agents do not see it, and their own ids are no answer to it.
const RPC_ID: &str = "\"acrfence-asks\"";

/// The upstream leg of one call.
pub(crate) struct LegCourier<'a> {
    pub(crate) leg: &'a std::sync::Arc<Leg>,
    pub(crate) asked: &'a Asked,
    /// `_meta` of the agent's own call, for MCP.
    pub(crate) meta: Option<&'a str>,
    /// Where the call is answered.
    pub(crate) reply: &'a Reply,
    /// The call of an MCP session, which its agent may cancel.
    pub(crate) undecided: Option<&'a Undecided<'a>>,
}

#[async_trait::async_trait]
impl Courier for LegCourier<'_> {
    async fn carry(&self, question: &Request, within: Duration) -> Ending {
        let carried = match question {
            Request::Http(http) => self.carry_http(http, within).await,
            Request::Mcp(mcp) => self.carry_mcp(mcp, within).await,
            Request::Exec(_) => Err(Ending::NotSent {
                why: "a command cannot be asked about over this connection".to_owned(),
            }),
        };
        carried.map_or_else(|ending| ending, Ending::Response)
    }

    fn is_gone(&self) -> bool {
        self.reply.is_gone() || self.undecided.is_some_and(Undecided::is_cancelled)
    }
}

impl LegCourier<'_> {
    async fn carry_http(
        &self,
        question: &HttpRequest,
        within: Duration,
    ) -> Result<Response, Ending> {
        let until = Instant::now() + within;
        let target: Uri = question
            .url
            .parse()
            .map_err(|_| not_sent("the question's URL is not one"))?;
        if !self.leads_to(&target) {
            return Err(not_sent(
                "this connection does not lead to the host that is to be asked",
            ));
        }
        let method = Method::from_bytes(question.method.as_bytes())
            .map_err(|_| not_sent("the question's method is not one"))?;
        let fields = field_map(&question.headers)
            .ok_or_else(|| not_sent("a header field of the question cannot be sent"))?;
        let body = Spooled::whole(question.body.kept.clone());
        let received = self.send(method, target, fields, body, until).await?;
        let (response, lease) = (received.response, received.lease);
        let (head, body) = response.into_parts();
        let bound = self.leg.shared.limits().record;
        let (body, trailers) = timeout_at(until, read(body, bound))
            .await
            .map_err(|_| late())??;
        self.leg.upstream.give_back(lease);
        Ok(Response::Http(HttpResponse {
            status: head.status.as_u16(),
            headers: headers::recorded(&head.headers),
            body,
            trailers: headers::recorded(&trailers),
        }))
    }

    async fn carry_mcp(&self, question: &McpRequest, within: Duration) -> Result<Response, Ending> {
        let until = Instant::now() + within;
        if self.asked.method != Method::POST || mcp::server_of(&self.asked.url) != question.server {
            return Err(not_sent(
                "this connection does not lead to the server that is to be asked",
            ));
        }
        let text = tool_call(question, self.meta)
            .ok_or_else(|| not_sent("the question's arguments do not read"))?;
        let mut fields = self.asked.headers.clone();
        for name in [
            ACCEPT_ENCODING,
            CONTENT_ENCODING,
            CONTENT_LENGTH,
            TRANSFER_ENCODING,
        ] {
            fields.remove(name);
        }
        const NAME: HeaderName = HeaderName::from_static("mcp-name");
        if fields.remove(&NAME).is_some() {
            let name = HeaderValue::from_str(&question.name)
                .map_err(|_| not_sent("the tool's name cannot be sent in a header field"))?;
            fields.insert(NAME, name);
        }
        let body = Spooled::whole(Bytes::from(text));
        let target = self.asked.uri.clone();
        let received = self.send(Method::POST, target, fields, body, until).await?;
        let (head, body) = received.response.into_parts();
        if !head.status.is_success() {
            return Err(unclear(&format!("the server answered {}", head.status)));
        }
        if !encoding::applied(&head.headers).is_empty() {
            return Err(unclear("the answer is compressed"));
        }
        let bound = self.leg.shared.limits().rpc;
        timeout_at(until, read_answer(&head.headers, body, bound))
            .await
            .map_err(|_| late())?
            .map(Response::Mcp)
    }

    async fn send(
        &self,
        method: Method,
        target: Uri,
        headers: HeaderMap,
        body: Spooled,
        until: Instant,
    ) -> Result<Received, Ending> {
        let outgoing = Outgoing {
            method,
            uri: self.as_asked(target),
            authority: self.asked.authority.clone(),
            headers,
            version: self.asked.version,
            extensions: http::Extensions::new(),
            upgrade: false,
            body: SpooledBody::from(body),
        };
        match timeout_at(until, self.leg.upstream.send(outgoing, true)).await {
            Ok(Ok(received)) => Ok(received),
            Ok(Err(SendError::NotSent { why, .. })) => Err(Ending::NotSent { why }),
            Ok(Err(SendError::Broken { why })) => Err(unclear(&why)),
            Err(_) => Err(late()),
        }
    }

    /// A question goes where the agent's own call would go, and nowhere else.
    fn leads_to(&self, target: &Uri) -> bool {
        let plain = |host: &str| host.trim_end_matches('.').to_ascii_lowercase();
        let there = target.authority().map(|it| plain(it.host()));
        let here = Some(plain(self.asked.authority.host()));
        let port = |uri_port: Option<u16>| {
            uri_port.unwrap_or(if self.leg.scheme == "https" { 443 } else { 80 })
        };
        let same_port = port(target.port_u16()) == port(self.asked.authority.port_u16());
        there == here && same_port && target.scheme_str() == Some(self.leg.scheme)
    }

    /// A target in the form in which the agent writes its own.
    fn as_asked(&self, target: Uri) -> Uri {
        let absolute = self.asked.version == Version::HTTP_2 || self.asked.uri.scheme().is_some();
        if absolute {
            return target;
        }
        let path = target.path_and_query().map_or("/", |path| path.as_str());
        path.parse().unwrap_or(target)
    }
}

/// The message that calls a tool.
fn tool_call(question: &McpRequest, meta: Option<&str>) -> Option<String> {
    let arguments = serde_json::value::RawValue::from_string(question.arguments.clone()).ok()?;
    let mut params = serde_json::Map::new();
    // What says which revision is spoken stays; what asks for progress does not.
    if let Some(serde_json::Value::Object(mut meta)) =
        meta.and_then(|text| serde_json::from_str(text).ok())
    {
        meta.remove("progressToken");
        params.insert("_meta".to_owned(), meta.into());
    }
    params.insert("name".to_owned(), question.name.clone().into());
    let mut params = serde_json::Value::Object(params).to_string();
    params.pop();
    Some(format!(
        r#"{{"jsonrpc":"2.0","id":{RPC_ID},"method":"tools/call","params":{params},"arguments":{}}}}}"#,
        arguments.get()
    ))
}

fn field_map(fields: &[Header]) -> Option<HeaderMap> {
    let mut map = HeaderMap::with_capacity(fields.len());
    for field in fields {
        // Whoever sends it gives host and framing again.
        if [HOST, CONTENT_LENGTH, TRANSFER_ENCODING]
            .iter()
            .any(|name| field.is(name.as_str()))
        {
            continue;
        }
        let name = HeaderName::from_bytes(field.name.as_bytes()).ok()?;
        map.append(name, HeaderValue::from_bytes(&field.value).ok()?);
    }
    Some(map)
}

/// A body to its end, kept up to a bound.
async fn read(mut body: Incoming, bound: usize) -> Result<(crate::words::Body, HeaderMap), Ending> {
    let mut recorder = Recorder::new(bound, None);
    let mut trailers = HeaderMap::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| unclear(&format!("the answer broke off: {e}")))?;
        match frame.into_data() {
            Ok(data) => {
                recorder.add(&data);
            }
            Err(frame) => trailers = frame.into_trailers().unwrap_or_default(),
        }
    }
    Ok((recorder.finish(), trailers))
}

/// The answer to the question, as soon as it is there: a stream of events may go on behind it.
async fn read_answer(
    fields: &HeaderMap,
    mut body: Incoming,
    bound: usize,
) -> Result<crate::words::McpResponse, Ending> {
    let mut text = Vec::new();
    loop {
        let frame = body.frame().await;
        let ended = frame.is_none();
        if let Some(frame) = frame {
            let frame = frame.map_err(|e| unclear(&format!("the answer broke off: {e}")))?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            text.extend_from_slice(&data);
        }
        if text.len() > bound {
            return Err(unclear("the answer is too long"));
        }
        let found = answer::messages_in(fields, &text)
            .iter()
            .find_map(|message| answer::answer_in(message.as_bytes(), RPC_ID));
        match found {
            Some(found) => return Ok(found),
            None if ended => return Err(unclear("the server did not answer the question")),
            None => {}
        }
    }
}

fn not_sent(why: &str) -> Ending {
    Ending::NotSent {
        why: why.to_owned(),
    }
}

fn unclear(why: &str) -> Ending {
    Ending::Broken {
        why: why.to_owned(),
        partial: None,
    }
}

fn late() -> Ending {
    unclear("no answer came in time")
}
