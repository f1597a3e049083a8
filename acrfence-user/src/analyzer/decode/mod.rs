//! What the wire hides: bodies, texts inside texts, commands.
//!
//! Every decoder takes hostile input: it is bounded in bytes, nodes and depth, and gives
//! [`Undecodable`] instead of a guess. What does not decode compares as it stands.

pub(super) mod argv;
pub(super) mod csv;
pub(super) mod graphql;
pub(super) mod json;
pub(super) mod lines;
pub(super) mod mime;
mod programs;
pub(super) mod shell;
pub(super) mod sql;
pub(super) mod token;
pub(super) mod url;
pub(super) mod xml;
pub(super) mod yaml;

use std::borrow::Cow;

use super::naming::Names;
use super::value::Value;
use crate::words::Body;

/// It is not what the decoder reads, or it is over a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Undecodable;

/// Most nodes of one decoded tree.
pub(super) const MOST_NODES: usize = 200_000;

/// Largest body that is decoded; larger ones compare by digest.
pub(super) const MOST_BYTES: usize = 1 << 20;

/// Deepest nesting of encodings (JSON in a form in multipart in …).
pub(super) const DEEPEST: usize = 6;

/// Decodes a body by its content type, or by what it looks like.
pub(super) fn body<'a>(content_type: Option<&str>, body: &'a Body) -> Value<'a> {
    if !body.is_whole() || body.kept.len() > MOST_BYTES {
        return Value::Opaque(Cow::Owned(format!(
            "{} bytes, sha256 {}",
            body.len, body.digest
        )));
    }
    let kind = content_type.map(mime::media_type).unwrap_or_default();
    if kind.starts_with("multipart/")
        && let Ok(value) = mime::multipart(content_type.unwrap_or_default(), &body.kept, DEEPEST)
    {
        return value;
    }
    match std::str::from_utf8(&body.kept) {
        Ok(text) => content(content_type, text, DEEPEST),
        Err(_) => mime::opaque(&body.kept),
    }
}

/// Decodes text by its content type, or by what it looks like.
pub(super) fn content<'a>(content_type: Option<&str>, text: &'a str, depth: usize) -> Value<'a> {
    let kind = content_type.map(mime::media_type).unwrap_or_default();
    let decoded = match kind.as_str() {
        k if k.ends_with("/json") || k.ends_with("+json") => json::read(text),
        k if k.ends_with("ndjson") || k.ends_with("jsonl") || k.ends_with("json-seq") => {
            json::read_lines(text)
        }
        // Clients that send JSON under this type are common; no form starts like JSON.
        "application/x-www-form-urlencoded"
            if bounded_form(text) && !text.trim_start().starts_with(['{', '[']) =>
        {
            Ok(url::form(text))
        }
        k if k.ends_with("/xml") || k.ends_with("+xml") => xml::read(text),
        k if k.ends_with("yaml") => yaml::read(text),
        "text/csv" => csv::read(text),
        "text/calendar" | "text/vcard" => lines::blocks(text),
        "application/graphql" => graphql::read(text, None, None),
        "application/sql" => sql::read(text),
        "message/rfc822" if depth > 0 => mime::message(text, depth - 1),
        _ => Err(Undecodable),
    };
    if let Ok(value) = decoded {
        return value;
    }
    // A wrong or missing type is common; what it looks like decides then.
    match text.trim_start().as_bytes().first() {
        Some(b'{' | b'[') => {
            if let Ok(value) = json::read(text).or_else(|_| json::read_lines(text)) {
                return value;
            }
        }
        Some(b'<') => {
            if let Ok(value) = xml::read(text) {
                return value;
            }
        }
        _ => {
            let undeclared = kind.is_empty() || kind == "text/plain";
            if undeclared && bounded_form(text) && url::looks_like_form(text) {
                return url::form(text);
            }
        }
    }
    Value::Text(Cow::Borrowed(text))
}

/// Two texts of the same field, decoded in the same way.
pub(super) struct Inner {
    /// What they are, in words.
    pub kind: &'static str,
    /// The first text.
    pub one: Value<'static>,
    /// The second text.
    pub two: Value<'static>,
}

