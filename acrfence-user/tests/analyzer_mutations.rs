//! Thousands of edits of the corpora with known answers: edits that change what a call means must
//! never be answered from the record, edits of spelling must always be recognised.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on should fail at once"
)]

use acrfence_user::analyzer::Settled;
use acrfence_user::analyzer::judge::{conclude, examine_pair};
use acrfence_user::analyzer::pairs::{self, Pair, PairVerdict};
use serde_json::{Map, Value, json};

const CORPORA: [&str; 4] = [
    include_str!("../testdata/corpus/dev.jsonl"),
    include_str!("../testdata/corpus/other-domains.jsonl"),
    include_str!("../testdata/corpus/unseen-open.jsonl"),
    include_str!("../testdata/corpus/unseen-closed.jsonl"),
];

/// A small generator, so that every run tries the same edits.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % sides.max(1) as u64) as usize
    }
}

fn calls() -> Vec<Value> {
    CORPORA
        .iter()
        .flat_map(|c| c.lines())
        .filter(|l| !l.trim().is_empty())
        .map(|l| serde_json::from_str(l).unwrap())
        .collect()
}

/// The recorded call of a pair, restored with `request`; none where that is no request any more.
fn restored_as(pair: &Value, request: Value) -> Option<Pair> {
    let mut pair = pair.clone();
    pair["restored"]["request"] = request;
    pairs::read(&pair.to_string()).ok()
}

fn verdict(pair: &Pair) -> PairVerdict {
    conclude(pair, &Settled::without_model(examine_pair(pair))).verdict
}

/// A request with its body opened, so that edits reach inside.
fn opened(request: &Value) -> Value {
    let mut request = request.clone();
    if let Some(body) = request.get("body").and_then(Value::as_str)
        && let Ok(inner @ (Value::Object(_) | Value::Array(_))) =
            serde_json::from_str::<Value>(body)
    {
        request["body"] = inner;
    }
    request
}

fn closed(mut request: Value) -> Value {
    if let Some(body @ (Value::Object(_) | Value::Array(_))) = request.get("body") {
        request["body"] = Value::String(body.to_string());
    }
    request
}

/// Names of fields whose change may mean nothing: what only tells requests apart, tokens, clocks.
/// The corpora themselves say what becomes of those.
fn only_tells_apart(name: &str) -> bool {
    const PARTS: [&str; 22] = [
        "txn_ref",
        "client_booking",
        "dedup",
        "idempotency",
        "client_token",
        "client_msg",
        "request_id",
        "requestid",
        "nonce",
        "token",
        "mutationid",
        "external_ref",
        "sender_",
        "uuid",
        "createdat",
        "submitted",
        "correlation",
        "submission",
        "traceparent",
        "authoredon",
        "timestamp",
        "identifier",
    ];
    const WHOLE: [&str; 18] = [
        "created_at",
        "ref",
        "_meta",
        "headers",
        "_id",
        "ts",
        "count",
        "env",
        "attempt",
        "seq",
        "line_id",
        "jsonrpc",
        "id",
        "run_id",
        "raw",
        "client_ref",
        "counted_at",
        "scanned_at",
    ];
    let name = name.to_lowercase();
    WHOLE.contains(&name.as_str()) || PARTS.iter().any(|p| name.contains(p))
}

/// Paths of all leaves whose change changes the meaning.
fn leaves(value: &Value, path: Vec<String>, out: &mut Vec<Vec<String>>) {
    match value {
        Value::Object(map) => {
            for (name, inner) in map.iter().filter(|(name, _)| !only_tells_apart(name)) {
                let mut path = path.clone();
                path.push(name.clone());
                leaves(inner, path, out);
            }
        }
        Value::Array(items) => {
            for (i, inner) in items.iter().enumerate() {
                let mut path = path.clone();
                path.push(i.to_string());
                leaves(inner, path, out);
            }
        }
        Value::Null => {}
        _ => out.push(path),
    }
}

fn at<'v>(value: &'v mut Value, path: &[String]) -> &'v mut Value {
    path.iter().fold(value, |v, step| match v {
        Value::Array(items) => &mut items[step.parse::<usize>().unwrap()],
        v => v.get_mut(step).unwrap(),
    })
}

