//! SQL in a normal form: layout, keyword case, comments, the order of columns and of conditions
//! joined by AND mean nothing. Whatever is not understood stays as it is, letter by letter.

use std::borrow::Cow;

use sqlparser::ast::{
    AssignmentTarget, BinaryOperator, Expr, ObjectName, Query, SetExpr, Statement,
    Value as Literal, Values,
};
use sqlparser::dialect::{Dialect, GenericDialect, MySqlDialect, PostgreSqlDialect};
use sqlparser::parser::Parser;

use super::super::normal::number::Decimal;
use super::super::value::Value;
use super::Undecodable;

/// Largest text that is parsed.
const MOST_BYTES: usize = 64 << 10;

/// Reads statements. One statement becomes its tree, several a list under `statements`.
pub(in crate::analyzer) fn read(text: &str) -> Result<Value<'static>, Undecodable> {
    read_with(text, &mut Parameters::none())
}

/// Reads statements whose placeholders (`$1`, `?`) stand for `values`, all of which must be used.
pub(in crate::analyzer) fn read_with_parameters(
    text: &str,
    values: &[Value<'_>],
) -> Result<Value<'static>, Undecodable> {
    let mut parameters = Parameters {
        values: values.iter().map(|v| v.clone().into_owned()).collect(),
        used: vec![false; values.len()],
        next: 0,
    };
    let tree = read_with(text, &mut parameters)?;
    if parameters.used.iter().all(|used| *used) && !values.is_empty() {
        Ok(tree)
    } else {
        Err(Undecodable)
    }
}

/// Whether text starts like a statement.
pub(in crate::analyzer) fn looks_like(text: &str) -> bool {
    let mut rest = text.trim_start();
    // Comments first are common in generated statements.
    while let Some(comment) = rest.strip_prefix("--") {
        rest = comment
            .split_once('\n')
            .map_or("", |(_, after)| after)
            .trim_start();
    }
    while let Some(comment) = rest.strip_prefix("/*") {
        rest = comment
            .split_once("*/")
            .map_or("", |(_, after)| after)
            .trim_start();
    }
    let word: String = rest
        .chars()
        .take_while(char::is_ascii_alphabetic)
        .take(10)
        .flat_map(char::to_uppercase)
        .collect();
    matches!(
        word.as_str(),
        "INSERT"
            | "UPDATE"
            | "DELETE"
            | "SELECT"
            | "BEGIN"
            | "CREATE"
            | "ALTER"
            | "DROP"
            | "GRANT"
            | "REVOKE"
            | "TRUNCATE"
            | "MERGE"
            | "REPLACE"
            | "WITH"
            | "CALL"
            | "START"
            | "SET"
            | "VACUUM"
            | "EXPLAIN"
            | "COPY"
            | "LOCK"
            | "COMMIT"
            | "ROLLBACK"
    ) && rest.len() > word.len()
}

struct Parameters {
    values: Vec<Value<'static>>,
    used: Vec<bool>,
    next: usize,
}

impl Parameters {
    fn none() -> Self {
        Self {
            values: Vec::new(),
            used: Vec::new(),
            next: 0,
        }
    }

    fn take(&mut self, placeholder: &str) -> Option<Value<'static>> {
        let index = if placeholder == "?" || placeholder == "%s" {
            self.next += 1;
            self.next - 1
        } else {
            let digits = placeholder.trim_start_matches(['$', '?', ':', '@']);
            digits.parse::<usize>().ok()?.checked_sub(1)?
        };
        let value = self.values.get(index)?.clone();
        self.used[index] = true;
        Some(value)
    }
}

