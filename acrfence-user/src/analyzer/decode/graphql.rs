//! GraphQL requests: the document with its variables put in. Layout, operation names, the order of
//! arguments, and literals instead of variables mean nothing.

mod parser;

use std::borrow::Cow;

use super::super::value::Value;
use super::Undecodable;
use parser::{Literal, Parser, Selection, tokens};

/// Deepest nesting that is followed.
const DEEPEST: usize = 48;

/// Name of the entry that holds what a field asks to get back.
pub(in crate::analyzer) const SELECTION: &str = "{}";

/// Reads a document. `operation` picks one where there are several.
pub(in crate::analyzer) fn read(
    document: &str,
    variables: Option<&Value<'_>>,
    operation: Option<&str>,
) -> Result<Value<'static>, Undecodable> {
    let tokens = tokens(document)?;
    let mut parser = Parser {
        tokens: &tokens,
        at: 0,
        nodes: 0,
    };
    let mut operations = Vec::new();
    let mut fragments = Vec::new();
    while parser.peek().is_some() {
        parser.definition(&mut operations, &mut fragments)?;
    }
    let chosen = match (operation.filter(|name| !name.is_empty()), operations.len()) {
        (None, 1) => operations.remove(0),
        (Some(name), _) => {
            let at = operations
                .iter()
                .position(|o| o.name.as_deref() == Some(name))
                .ok_or(Undecodable)?;
            operations.remove(at)
        }
        _ => return Err(Undecodable),
    };
    let mut bound: Vec<(String, Option<Value<'static>>, bool)> = Vec::new();
    for (name, default) in &chosen.variables {
        let given = variables
            .and_then(|v| v.get(name))
            .cloned()
            .map(Value::into_owned);
        let default = default
            .as_ref()
            .map(|d| literal(d, &mut [], 0))
            .transpose()?;
        bound.push((name.clone(), given.or(default), false));
    }
    let mut builder = Builder {
        bound: &mut bound,
        fragments: &fragments,
        nodes: 0,
    };
    let fields = builder.top(&chosen.selection)?;
    let mut entries: Vec<(Cow<'static, str>, Value<'static>)> =
        vec![("operation".into(), Value::Code(Cow::Owned(chosen.kind)))];
    match fields.len() {
        1 => entries.extend(fields),
        // Fields of a mutation run one after the other, in order.
        _ => entries.push((
            "fields".into(),
            Value::List(fields.into_iter().map(|f| Value::Map(vec![f])).collect()),
        )),
    }
    // A variable that is sent but not used may be a mistake of the model; it has no effect, but is
    // shown.
    if let Some(Value::Map(sent)) = variables {
        for (name, value) in sent {
            if !bound.iter().any(|(n, _, used)| n == name && *used) && !value.is_empty() {
                entries.push((
                    Cow::Owned(format!("unused ${name}")),
                    value.clone().into_owned(),
                ));
            }
        }
    }
    Ok(Value::Map(entries))
}

/// Whether text starts like a document.
pub(in crate::analyzer) fn looks_like(text: &str) -> bool {
    let mut rest = text.trim_start();
    while let Some(comment) = rest.strip_prefix('#') {
        rest = comment
            .split_once('\n')
            .map_or("", |(_, after)| after)
            .trim_start();
    }
    ["mutation", "query", "subscription", "fragment", "{"]
        .iter()
        .any(|start| {
            rest.strip_prefix(start).is_some_and(|after| {
                after
                    .starts_with(|c: char| c.is_whitespace() || "({@_".contains(c) || *start == "{")
            })
        })
        && rest.contains('{')
}

type Bound = (String, Option<Value<'static>>, bool);

fn literal(
    from: &Literal,
    bound: &mut [Bound],
    depth: usize,
) -> Result<Value<'static>, Undecodable> {
    if depth > DEEPEST {
        return Err(Undecodable);
    }
    Ok(match from {
        Literal::Variable(name) => {
            let (_, value, used) = bound
                .iter_mut()
                .find(|(n, _, _)| n == name)
                .ok_or(Undecodable)?;
            *used = true;
            value.clone().unwrap_or(Value::Null)
        }
        Literal::Number(number) => Value::Number(Cow::Owned(number.clone())),
        Literal::Text(text) => Value::text(text.clone()),
        Literal::Word(word) => match word.as_str() {
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            "null" => Value::Null,
            // An enum value is sent as text when it comes in a variable.
            _ => Value::text(word.clone()),
        },
        Literal::List(items) => Value::List(
            items
                .iter()
                .map(|item| literal(item, bound, depth + 1))
                .collect::<Result<_, _>>()?,
        ),
        Literal::Object(entries) => Value::Map(
            entries
                .iter()
                .map(|(name, value)| {
                    Ok((Cow::Owned(name.clone()), literal(value, bound, depth + 1)?))
                })
                .collect::<Result<_, Undecodable>>()?,
        ),
    })
}

