//! A decoded message as a tree: what is left when spelling is taken away.

use std::borrow::Cow;

/// One node. Borrows from the message where it can.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value<'a> {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number as it was written: no precision is lost.
    Number(Cow<'a, str>),
    /// Text.
    Text(Cow<'a, str>),
    /// A piece of a program (a condition of SQL, a script) in a normal form. Two different pieces
    /// never mean the same as far as we know.
    Code(Cow<'a, str>),
    /// Bytes that are no text, or a body that was not kept whole.
    Opaque(Cow<'a, str>),
    /// Values in order.
    List(Vec<Value<'a>>),
    /// Named values in the order they were written. A name may occur more than once.
    Map(Vec<(Cow<'a, str>, Value<'a>)>),
}

impl<'a> Value<'a> {
    /// Text that owns itself.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(Cow::Owned(text.into()))
    }

    /// Value under a name of a map.
    pub fn get(&self, name: &str) -> Option<&Value<'a>> {
        match self {
            Self::Map(entries) => entries.iter().find(|(n, _)| n == name).map(|(_, v)| v),
            _ => None,
        }
    }

    /// Text of a text node.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A scalar as text: what was written, without quotes.
    pub fn scalar(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::Null => Some("null".into()),
            Self::Bool(b) => Some(if *b { "true" } else { "false" }.into()),
            Self::Number(text) | Self::Text(text) | Self::Code(text) | Self::Opaque(text) => {
                Some(Cow::Borrowed(text))
            }
            Self::List(_) | Self::Map(_) => None,
        }
    }

    /// Whether it says nothing: null, or empty text, list or map.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Null => true,
            Self::Text(text) => text.trim().is_empty(),
            Self::List(items) => items.is_empty(),
            Self::Map(entries) => entries.is_empty(),
            _ => false,
        }
    }

    /// The same tree without borrowing.
    pub fn into_owned(self) -> Value<'static> {
        match self {
            Self::Null => Value::Null,
            Self::Bool(b) => Value::Bool(b),
            Self::Number(t) => Value::Number(Cow::Owned(t.into_owned())),
            Self::Text(t) => Value::Text(Cow::Owned(t.into_owned())),
            Self::Code(t) => Value::Code(Cow::Owned(t.into_owned())),
            Self::Opaque(t) => Value::Opaque(Cow::Owned(t.into_owned())),
            Self::List(items) => Value::List(items.into_iter().map(Value::into_owned).collect()),
            Self::Map(entries) => Value::Map(
                entries
                    .into_iter()
                    .map(|(name, value)| (Cow::Owned(name.into_owned()), value.into_owned()))
                    .collect(),
            ),
        }
    }

    /// For display: short, on one line.
    pub fn show(&self) -> String {
        let mut out = String::new();
        self.write(&mut out);
        shorten(&out)
    }

    fn write(&self, out: &mut String) {
        if out.len() > SHOWN * 2 {
            return;
        }
        match self {
            Self::List(items) => {
                out.push('[');
                for (i, item) in items.iter().enumerate() {
                    if i > 0 {
                        out.push_str(", ");
                    }
                    item.write(out);
                }
                out.push(']');
            }
            Self::Map(entries) => {
                out.push('{');
                for (i, (name, value)) in entries.iter().enumerate() {
                    if i > 0 {
                        out.push_str(", ");
                    }
                    out.push_str(name);
                    out.push_str(": ");
                    value.write(out);
                }
                out.push('}');
            }
            leaf => {
                if let Some(text) = leaf.scalar() {
                    out.extend(text.chars().take(SHOWN * 2));
                }
            }
        }
    }
}

/// Longest value shown in a difference, in characters.
const SHOWN: usize = 160;

/// Shortens text for display and makes control characters visible.
pub(super) fn shorten(text: &str) -> String {
    let mut out = String::new();
    for (n, c) in text.chars().enumerate() {
        if n == SHOWN {
            out.push('…');
            break;
        }
        if c.is_control() || is_invisible(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// Characters that print as nothing or turn the direction of writing: shown by their code, so
/// that two values that differ never look the same for that reason.
pub(super) fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}' | '\u{ad}')
}