fn read_with(text: &str, parameters: &mut Parameters) -> Result<Value<'static>, Undecodable> {
    if text.len() > MOST_BYTES {
        return Err(Undecodable);
    }
    let dialects: [&dyn Dialect; 3] = [&PostgreSqlDialect {}, &GenericDialect {}, &MySqlDialect {}];
    let statements = dialects
        .into_iter()
        .find_map(|dialect| Parser::parse_sql(dialect, text).ok())
        .ok_or(Undecodable)?;
    let mut trees = Vec::new();
    for statement in statements {
        trees.push(tree(statement, parameters));
    }
    match trees.len() {
        0 => Err(Undecodable),
        1 => Ok(trees.remove(0)),
        _ => Ok(Value::Map(vec![("statements".into(), Value::List(trees))])),
    }
}

/// The parts that are understood, each in its place; `statement` is all the rest, so that no
/// clause is ever left out.
fn tree(statement: Statement, parameters: &mut Parameters) -> Value<'static> {
    let mut entries: Vec<(Cow<'static, str>, Value<'static>)> = Vec::new();
    let rest = match statement {
        Statement::Insert(mut insert) => {
            let columns = std::mem::take(&mut insert.columns);
            let rows = insert.source.as_deref_mut().and_then(take_rows);
            match rows {
                Some(rows)
                    if rows
                        .iter()
                        .all(|r| columns.is_empty() || r.len() == columns.len()) =>
                {
                    let rows: Vec<Value<'static>> = rows
                        .into_iter()
                        .map(|row| {
                            Value::Map(
                                row.into_iter()
                                    .enumerate()
                                    .map(|(i, cell)| {
                                        let name = columns
                                            .get(i)
                                            .map_or_else(|| format!("column {}", i + 1), name);
                                        (Cow::Owned(name), expression(cell, parameters))
                                    })
                                    .collect(),
                            )
                        })
                        .collect();
                    entries.push(("rows".into(), one_or_list(rows)));
                }
                Some(rows) => {
                    insert.columns = columns;
                    let text = format!(
                        "{:?}",
                        rows.iter()
                            .map(|r| r.iter().map(ToString::to_string).collect::<Vec<_>>())
                            .collect::<Vec<_>>()
                    );
                    entries.push(("rows".into(), Value::Code(Cow::Owned(text))));
                }
                None => insert.columns = columns,
            }
            Statement::Insert(insert)
        }
        Statement::Update(mut update) => {
            let single = update
                .assignments
                .iter()
                .all(|a| matches!(a.target, AssignmentTarget::ColumnName(_)));
            if single {
                let set = std::mem::take(&mut update.assignments);
                let set = set
                    .into_iter()
                    .map(|a| {
                        let AssignmentTarget::ColumnName(column) = &a.target else {
                            return (Cow::Owned(fold(&a.target.to_string())), Value::Null);
                        };
                        (Cow::Owned(name(column)), expression(a.value, parameters))
                    })
                    .collect();
                entries.push(("set".into(), Value::Map(set)));
            }
            if let Some(selection) = update.selection.take() {
                entries.push(("where".into(), conditions(selection, parameters)));
            }
            Statement::Update(update)
        }
        Statement::Delete(mut delete) => {
            if let Some(selection) = delete.selection.take() {
                entries.push(("where".into(), conditions(selection, parameters)));
            }
            Statement::Delete(delete)
        }
        other => other,
    };
    let rest = match fold(&rest.to_string()).as_str() {
        "begin transaction" | "start transaction" | "begin work" => "begin".to_owned(),
        "commit work" | "commit transaction" => "commit".to_owned(),
        other => other.to_owned(),
    };
    if !parameters.values.is_empty() && rest.contains(['$', '?']) {
        // Placeholders outside the understood parts: leave their values to the caller.
        parameters.used.iter_mut().for_each(|used| *used = false);
    }
    entries.insert(0, ("statement".into(), Value::Code(Cow::Owned(rest))));
    Value::Map(entries)
}