/// Edits a leaf so that it says something else. None where an edit could still mean the same.
fn other(leaf: &Value, dice: &mut Dice) -> Option<Value> {
    Some(match leaf {
        Value::Bool(b) => Value::Bool(!b),
        Value::Number(n) => match n.as_i64() {
            Some(i) => json!(i + 1 + dice.roll(40) as i64),
            None => json!(n.as_f64()? + 1.5),
        },
        Value::String(text) => {
            // Clocks inside of text have pairs of their own; so has what is encoded.
            let clock = ["2031-", "2032-", "2032030"]
                .iter()
                .any(|y| text.contains(y));
            let framed = [
                "oundary",
                "Message-ID",
                "BEGIN:VC",
                "MsgId",
                "MessageId",
                "nonce",
                "Nonce",
                "sent_at",
                "token=",
                "batch_",
                "--A1",
                "Idempotency-Key",
                "idempotency_key",
                "requestId",
                "requested_at",
                "newClientOrderId",
                "/* ",
            ]
            .iter()
            .any(|f| text.contains(f));
            // A key for one request on a command line.
            let key = text.len() == 36 && text.matches('-').count() == 4;
            let letters: Vec<(usize, char)> = text
                .char_indices()
                .filter(|(_, c)| c.is_ascii_alphanumeric())
                .collect();
            if letters.is_empty() || text.len() > 400 || clock || framed || key {
                return None;
            }
            let (place, old) = letters[dice.roll(letters.len())];
            let new = match old {
                '0'..='8' | 'a'..='y' | 'A'..='Y' => char::from(old as u8 + 1),
                '9' => '0',
                'z' => 'a',
                _ => 'A',
            };
            let mut edited = text.clone();
            edited.replace_range(place..place + 1, &new.to_string());
            Value::String(edited)
        }
        _ => return None,
    })
}

