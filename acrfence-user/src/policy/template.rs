//! Texts with places that are filled in from a recorded request: `/payments?reference={body:/reference}`.

use std::fmt;

use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::words::{Header, Request};

/// A text with places to fill in. `{{` and `}}` stand for braces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub struct Template {
    text: String,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Place(Place),
}

/// Where a value is taken from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// JSON pointer into the body; the name of a field (`/name`) of a form.
    Body(String),
    /// A header field.
    Header(String),
    /// JSON pointer into the arguments of an MCP call.
    Argument(String),
}

impl Template {
    /// Reads a text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            let (before, from) = rest.split_at(at);
            plain.push_str(before);
            if let Some(after) = from.strip_prefix("{{") {
                plain.push('{');
                rest = after;
            } else if let Some(after) = from.strip_prefix("}}") {
                plain.push('}');
                rest = after;
            } else if let Some((place, after)) = from[1..].split_once('}')
                && from.starts_with('{')
            {
                if !plain.is_empty() {
                    parts.push(Part::Text(std::mem::take(&mut plain)));
                }
                parts.push(Part::Place(Place::parse(place)?));
                rest = after;
            } else {
                return Err(format!(
                    "`{text}` has a brace that opens or closes nothing; write `{{{{` or `}}}}` for a brace"
                ));
            }
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            parts.push(Part::Text(plain));
        }
        Ok(Self {
            text: text.to_owned(),
            parts,
        })
    }

    /// As it is written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The places in it.
    pub fn places(&self) -> impl Iterator<Item = &Place> {
        self.parts.iter().filter_map(|part| match part {
            Part::Place(place) => Some(place),
            Part::Text(_) => None,
        })
    }

    /// The text with its places filled in; `encode` is applied to what is filled in.
    ///
    /// The error says which place has no plain value: it is not there, more than once there, no
    /// scalar, or was kept as a fingerprint only.
    pub fn fill(&self, from: &Request, encode: impl Fn(&str) -> String) -> Result<String, String> {
        let mut out = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => out.push_str(text),
                Part::Place(place) => out.push_str(&encode(&scalar(&place.value(from)?, place)?)),
            }
        }
        Ok(out)
    }

    /// Fills in the texts of a JSON value. A text that is one place and nothing else takes the value
    /// as it is, number or not.
    pub fn fill_value(value: &Value, from: &Request) -> Result<Value, String> {
        Ok(match value {
            Value::String(text) => {
                let template = Self::parse(text)?;
                match &template.parts[..] {
                    [Part::Place(place)] => place.value(from)?,
                    _ => Value::String(template.fill(from, str::to_owned)?),
                }
            }
            Value::Array(items) => items
                .iter()
                .map(|item| Self::fill_value(item, from))
                .collect::<Result<_, _>>()?,
            Value::Object(members) => members
                .iter()
                .map(|(name, value)| Ok((name.clone(), Self::fill_value(value, from)?)))
                .collect::<Result<_, String>>()?,
            other => other.clone(),
        })
    }

    /// Whether the texts of a JSON value have places; an error when they do not read.
    pub fn in_value(value: &Value) -> Result<bool, String> {
        Ok(match value {
            Value::String(text) => Self::parse(text)?.places().count() > 0,
            Value::Array(items) => items.iter().try_fold(false, |any, item| {
                Ok::<_, String>(Self::in_value(item)? | any)
            })?,
            Value::Object(members) => members.values().try_fold(false, |any, item| {
                Ok::<_, String>(Self::in_value(item)? | any)
            })?,
            _ => false,
        })
    }
}

impl Place {
    fn parse(text: &str) -> Result<Self, String> {
        let pointer = |at: &str| {
            if at.starts_with('/') {
                Ok(at.to_owned())
            } else {
                Err(format!(
                    "`{{{text}}}` needs a JSON pointer, like `/reference`"
                ))
            }
        };
        match text.split_once(':') {
            Some(("body", at)) => pointer(at).map(Self::Body),
            Some(("argument", at)) => pointer(at).map(Self::Argument),
            Some(("header", name)) if !name.is_empty() => Ok(Self::Header(name.to_owned())),
            _ => Err(format!(
                "`{{{text}}}` is no place; write `{{body:/…}}`, `{{header:…}}` or `{{argument:/…}}`"
            )),
        }
    }