type Entry = (Cow<'static, str>, Value<'static>);

struct Builder<'b> {
    bound: &'b mut [Bound],
    fragments: &'b [(String, String, Vec<Selection>)],
    nodes: usize,
}

impl Builder<'_> {
    /// Fields of the operation itself: their arguments are what the call asks for.
    fn top(&mut self, selections: &[Selection]) -> Result<Vec<Entry>, Undecodable> {
        let mut out = Vec::new();
        for selection in selections {
            let Selection::Field {
                key,
                name,
                arguments,
                directives,
                selection,
            } = selection
            else {
                return Err(Undecodable);
            };
            let mut entries: Vec<Entry> = Vec::new();
            for (name, value) in arguments {
                entries.push((Cow::Owned(name.clone()), literal(value, self.bound, 0)?));
            }
            for (name, arguments) in directives {
                let given = Literal::Object(arguments.clone());
                entries.push((
                    Cow::Owned(format!("@{name}")),
                    literal(&given, self.bound, 0)?,
                ));
            }
            let back = self.back(selection, 0)?;
            if !back.is_empty() {
                entries.push((SELECTION.into(), Value::Code(Cow::Owned(back))));
            }
            let _alias_is_spelling = key;
            out.push((Cow::Owned(name.clone()), Value::Map(entries)));
        }
        Ok(out)
    }

    /// What is asked back, in a normal form.
    fn back(&mut self, selections: &[Selection], depth: usize) -> Result<String, Undecodable> {
        self.nodes += 1;
        if depth > DEEPEST || self.nodes > 4096 {
            return Err(Undecodable);
        }
        let mut parts = Vec::new();
        for selection in selections {
            match selection {
                Selection::Field {
                    key,
                    name,
                    arguments,
                    directives,
                    selection,
                } => {
                    let mut part = if key == name {
                        name.clone()
                    } else {
                        format!("{key}:{name}")
                    };
                    for (name, value) in arguments {
                        part.push_str(&format!("({name}={:?})", literal(value, self.bound, 0)?));
                    }
                    for (name, arguments) in directives {
                        let given = Literal::Object(arguments.clone());
                        part.push_str(&format!("@{name}{:?}", literal(&given, self.bound, 0)?));
                    }
                    let inner = self.back(selection, depth + 1)?;
                    if !inner.is_empty() {
                        part.push_str(&format!("{{{inner}}}"));
                    }
                    parts.push(part);
                }
                Selection::Fragment(name, directives) => {
                    let (_, on, inner) = self
                        .fragments
                        .iter()
                        .find(|(n, _, _)| n == name)
                        .ok_or(Undecodable)?;
                    let inner = self.back(inner, depth + 1)?;
                    parts.push(format!("on {on}{directives:?}{{{inner}}}"));
                }
                Selection::Inline(on, directives, inner) => {
                    let inner = self.back(inner, depth + 1)?;
                    parts.push(format!("on {on}{directives:?}{{{inner}}}"));
                }
            }
        }
        parts.sort_unstable();
        parts.dedup();
        Ok(parts.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_and_variables_are_the_same() {
        let one = read(
            "mutation { move(id: \"D-1\", n: 3) { deal { id n } } }",
            None,
            None,
        )
        .unwrap();
        let variables = super::super::json::read(r#"{"id":"D-1","n":3}"#).unwrap();
        let two = read(
            "mutation M($id: ID!, $n: Int! = 4) {\n  move(id: $id, n: $n) { deal { n, id } } }",
            Some(&variables),
            Some("M"),
        )
        .unwrap();
        assert_eq!(one, two);
    }

    #[test]
    fn meaning_stays() {
        let base = read("mutation { archive(id: \"B\") { ok } }", None, None).unwrap();
        for other in [
            "# same\nmutation { delete(id: \"B\") { ok } }",
            "mutation { archive(id: \"C\") { ok } }",
            "query { archive(id: \"B\") { ok } }",
            "mutation { archive(id: \"B\") { ok } delete(id: \"B\") { ok } }",
            "mutation { archive(id: \"B\", force: true) { ok } }",
        ] {
            assert_ne!(base, read(other, None, None).unwrap(), "{other}");
        }
        let x = "mutation { a:archive(id: \"B\") { ok } }";
        assert_eq!(
            base,
            read(x, None, None).unwrap(),
            "an alias only renames the answer"
        );
    }

    #[test]
    fn refuses_what_is_no_document() {
        for bad in [
            "",
            "{",
            "mutation",
            "mutation { }",
            "query { a(b: $c) }",
            "type A { b: C }",
            "query { ...F }",
        ] {
            assert!(read(bad, None, None).is_err(), "{bad}");
        }
        assert!(read(&"{a".repeat(10_000), None, None).is_err());
    }
}