/// What is known about a text field beside its value.
pub(super) struct Hints<'n> {
    /// Words of the field's name.
    pub names: &'n Names,
    /// Ending of a file name that stands beside it (`yaml`).
    pub extension: Option<&'n str>,
    /// Encodings that may still be opened.
    pub depth: usize,
}

/// Decodes two texts, where both are the same kind of encoding.
pub(super) fn inner(one: &str, two: &str, hints: &Hints<'_>) -> Option<Inner> {
    if hints.depth == 0 || one.len() > MOST_BYTES || two.len() > MOST_BYTES {
        return None;
    }
    let depth = hints.depth - 1;
    let both = |kind, read: &dyn Fn(&str) -> Result<Value<'static>, Undecodable>| {
        let one = read(one).ok()?;
        let two = read(two).ok()?;
        Some(Inner { kind, one, two })
    };
    let start =
        |set: &[char]| one.trim_start().starts_with(set) && two.trim_start().starts_with(set);
    if start(&['{', '['])
        && let Some(found) = both("JSON in text", &|t| json::read(t).map(Value::into_owned))
            .or_else(|| {
                both("lines of JSON", &|t| {
                    json::read_lines(t).map(Value::into_owned)
                })
            })
    {
        return Some(found);
    }
    if start(&['<'])
        && let Some(found) = both("XML in text", &xml::read)
    {
        return Some(found);
    }
    if one.contains("://") && two.contains("://") {
        let read = |t: &str| url::read(t).map(Value::into_owned).ok_or(Undecodable);
        if let Some(found) = both("URL", &read) {
            return Some(found);
        }
    }
    if let Some(found) = both("token with a payload", &token::read) {
        return Some(found);
    }
    if let Some(found) = both("base64 of JSON", &token::json) {
        return Some(found);
    }
    if let Some(found) = both("base64 of text", &|t| {
        let text = token::text(t)?;
        Ok(mime::message(&text, depth).unwrap_or(Value::text(text)))
    }) {
        return Some(found);
    }
    if one.contains('\n') && two.contains('\n') {
        if let Some(found) = both("mail message", &|t| mime::message(t, depth)) {
            return Some(found);
        }
        if one.starts_with("BEGIN:")
            && two.starts_with("BEGIN:")
            && let Some(found) = both("calendar or contact", &lines::blocks)
        {
            return Some(found);
        }
    }
    let names = hints.names;
    if names.has(&["query", "mutation", "document", "graphql", "gql"])
        && graphql::looks_like(one)
        && graphql::looks_like(two)
        && let Some(found) = both("GraphQL document", &|t| graphql::read(t, None, None))
    {
        return Some(found);
    }
    if sql::looks_like(one)
        && sql::looks_like(two)
        && let Some(found) = both("SQL", &sql::read)
    {
        return Some(found);
    }
    let yaml_named = matches!(hints.extension, Some("yaml" | "yml"))
        || names.has(&["yaml", "manifest", "manifests"]);
    if (yaml_named || (yaml::looks_like(one) && yaml::looks_like(two)))
        && let Some(found) = both("YAML", &yaml::read)
    {
        return Some(found);
    }
    let csv_named = matches!(hints.extension, Some("csv" | "tsv")) || names.has(&["csv", "tsv"]);
    if csv_named && let Some(found) = both("CSV", &csv::read) {
        return Some(found);
    }
    None
}

/// Adds a value under a name that may repeat: a second one makes a list.
pub(super) fn add_repeatable<'a>(
    entries: &mut Vec<(Cow<'a, str>, Value<'a>)>,
    name: Cow<'a, str>,
    value: Value<'a>,
) {
    // Values that are lists themselves are wrapped, so that `[a], [b]` and `[a, b]` stay apart.
    match entries.iter_mut().find(|(n, _)| *n == name) {
        None => entries.push((name, value)),
        Some((_, Value::List(items))) if !matches!(value, Value::List(_)) => items.push(value),
        Some((_, first)) => {
            let earlier = std::mem::replace(first, Value::Null);
            *first = Value::List(vec![earlier, value]);
        }
    }
}

fn bounded_form(text: &str) -> bool {
    text.bytes().filter(|b| *b == b'&').count() < 1024
}
