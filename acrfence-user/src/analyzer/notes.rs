//! What schemas, help texts and answers say about fields: made up for every call, a default, in
//! order. Untrusted words: a note counts only together with other evidence, and never makes an
//! amount, a party or a target meaningless (`compare::leaf`).

use super::decode::json;
use super::evidence::{Note, NoteKind, ToolSchema};
use super::naming;
use super::value::{Value, shorten};

/// Asks for notes about fields in general.
pub(super) const ANY_FIELD: &str = "*";

/// Longest text that is searched.
const MOST_BYTES: usize = 64 << 10;

/// Most notes about one field.
const MOST_NOTES: usize = 8;

/// What a tool's schema says about each of its fields, by the words of the name.
pub(super) fn of_schema(schema: &ToolSchema) -> Vec<(String, Vec<Note>)> {
    let mut fields = Vec::new();
    if let Ok(tree) = json::read(&schema.input) {
        properties(&tree, &mut fields, 0);
    }
    fields
        .into_iter()
        .map(|(field, mut notes)| {
            statements(&schema.description, &field, &mut notes);
            (naming::words(&field).join(" "), notes)
        })
        .collect()
}

fn properties(tree: &Value<'_>, out: &mut Vec<(String, Vec<Note>)>, depth: usize) {
    if depth > 12 || out.len() > 256 {
        return;
    }
    match tree {
        Value::Map(entries) => {
            if let Some(Value::Map(properties)) = tree.get("properties") {
                for (name, about) in properties {
                    out.push((name.to_string(), described(about)));
                }
            }
            entries
                .iter()
                .for_each(|(_, value)| properties(value, out, depth + 1));
        }
        Value::List(items) => items
            .iter()
            .for_each(|item| properties(item, out, depth + 1)),
        _ => {}
    }
}

/// What a text (an answer, a help page) says about a field.
pub(super) fn of_text(text: &str, field: &str) -> Vec<Note> {
    let mut notes = Vec::new();
    if text.len() > MOST_BYTES {
        return notes;
    }
    match json::read(text) {
        Ok(tree @ (Value::Map(_) | Value::List(_))) => of_tree(&tree, field, &mut notes, 0),
        _ => statements(text, field, &mut notes),
    }
    notes.truncate(MOST_NOTES);
    notes
}

fn of_tree(tree: &Value<'_>, field: &str, notes: &mut Vec<Note>, depth: usize) {
    if depth > 24 || notes.len() >= MOST_NOTES {
        return;
    }
    match tree {
        Value::Map(entries) => {
            let wanted = naming::words(field);
            for (name, value) in entries {
                let words = naming::words(name);
                if words == wanted && matches!(value, Value::Map(_)) {
                    notes.extend(described(value));
                }
                if words.len() == wanted.len() + 1
                    && words[0] == "default"
                    && words[1..] == wanted[..]
                    && let Some(scalar) = value.scalar()
                {
                    notes.push(note(
                        NoteKind::Default(scalar.to_string()),
                        &format!("{name}: {scalar}"),
                    ));
                }
                of_tree(value, field, notes, depth + 1);
            }
            let named = tree
                .get("name")
                .or_else(|| tree.get("field"))
                .or_else(|| tree.get("parameter"));
            if named
                .and_then(Value::as_text)
                .is_some_and(|n| naming::words(n) == wanted)
            {
                notes.extend(described(tree));
            }
        }
        Value::List(items) => items
            .iter()
            .for_each(|item| of_tree(item, field, notes, depth + 1)),
        Value::Text(text) => statements(text, field, notes),
        _ => {}
    }
}

/// What an entry such as `{"type": "boolean", "default": true, "description": "…"}` says.
fn described(about: &Value<'_>) -> Vec<Note> {
    let mut notes = Vec::new();
    if let Some(default) = about.get("default").and_then(Value::scalar) {
        notes.push(note(
            NoteKind::Default(default.to_string()),
            &format!("default: {default}"),
        ));
    }
    if about.get("uniqueItems") == Some(&Value::Bool(true)) {
        notes.push(note(NoteKind::Unordered, "uniqueItems: true"));
    }
    if let Some(text) = about.get("description").and_then(Value::as_text) {
        notes.extend(said(text));
        if let Some(default) = default_in(text, None) {
            notes.push(note(NoteKind::Default(default), text));
        }
    }
    notes
}

