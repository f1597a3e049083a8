//! YAML: comments, key order, flow or block style mean nothing.

use std::borrow::Cow;

use serde_norway::Value as Yaml;

use super::super::value::Value;
use super::{MOST_NODES, Undecodable};

/// Largest text that is read: aliases can make a small document large.
const MOST_BYTES: usize = 256 << 10;

/// Reads one or more documents whose top is a map or a list.
pub(in crate::analyzer) fn read(text: &str) -> Result<Value<'static>, Undecodable> {
    // Anchors and merge keys are rare in what agents send, and the way to make a bomb.
    if text.len() > MOST_BYTES || text.contains('\t') || has_alias(text) {
        return Err(Undecodable);
    }
    let mut documents = Vec::new();
    let mut nodes = 0;
    for document in serde_norway::Deserializer::from_str(text) {
        let yaml: Yaml = serde::Deserialize::deserialize(document).map_err(|_| Undecodable)?;
        match yaml {
            Yaml::Null => continue,
            Yaml::Mapping(_) | Yaml::Sequence(_) => {
                documents.push(convert(yaml, &mut nodes, 0)?);
            }
            _ => return Err(Undecodable),
        }
    }
    match documents.len() {
        0 => Err(Undecodable),
        1 => Ok(documents.remove(0)),
        _ => Ok(Value::Map(vec![(
            "documents".into(),
            Value::List(documents),
        )])),
    }
}

/// Whether text looks like YAML without being told so: several lines, most of them `name: value`
/// or list items, at least two names.
pub(in crate::analyzer) fn looks_like(text: &str) -> bool {
    let mut names = 0;
    let mut others = 0;
    for line in text.lines() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') || line == "---" {
            continue;
        }
        let item = line.strip_prefix("- ").unwrap_or(line);
        let named = item.split_once(':').is_some_and(|(name, rest)| {
            !name.is_empty()
                && !name.contains(' ')
                && (rest.is_empty() || rest.starts_with(' '))
                && name
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b"_-./\"'".contains(&b))
        });
        if named {
            names += 1;
        } else if !line.starts_with("- ") {
            others += 1;
        }
    }
    names >= 2 && others == 0
}

fn has_alias(text: &str) -> bool {
    text.match_indices(['&', '*']).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + 1..].chars().next();
        before.is_none_or(|c| c.is_whitespace() || "[{,:-".contains(c))
            && after.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

fn convert(yaml: Yaml, nodes: &mut usize, depth: usize) -> Result<Value<'static>, Undecodable> {
    *nodes += 1;
    if *nodes > MOST_NODES || depth > 64 {
        return Err(Undecodable);
    }
    Ok(match yaml {
        Yaml::Null => Value::Null,
        Yaml::Bool(b) => Value::Bool(b),
        Yaml::Number(n) => Value::Number(Cow::Owned(n.to_string())),
        Yaml::String(s) => Value::text(s),
        Yaml::Sequence(items) => Value::List(
            items
                .into_iter()
                .map(|item| convert(item, nodes, depth + 1))
                .collect::<Result<_, _>>()?,
        ),
        Yaml::Mapping(map) => {
            let mut entries = Vec::new();
            for (name, value) in map {
                let name = match name {
                    Yaml::String(s) => s,
                    Yaml::Number(n) => n.to_string(),
                    Yaml::Bool(b) => b.to_string(),
                    _ => return Err(Undecodable),
                };
                entries.push((Cow::Owned(name), convert(value, nodes, depth + 1)?));
            }
            Value::Map(entries)
        }
        // A tag changes what the value is.
        Yaml::Tagged(_) => return Err(Undecodable),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn style_means_nothing() {
        let one = read("port: 8080\nhosts: [a, b]\n").unwrap();
        let two = read("# x\nport: 8080\nhosts:\n  - a\n  - b\n").unwrap();
        assert_eq!(one, two);
        assert!(looks_like("port: 8080\nhosts:\n  - a\n"));
        assert!(!looks_like("Note: we meet at 10:00\nBring helmets."));
    }

    #[test]
    fn refuses_bombs_and_tags() {
        let bomb = "a: &a [x,x]\nb: &b [*a,*a]\n";
        assert!(read(bomb).is_err());
        assert!(read("a: !!binary xx\n").is_err() || read("a: !x xx\n").is_err());
        assert!(read("just text").is_err());
        assert!(read("a: 1\na: 2\n").is_err(), "a name twice");
    }
}
