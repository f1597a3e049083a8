//! Whether a history shows what was recorded.

use serde_json::Value;

use super::finding::Shown;
use crate::words::Response;

/// Most words of a text that are compared.
const MOST_WORDS: usize = 20_000;

/// Deepest nesting of JSON in strings in JSON that is looked into.
const DEEPEST: u8 = 24;

/// A text with more words than this is no mere notice that something was broken off.
const LONGEST_NOTICE: usize = 60;

/// Phrases, letters and blanks only, by which clients say that a call did not come to its end.
const ABORTED: &[&str] = &[
    "abort",
    "interrupted",
    "cancelled",
    "canceled",
    "cancellederror",
    "timed out",
    "timeout",
    "time out",
    "no result",
    "no response",
    "no output was",
    "result missing",
    "missing result",
    "was not executed",
    "not executed",
    "did not complete",
    "was lost",
    "killed",
    "terminated",
    "connection reset",
    "connection closed",
    "connection error",
    "connecterror",
    "connection refused",
    "disconnected",
    "broken pipe",
    "internal error",
    "tool execution failed",
    "error occurred while running",
    "unavailable",
    "user doesnt want to proceed",
    "rejected",
];

/// Words that stand where something was left out.
const LEFT_OUT: &[&str] = &["truncated", "omitted", "elided", "clipped", "shortened"];

/// A cut text proves the rest only when it shows at least so many words of it, or half.
const PROVING_WORDS: usize = 12;

/// What `shown`, the text of a tool result in a history, shows of the `recorded` response.
///
/// Wrapping makes no difference: text blocks, JSON in strings, other key order or spacing, prefixes
/// like a wall time, a middle or an end that was cut off. A recorded response without any words (an
/// empty output, a picture) is shown by anything but a notice that the call was broken off. HTTP
/// bodies must be content-decoded.
pub fn shows_outcome(recorded: &Response, shown: &str) -> Shown {
    let recorded = texts(recorded);
    let shown_words = words(shown);
    let shown_plain = plain_words(shown);
    let told: Vec<&String> = recorded.iter().filter(|text| has_words(text)).collect();
    if told.is_empty() {
        return if is_notice(shown, &shown_plain) {
            Shown::Aborted
        } else {
            Shown::True
        };
    }
    let shows = |text: &&String| {
        let recorded_words = words(text);
        contains_all(&shown_words, &recorded_words)
            || contains_all(&shown_plain, &plain_words(text))
            || shows_cut(&shown_plain, &plain_words(text))
            || shows_cut(&shown_words, &recorded_words)
    };
    if shown_plain.is_empty() {
        Shown::Missing
    } else if told.iter().any(shows) {
        Shown::True
    } else if is_notice(shown, &shown_plain) {
        Shown::Aborted
    } else {
        Shown::Different
    }
}

/// Whether a text only says that a call was broken off.
pub(super) fn says_aborted(shown: &str) -> bool {
    is_notice(shown, &plain_words(shown))
}

/// The texts by which a client may show a response: any one of them is enough.
fn texts(recorded: &Response) -> Vec<String> {
    match recorded {
        Response::Http(response) => {
            vec![String::from_utf8_lossy(&response.body.kept).into_owned()]
        }
        Response::Exec(response) => {
            let out = String::from_utf8_lossy(&response.stdout.kept);
            let err = String::from_utf8_lossy(&response.stderr.kept);
            if out.trim().is_empty() {
                vec![err.into_owned()]
            } else {
                vec![format!("{out}\n{err}"), out.into_owned()]
            }
        }
        Response::Mcp(response) => {
            let Ok(answer) = serde_json::from_str::<Value>(&response.answer) else {
                return vec![response.answer.clone()];
            };
            let mut texts = Vec::new();
            let mut content = String::new();
            for block in answer
                .get("content")
                .and_then(Value::as_array)
                .map_or(&[][..], Vec::as_slice)
            {
                if let Some(text) = block.get("text").and_then(Value::as_str) {
                    content.push_str(text);
                    content.push('\n');
                }
            }
            texts.push(content);
            if let Some(structured) = answer.get("structuredContent") {
                texts.push(structured.to_string());
            }
            if let Some(message) = answer.get("message").and_then(Value::as_str) {
                texts.push(message.to_owned());
            }
            texts
        }
    }
}

fn has_words(text: &str) -> bool {
    text.contains(char::is_alphanumeric)
}

/// Words of a text, JSON taken apart however deep it is wrapped.
fn words(text: &str) -> Vec<String> {
    let mut into = Vec::new();
    take_text(text, 0, &mut into);
    into
}

