//! One `[[rule]]`: which calls, and what they are.

use serde::{Deserialize, Serialize};

use super::in_doubt::InDoubt;
use crate::words::{Request, ToolCall};

/// What calls that match are taken for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Which calls; every key that is set must match.
    #[serde(rename = "match")]
    pub matcher: Matcher,
    /// What they are.
    #[serde(rename = "as")]
    pub kind: RuleKind,
    /// How to find out what became of such an effect when its outcome is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_doubt: Option<InDoubt>,
    /// For the person who reads the policy, and shown when the rule decided.
    #[serde(default)]
    pub note: String,
}

/// What a rule says of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuleKind {
    /// It changes something outside: logged and fenced.
    Effect,
    /// It changes nothing: passed on, not logged.
    ReadOnly,
    /// It is LLM traffic: passed on, read for the conversation.
    Model,
    /// The MCP server's own `readOnlyHint` counts.
    TrustHints,
}

/// Which calls. `*` stands for any run of characters, also across `/`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Matcher {
    /// Agent name.
    pub agent: Option<String>,
    /// Host name without port.
    pub host: Option<String>,
    /// Port.
    pub port: Option<u16>,
    /// HTTP method.
    pub method: Option<String>,
    /// URL path without query.
    pub path: Option<String>,
    /// MCP server (URL or command line).
    pub server: Option<String>,
    /// MCP tool name.
    pub tool: Option<String>,
    /// Command line, words joined by one space.
    pub argv: Option<String>,
}

impl Rule {
    /// Whether the rule can ever match.
    pub fn check(&self) -> Result<(), String> {
        let m = &self.matcher;
        let http = m.method.is_some() || m.path.is_some();
        let mcp = m.server.is_some() || m.tool.is_some();
        let kinds = usize::from(http) + usize::from(mcp) + usize::from(m.argv.is_some());
        if kinds > 1 {
            return Err("`method`/`path` match HTTP, `server`/`tool` match MCP and `argv` matches commands; one rule can match one of them".into());
        }
        if *m == Matcher::default() {
            return Err("`match` is empty, so the rule would match everything; name at least one of agent, host, port, method, path, server, tool, argv".into());
        }
        if let Some(in_doubt) = &self.in_doubt {
            if !matches!(self.kind, RuleKind::Effect | RuleKind::TrustHints) {
                return Err("`in_doubt` is for effects: the rule needs `as = \"effect\"`".into());
            }
            in_doubt.check()?;
        }
        if self.kind == RuleKind::TrustHints && !mcp {
            return Err(
                "`as = \"trust_hints\"` needs `server` or `tool`: only MCP servers give hints"
                    .into(),
            );
        }
        Ok(())
    }
}

impl Matcher {
    /// Whether every key that is set matches the call.
    pub fn matches(&self, call: &ToolCall) -> bool {
        let url = match &call.request {
            Request::Http(http) => url::Url::parse(&http.url).ok(),
            Request::Mcp(mcp) => url::Url::parse(&mcp.server).ok(),
            Request::Exec(_) => None,
        };
        let host = url.as_ref().and_then(|u| u.host_str());
        let port = url.as_ref().and_then(|u| u.port_or_known_default());
        let (method, path) = match &call.request {
            Request::Http(http) => (Some(http.method.as_str()), url.as_ref().map(|u| u.path())),
            _ => (None, None),
        };
        let (server, tool) = match &call.request {
            Request::Mcp(mcp) => (Some(mcp.server.as_str()), Some(mcp.name.as_str())),
            _ => (None, None),
        };
        let argv = match &call.request {
            Request::Exec(exec) => Some(exec.argv.join(" ")),
            _ => None,
        };
        fits(&self.agent, Some(call.origin.agent.as_str()))
            && fits_ignoring_case(&self.host, host)
            && self.port.is_none_or(|wanted| port == Some(wanted))
            && fits_ignoring_case(&self.method, method)
            && fits(&self.path, path)
            && fits(&self.server, server)
            && fits(&self.tool, tool)
            && fits(&self.argv, argv.as_deref())
    }
}

fn fits(pattern: &Option<String>, value: Option<&str>) -> bool {
    pattern
        .as_ref()
        .is_none_or(|p| value.is_some_and(|v| glob(p.as_bytes(), v.as_bytes())))
}

fn fits_ignoring_case(pattern: &Option<String>, value: Option<&str>) -> bool {
    pattern.as_ref().is_none_or(|p| {
        value.is_some_and(|v| {
            glob(
                p.to_ascii_lowercase().as_bytes(),
                v.to_ascii_lowercase().as_bytes(),
            )
        })
    })
}

/// Whether a name fits any of the patterns, whatever the case of either.
pub(super) fn any_fits(patterns: &[String], name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    patterns
        .iter()
        .any(|pattern| glob(pattern.to_ascii_lowercase().as_bytes(), name.as_bytes()))
}

/// Whether `text` matches `pattern`, where `*` is any run of bytes. Linear in the text for each star,
/// never exponential.
pub(super) fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while t < text.len() {
        if p < pattern.len() && pattern[p] == b'*' {
            retry = Some((p + 1, t));
            p += 1;
        } else if p < pattern.len() && pattern[p] == text[t] {
            p += 1;
            t += 1;
        } else if let Some((after_star, from)) = retry {
            p = after_star;
            t = from + 1;
            retry = Some((after_star, t));
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|&b| b == b'*')
}
