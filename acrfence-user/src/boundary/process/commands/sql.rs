//! SQL that certainly only reads. Doubt counts as writing.

use sqlparser::dialect::GenericDialect;
use sqlparser::tokenizer::{Token, Tokenizer};

/// Statements that begin with these may only read.
const READING: [&str; 9] = [
    "SELECT", "WITH", "VALUES", "TABLE", "SHOW", "EXPLAIN", "DESCRIBE", "DESC", "USE",
];

/// Anywhere in a statement, these may write, lock, or run something.
const WRITING: [&str; 34] = [
    "INSERT", "UPDATE", "DELETE", "MERGE", "REPLACE", "UPSERT", "TRUNCATE", "INTO", "CREATE",
    "ALTER", "DROP", "GRANT", "REVOKE", "CALL", "EXEC", "EXECUTE", "PERFORM", "DO", "COPY", "LOAD",
    "IMPORT", "LOCK", "FOR", "SET", "ANALYZE", "VACUUM", "REFRESH", "NOTIFY", "PREPARE", "OUTFILE",
    "DUMPFILE", "KILL", "FLUSH", "RESET",
];

/// Functions that are known to have no effect.
const HARMLESS: [&str; 48] = [
    "ABS",
    "AVG",
    "CAST",
    "CEIL",
    "COALESCE",
    "CONCAT",
    "COUNT",
    "CURRENT_DATABASE",
    "DATABASE",
    "DATE",
    "DATE_TRUNC",
    "EXISTS",
    "EXTRACT",
    "FLOOR",
    "GREATEST",
    "IF",
    "IFNULL",
    "IN",
    "JSON_AGG",
    "LEAST",
    "LEFT",
    "LENGTH",
    "LOWER",
    "LPAD",
    "LTRIM",
    "MAX",
    "MIN",
    "MOD",
    "NOW",
    "NULLIF",
    "OVER",
    "PG_SIZE_PRETTY",
    "RANK",
    "RIGHT",
    "ROUND",
    "ROW_NUMBER",
    "RTRIM",
    "STRING_AGG",
    "SUBSTR",
    "SUBSTRING",
    "SUM",
    "TO_CHAR",
    "TRIM",
    "UPPER",
    "VERSION",
    "YEAR",
    "MONTH",
    "DAY",
];

/// Words that stand before a parenthesis without being functions.
const GRAMMAR: [&str; 19] = [
    "SELECT",
    "FROM",
    "WHERE",
    "AND",
    "OR",
    "NOT",
    "ON",
    "AS",
    "BY",
    "HAVING",
    "UNION",
    "ALL",
    "EXCEPT",
    "INTERSECT",
    "ANY",
    "SOME",
    "VALUES",
    "JOIN",
    "DISTINCT",
];

/// Whether every statement only reads.
pub(super) fn only_reads(text: &str) -> bool {
    // Lines that begin with a backslash are for the client.
    let (client, server): (Vec<&str>, Vec<&str>) = text
        .lines()
        .partition(|line| line.trim_start().starts_with('\\'));
    if !client.iter().all(|line| only_lists(line.trim())) {
        return false;
    }
    let server = server.join("\n");
    let dialect = GenericDialect {};
    let Ok(tokens) = Tokenizer::new(&dialect, &server).tokenize() else {
        return false;
    };
    let tokens: Vec<Token> = tokens
        .into_iter()
        .filter(|token| !matches!(token, Token::Whitespace(_) | Token::EOF))
        .collect();
    // An executable comment of MySQL is code.
    if server.contains("/*!") || server.contains("/*+") {
        return false;
    }
    let mut statements = tokens
        .split(|token| *token == Token::SemiColon)
        .filter(|statement| !statement.is_empty())
        .peekable();
    if statements.peek().is_none() {
        return !client.is_empty();
    }
    statements.all(statement_only_reads)
}