fn one_or_list(mut rows: Vec<Value<'static>>) -> Value<'static> {
    if rows.len() == 1 {
        rows.remove(0)
    } else {
        Value::List(rows)
    }
}

/// Takes the rows out of `VALUES (…), (…)`, leaving it empty.
fn take_rows(query: &mut Query) -> Option<Vec<Vec<Expr>>> {
    let SetExpr::Values(Values { rows, .. }) = query.body.as_mut() else {
        return None;
    };
    if rows.is_empty() {
        return None;
    }
    let taken = std::mem::take(rows);
    Some(taken.into_iter().map(|row| row.content).collect())
}

/// Conditions joined by AND, sorted: their order means nothing.
fn conditions(selection: Expr, parameters: &mut Parameters) -> Value<'static> {
    let mut parts = Vec::new();
    let mut open = vec![selection];
    while let Some(expr) = open.pop() {
        match expr {
            Expr::BinaryOp {
                left,
                op: BinaryOperator::And,
                right,
            } => {
                open.push(*right);
                open.push(*left);
            }
            // Brackets around a condition mean nothing here, except around OR.
            Expr::Nested(inner)
                if !matches!(
                    *inner,
                    Expr::BinaryOp {
                        op: BinaryOperator::Or,
                        ..
                    }
                ) =>
            {
                open.push(*inner);
            }
            other => parts.push(condition(other, parameters)),
        }
    }
    parts.sort_unstable();
    parts.dedup();
    Value::Code(Cow::Owned(parts.join(" and ")))
}

/// `column = $1` with the value put in; anything else as it stands.
fn condition(expr: Expr, parameters: &mut Parameters) -> String {
    if let Expr::BinaryOp { left, op, right } = &expr
        && let Expr::Value(value) = right.as_ref()
        && let Literal::Placeholder(placeholder) = &value.value
        && let Some(value) = parameters.take(placeholder)
    {
        let shown = match &value {
            Value::Number(n) => Decimal::read(n).map_or_else(|| n.to_string(), |d| d.to_string()),
            Value::Text(t) => format!("'{}'", t.replace('\'', "''")),
            other => other.show(),
        };
        return format!("{} {op} {shown}", fold(&left.to_string()));
    }
    fold(&expr.to_string())
}

fn expression(expr: Expr, parameters: &mut Parameters) -> Value<'static> {
    match expr {
        Expr::Value(value) => match value.value {
            Literal::Number(text, _) => Value::Number(Cow::Owned(text)),
            Literal::SingleQuotedString(text) => Value::text(text),
            Literal::Boolean(b) => Value::Bool(b),
            Literal::Null => Value::Null,
            Literal::Placeholder(name) => parameters
                .take(&name)
                .unwrap_or(Value::Code(Cow::Owned(name))),
            other => Value::Code(Cow::Owned(other.to_string())),
        },
        Expr::TypedString(typed) => match typed.value.value {
            Literal::SingleQuotedString(text) => Value::Map(vec![(
                Cow::Owned(fold(&typed.data_type.to_string())),
                Value::text(text),
            )]),
            other => Value::Code(Cow::Owned(format!(
                "{} {other}",
                fold(&typed.data_type.to_string())
            ))),
        },
        // MySQL writes strings in double quotes, which parse as names; keep them apart.
        other => Value::Code(Cow::Owned(fold(&other.to_string()))),
    }
}

fn name(name: &ObjectName) -> String {
    fold(&name.to_string())
}

/// Lower case outside of quotes, numbers in their normal form. The text comes from the printer of
/// the parser, so blanks are single already.
fn fold(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut before = ' ';
    while let Some(c) = rest.chars().next() {
        if c == '\'' || c == '"' || c == '`' {
            let end = quoted_end(rest, c);
            let inner = rest[..end].trim_matches('`');
            let plain = c == '`'
                && inner.starts_with(|c: char| c.is_ascii_lowercase())
                && inner
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
            out.push_str(if plain { inner } else { &rest[..end] });
            rest = &rest[end..];
        } else if c.is_ascii_digit()
            && !(before.is_alphanumeric() || before == '_' || before == '$')
        {
            let end = rest
                .find(|c: char| !(c.is_ascii_alphanumeric() || c == '.'))
                .unwrap_or(rest.len());
            match Decimal::read(&rest[..end]) {
                Some(number) => out.push_str(&number.to_string()),
                None => out.push_str(&rest[..end]),
            }
            rest = &rest[end..];
        } else {
            out.extend(c.to_lowercase());
            rest = &rest[c.len_utf8()..];
        }
        before = out.chars().next_back().unwrap_or(' ');
    }
    out
}

