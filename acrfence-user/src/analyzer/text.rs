//! Texts that are the same but for layout.

use std::borrow::Cow;

use unicode_normalization::UnicodeNormalization as _;

use super::naming::Names;
use super::prose;

/// Why two different texts are word for word the same, or none.
pub(super) fn same_words(
    one: &str,
    two: &str,
    names: &Names,
    extension: Option<&str>,
) -> Option<&'static str> {
    let program = extension.is_some_and(|e| {
        [
            "py", "sh", "bash", "js", "ts", "rs", "c", "h", "go", "rb", "php", "pl", "lua", "mk",
            "nim", "hs", "ml", "pyi", "yaml", "yml", "make",
        ]
        .contains(&e)
    });
    if names.is_secret() {
        return None;
    }
    // Line ends and blanks before them mean nothing in any text format.
    if lines(one).eq(lines(two)) {
        return Some("the same text but for line ends");
    }
    if program {
        return None;
    }
    let sentences = prose::may_be(one, two, names);
    if sentences && words(one).eq(words(two)) {
        return Some("word for word the same text, laid out differently");
    }
    // Outside of quotes, several blanks are as good as one; indentation is kept.
    let unquoted = !one.contains(['"', '\'', '`']) && !two.contains(['"', '\'', '`']);
    if unquoted && one.contains(' ') && lines(one).map(collapsed).eq(lines(two).map(collapsed)) {
        return Some("the same text but for runs of blanks");
    }
    None
}

/// Lines without blanks at their ends, without empty lines at the end of the text.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.trim_end().split('\n').map(str::trim_end)
}

fn collapsed(line: &str) -> String {
    let body = line.trim_start();
    let indent = &line[..line.len() - body.len()];
    let mut out = indent.to_owned();
    let mut blank = false;
    for c in body.chars() {
        let is_blank = c == ' ';
        if !is_blank {
            out.push(c);
        } else if !blank {
            out.push(' ');
        }
        blank = is_blank;
    }
    out
}

/// Words in one typography: straight quotes, plain dashes, composed letters.
pub(super) fn words(text: &str) -> impl Iterator<Item = Cow<'_, str>> {
    text.split_whitespace().map(|word| {
        if word.is_ascii() {
            return Cow::Borrowed(word);
        }
        Cow::Owned(
            word.nfc()
                .map(|c| match c {
                    '\u{2018}' | '\u{2019}' | '\u{201b}' => '\'',
                    '\u{201c}' | '\u{201d}' | '\u{201e}' | '\u{ab}' | '\u{bb}' => '"',
                    '\u{2013}' | '\u{2014}' | '\u{2212}' => '-',
                    c => c,
                })
                .flat_map(|c| {
                    // An ellipsis is three dots.
                    let dots = c == '\u{2026}';
                    std::iter::repeat_n(if dots { '.' } else { c }, if dots { 3 } else { 1 })
                })
                .collect(),
        )
    })
}

/// Pieces between blanks and brackets, for finding the ones that differ. A blank between a date
/// and a time of day does not separate.
pub(super) fn chunks(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches(is_gap);
        if rest.is_empty() {
            return None;
        }
        let mut end = rest.find(is_gap).unwrap_or(rest.len());
        let bytes = rest.as_bytes();
        let dated =
            end == 10 && bytes[4] == b'-' && bytes[7] == b'-' && rest[end..].starts_with(' ');
        if dated && bytes.get(11).is_some_and(u8::is_ascii_digit) && bytes.get(13) == Some(&b':') {
            end = 11 + rest[11..].find(is_gap).unwrap_or(rest.len() - 11);
        }
        let (chunk, after) = rest.split_at(end);
        rest = after;
        Some(chunk)
    })
}

fn is_gap(c: char) -> bool {
    c.is_whitespace() || "()[]{}<>\"'`,;|".contains(c)
}

/// Whether two pieces of a C-like script have the same tokens: blanks between tokens mean nothing
/// there. Strings keep theirs; line breaks do not count as blanks.
pub(super) fn same_tokens(one: &str, two: &str) -> bool {
    !one.contains('\n')
        && !two.contains('\n')
        && tokens(one).is_some_and(|a| Some(a) == tokens(two))
}

fn tokens(script: &str) -> Option<Vec<String>> {
    let mut out: Vec<String> = Vec::new();
    let mut chars = script.chars().peekable();
    while let Some(c) = chars.next() {
        if c.is_whitespace() {
            continue;
        }
        let mut token = c.to_string();
        if matches!(c, '\'' | '"' | '`') {
            loop {
                let next = chars.next()?;
                token.push(next);
                if next == '\\' {
                    token.push(chars.next()?);
                } else if next == c {
                    break;
                }
            }
        } else if c.is_alphanumeric() || "_$.".contains(c) {
            while let Some(next) = chars
                .peek()
                .filter(|n| n.is_alphanumeric() || "_$.".contains(**n))
            {
                token.push(*next);
                chars.next();
            }
        } else if c == '/' {
            // A regular expression or a comment could hold anything.
            return None;
        } else {
            // `++` and `+ +` are not the same.
            while let Some(next) = chars
                .peek()
                .filter(|n| "+-*%=!<>&|^~?".contains(**n) && "+-*%=!<>&|^~?".contains(c))
            {
                token.push(*next);
                chars.next();
            }
        }
        out.push(token);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_means_nothing_in_prose() {
        let names = Names::of("text");
        assert!(
            same_words(
                "We meet at 10:00, it's upstairs.",
                "We meet\nat 10:00, it\u{2019}s upstairs.\n",
                &names,
                None
            )
            .is_some()
        );
        assert!(same_words("We meet at 10:00.", "We meet at 11:00.", &names, None).is_none());
        let zone = Names::of("zonefile");
        assert!(
            same_words(
                "www   300 IN A 192.0.2.4\n",
                "www 300 IN A 192.0.2.4",
                &zone,
                None
            )
            .is_some()
        );
    }

    #[test]
    fn layout_means_something_in_programs() {
        let names = Names::of("content");
        let (a, b) = (
            "for o in x:\n    a(o)\n    b(o)\n",
            "for o in x:\n    a(o)\nb(o)\n",
        );
        assert!(same_words(a, b, &names, Some("py")).is_none());
        assert!(
            same_words(a, b, &names, None).is_none(),
            "also without a name to tell"
        );
    }

    #[test]
    fn scripts_by_token() {
        assert!(same_tokens("a({b:'x'},1)", "a( { b: 'x' }, 1 )"));
        assert!(!same_tokens("a('x y')", "a('xy')"));
        assert!(!same_tokens("updateOne()", "updateMany()"));
        assert!(!same_tokens("a b", "ab"));
        assert!(!same_tokens("a++ +b", "a+ ++b"));
    }

    #[test]
    fn chunks_keep_dates_together() {
        let got: Vec<&str> = chunks("at 2032-03-04 09:00:00 (x), y").collect();
        assert_eq!(got, ["at", "2032-03-04 09:00:00", "x", "y"]);
    }
}
