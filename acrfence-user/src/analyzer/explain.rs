//! A comparison in words, for people and for agents that were stopped.

use std::fmt::Write as _;

use crate::words::{Comparison, Field, FieldClass, Likeness};

/// Most differences that are told one by one.
const MOST_LINES: usize = 20;

/// The outcome in one sentence.
pub fn headline(comparison: &Comparison) -> String {
    let names = |class: FieldClass| -> Vec<&str> {
        comparison
            .fields
            .iter()
            .filter(|f| f.class == class)
            .map(place)
            .collect()
    };
    match comparison.likeness {
        Likeness::Equivalent if comparison.fields.is_empty() => {
            "The two calls are the same.".into()
        }
        Likeness::Equivalent => {
            "The two calls mean the same: what differs changes nothing about what is done.".into()
        }
        Likeness::Different => format!(
            "The two calls ask for different things: {} differs.",
            list(&names(FieldClass::Intent))
        ),
        Likeness::Unsure => {
            let mut open = names(FieldClass::Unknown);
            open.extend(names(FieldClass::Prose));
            format!(
                "The two calls may mean the same, but nobody can be sure: {} differs.",
                list(&open)
            )
        }
    }
}

/// The outcome, and every difference with its class and evidence, one a line.
pub fn explain(comparison: &Comparison) -> String {
    let mut out = headline(comparison);
    let shown = comparison.fields.iter().take(MOST_LINES);
    for field in shown {
        out.push_str("\n- ");
        out.push_str(&line(field));
    }
    let more = comparison.fields.len().saturating_sub(MOST_LINES);
    if more > 0 {
        let _ = write!(out, "\n- and {more} more");
    }
    out
}

/// One difference: where, from what to what, and why it counts or does not.
pub fn line(field: &Field) -> String {
    let quoted = |value: &Option<String>| match value {
        Some(value) => format!("`{value}`"),
        None => "nothing".into(),
    };
    let meaning = match field.class {
        FieldClass::Volatile => "means nothing",
        FieldClass::Intent => "changes what is done",
        FieldClass::Prose => "wording",
        FieldClass::Unknown => "unclear",
    };
    let values = if field.recorded.is_none() && field.restored.is_none() {
        String::new()
    } else {
        format!(
            " was {}, is {}",
            quoted(&field.recorded),
            quoted(&field.restored)
        )
    };
    format!("{}:{values} ({meaning}: {})", place(field), field.reason)
}

fn place(field: &Field) -> &str {
    if field.path.is_empty() {
        "the call"
    } else {
        &field.path
    }
}

fn list(names: &[&str]) -> String {
    match names {
        [] => "something".into(),
        [one] => (*one).into(),
        [one, two] => format!("{one} and {two}"),
        [one, two, rest @ ..] => format!("{one}, {two} and {} more", rest.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(path: &str, class: FieldClass) -> Field {
        Field {
            path: path.into(),
            class,
            reason: "another value".into(),
            recorded: Some("84".into()),
            restored: None,
        }
    }

    #[test]
    fn a_person_can_read_it() {
        let different = Comparison {
            likeness: Likeness::Different,
            fields: vec![
                field("body.amount", FieldClass::Intent),
                field("body.key", FieldClass::Volatile),
            ],
        };
        let text = explain(&different);
        assert!(
            text.starts_with("The two calls ask for different things: body.amount differs."),
            "{text}"
        );
        assert!(
            text.contains(
                "- body.amount: was `84`, is nothing (changes what is done: another value)"
            ),
            "{text}"
        );
        let same = Comparison {
            likeness: Likeness::Equivalent,
            fields: vec![],
        };
        assert_eq!(explain(&same), "The two calls are the same.");
        let unsure = Comparison {
            likeness: Likeness::Unsure,
            fields: vec![
                field("a", FieldClass::Prose),
                field("b", FieldClass::Unknown),
                field("c", FieldClass::Prose),
            ],
        };
        assert!(
            headline(&unsure).contains("b, a and 1 more differs"),
            "{}",
            headline(&unsure)
        );
    }

    #[test]
    fn long_lists_are_cut() {
        let many = Comparison {
            likeness: Likeness::Different,
            fields: (0..90)
                .map(|i| field(&format!("f{i}"), FieldClass::Intent))
                .collect(),
        };
        assert_eq!(explain(&many).lines().count(), 22);
        assert!(explain(&many).ends_with("and 70 more"));
    }
}