    /// The value that stands there.
    fn value(&self, from: &Request) -> Result<Value, String> {
        let missing = || format!("the original request has nothing at `{self}`");
        let found = match (self, from) {
            (Self::Body(pointer), Request::Http(http)) if !http.body.is_whole() => {
                return Err(format!(
                    "the original body was not kept whole, so `{pointer}` may be another value"
                ));
            }
            (Self::Body(pointer), Request::Http(http)) => {
                let kind = http.headers.iter().find(|h| h.is("content-type"));
                let is_form = kind
                    .and_then(Header::text)
                    .is_some_and(|k| k.starts_with("application/x-www-form-urlencoded"));
                if http.headers.iter().any(|h| h.is("content-encoding")) {
                    return Err("the original body is compressed".to_owned());
                }
                if is_form {
                    let mut fields = url::form_urlencoded::parse(&http.body.kept)
                        .filter(|(name, _)| *name == pointer[1..]);
                    let value = fields.next().ok_or_else(missing)?.1.into_owned();
                    if fields.next().is_some() {
                        return Err(format!("the original form has several `{pointer}`"));
                    }
                    Value::String(value)
                } else {
                    read(&http.body.kept)?
                        .pointer(pointer)
                        .cloned()
                        .ok_or_else(missing)?
                }
            }
            (Self::Argument(pointer), Request::Mcp(mcp)) => read(mcp.arguments.as_bytes())?
                .pointer(pointer)
                .cloned()
                .ok_or_else(missing)?,
            (Self::Header(name), _) => {
                let fields = match from {
                    Request::Http(http) => &http.headers[..],
                    Request::Mcp(mcp) => &mcp.headers[..],
                    Request::Exec(_) => &[],
                };
                let mut fields = fields.iter().filter(|h| h.is(name));
                let value = fields.next().and_then(Header::text).ok_or_else(missing)?;
                if fields.next().is_some() {
                    return Err(format!("the original request has several `{name}`"));
                }
                Value::String(value.to_owned())
            }
            _ => return Err(missing()),
        };
        match &found {
            Value::String(text) if text.contains("redacted:") => Err(format!(
                "`{self}` was kept as a fingerprint only, so it cannot be asked for"
            )),
            Value::String(text) if text.is_empty() => Err(missing()),
            Value::Null => Err(missing()),
            _ => Ok(found),
        }
    }
}

/// A value as text; an error when it is no scalar.
fn scalar(value: &Value, place: &Place) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        // A fraction or a very long number may not be what was written.
        Value::Number(number) if !number.is_f64() => Ok(number.to_string()),
        Value::Bool(bool) => Ok(bool.to_string()),
        _ => Err(format!(
            "`{place}` of the original request is no text or whole number"
        )),
    }
}

/// Reads JSON in which no name stands twice in one object: of two values nobody knows which one the
/// other side took.
pub(super) fn read(text: &[u8]) -> Result<Value, String> {
    serde_json::from_slice::<Strict>(text)
        .map(|strict| strict.0)
        .map_err(|e| format!("it is no JSON that reads in one way only: {e}"))
}

struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Value;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON")
            }
            fn visit_unit<E>(self) -> Result<Value, E> {
                Ok(Value::Null)
            }
            fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
                Ok(v.into())
            }
            fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
                Ok(v.into())
            }
            fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
                Ok(v.into())
            }
            fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
                Ok(v.into())
            }
            fn visit_str<E>(self, v: &str) -> Result<Value, E> {
                Ok(v.into())
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
                let mut all = Vec::new();
                while let Some(Strict(item)) = items.next_element()? {
                    all.push(item);
                }
                Ok(all.into())
            }
            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
                let mut all = serde_json::Map::new();
                while let Some((name, Strict(value))) = members.next_entry::<String, Strict>()? {
                    if all.insert(name.clone(), value).is_some() {
                        return Err(A::Error::custom(format!("`{name}` stands there twice")));
                    }
                }
                Ok(all.into())
            }
        }
        d.deserialize_any(Reader).map(Strict)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Body(at) => write!(f, "{{body:{at}}}"),
            Self::Header(at) => write!(f, "{{header:{at}}}"),
            Self::Argument(at) => write!(f, "{{argument:{at}}}"),
        }
    }
}

impl From<Template> for String {
    fn from(template: Template) -> Self {
        template.text
    }
}

impl<'de> Deserialize<'de> for Template {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(d)?).map_err(D::Error::custom)
    }
}