/// Words of a text as it stands.
fn plain_words(text: &str) -> Vec<String> {
    let mut into = Vec::new();
    push_plain(text, &mut into);
    into
}

fn push_plain(text: &str, into: &mut Vec<String>) {
    // A JSON escape is no letter of a word.
    let text = if text.contains('\\') {
        &text
            .replace("\\n", " ")
            .replace("\\t", " ")
            .replace("\\r", " ")
    } else {
        text
    };
    for word in text.split(|c: char| !c.is_alphanumeric()) {
        if into.len() >= MOST_WORDS {
            return;
        }
        if !word.is_empty() {
            into.push(word.to_owned());
        }
    }
}

fn take_text(text: &str, depth: u8, into: &mut Vec<String>) {
    let trimmed = text.trim();
    if depth < DEEPEST {
        // JSON may follow a prefix of a line or two; where it begins is tried a few times only.
        for (at, _) in trimmed.match_indices(['{', '[']).take(4) {
            if let Ok(value) = serde_json::from_str::<Value>(&trimmed[at..]) {
                push_plain(&trimmed[..at], into);
                take_value(&value, depth + 1, into);
                return;
            }
        }
    }
    push_plain(text, into);
}

fn take_value(value: &Value, depth: u8, into: &mut Vec<String>) {
    if into.len() >= MOST_WORDS || depth > 100 {
        return;
    }
    match value {
        Value::Null => into.push("null".into()),
        Value::Bool(b) => into.push(b.to_string()),
        Value::Number(n) => match n.as_f64() {
            Some(f) if f.abs() < 1e15 => push_plain(&f.to_string(), into),
            _ => push_plain(&n.to_string(), into),
        },
        Value::String(text) => take_text(text, depth, into),
        Value::Array(items) => {
            for item in items {
                take_value(item, depth + 1, into);
            }
        }
        Value::Object(fields) => {
            for (key, field) in fields {
                push_plain(key, into);
                take_value(field, depth + 1, into);
            }
        }
    }
}

/// Whether every word of `inner` is in `outer`, as often.
fn contains_all(outer: &[String], inner: &[String]) -> bool {
    if inner.len() > outer.len() {
        return false;
    }
    let mut outer: Vec<&str> = outer.iter().map(String::as_str).collect();
    let mut inner: Vec<&str> = inner.iter().map(String::as_str).collect();
    outer.sort_unstable();
    inner.sort_unstable();
    let mut outer = outer.into_iter();
    inner.iter().all(|word| outer.any(|other| other == *word))
}

/// Whether `shown` is `whole` with pieces left out: every run of its words that is between marks of
/// an omission stands in `whole`, in order, and enough of it is there.
fn shows_cut(shown: &[String], whole: &[String]) -> bool {
    // The words that are `whole`'s, from its beginning: what a wrapper says comes before.
    let Some(first) = whole.first() else {
        return false;
    };
    for start in (0..shown.len()).filter(|at| &shown[*at] == first).take(4) {
        let mut at = 0;
        let mut matched = 0;
        let mut left_out = false;
        let mut stray = 0;
        // A text has few omissions; a hostile one is not searched again and again.
        let mut jumps = 64;
        for (n, word) in shown[start..].iter().enumerate() {
            let is_last = start + n + 1 == shown.len();
            if at < whole.len()
                && (word == &whole[at] || is_last && whole[at].starts_with(word.as_str()))
            {
                at += 1;
                matched += 1;
            } else if LEFT_OUT.contains(&word.to_lowercase().as_str()) {
                left_out = true;
            } else if jumps > 0
                && (left_out || at >= PROVING_WORDS)
                && let Some(ahead) = whole[at.min(whole.len())..].iter().position(|w| w == word)
            {
                jumps -= 1;
                at += ahead + 1;
                matched += 1;
            } else {
                // The notice of an omission says how much: `1234 tokens`, `chars`.
                stray += 1;
            }
        }
        let enough = matched >= PROVING_WORDS || matched * 2 >= whole.len();
        let few_strays = stray <= 4 || stray * 8 <= matched;
        let is_cut = left_out || stray == 0;
        if enough && few_strays && is_cut {
            return true;
        }
    }
    false
}

/// Whether a text is a notice that something was broken off.
fn is_notice(text: &str, words: &[String]) -> bool {
    if words.len() > LONGEST_NOTICE {
        return false;
    }
    let letters: String = text
        .chars()
        .filter(|c| *c != '\'' && *c != '’')
        .map(|c| if c.is_alphanumeric() { c } else { ' ' })
        .flat_map(char::to_lowercase)
        .collect();
    let spaced = letters.split_whitespace().collect::<Vec<_>>().join(" ");
    ABORTED.iter().any(|phrase| spaced.contains(phrase))
}
