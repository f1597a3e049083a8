//! What is known about the pair of calls as a whole.

use std::cell::OnceCell;
use std::collections::HashMap;

use super::super::decode::{self, json, mime};
use super::super::evidence::{Evidence, Note, NoteKind};
use super::super::naming::{self, Deed, Names};
use super::super::normal::spelling;
use super::super::notes;
use super::super::shape;
use super::super::value::Value;
use crate::words::{Request, Response};

/// Most values of an answer that are looked at.
const MOST_ECHOES: usize = 5000;

/// What is known about the pair of calls as a whole.
pub(super) struct Context<'e> {
    pub evidence: &'e Evidence<'e>,
    /// What the recorded call does.
    pub deed: Deed,
    /// Nouns of the call's name, singular (`payment` of `refund_payment`).
    pub nouns: Vec<String>,
    /// All words of the call's name.
    pub words: Vec<String>,
    /// Whether the interface takes `snake_case` and `camelCase` names alike, as its address tells.
    pub either_case: bool,
    answer: Option<&'e Response>,
    echo: OnceCell<Echo>,
    schema: OnceCell<Vec<(String, Vec<Note>)>>,
}

#[derive(Default)]
struct Echo {
    /// Values by the words of their name, run together.
    named: HashMap<String, Vec<Value<'static>>>,
    /// Long hexadecimal ids.
    hex: Vec<String>,
}

impl<'e> Context<'e> {
    pub fn new(
        recorded: &Request,
        answer: Option<&'e Response>,
        evidence: &'e Evidence<'e>,
    ) -> Self {
        let (deed, words) = call_words(recorded);
        let nouns = words.iter().map(|w| naming::singular(w)).collect();
        let either_case = match recorded {
            Request::Http(r) => {
                let (path, query) = r.url.split_once('?').unwrap_or((&r.url, ""));
                let method = path
                    .rsplit('/')
                    .next()
                    .is_some_and(|last| last.contains(':'));
                method
                    || query
                        .split('&')
                        .any(|p| p == "alt=json" || p.starts_with("prettyPrint="))
            }
            _ => false,
        };
        Self {
            evidence,
            deed,
            nouns,
            words,
            either_case,
            answer,
            echo: OnceCell::new(),
            schema: OnceCell::new(),
        }
    }

    /// Where one of two values, or a part in which they differ, was seen before.
    pub fn seen(&self, one: &str, two: &str) -> Option<String> {
        let provenance = self.evidence.provenance;
        for value in [one, two] {
            if let Some(place) = provenance.seen(value) {
                return Some(format!(
                    "`{}` was seen in {place}",
                    super::super::value::shorten(value)
                ));
            }
        }
        let parts = |text: &str| -> Vec<String> {
            spelling::pieces(text)
                .filter(|p| naming::tells_apart(p))
                .take(16)
                .map(str::to_owned)
                .collect()
        };
        let (a, b) = (parts(one), parts(two));
        let only = |these: &[String], others: &[String]| -> Option<String> {
            these.iter().filter(|p| !others.contains(p)).find_map(|p| {
                provenance
                    .seen(p)
                    .map(|place| format!("`{p}` was seen in {place}"))
            })
        };
        only(&a, &b).or_else(|| only(&b, &a))
    }

    /// Where one value was seen before.
    pub fn seen_one(&self, value: &str) -> Option<String> {
        self.evidence.provenance.seen(value)
    }

    /// What the tool's schema and earlier answers say about a field.
    pub fn notes(&self, names: &Names, written: &str) -> Vec<Note> {
        let joined = names.joined();
        let mut out = self.evidence.provenance.notes(written);
        let schema = self.schema.get_or_init(|| match self.evidence.schema {
            Some(schema) => notes::of_schema(schema),
            None => Vec::new(),
        });
        for (field, said) in schema {
            if *field == joined || field.eq_ignore_ascii_case(written) {
                out.extend(said.iter().cloned());
            }
        }
        out
    }

    /// Whether the interface is documented to take both spellings of names.
    pub fn takes_either_case(&self) -> bool {
        self.either_case
            || self
                .evidence
                .provenance
                .notes(notes::ANY_FIELD)
                .iter()
                .any(|n| n.kind == NoteKind::EitherCase)
    }

    /// Values that the recorded answer gives under the same name.
    pub fn echoed(&self, names: &Names) -> &[Value<'static>] {
        self.echo()
            .named
            .get(&names.own.concat())
            .map_or(&[], Vec::as_slice)
    }

    /// Whether the recorded answer, or something earlier, has this long id.
    pub fn has_long_id(&self, id: &str) -> bool {
        self.echo().hex.iter().any(|h| h.eq_ignore_ascii_case(id)) || self.seen_one(id).is_some()
    }

