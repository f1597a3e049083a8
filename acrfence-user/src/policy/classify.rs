//! What a call is: an effect unless something says otherwise (DESIGN.md §6).

use serde::{Deserialize, Serialize};

use super::config::Config;
use super::in_doubt::InDoubt;
use super::rule::{RuleKind, glob};
use crate::words::{Request, ToolCall};

/// What a call is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// It may change something outside: logged and fenced.
    Effect,
    /// It changes nothing outside: passed on.
    ReadOnly,
    /// LLM traffic: passed on, read for the conversation.
    Model,
}

/// What a call is taken for, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Treatment {
    /// What it is.
    pub kind: Kind,
    /// Who says so: a rule of the policy, a shipped rule, the method, the default.
    pub because: String,
}

/// What an MCP server says of a tool. Untrusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolHints {
    /// `annotations.readOnlyHint`.
    pub read_only: bool,
}

/// Hosts of LLM providers. Their traffic is no effect whatever the path: it is what the agent thinks with.
const MODEL_HOSTS: &[&str] = &[
    "api.anthropic.com",
    "api.openai.com",
    "generativelanguage.googleapis.com",
    "*-aiplatform.googleapis.com",
    "*.openai.azure.com",
    "bedrock-runtime.*.amazonaws.com",
    "api.mistral.ai",
    "api.groq.com",
    "api.deepseek.com",
    "api.x.ai",
    "api.together.xyz",
    "openrouter.ai",
];

impl Config {
    /// How to find out what became of this effect: what the first rule that matches its call says,
    /// with the number of the rule.
    pub fn in_doubt(&self, call: &ToolCall) -> Option<(usize, &InDoubt)> {
        let (n, rule) = self
            .rule
            .iter()
            .enumerate()
            .find(|(_, rule)| rule.matcher.matches(call))?;
        Some((n + 1, rule.in_doubt.as_ref()?))
    }

    /// Decides what a call is.
    ///
    /// `is_conversation` says that path and body have the shape of an LLM request; `hints` is what
    /// the MCP server says of the tool.
    pub fn classify(&self, call: &ToolCall, is_conversation: bool, hints: ToolHints) -> Treatment {
        let trusted_hint = hints.read_only;
        for (n, rule) in self.rule.iter().enumerate() {
            if !rule.matcher.matches(call) {
                continue;
            }
            let because = if rule.note.is_empty() {
                format!("rule {} of the policy", n + 1)
            } else {
                format!("rule {} of the policy ({})", n + 1, rule.note)
            };
            let kind = match rule.kind {
                RuleKind::Effect => Kind::Effect,
                RuleKind::ReadOnly => Kind::ReadOnly,
                RuleKind::Model => Kind::Model,
                RuleKind::TrustHints if trusted_hint => Kind::ReadOnly,
                // A trusted server that does not call the tool read-only.
                RuleKind::TrustHints => Kind::Effect,
            };
            return Treatment { kind, because };
        }
        shipped(call, is_conversation)
    }
}

fn shipped(call: &ToolCall, is_conversation: bool) -> Treatment {
    let says = |kind, because: &str| Treatment {
        kind,
        because: because.into(),
    };
    let Request::Http(http) = &call.request else {
        return says(
            Kind::Effect,
            "every call to something outside is irreversible unless marked otherwise",
        );
    };
    if ["GET", "HEAD", "OPTIONS", "TRACE"].contains(&http.method.as_str()) {
        return says(Kind::ReadOnly, "a safe HTTP method");
    }
    let url = url::Url::parse(&http.url).ok();
    let host = url
        .as_ref()
        .and_then(|u| u.host_str())
        .unwrap_or_default()
        .to_ascii_lowercase();
    if MODEL_HOSTS
        .iter()
        .any(|pattern| glob(pattern.as_bytes(), host.as_bytes()))
    {
        return says(Kind::Model, "a known LLM provider");
    }
    if http.is_mcp_housekeeping() {
        return says(Kind::ReadOnly, "MCP's own traffic");
    }
    if is_conversation {
        return says(Kind::Model, "path and body are an LLM request");
    }
    if url
        .as_ref()
        .is_some_and(|u| u.path().ends_with("/git-upload-pack"))
    {
        return says(Kind::ReadOnly, "git fetch");
    }
    says(
        Kind::Effect,
        "every call to something outside is irreversible unless marked otherwise",
    )
}