#[test]
fn an_edit_of_an_intent_field_never_replays() {
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let (mut tried, mut wrong) = (0, Vec::new());
    for pair in calls() {
        let request = opened(&pair["recorded"]["request"]);
        let mut paths = Vec::new();
        leaves(&request, Vec::new(), &mut paths);
        for path in paths {
            for _ in 0..5 {
                let mut edited = request.clone();
                let leaf = at(&mut edited, &path);
                let Some(new) = other(leaf, &mut dice) else {
                    continue;
                };
                let old = std::mem::replace(leaf, new.clone());
                let Some(judged) = restored_as(&pair, closed(edited)) else {
                    continue;
                };
                if judged.recorded == judged.restored {
                    continue;
                }
                tried += 1;
                // JSON in a text whose only changed digit is in the clock of the call itself.
                let clock = old.as_str().is_some_and(|t| t.contains("\"ts\":"))
                    && path.last().is_some_and(|name| name == "payload");
                if verdict(&judged) == PairVerdict::Replay
                    && !clock
                    && !is_spelling(&path, &old, &new)
                {
                    wrong.push(format!("{} {path:?}: {old} -> {new}", pair["id"]));
                }
            }
        }
    }
    assert!(tried > 4000, "only {tried} edits");
    assert!(
        wrong.is_empty(),
        "{} of {tried} edits replay:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// Edits that happen to hit spelling: the case of an escape or a host, the name of a GraphQL
/// operation or variable, what is asked back.
fn is_spelling(path: &[String], old: &Value, new: &Value) -> bool {
    let (Some(old), Some(new)) = (old.as_str(), new.as_str()) else {
        return false;
    };
    let graphql = old.contains('{') && (old.contains("mutation") || old.contains("query("));
    old.eq_ignore_ascii_case(new) || graphql || path.iter().any(|p| p == "operationName")
}

#[test]
fn dropping_or_adding_a_value_never_replays() {
    let (mut tried, mut wrong) = (0, Vec::new());
    for pair in calls() {
        let request = opened(&pair["recorded"]["request"]);
        let mut paths = Vec::new();
        leaves(&request, Vec::new(), &mut paths);
        for path in paths {
            let Some((last, parents)) = path.split_last() else {
                continue;
            };
            let mut edited = request.clone();
            let dropped = match at(&mut edited, parents) {
                Value::Object(map) => map.remove(last),
                Value::Array(items) => Some(items.remove(last.parse::<usize>().unwrap())),
                _ => None,
            };
            let Some(dropped) = dropped else { continue };
            // A missing `false` is what `false` says in many interfaces, and documentation may name
            // a default.
            let says_nothing = dropped.as_bool() == Some(false) || dropped.as_str() == Some("");
            let clock = dropped
                .as_str()
                .is_some_and(|t| t.starts_with("2031-") || t.starts_with("2032-"));
            let key = dropped
                .as_str()
                .is_some_and(|t| t.len() == 36 && t.matches('-').count() == 4);
            let prints_only = ["-s", "-sS", "--quiet", "--silent"]
                .iter()
                .any(|f| dropped.as_str() == Some(f));
            if says_nothing || clock || key || prints_only || is_default(&pair, last, &dropped) {
                continue;
            }
            let Some(judged) = restored_as(&pair, closed(edited)) else {
                continue;
            };
            tried += 1;
            if verdict(&judged) == PairVerdict::Replay {
                wrong.push(format!("{} without {path:?} = {dropped}", pair["id"]));
            }
        }
        let extras = [
            ("bcc", json!("spy@example.net")),
            ("force", json!(true)),
            ("amount", json!(9)),
            ("note", json!("x y z")),
            ("all", json!(true)),
            ("target", json!("7a1f5b46-58a1-4a7e-9d50-9b8f6f0ce001")),
        ];
        for (name, extra) in extras {
            let mut edited = request.clone();
            let map = match edited.get_mut("arguments") {
                Some(Value::Object(map)) => Some(map),
                _ => edited.get_mut("body").and_then(Value::as_object_mut),
            };
            let Some(map) = map.filter(|m| !m.contains_key(name)) else {
                continue;
            };
            map.insert(name.into(), extra.clone());
            let Some(judged) = restored_as(&pair, closed(edited)) else {
                continue;
            };
            tried += 1;
            if verdict(&judged) == PairVerdict::Replay {
                wrong.push(format!("{} with {name} = {extra}", pair["id"]));
            }
        }
    }
    assert!(tried > 2000, "only {tried} edits");
    assert!(
        wrong.is_empty(),
        "{} of {tried} edits replay:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// A value that documentation in the pair names as the default.
fn is_default(pair: &Value, name: &str, value: &Value) -> bool {
    let prior = pair.get("prior").map(Value::to_string).unwrap_or_default();
    let shown = value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned);
    prior.contains(&format!("default_{name}")) && prior.contains(&shown)
        || prior.contains("default\\\": ") && prior.contains(name)
        || prior.contains(&format!("{name} defaults to {shown}"))
}

#[test]
fn edits_of_spelling_are_recognised() {
    let mut dice = Dice(0x1234_5678_9abc_def1);
    let (mut tried, mut wrong) = (0, Vec::new());
    for pair in calls() {
        let request = opened(&pair["recorded"]["request"]);
        for round in 0..4 {
            let mut edited = closed(respelled(&request, &mut dice));
            if round == 1
                && let Some(body) = edited.get("body").and_then(Value::as_str)
                && let Ok(inner @ Value::Object(_)) = serde_json::from_str::<Value>(body)
            {
                edited["body"] = Value::String(serde_json::to_string_pretty(&inner).unwrap());
            }
            if let Some(headers) = edited.get_mut("headers").and_then(Value::as_object_mut) {
                let id = format!(
                    "{:08x}-1111-4222-8333-44445555{:04x}",
                    dice.roll(1 << 30),
                    dice.roll(1 << 15)
                );
                headers.insert("X-Request-Id".into(), json!(id));
                headers.insert(
                    "User-Agent".into(),
                    json!(format!("agent/{}", dice.roll(9))),
                );
            }
            let Some(judged) = restored_as(&pair, edited) else {
                continue;
            };
            tried += 1;
            let got = verdict(&judged);
            if got != PairVerdict::Replay {
                let fields = examine_pair(&judged).comparison.fields;
                let why: Vec<String> = fields
                    .iter()
                    .take(2)
                    .map(|f| format!("{} {}", f.path, f.reason))
                    .collect();
                wrong.push(format!("{}: {got:?} {why:?}", pair["id"]));
            }
        }
    }
    assert!(tried > 1000, "only {tried} edits");
    assert!(
        wrong.is_empty(),
        "{} of {tried} spellings are not recognised:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// The same request: keys in another order, numbers with a fraction of zero.
fn respelled(value: &Value, dice: &mut Dice) -> Value {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<(String, Value)> =
                map.iter().map(|(n, v)| (n.clone(), v.clone())).collect();
            for i in (1..entries.len()).rev() {
                entries.swap(i, dice.roll(i + 1));
            }
            let mut out = Map::new();
            for (name, value) in entries {
                let kept = name == "argv" || name == "headers";
                out.insert(name, if kept { value } else { respelled(&value, dice) });
            }
            Value::Object(out)
        }
        Value::Array(items) => Value::Array(items.iter().map(|v| respelled(v, dice)).collect()),
        Value::Number(n) if n.as_i64().is_some_and(|i| i.abs() < 1 << 50) && dice.roll(2) == 0 => {
            json!(n.as_i64().map(|i| i as f64))
        }
        other => other.clone(),
    }
}

#[test]
fn a_call_is_equivalent_to_itself() {
    for pair in calls() {
        let same = restored_as(&pair, pair["recorded"]["request"].clone()).unwrap();
        assert_eq!(verdict(&same), PairVerdict::Replay, "{}", pair["id"]);
        let mut turned = restored_as(&pair, pair["restored"]["request"].clone()).unwrap();
        turned.recorded = turned.restored.clone();
        assert_eq!(verdict(&turned), PairVerdict::Replay, "{}", pair["id"]);
    }
}

/// Every text of every recorded call, replaced by a value that nobody saw before: in both calls
/// another one. Only fields for such values may take it for meaningless.
#[test]
fn made_up_values_pass_only_where_such_values_stand() {
    fn every_text(value: &Value, path: Vec<String>, out: &mut Vec<Vec<String>>) {
        match value {
            Value::Object(map) => {
                for (name, inner) in map {
                    every_text(inner, [path.clone(), vec![name.clone()]].concat(), out);
                }
            }
            Value::Array(items) => {
                for (i, inner) in items.iter().enumerate() {
                    every_text(inner, [path.clone(), vec![i.to_string()]].concat(), out);
                }
            }
            Value::String(_) => out.push(path),
            _ => {}
        }
    }
    const STAND_HERE: [&str; 37] = [
        "clienttoken",
        "cmd_nonce",
        "launch_request_id",
        "_meta",
        "accept",
        "approval",
        "approval_token",
        "authorization",
        "client_booking_ref",
        "client_msg_id",
        "client_ref",
        "client_token",
        "client_uuid",
        "clientmutationid",
        "content-length",
        "correlation_id",
        "external_ref",
        "id",
        "$oid",
        "idempotency-key",
        "idempotency_key",
        "lang",
        "line_id",
        "messagededuplicationid",
        "nonce",
        "order_uuid",
        "ref",
        "reference",
        "requestid",
        "request_id",
        "submission_key",
        "submit_token",
        "token",
        "traceparent",
        "user-agent",
        "paydrop-request-id",
        "ballot_nonce",
    ];
    let mut dice = Dice(0x0dd0_5eed_0dd0_5eed);
    let mut uuid = || {
        let mut hex = String::new();
        for _ in 0..4 {
            hex.push_str(&format!("{:08x}", dice.roll(1 << 32)));
        }
        format!(
            "{}-{}-4{}-8{}-{}",
            &hex[..8],
            &hex[8..12],
            &hex[13..16],
            &hex[17..20],
            &hex[20..32]
        )
    };
    let (mut tried, mut wrong) = (0, Vec::new());
    for pair in calls() {
        let mut pair = pair;
        pair.as_object_mut().unwrap().remove("prior");
        pair["recorded"].as_object_mut().unwrap().remove("response");
        let request = opened(&pair["recorded"]["request"]);
        let mut paths = Vec::new();
        every_text(&request, Vec::new(), &mut paths);
        for path in paths {
            let (mut one, mut two) = (request.clone(), request.clone());
            *at(&mut one, &path) = Value::String(uuid());
            *at(&mut two, &path) = Value::String(uuid());
            let mut edited = pair.clone();
            edited["recorded"]["request"] = closed(one);
            let Some(judged) = restored_as(&edited, closed(two)) else {
                continue;
            };
            tried += 1;
            let name = path.last().unwrap().to_lowercase();
            let in_header = path[0] == "headers" && name.starts_with("x-");
            let in_argv = path[0] == "argv"
                && path[1].parse::<usize>().is_ok_and(|n| {
                    let before = n.checked_sub(1).and_then(|n| request["argv"][n].as_str());
                    before.is_some_and(|f| {
                        ["--client-token", "--caller-reference", "--consent"].contains(&f)
                    })
                });
            let allowed = STAND_HERE.contains(&name.as_str())
                || in_header
                || in_argv
                || path[0] == "_meta"
                || path.contains(&"params".to_owned());
            if verdict(&judged) == PairVerdict::Replay && !allowed {
                wrong.push(format!("{} {path:?}", pair["id"]));
            }
            // Of headers, those that say where the call goes or on whose behalf must count.
            let scope = [
                "x-tenant",
                "x-project",
                "x-device-id",
                "x-kiosk",
                "x-api-key",
                "host",
                "if-match",
                "soapaction",
            ];
            if scope.contains(&name.as_str()) && verdict(&judged) == PairVerdict::Replay {
                wrong.push(format!("{} {path:?}", pair["id"]));
            }
        }
    }
    assert!(tried > 2000, "only {tried}");
    assert!(
        wrong.is_empty(),
        "{} of {tried}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
