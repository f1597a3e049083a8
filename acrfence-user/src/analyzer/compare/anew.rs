//! Whether a request was made anew: it orders something, under a reference or key that the caller made
//! up for it. A byte-identical repetition is a retry or a poll, and so is one in which only clocks,
//! signatures, traces or tokens moved; a *new* reference tells the server that this is another order.

use super::super::decode::{graphql, sql};
use super::super::naming::{self, Deed, Names};
use super::super::value::Value;
use super::context::Context;
use super::opened::Opened;
use super::path::Path;
use super::walk::Walk;
use crate::words::Request;

/// Words of names whose values change with every message, whatever it asks for.
const PER_MESSAGE: &[&str] = &[
    "trace",
    "tracing",
    "traceparent",
    "tracestate",
    "span",
    "baggage",
    "correlation",
    "nonce",
    "noncestr",
    "cnonce",
    "session",
    "sequence",
    "seq",
    "packet",
    "attempt",
    "retry",
    "cachebust",
    "cachebuster",
    "rpc",
    "jsonrpc",
    "signature",
    "token",
];

/// Words that stand for a name of an order also where they stand beside one of the above
/// (`client_token`, `idempotency_token`).
const OF_ORDERS: &[&str] = &[
    "client",
    "caller",
    "idempotency",
    "idempotent",
    "idempotence",
    "dedup",
    "dedupe",
    "deduplication",
    "ikey",
];

/// Verbs of calls that only ask.
const ASKS: &[&str] = &[
    "get", "list", "describe", "read", "fetch", "find", "search", "query", "lookup", "check",
    "poll", "status", "state", "progress", "count", "show", "view", "retrieve", "watch", "wait",
    "head", "scan", "select", "validate", "preview", "estimate", "inspect", "ping", "health",
    "balance",
];

/// Names of what is called to be let in, or to say how things go: nothing is ordered by it.
const ORDERS_NOTHING: &[&str] = &[
    "heartbeat",
    "heartbeats",
    "keepalive",
    "telemetry",
    "metric",
    "metrics",
    "analytics",
    "track",
    "spans",
    "traces",
    "token",
    "tokens",
    "oauth",
    "login",
    "signin",
    "refresh",
    "authenticate",
    "introspect",
];

impl Walk<'_> {
    /// Whether a value that was made up for the call, in this place, is what the caller calls its order
    /// by, and not something that every message has.
    pub(super) fn names_an_order(&self, path: &Path<'_>) -> bool {
        if self.in_token || path.is_in("cookie") {
            return false;
        }
        let names = path.names();
        if path.is_in("headers") {
            // `X-Request-Id` and the like tie logs together; this one is PayPal's idempotency key.
            return names.has(&OF_ORDERS[2..]) || path.last_name() == "paypal-request-id";
        }
        !is_of_message(path, &names)
    }
}

fn is_of_message(path: &Path<'_>, names: &Names) -> bool {
    if names.has(PER_MESSAGE) && !names.has(OF_ORDERS) {
        return true;
    }
    // The id of an RPC message whose protocol does not say its name.
    names.is_bare_id()
        && path.around().is_some_and(|(one, _)| {
            let has = |name: &str| one.iter().any(|(n, _)| n == name);
            has("method") && has("params")
        })
}

/// Whether a call only asks, by what it is called and by what stands in it: `POST /search`,
/// `Action=DescribeInstances`, a GraphQL query, a token that is refreshed. Only ever used to leave a
/// call alone.
pub(super) fn only_asks(call: &Opened<'_>, context: &Context<'_>) -> bool {
    if let Some(asks) = statement(call) {
        return asks;
    }
    let named = context.words();
    asks(named)
        || named
            .last()
            .is_some_and(|w| ORDERS_NOTHING.contains(&w.as_str()))
        || operation(call).is_some_and(|name| asks(&naming::words(&name)))
}

/// Whether the words of a name ask and do nothing.
fn asks(words: &[String]) -> bool {
    naming::deed(words) == Deed::Unknown && words.iter().any(|w| ASKS.contains(&w.as_str()))
}

/// Whether the program in a call only asks; none where there is none.
fn statement(call: &Opened<'_>) -> Option<bool> {
    let Value::Map(entries) = call.content() else {
        return None;
    };
    let named = |name: &str| {
        ["query", "document", "sql", "statement"]
            .iter()
            .any(|n| name.eq_ignore_ascii_case(n))
    };
    let text = entries
        .iter()
        .filter(|(name, _)| named(name))
        .find_map(|(_, value)| value.as_text())?;
    if graphql::looks_like(text) {
        return Some(!text.contains("mutation"));
    }
    sql::looks_like(text).then(|| {
        let first = text.split_whitespace().next().unwrap_or_default();
        ["select", "show", "explain", "describe", "pragma", "values"]
            .iter()
            .any(|verb| first.eq_ignore_ascii_case(verb))
    })
}

/// What a call says that it wants done, where the address does not: `Action` of a query interface, the
/// method of a JSON-RPC message, `X-Amz-Target`.
fn operation(call: &Opened<'_>) -> Option<String> {
    const NAMES: &[&str] = &["action", "method", "operation", "command", "cmd"];
    let of = |entries: &[(std::borrow::Cow<'_, str>, Value<'_>)]| {
        entries
            .iter()
            .filter(|(name, _)| NAMES.iter().any(|n| name.eq_ignore_ascii_case(n)))
            .find_map(|(_, value)| value.as_text().map(str::to_owned))
    };
    if let Value::Map(entries) = call.content()
        && let Some(name) = of(entries)
    {
        return Some(name);
    }
    if !matches!(call.request, Request::Http(_)) {
        return None;
    }
    let headers = call.headers();
    let target = headers.iter().find(|(name, _)| name == "x-amz-target");
    if let Some(target) = target.and_then(|(_, value)| value.as_text()) {
        let last = target.rsplit('.').next();
        return last.map(str::to_owned);
    }
    match call.address()?.get("query")? {
        Value::Map(entries) => of(entries),
        _ => None,
    }
}