fn statement_only_reads(statement: &[Token]) -> bool {
    let Some(first) = statement.first().and_then(keyword) else {
        return false;
    };
    if !READING.contains(&first.as_str()) {
        return false;
    }
    let mut before: Option<String> = None;
    for token in statement {
        match token {
            // Filled in by the client, with anything.
            Token::Placeholder(_) | Token::Colon | Token::Backslash => return false,
            Token::LParen => {
                if let Some(name) = &before
                    && !HARMLESS.contains(&name.as_str())
                    && !GRAMMAR.contains(&name.as_str())
                {
                    return false;
                }
            }
            _ => {}
        }
        // A quoted name before a parenthesis is a function as well, and none that is known.
        before = match token {
            Token::Word(word) if word.quote_style.is_some() => Some(String::new()),
            other => keyword(other),
        };
        if before
            .as_ref()
            .is_some_and(|word| WRITING.contains(&word.as_str()))
        {
            return false;
        }
    }
    true
}

/// A client command that only lists (`\dt`, `\l`).
fn only_lists(line: &str) -> bool {
    let word = line.split_whitespace().next().unwrap_or_default();
    (word.starts_with("\\d") || word.starts_with("\\l"))
        && !line.contains('|')
        && !line.contains('`')
        && word.len() <= 6
        && !word.starts_with("\\lo")
        && word[1..]
            .bytes()
            .all(|b| b.is_ascii_alphabetic() || b == b'+')
}

fn keyword(token: &Token) -> Option<String> {
    match token {
        Token::Word(word) if word.quote_style.is_none() => Some(word.value.to_ascii_uppercase()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reading_is_known() {
        for text in [
            "SELECT 1",
            "select * from ledger where name = 'insert into x; drop' -- for update",
            "SELECT count(*), sum(amount) FROM ledger GROUP BY name;",
            "WITH a AS (SELECT 1) SELECT * FROM a;",
            "SHOW TABLES; DESCRIBE ledger",
            "EXPLAIN SELECT \"update\" FROM t",
            "\\dt",
            "\\d+ ledger\nSELECT 1;",
            "SELECT * FROM a WHERE b IN (1, 2) AND (c OR d)",
        ] {
            assert!(only_reads(text), "{text}");
        }
    }

    #[test]
    fn doubt_counts_as_writing() {
        for text in [
            "",
            "INSERT INTO ledger VALUES (1)",
            "SELECT 1; DELETE FROM t",
            "SELECT pay(5)",
            "SELECT \"pay\"(5)",
            "SELECT nextval('s')",
            "SELECT * INTO new FROM old",
            "SELECT * FROM t FOR UPDATE",
            "WITH gone AS (DELETE FROM t RETURNING *) SELECT * FROM gone",
            "EXPLAIN ANALYZE DELETE FROM t",
            "EXPLAIN ANALYZE SELECT 1",
            "SELECT 1 /*! INTO OUTFILE '/x' */",
            "SELECT :what",
            "\\! rm -rf /",
            "\\copy t from x",
            "\\dt | sh",
            "\\lo_unlink 5",
            "\\do_something",
            "SELECT 1 \\g | sh",
            "SELECT 'unclosed",
            "BEGIN",
            "SELECT 1;\nCALL pay()",
        ] {
            assert!(!only_reads(text), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_write_hides_among_reads(
            before in prop::collection::vec(prop_oneof![Just("SELECT 1;"), Just("-- c\n"), Just("/* c */ "), Just("\n"), Just("SHOW x;")], 0..5),
            write in prop_oneof![Just("INSERT INTO t VALUES (1)"), Just("drop table t"), Just("SELECT f(1)"), Just("Delete From t")],
            after in prop::collection::vec(prop_oneof![Just(";SELECT 1"), Just(" -- c"), Just("\n")], 0..3),
        ) {
            let text = format!("{}{write}{}", before.concat(), after.concat());
            prop_assert!(!only_reads(&text), "{}", text);
        }

        #[test]
        fn nothing_makes_it_panic(text in ".{0,80}") {
            let _ = only_reads(&text);
        }
    }
}