    fn echo(&self) -> &Echo {
        self.echo.get_or_init(|| {
            let mut echo = Echo::default();
            let mut room = MOST_ECHOES;
            for tree in self.answer.map(trees).unwrap_or_default() {
                collect(&tree, &mut echo, &mut room);
            }
            echo
        })
    }
}

/// An answer as trees.
pub(in crate::analyzer) fn trees(answer: &Response) -> Vec<Value<'_>> {
    match answer {
        Response::Http(r) => {
            let kind = r
                .headers
                .iter()
                .find(|h| h.is("content-type"))
                .and_then(|h| h.text());
            vec![decode::body(kind, &r.body)]
        }
        Response::Mcp(r) => {
            let Ok(tree) = json::read(&r.answer) else {
                return vec![Value::text(r.answer.clone())];
            };
            let mut out = Vec::new();
            if let Some(structured) = tree.get("structuredContent") {
                out.push(structured.clone());
            }
            if let Some(Value::List(items)) = tree.get("content") {
                for text in items
                    .iter()
                    .filter_map(|i| i.get("text"))
                    .filter_map(Value::as_text)
                {
                    out.push(decode::content(None, text, 1).into_owned());
                }
            }
            if out.is_empty() {
                out.push(tree);
            }
            out
        }
        Response::Exec(r) => match std::str::from_utf8(&r.stdout.kept) {
            Ok(text) => vec![decode::content(None, text, 1)],
            Err(_) => vec![mime::opaque(&r.stdout.kept)],
        },
    }
}

fn collect(tree: &Value<'_>, echo: &mut Echo, room: &mut usize) {
    if *room == 0 {
        return;
    }
    *room -= 1;
    match tree {
        Value::Map(entries) => {
            for (name, value) in entries {
                echo.named
                    .entry(naming::words(name).concat())
                    .or_default()
                    .push(value.clone().into_owned());
                collect(value, echo, room);
            }
        }
        Value::List(items) => items.iter().for_each(|item| collect(item, echo, room)),
        Value::Text(text) => {
            for piece in spelling::pieces(text) {
                if piece.len() >= 32 && piece.bytes().all(|b| b.is_ascii_hexdigit()) {
                    echo.hex.push(piece.to_owned());
                }
            }
        }
        _ => {}
    }
}

/// What a call does, and the words of its name.
fn call_words(request: &Request) -> (Deed, Vec<String>) {
    match request {
        Request::Mcp(r) => {
            let words = naming::words(&r.name);
            (naming::deed(&words), words)
        }
        Request::Http(r) => {
            let path = r.url.split(['?', '#']).next().unwrap_or_default();
            let path = path.split_once("://").map_or(path, |(_, rest)| rest);
            let segments: Vec<&str> = path.split('/').skip(1).filter(|s| !s.is_empty()).collect();
            let named: Vec<&&str> = segments.iter().filter(|s| !shape::is_id_like(s)).collect();
            let words = named.last().map(|s| naming::words(s)).unwrap_or_default();
            let ends_in_id = segments.last().is_some_and(|s| {
                let digits = s.bytes().any(|b| b.is_ascii_digit());
                s.bytes().all(|b| b.is_ascii_digit())
                    || digits && s.contains(['-', '_', ':'])
                    || shape::randomness(s) > shape::Randomness::None
            });
            let deed = match r.method.to_ascii_uppercase().as_str() {
                "PATCH" => Deed::Update,
                "DELETE" => Deed::Remove,
                "PUT" => Deed::Update,
                "POST" => match naming::deed(&words) {
                    // `POST /orders` makes an order; `POST /orders/7` changes it.
                    Deed::Unknown if !ends_in_id => Deed::Create,
                    Deed::Unknown => Deed::Update,
                    // `POST /orders`, `/records`: nouns that are verbs as well.
                    Deed::Do | Deed::Create if !ends_in_id => Deed::Create,
                    Deed::Act | Deed::Update | Deed::Remove
                        if !ends_in_id
                            && words.last().is_some_and(|w| {
                                w.ends_with('s') && w.len() > 3 && !naming::is_verb(w)
                            }) =>
                    {
                        Deed::Create
                    }
                    deed => deed,
                },
                _ => Deed::Unknown,
            };
            (deed, words)
        }
        Request::Exec(r) => {
            let words: Vec<String> = r
                .argv
                .iter()
                .take(4)
                .filter(|w| !w.starts_with('-'))
                .flat_map(|w| naming::words(w.rsplit('/').next().unwrap_or(w)))
                .collect();
            (naming::deed(&words), words)
        }
    }
}