fn quoted_end(text: &str, quote: char) -> usize {
    let mut chars = text.char_indices().skip(1).peekable();
    while let Some((at, c)) = chars.next() {
        if c == quote {
            if chars.peek().is_some_and(|(_, next)| *next == quote) {
                chars.next();
            } else {
                return at + quote.len_utf8();
            }
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spelling_means_nothing() {
        for (one, two) in [
            (
                "INSERT INTO t (a, b) VALUES ('x', 412.50)",
                "insert into T\n(b,a) values (412.5,'x');",
            ),
            (
                "UPDATE t SET a = 1, b = 'x' WHERE c = 'd' AND e > 2",
                "-- note\nupdate t set b='x', a=1 where e>2 and (c='d')",
            ),
            ("DELETE FROM t WHERE a = 1", "delete from t where a=1.0"),
            ("DELETE FROM `t` WHERE `a` = 1", "delete from t where a=1"),
            (
                "BEGIN; DELETE FROM t WHERE a = 1; COMMIT",
                "start transaction; delete from t where a=1; commit;",
            ),
        ] {
            let (one, two) = (read(one).unwrap(), read(two).unwrap());
            if one != two {
                // Order of map entries does not matter to the comparison; sort to check.
                assert_eq!(sorted(&one), sorted(&two));
            }
        }
    }

    #[test]
    fn meaning_stays() {
        for (one, two) in [
            (
                "DELETE FROM t WHERE a = 1 AND b = 2",
                "DELETE FROM t WHERE a = 1",
            ),
            ("DELETE FROM t WHERE a = 1", "DELETE FROM t"),
            ("DELETE FROM t WHERE a = 'x'", "DELETE FROM t WHERE a = 'X'"),
            (
                "DELETE FROM t WHERE a = 1 AND b = 2",
                "DELETE FROM t WHERE a = 1 OR b = 2",
            ),
            (
                "INSERT INTO t (a) VALUES (1)",
                "INSERT INTO t (a) VALUES (1) ON CONFLICT DO NOTHING",
            ),
            ("UPDATE t SET a = 1", "UPDATE t SET a = 1 LIMIT 1"),
            (
                "INSERT INTO t (a) VALUES (1)",
                "INSERT INTO u (a) VALUES (1)",
            ),
            ("DROP TABLE a", "DROP TABLE a CASCADE"),
        ] {
            assert_ne!(
                read(one).map_err(|_| one).unwrap(),
                read(two).map_err(|_| two).unwrap()
            );
        }
    }

    #[test]
    fn placeholders_take_their_values() {
        let value = read_with_parameters(
            "INSERT INTO t (a, b) VALUES ($2, $1)",
            &[Value::text("x"), Value::text("y")],
        )
        .unwrap();
        assert_eq!(
            value
                .get("rows")
                .and_then(|r| r.get("a"))
                .and_then(Value::as_text),
            Some("y")
        );
        assert!(
            read_with_parameters("DELETE FROM t WHERE a = $1", &[Value::Null, Value::Null])
                .is_err()
        );
    }

    fn sorted(value: &Value<'_>) -> String {
        match value {
            Value::Map(entries) => {
                let mut parts: Vec<String> = entries
                    .iter()
                    .map(|(n, v)| format!("{n}:{}", sorted(v)))
                    .collect();
                parts.sort();
                format!("{{{}}}", parts.join(","))
            }
            Value::List(items) => items.iter().map(sorted).collect::<Vec<_>>().join(";"),
            Value::Number(n) => Decimal::read(n).unwrap().to_string(),
            leaf => leaf.show(),
        }
    }
}
