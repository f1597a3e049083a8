//! Secrets on command lines: a process shows its arguments to everybody, and the log must not keep them.

use super::seal::{header_value, is_secret_header, is_secret_name, sealed, url};

/// Replaces the secrets among arguments by their fingerprints: what follows an option that names one,
/// what is assigned to it, header fields, URLs, also inside a word that is a line of shell. Header
/// fields that `hides_header` says yes to are secrets too. Equal secrets stay equal; doing it again
/// changes nothing.
pub fn redact_command_line(
    argv: &mut [String],
    key: &[u8; 32],
    hides_header: &dyn Fn(&str) -> bool,
) {
    let secret_header = |name: &str| is_secret_header(name) || hides_header(name);
    let mut secret_next = false;
    for word in argv.iter_mut().skip(1) {
        if std::mem::take(&mut secret_next) {
            *word = sealed(word, key);
        } else if let Some((name, value)) = header_field(word)
            && secret_header(name)
        {
            *word = format!("{name}: {}", header_value(name, value, key));
        } else if word.contains(char::is_whitespace) {
            *word = shell_line(word, key, &secret_header);
        } else {
            secret_next = names_the_next(word);
            *word = one_word(word, key);
        }
    }
}

/// `Name: value`.
fn header_field(word: &str) -> Option<(&str, &str)> {
    let (name, value) = word.split_once(':')?;
    let is_name = !name.is_empty()
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
    (is_name && !value.starts_with("//")).then_some((name, value.trim_start()))
}

/// `--password`: the next word is the secret.
fn names_the_next(word: &str) -> bool {
    word.starts_with("--") && !word.contains('=') && is_secret_name(word)
}

fn one_word(word: &str, key: &[u8; 32]) -> String {
    if let Some((name, value)) = word.split_once('=')
        && is_secret_name(name)
    {
        return format!("{name}={}", sealed(value, key));
    }
    if word.contains("://") {
        return url(word, key);
    }
    word.to_owned()
}

/// The words of a line keep their places and what stands between them.
fn shell_line(line: &str, key: &[u8; 32], secret_header: &dyn Fn(&str) -> bool) -> String {
    let between = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '`');
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    let mut secret_next = false;
    while let Some(at) = rest.find(|c| !between(c)) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let end = rest.find(between).unwrap_or(rest.len());
        let word = &rest[..end];
        if let Some((name, value)) = header_field(word)
            && secret_header(name)
        {
            // The field goes on to the end of its quotes; outside of any, to the end of its word.
            let is_quoted = out.ends_with(['"', '\'', '`']);
            let end = if is_quoted || value.is_empty() {
                rest.find(['"', '\'', '`', '\n']).unwrap_or(rest.len())
            } else {
                end
            };
            let (field, after) = rest.split_at(end);
            // What stands before the value stays, so that the same words are found again.
            let value = field
                .split_once(':')
                .map_or("", |(_, value)| value.trim_start());
            out.push_str(&field[..field.len() - value.len()]);
            out.push_str(&header_value(name, value, key));
            rest = after;
            continue;
        }
        if std::mem::take(&mut secret_next) {
            out.push_str(&sealed(word, key));
        } else {
            secret_next = names_the_next(word);
            out.push_str(&one_word(word, key));
            // `--token="…"`: the value stands in the quotes.
            secret_next |= word.ends_with('=') && is_secret_name(word.trim_end_matches('='));
        }
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEY: [u8; 32] = [3; 32];

    fn redacted(argv: &[&str]) -> Vec<String> {
        let mut argv: Vec<String> = argv.iter().map(|w| (*w).to_owned()).collect();
        redact_command_line(&mut argv, &KEY, &|name| {
            name.eq_ignore_ascii_case("x-internal-note")
        });
        let once = argv.clone();
        redact_command_line(&mut argv, &KEY, &|name| {
            name.eq_ignore_ascii_case("x-internal-note")
        });
        assert_eq!(argv, once, "once is enough");
        argv
    }

    #[test]
    fn no_secret_is_left_in_words_or_lines_of_shell() {
        let secret = "hush4711hush";
        for word in [
            "Authorization: Bearer hush4711hush",
            "authorization:hush4711hush",
            "X-Internal-Note: hush4711hush",
            "--token=hush4711hush",
            "https://user:hush4711hush@example.com/",
            "curl -H 'Authorization: Bearer hush4711hush' https://example.com",
            "curl -H \"X-Api-Key: hush4711hush\" https://example.com",
            "curl --header=Authorization:hush4711hush x; curl -H 'X-Internal-Note:   hush4711hush' x",
            "deploy --password hush4711hush now",
            "deploy --password 'hush4711hush' now",
            "PGPASSWORD=hush4711hush psql -c 'select 1'",
            "export API_KEY=\"hush4711hush\"; run",
            "git push https://me:hush4711hush@example.com/x main",
        ] {
            // A header after `--header=` is its value.
            let word = word.replace("--header=", "--header ");
            let left = redacted(&["sh", "-c", &word]);
            assert!(!left[2].contains(secret), "{word} became {}", left[2]);
        }
        let left = redacted(&["mysql", "--password", secret, "--host", "db"]);
        assert!(!left[2].contains(secret) && left[4] == "db", "{left:?}");
    }

    #[test]
    fn everything_else_stays() {
        for words in [
            &[
                "git",
                "commit",
                "-m",
                "fix: keep the 'token' field as it is",
            ][..],
            &["sh", "-c", "echo  \"a  b\" && cd /tmp | cat -n  "],
            &[
                "curl",
                "-H",
                "Content-Type: application/json",
                "https://example.com/a?b=c",
            ],
            &["kubectl", "get", "pods", "-o=wide"],
            &["time", "12:30"],
        ] {
            assert_eq!(redacted(words), words);
        }
    }

    #[test]
    fn equal_secrets_stay_equal_and_others_do_not() {
        let line = |secret: &str| {
            redacted(&[
                "sh",
                "-c",
                &format!("curl -H 'Authorization: Bearer {secret}' x"),
            ])
        };
        assert_eq!(line("abcdefabcdef"), line("abcdefabcdef"));
        assert_ne!(line("abcdefabcdef"), line("fedcbafedcba"));
    }

    proptest! {
        #[test]
        fn any_words(words in proptest::collection::vec("[ -~\\n\u{e9}]{0,40}", 0..6)) {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            redacted(&words);
        }
    }
}
