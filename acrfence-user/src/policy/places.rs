//! Where in a file something stands, for errors that the reader of TOML does not make itself.

use serde::Deserialize;
use serde::de::IgnoredAny;
use toml::Spanned;

/// The tables of a configuration that there can be several of.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Tables {
    rule: Vec<Spanned<IgnoredAny>>,
    gate: Gate,
    after_restore: AfterRestore,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Gate {
    command: Vec<Spanned<IgnoredAny>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AfterRestore {
    class: Vec<Spanned<IgnoredAny>>,
}

/// Which kind of table.
#[derive(Clone, Copy)]
pub(super) enum Table {
    Rule,
    Command,
    Class,
}

/// `line 3, column 1: `, of the `n`th table (from 0) of a kind; empty where it cannot be told.
pub(super) fn place(text: &str, table: Table, n: usize) -> String {
    let Ok(tables) = toml::from_str::<Tables>(text) else {
        return String::new();
    };
    let of_kind = match table {
        Table::Rule => &tables.rule,
        Table::Command => &tables.gate.command,
        Table::Class => &tables.after_restore.class,
    };
    let Some(start) = of_kind.get(n).map(|found| found.span().start) else {
        return String::new();
    };
    let Some(before) = text.get(..start) else {
        return String::new();
    };
    let line = before.matches('\n').count() + 1;
    let column = before
        .rsplit('\n')
        .next()
        .unwrap_or_default()
        .chars()
        .count()
        + 1;
    format!("line {line}, column {column}: ")
}