/// Statements of a plain text that mention the field.
fn statements(text: &str, field: &str, notes: &mut Vec<Note>) {
    for statement in sentences(text) {
        if notes.len() >= MOST_NOTES {
            return;
        }
        if field == ANY_FIELD {
            let lower = statement.to_lowercase();
            let both = lower.contains("snake_case")
                && (lower.contains("camelcase") || lower.contains("camel case"));
            if both || lower.contains("proto3 json") || lower.contains("protobuf json") {
                notes.push(note(NoteKind::EitherCase, statement));
            }
            continue;
        }
        if !mentions(statement, field) {
            continue;
        }
        let subject = subject(statement);
        let mut here = said(statement);
        let about = match &subject {
            // `seq: counter of messages sent by this till`: about seq, not about the till.
            Some(names) => names
                .iter()
                .any(|n| naming::words(n) == naming::words(field)),
            // In running text only names of labels are taken to be what the sentence is about.
            None => is_label(field),
        };
        if !about {
            here.retain(|n| n.kind != NoteKind::FreshPerCall);
        }
        notes.extend(here);
        if let Some(default) = default_in(statement, Some(field)) {
            notes.push(note(NoteKind::Default(default), statement));
        }
    }
}

fn sentences(text: &str) -> impl Iterator<Item = &str> {
    text.split(['\n', '\r'])
        .flat_map(|line| line.split_inclusive(". "))
        .map(str::trim)
        .filter(|s| !s.is_empty() && s.len() < 1000)
        .take(400)
}

/// The names before the colon of `name: …`, `name and other: …`, `name (type): …`.
fn subject(statement: &str) -> Option<Vec<String>> {
    let (head, _) = statement.split_once(':')?;
    let head = head.split('(').next().unwrap_or(head);
    let names: Vec<String> = head
        .split(|c: char| c.is_whitespace() || ",/`\"'*-".contains(c))
        .filter(|w| !w.is_empty() && *w != "and" && *w != "or")
        .map(str::to_owned)
        .collect();
    (!names.is_empty() && names.len() <= 4).then_some(names)
}

fn is_label(field: &str) -> bool {
    naming::words(field).last().is_some_and(|w| {
        [
            "ref",
            "reference",
            "key",
            "id",
            "token",
            "number",
            "no",
            "code",
            "nonce",
            "label",
            "tag",
            "uuid",
            "guid",
            "serial",
            "sequence",
            "seq",
            "counter",
            "count",
            "identifier",
            "handle",
            "salt",
            "marker",
        ]
        .contains(&w.as_str())
    })
}

/// Whether a statement names the field: as one word, however it is joined.
fn mentions(statement: &str, field: &str) -> bool {
    let wanted = naming::words(field);
    let Some(first) = wanted.first() else {
        return false;
    };
    // `to`, `id`, `at` are also ordinary words; they must be marked as a name.
    let common = wanted.len() == 1
        && (first.len() < 3
            || [
                "key", "name", "text", "number", "from", "date", "time", "type",
            ]
            .contains(&first.as_str()));
    let bare = |word: &str| -> bool {
        naming::words(word.trim_matches(|c: char| !c.is_alphanumeric())) == wanted
    };
    let words: Vec<&str> = statement.split_whitespace().collect();
    words.iter().enumerate().any(|(i, word)| {
        if !bare(word) {
            // `client request id`, written apart.
            return wanted.len() > 1
                && words.len() >= i + wanted.len()
                && words[i..i + wanted.len()]
                    .iter()
                    .zip(&wanted)
                    .all(|(w, x)| {
                        w.trim_matches(|c: char| !c.is_alphanumeric())
                            .eq_ignore_ascii_case(x)
                    });
        }
        !common
            || word.ends_with(':')
            || word.starts_with(['`', '"', '\'', '('])
            || word.ends_with(['`', '"', '='])
    })
}

