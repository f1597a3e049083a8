//! What simpler ways of telling equal calls would say: for the report, never for a verdict.

use super::decode::{self, json};
use super::naming::Names;
use super::pairs::{Pair, PairVerdict};
use super::value::Value;
use crate::words::{Header, Request};

/// A name and a rule.
pub type Baseline = (&'static str, fn(&Pair) -> PairVerdict);

/// Every baseline that needs no model.
pub const BASELINES: [Baseline; 3] = [
    ("exact bytes", exact_bytes),
    ("idempotency key only", idempotency_key),
    ("all fields equal", all_fields_equal),
];

fn verdict(same: bool) -> PairVerdict {
    if same {
        PairVerdict::Replay
    } else {
        PairVerdict::Diverge
    }
}

fn exact_bytes(pair: &Pair) -> PairVerdict {
    verdict(pair.recorded == pair.restored)
}

/// What a server with idempotency keys does: the key decides, whatever the rest says.
fn idempotency_key(pair: &Pair) -> PairVerdict {
    let (a, b) = (keys(&pair.recorded), keys(&pair.restored));
    verdict(!a.is_empty() && a == b)
}

fn keys(request: &Request) -> Vec<String> {
    let mut out = Vec::new();
    let headers = |headers: &[Header], out: &mut Vec<String>| {
        for header in headers
            .iter()
            .filter(|h| Names::of(&h.name).is_uniqueness_key())
        {
            out.extend(header.text().map(str::to_owned));
        }
    };
    match request {
        Request::Http(r) => {
            headers(&r.headers, &mut out);
            let kind = r
                .headers
                .iter()
                .find(|h| h.is("content-type"))
                .and_then(|h| h.text());
            collect(&decode::body(kind, &r.body), &mut out);
        }
        Request::Mcp(r) => {
            if let Ok(tree) = json::read(&r.arguments) {
                collect(&tree, &mut out);
            }
        }
        Request::Exec(_) => {}
    }
    out.sort();
    out
}

fn collect(tree: &Value<'_>, out: &mut Vec<String>) {
    match tree {
        Value::Map(entries) => {
            for (name, value) in entries {
                if let Some(text) = value
                    .as_text()
                    .filter(|_| Names::of(name).is_uniqueness_key())
                {
                    out.push(text.to_owned());
                }
                collect(value, out);
            }
        }
        Value::List(items) => items.iter().for_each(|item| collect(item, out)),
        _ => {}
    }
}

/// What a careful developer would write first: method, address and every field of the parsed body,
/// without headers.
fn all_fields_equal(pair: &Pair) -> PairVerdict {
    let parsed = |text: &[u8]| -> Result<serde_json::Value, Vec<u8>> {
        serde_json::from_slice(text).map_err(|_| text.to_vec())
    };
    verdict(match (&pair.recorded, &pair.restored) {
        (Request::Http(a), Request::Http(b)) => {
            a.method == b.method && a.url == b.url && parsed(&a.body.kept) == parsed(&b.body.kept)
        }
        (Request::Mcp(a), Request::Mcp(b)) => {
            a.name == b.name && parsed(a.arguments.as_bytes()) == parsed(b.arguments.as_bytes())
        }
        (Request::Exec(a), Request::Exec(b)) => a == b,
        _ => false,
    })
}
