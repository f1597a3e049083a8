//! A tool call: one request seen at the tool boundary, and what came back.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Body, Header, Origin, Timestamp};

/// How a call crosses the boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// HTTP or HTTPS request.
    Http,
    /// MCP `tools/call`, over HTTP or stdio.
    Mcp,
    /// A command that policy gates at exec.
    Exec,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Http => "http",
            Self::Mcp => "mcp",
            Self::Exec => "exec",
        })
    }
}

/// What makes two calls candidates for being the same effect (DESIGN.md §9): MCP server and tool;
/// HTTP method, host and path shape; program and subcommand. Made by `fence::tool_key`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ToolKey(pub String);

impl fmt::Display for ToolKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// One request seen at the tool boundary.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// When it was seen.
    pub at: Timestamp,
    /// What it asks for.
    pub request: Request,
    /// Who sent it.
    pub origin: Origin,
}

/// What a call asks for, by transport.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// An HTTP request.
    Http(HttpRequest),
    /// An MCP `tools/call`.
    Mcp(McpRequest),
    /// A command.
    Exec(ExecRequest),
}

impl Request {
    /// The transport of this request.
    pub fn transport(&self) -> Transport {
        match self {
            Self::Http(_) => Transport::Http,
            Self::Mcp(_) => Transport::Mcp,
            Self::Exec(_) => Transport::Exec,
        }
    }
}

/// An HTTP request as sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HttpRequest {
    /// Method as sent.
    pub method: String,
    /// Absolute URL: scheme, authority, path and query.
    pub url: String,
    /// Header fields in order.
    pub headers: Vec<Header>,
    /// Body as sent (before content decoding).
    pub body: Body,
    /// JSON-RPC methods that the body calls, in order, where it is JSON-RPC and no `tools/call`
    /// that became a [`Request::Mcp`]; `(response)` stands for an answer to the server's own
    /// request, `(session end)` for the DELETE of a session that the server gave out. Empty for
    /// everything else.
    #[serde(default)]
    pub rpc: Vec<String>,
}

impl HttpRequest {
    /// Whether this is MCP's own traffic and nothing else: it opens and keeps a session, asks what
    /// there is, reads, or answers the server. It causes nothing outside, unlike a method that is
    /// not known here.
    pub fn is_mcp_housekeeping(&self) -> bool {
        !self.rpc.is_empty() && self.rpc.iter().all(|method| is_housekeeping(method))
    }
}

fn is_housekeeping(method: &str) -> bool {
    matches!(
        method,
        "(response)"
            | "(session end)"
            | "initialize"
            | "ping"
            | "server/discover"
            | "tools/list"
            | "prompts/list"
            | "prompts/get"
            | "resources/list"
            | "resources/read"
            | "resources/templates/list"
            | "resources/subscribe"
            | "resources/unsubscribe"
            | "subscriptions/listen"
            | "completion/complete"
            | "logging/setLevel"
            | "tasks/get"
            | "tasks/list"
            | "tasks/result"
    ) || (method.starts_with("notifications/") && method.len() < 100)
}

/// An MCP `tools/call`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct McpRequest {
    /// Which server: its URL without query for HTTP, its command line for stdio.
    pub server: String,
    /// Tool name.
    pub name: String,
    /// The `arguments` object as JSON text exactly as sent (`{}` when absent): duplicate keys and
    /// big numbers survive.
    pub arguments: String,
    /// The `_meta` object as JSON text, context only: it never counts as meaning.
    #[serde(default)]
    pub meta: Option<String>,
    /// The other members of `params` (`inputResponses`, `requestState`, `task`, …) as one JSON
    /// object: a second leg that carries the inputs a server asked for is told apart by it.
    #[serde(default)]
    pub extra: Option<String>,
    /// Header fields of the HTTP request that carried it; empty on stdio.
    #[serde(default)]
    pub headers: Vec<Header>,
}

/// A command at exec.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExecRequest {
    /// Argument vector.
    pub argv: Vec<String>,
    /// Working directory.
    pub cwd: String,
    /// Allow-listed environment.
    #[serde(default)]
    pub env: Vec<(String, String)>,
    /// Standard input, where it was read before the command started.
    #[serde(default)]
    pub stdin: Option<Body>,
}

/// What came back, by transport.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// An HTTP response.
    Http(HttpResponse),
    /// An MCP result or error.
    Mcp(McpResponse),
    /// What a command left.
    Exec(ExecResponse),
}

impl Response {
    /// Whether every byte of it was kept. Only such a response can answer another call; the others
    /// were longer than the recording bound, or were streamed both ways.
    pub fn is_whole(&self) -> bool {
        match self {
            Self::Http(response) => response.body.is_whole(),
            Self::Mcp(_) => true,
            Self::Exec(response) => response.stdout.is_whole() && response.stderr.is_whole(),
        }
    }
}

/// An HTTP response as received.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HttpResponse {
    /// Status code.
    pub status: u16,
    /// Header fields in order.
    pub headers: Vec<Header>,
    /// Body as received (before content decoding).
    pub body: Body,
    /// Trailer fields in order.
    #[serde(default)]
    pub trailers: Vec<Header>,
}

/// An MCP answer to `tools/call`, without its JSON-RPC id.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct McpResponse {
    /// Whether `answer` is the JSON-RPC `result` (true) or its `error` (false).
    pub is_result: bool,
    /// JSON text of `result` or `error` exactly as received.
    pub answer: String,
    /// Whether the result says `isError: true` (always false for a JSON-RPC error).
    pub is_error: bool,
}

impl McpResponse {
    /// A tool result that says `text`, as the client that made the request reads it: structured too where
    /// it is a JSON object, because a tool that promises an output schema owes that, and marked as the
    /// last leg, which revisions since 2026-07-28 want to hear.
    pub fn of_text(request: &McpRequest, text: &str) -> Self {
        let mut result = serde_json::json!({
            "content": [{ "type": "text", "text": text }], "isError": false,
        });
        if let Ok(structured) = serde_json::from_str::<serde_json::Map<_, _>>(text) {
            result["structuredContent"] = structured.into();
        }
        let revision = request
            .headers
            .iter()
            .find(|h| h.is("mcp-protocol-version"));
        if revision
            .and_then(Header::text)
            .is_some_and(|r| r >= "2026-07-28")
        {
            result["resultType"] = "complete".into();
        }
        Self {
            is_result: true,
            answer: result.to_string(),
            is_error: false,
        }
    }
}

/// What a command left.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExecResponse {
    /// Exit status; 128 + signal number when a signal ended it, as shells say it.
    pub exit: i32,
    /// Standard output.
    pub stdout: Body,
    /// Standard error.
    #[serde(default)]
    pub stderr: Body,
}

/// How the upstream leg of a call ended, as the boundary saw it. The fence makes an
/// [`Outcome`](super::Outcome) of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Ending {
    /// A full response arrived.
    Response(Response),
    /// Certainly not one byte of the request left: no connection, or the client library handed the
    /// request back unsent.
    NotSent {
        /// What went wrong, in words.
        why: String,
    },
    /// Some of it may have left, and no full response came.
    Broken {
        /// What went wrong, in words.
        why: String,
        /// What had arrived of the response.
        partial: Option<Response>,
    },
}