/// What a statement says, leaving aside of which field.
fn said(statement: &str) -> Vec<Note> {
    let text = statement.to_lowercase();
    let has = |list: &[&str]| list.iter().any(|phrase| text.contains(phrase));
    let mut notes = Vec::new();
    if has(ORDERED) {
        notes.push(note(NoteKind::Ordered, statement));
    } else if has(UNORDERED) {
        notes.push(note(NoteKind::Unordered, statement));
    }
    let shown = has(&[
        "shown to",
        "visible to",
        "appears on",
        "printed on",
        "displayed",
    ]) && !has(&[
        "not shown",
        "never shown",
        "not visible",
        "never displayed",
        "not displayed",
        "never appears",
    ]);
    if shown || has(MEANINGFUL) {
        notes.push(note(NoteKind::Meaningful, statement));
    } else {
        let unique = text.contains("unique")
            && has(&[
                "every",
                "each",
                "per ",
                "your account",
                "within",
                "string",
                "by the caller",
                "client",
                "among",
                "across",
            ]);
        if unique || has(FRESH) {
            notes.push(note(NoteKind::FreshPerCall, statement));
        }
    }
    notes
}

/// The value in `defaults to X`, `default: X`, `(default X)`, `X by default`.
fn default_in(statement: &str, field: Option<&str>) -> Option<String> {
    let lower = statement.to_lowercase();
    // Text such as `print(file, copies): copies defaults to 1, duplex to false` is about the field
    // that stands before the word.
    let from = match field {
        Some(field) => {
            let at = [
                "defaults to ",
                "default is ",
                "default value is ",
                "default: ",
                "default = ",
                "(default ",
            ]
            .iter()
            .filter_map(|p| lower.find(p))
            .min()?;
            let before = lower.get(..at)?;
            let words = naming::words(field);
            let nearest = before
                .split(|c: char| c.is_whitespace() || "(),;".contains(c))
                .filter(|w| !w.is_empty())
                .rev()
                .take(6)
                .any(|w| naming::words(w) == words);
            if !nearest {
                return None;
            }
            at
        }
        None => lower.find("default")?,
    };
    let rest = statement.get(from..)?;
    let marker = [
        "defaults to ",
        "default is ",
        "default value is ",
        "default: ",
        "default = ",
        "default ",
    ]
    .iter()
    .find_map(|p| rest.to_lowercase().find(p).map(|at| at + p.len()))?;
    let value: String = rest
        .get(marker..)?
        .trim_start_matches(['`', '"', '\''])
        .chars()
        .take_while(|c| !c.is_whitespace() && !",;)`\"'".contains(*c))
        .collect();
    let value = value.trim_end_matches('.').to_owned();
    (!value.is_empty()).then_some(value)
}

fn note(kind: NoteKind, said: &str) -> Note {
    Note {
        kind,
        said: shorten(said),
    }
}

const FRESH: &[&str] = &[
    // Never the same twice.
    "not used before",
    "never used before",
    "not been used",
    "not be reused",
    "never be reused",
    "not reuse",
    "never reuse",
    "not sent before",
    "never sent before",
    "must differ",
    "be different in each",
    "be different for each",
    "a new one for",
    "new value",
    "fresh value",
    "pick a new",
    "choose a new",
    "generate a new",
    "make up a new",
    "make a new",
    // One per call.
    "once per",
    "one per request",
    "per request",
    "per call",
    "per attempt",
    "per message",
    "per submission",
    "every request",
    "each request",
    "every call",
    "each call",
    "every message",
    "each message",
    "every attempt",
    "each attempt",
    "every submission",
    "each submission",
    "every delivery",
    "each delivery",
    "every try",
    "each try",
    "with every post",
    // Without meaning.
    "random",
    "arbitrary",
    "any string",
    "any text you like",
    "free to choose",
    "no meaning",
    "meaningless",
    "not interpreted",
    "only echoed",
    "echoed back",
    "is ignored by",
    "ignored by the server",
    "for your own",
    "your own bookkeeping",
    "for matching the answer",
    "not stored",
    "never stored",
    // Against duplicates.
    "idempoten",
    "de-dup",
    "dedup",
    "duplicate detection",
    "detect duplicate",
    "avoid duplicate",
    "prevent duplicate",
    "spot duplicate",
    "reject duplicate",
    "duplicate submission",
    "double submission",
    "double submit",
    "recognise repeat",
    "recognize repeat",
    "recognise retries",
    "recognize retries",
    "safe to retry",
    "when retrying",
    // Made by the caller.
    "caller-made",
    "client-made",
    "caller-generated",
    "client-generated",
    "generated by the client",
    "generated by the caller",
    "made by the caller",
    "made by the client",
    "made up by",
    "chosen by the caller",
    "chosen by the client",
    "chosen by you",
    // Counters of calls.
    "running number",
    "must grow",
    "must increase",
    "increases by",
    "increases with",
    "monotonic",
    "strictly increasing",
    "higher than the last",
    "higher than the previous",
    "number of the message",
    "message number",
    "counter of messages",
    "counter of requests",
    "counter of calls",
    "consecutive number",
    "correlat",
    "for tracing",
    "trace id",
];

