//! Shell text as words and operators. Quoting that makes no difference is taken away; words that
//! the shell would expand stay as they are written.

use std::borrow::Cow;

use super::super::value::Value;
use super::Undecodable;

/// Largest text that is read.
const MOST_BYTES: usize = 64 << 10;

/// One piece of shell text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::analyzer) enum Piece {
    /// A word that stands for itself, without its quotes.
    Word(String),
    /// A word that the shell expands (`$x`, `*`, `~`), as written.
    Expanded(String),
    /// `|`, `&&`, `;`, `>`, a line end, …
    Operator(&'static str),
}

/// Reads shell text into pieces.
pub(in crate::analyzer) fn pieces(text: &str) -> Result<Vec<Piece>, Undecodable> {
    if text.len() > MOST_BYTES {
        return Err(Undecodable);
    }
    let text = text.trim();
    let mut out = Vec::new();
    let mut rest = text;
    let mut heredoc: Option<(String, bool)> = None;
    while let Some(c) = rest.chars().next() {
        if c == '\n' {
            rest = &rest[1..];
            if let Some((end, literal)) = heredoc.take() {
                let (body, after) = heredoc_body(rest, &end).ok_or(Undecodable)?;
                out.push(if literal || !body.contains(['$', '`', '\\']) {
                    Piece::Word(body)
                } else {
                    Piece::Expanded(body)
                });
                rest = after;
            }
            if !rest.trim().is_empty() && out.last() != Some(&Piece::Operator("\n")) {
                out.push(Piece::Operator("\n"));
            }
            continue;
        }
        if c.is_whitespace() {
            rest = &rest[c.len_utf8()..];
            continue;
        }
        if c == '\\' && rest[1..].starts_with('\n') {
            rest = &rest[2..];
            continue;
        }
        if c == '#' {
            rest = &rest[rest.find('\n').unwrap_or(rest.len())..];
            continue;
        }
        if let Some(operator) = OPERATORS.iter().find(|op| rest.starts_with(**op)) {
            rest = &rest[operator.len()..];
            out.push(Piece::Operator(operator));
            if operator.starts_with("<<") && *operator != "<<<" {
                let (word, after) = word(rest.trim_start_matches([' ', '\t']))?;
                let (name, literal) = match word {
                    Piece::Word(name) => {
                        let start = rest.trim_start_matches([' ', '\t']);
                        (name, start.starts_with(['\'', '"', '\\']))
                    }
                    _ => return Err(Undecodable),
                };
                heredoc = Some((name, literal));
                rest = after;
            }
            continue;
        }
        let (piece, after) = word(rest)?;
        out.push(piece);
        rest = after;
    }
    if heredoc.is_some() || out.is_empty() {
        return Err(Undecodable);
    }
    Ok(out)
}

/// The words of one simple command that the shell does not expand.
pub(in crate::analyzer) fn simple_command(text: &str) -> Option<Vec<String>> {
    pieces(text)
        .ok()?
        .into_iter()
        .map(|piece| match piece {
            Piece::Word(word) => Some(word),
            _ => None,
        })
        .collect()
}

/// Pieces as a list in order.
pub(in crate::analyzer) fn read(text: &str) -> Result<Value<'static>, Undecodable> {
    Ok(Value::List(
        pieces(text)?
            .into_iter()
            .map(|piece| match piece {
                Piece::Word(word) => Value::text(word),
                Piece::Expanded(word) => Value::Code(Cow::Owned(word)),
                Piece::Operator(op) => Value::Code(Cow::Borrowed(op)),
            })
            .collect(),
    ))
}

const OPERATORS: &[&str] = &[
    "<<<", "<<-", "<<", "&>>", "&&", "&>", "||", "|&", "|", ";;", ";", ">>", ">&", ">|", ">", "<&",
    "<", "&", "(", ")",
];

fn heredoc_body<'t>(text: &'t str, end: &str) -> Option<(String, &'t str)> {
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if line.trim_end_matches('\n').trim_start_matches('\t') == end {
            return Some((
                text[..at].to_owned(),
                &text[at + line.trim_end_matches('\n').len()..],
            ));
        }
        at += line.len();
    }
    None
}

fn word(text: &str) -> Result<(Piece, &str), Undecodable> {
    let mut out = String::new();
    let mut expanded = false;
    let mut rest = text;
    let mut first = true;
    while let Some(c) = rest.chars().next() {
        match c {
            c if c.is_whitespace() => break,
            c if ";|&<>()".contains(c) => break,
            '\'' => {
                let end = rest[1..].find('\'').ok_or(Undecodable)?;
                out.push_str(&rest[1..=end]);
                rest = &rest[end + 2..];
            }
            '"' => {
                rest = &rest[1..];
                loop {
                    let c = rest.chars().next().ok_or(Undecodable)?;
                    rest = &rest[c.len_utf8()..];
                    match c {
                        '"' => break,
                        '\\' => {
                            let next = rest.chars().next().ok_or(Undecodable)?;
                            rest = &rest[next.len_utf8()..];
                            if !"$`\"\\\n".contains(next) {
                                out.push('\\');
                            }
                            if next != '\n' {
                                out.push(next);
                            }
                        }
                        c => {
                            expanded |= c == '$' || c == '`';
                            out.push(c);
                        }
                    }
                }
            }
            '\\' => {
                let next = rest[1..].chars().next().ok_or(Undecodable)?;
                if next != '\n' {
                    out.push(next);
                }
                rest = &rest[1 + next.len_utf8()..];
            }
            c => {
                expanded |= "$`*?[{".contains(c) || (first && c == '~');
                out.push(c);
                rest = &rest[c.len_utf8()..];
            }
        }
        first = false;
    }
    let used = text.len() - rest.len();
    let piece = if expanded {
        // As it is written: inside double quotes and outside of them an expansion differs.
        Piece::Expanded(text[..used].to_owned())
    } else {
        Piece::Word(out)
    };
    Ok((piece, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_that_change_nothing_go() {
        assert_eq!(
            pieces("a  'b c' d\\ e").unwrap(),
            pieces("a \"b c\" \"d e\"").unwrap()
        );
        assert_ne!(pieces("rm *").unwrap(), pieces("rm '*'").unwrap());
        assert_ne!(pieces("echo $x").unwrap(), pieces("echo \"$x\"").unwrap());
        assert_ne!(pieces("echo '$x'").unwrap(), pieces("echo \"$x\"").unwrap());
        assert_ne!(pieces("a; b").unwrap(), pieces("a && b").unwrap());
        assert_ne!(pieces("a b").unwrap(), pieces("a\nb").unwrap());
    }

    #[test]
    fn heredocs_are_one_word() {
        let got = pieces("cat <<'EOF' > f\nhello $x\nEOF\n").unwrap();
        assert!(got.contains(&Piece::Word("hello $x\n".into())));
        assert!(pieces("cat <<EOF\nx").is_err());
        assert!(pieces("echo 'x").is_err());
        assert!(simple_command("a | b").is_none());
        assert_eq!(
            simple_command("a 'b c'"),
            Some(vec!["a".into(), "b c".into()])
        );
    }
}
