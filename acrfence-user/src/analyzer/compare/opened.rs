//! A call with its parts decoded on demand, so that one call can be compared with many.

use std::borrow::Cow;
use std::cell::OnceCell;

use super::super::decode::{self, json, url};
use super::super::value::Value;
use super::headers;
use crate::words::{Header, Request};

/// Header fields by name in lower case.
pub(super) type Fields<'r> = Vec<(Cow<'r, str>, Value<'r>)>;

/// A call whose parts are decoded once, when they are first needed.
pub struct Opened<'r> {
    pub(super) request: &'r Request,
    content: OnceCell<Value<'r>>,
    address: OnceCell<Option<Value<'r>>>,
    headers: OnceCell<Fields<'r>>,
}

impl<'r> Opened<'r> {
    /// A call; nothing is decoded yet.
    pub fn new(request: &'r Request) -> Self {
        Self {
            request,
            content: OnceCell::new(),
            address: OnceCell::new(),
            headers: OnceCell::new(),
        }
    }

    /// What it carries: the body of an HTTP request, the arguments of a tool call.
    pub(super) fn content(&self) -> &Value<'r> {
        self.content.get_or_init(|| match self.request {
            Request::Http(r) => decode::body(content_type(&r.headers), &r.body),
            Request::Mcp(r) => match json::read(&r.arguments) {
                Ok(value) if r.arguments.len() <= decode::MOST_BYTES => value,
                _ => decode::mime::opaque(r.arguments.as_bytes()),
            },
            Request::Exec(_) => Value::Null,
        })
    }

    /// The URL of an HTTP request, where it can be read.
    pub(super) fn address(&self) -> Option<&Value<'r>> {
        let read = || match self.request {
            Request::Http(r) => url::read(&r.url),
            _ => None,
        };
        self.address.get_or_init(read).as_ref()
    }

    /// Header fields.
    pub(super) fn headers(&self) -> &Fields<'r> {
        self.headers.get_or_init(|| match self.request {
            Request::Http(r) => headers::read(&r.headers),
            Request::Mcp(r) => headers::read(&r.headers),
            Request::Exec(_) => Vec::new(),
        })
    }
}

fn content_type(headers: &[Header]) -> Option<&str> {
    headers
        .iter()
        .find(|h| h.is("content-type"))
        .and_then(Header::text)
}