const MEANINGFUL: &[&str] = &[
    "invoice number",
    "order number",
    "books the",
    "against that",
    "against the",
    "selects",
    "determines",
    "decides",
    "identifies which",
    "must exist",
    "existing",
    "id of the",
    "name of the",
    "which of",
    "must match",
    "billed to",
    "charged to",
    "belongs to",
    "tells which",
    "names the",
    "the customer sees",
    "assigned to",
    "refers to",
    "as shown on",
    "as printed on",
];

const ORDERED: &[&str] = &[
    "in the order given",
    "order given",
    "in order",
    "order matters",
    "order is significant",
    "in sequence",
    "first match",
    "one after the other",
    "in this order",
];

const UNORDERED: &[&str] = &[
    "order does not matter",
    "any order",
    "unordered",
    "order is irrelevant",
    "order is not",
    "treated as a set",
    "regardless of order",
    "a set of",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str, field: &str) -> Vec<NoteKind> {
        of_text(text, field).into_iter().map(|n| n.kind).collect()
    }

    #[test]
    fn statements_about_fields() {
        let kiosk = "count: running number of messages this kiosk has sent, must grow with every message. receipt_nonce: random, once per message. One barcode is one copy.";
        assert_eq!(kinds(kiosk, "count"), [NoteKind::FreshPerCall]);
        assert_eq!(kinds(kiosk, "receipt_nonce"), [NoteKind::FreshPerCall]);
        assert!(kinds(kiosk, "barcode").is_empty());
        assert_eq!(
            kinds(
                "Every transfer needs a ref you have not used before. The ref is never shown to the payee.",
                "ref"
            ),
            [NoteKind::FreshPerCall]
        );
        assert_eq!(
            kinds(
                "Put the invoice number in ref; the payee books the money against that invoice.",
                "ref"
            ),
            [NoteKind::Meaningful]
        );
        assert_eq!(
            kinds(
                "stops: intermediate stops, driven in the order given.",
                "stops"
            ),
            [NoteKind::Ordered]
        );
        assert_eq!(
            kinds("copies defaults to 1.", "copies"),
            [NoteKind::Default("1".into())]
        );
        assert!(kinds("a word to the wise: unique for every request", "to").is_empty());
    }

    #[test]
    fn structured_documentation() {
        let text = r#"{"fields":{"auto":{"type":"boolean","default":true,"description":"true: at once"}},"default_region":"eu-1"}"#;
        assert_eq!(kinds(text, "auto"), [NoteKind::Default("true".into())]);
        assert_eq!(kinds(text, "region"), [NoteKind::Default("eu-1".into())]);
        assert!(kinds(text, "other").is_empty());
    }

    #[test]
    fn schemas() {
        let schema = ToolSchema {
            description: "Sends a payment.".into(),
            input: r#"{"type":"object","properties":{"key":{"type":"string","description":"Unique for every request"},"speed":{"default":"slow"}}}"#.into(),
        };
        let notes = of_schema(&schema);
        assert_eq!(notes[0].1[0].kind, NoteKind::FreshPerCall);
        assert_eq!(notes[1].1[0].kind, NoteKind::Default("slow".into()));
    }
}
