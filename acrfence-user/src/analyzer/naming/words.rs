//! A name as words.

use super::vocabulary::JOINABLE;

/// Splits a name into lower-case words: `X-Request-Id`, `clientMsgID`, `idempotencykey`.
pub(in crate::analyzer) fn words(name: &str) -> Vec<String> {
    let mut raw: Vec<String> = Vec::new();
    let mut current = String::new();
    let mut before = ' ';
    let chars: Vec<char> = name.chars().take(128).collect();
    for (i, c) in chars.iter().copied().enumerate() {
        let next_lower = chars.get(i + 1).is_some_and(|n| n.is_lowercase());
        let starts = (c.is_uppercase() && (before.is_lowercase() || before.is_ascii_digit()))
            || (c.is_uppercase() && before.is_uppercase() && next_lower)
            || (c.is_ascii_digit() != before.is_ascii_digit() && before.is_alphanumeric());
        if (!c.is_alphanumeric() || starts) && !current.is_empty() {
            raw.push(std::mem::take(&mut current));
        }
        if c.is_alphanumeric() {
            current.extend(c.to_lowercase());
        }
        before = c;
    }
    if !current.is_empty() {
        raw.push(current);
    }
    raw.into_iter().flat_map(|word| segments(&word)).collect()
}

/// Splits `requestid` into `request`, `id` where both are words of this vocabulary.
fn segments(word: &str) -> Vec<String> {
    if word.len() < 5 || !word.is_ascii() || known(word) {
        return vec![word.to_owned()];
    }
    for at in 2..word.len() - 1 {
        let (first, second) = word.split_at(at);
        if known(first) && known(second) {
            return vec![first.to_owned(), second.to_owned()];
        }
    }
    for at in 2..word.len().saturating_sub(3) {
        let (first, rest) = word.split_at(at);
        if !known(first) {
            continue;
        }
        for cut in 2..rest.len() - 1 {
            let (second, third) = rest.split_at(cut);
            if known(second) && known(third) {
                return vec![first.to_owned(), second.to_owned(), third.to_owned()];
            }
        }
    }
    vec![word.to_owned()]
}

fn known(word: &str) -> bool {
    JOINABLE.contains(&word)
}

/// `orders` → `order`, `entries` → `entry`. Good enough to compare two words of the same API.
pub(in crate::analyzer) fn singular(word: &str) -> String {
    if let Some(stem) = word.strip_suffix("ies").filter(|s| s.len() > 1) {
        return format!("{stem}y");
    }
    for ending in ["sses", "shes", "ches", "xes"] {
        if word.ends_with(ending) {
            return word[..word.len() - 2].to_owned();
        }
    }
    match word.strip_suffix('s') {
        Some(stem) if stem.len() > 2 && !stem.ends_with(['s', 'u', 'i']) => stem.to_owned(),
        _ => word.to_owned(),
    }
}

/// Whether a part of a value tells it from others: it has a digit, some length, and is no year.
pub(in crate::analyzer) fn tells_apart(part: &str) -> bool {
    let year = part.len() == 4 && (part.starts_with("19") || part.starts_with("20"));
    part.chars().count() >= 4 && part.bytes().any(|b| b.is_ascii_digit()) && !year
}
