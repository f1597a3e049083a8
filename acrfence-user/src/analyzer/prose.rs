//! Free text: whether two texts can say the same in other words.
//!
//! Only what survives here may be shown to the model. Numbers, times, names, negations, opposites
//! and exceptions are compared here, because a small model is unreliable on exactly those.

#[rustfmt::skip]
mod vocabulary;

use std::collections::{BTreeMap, BTreeSet};

use super::naming::Names;
use vocabulary::{
    DAYS, FUNCTION_WORDS, NEGATIONS, NUMBER_WORDS, OPPOSITES, RESTRICTIONS, UNIT_WORDS,
};

/// What can be said about two texts without reading them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    /// Nothing speaks against their saying the same.
    Rewording,
    /// They say different things.
    Different(String),
    /// They may say different things; not for a model to decide.
    Unclear(String),
}

/// Longest text that is compared.
const MOST_BYTES: usize = 16 << 10;

/// Whether a field holds free text: several words, in a field for text or like sentences.
pub(super) fn may_be(one: &str, two: &str, names: &Names) -> bool {
    let words = |t: &str| {
        t.split_whitespace()
            .filter(|w| w.chars().any(char::is_alphabetic))
            .count()
    };
    let (a, b) = (words(one), words(two));
    if names.is_prose() && !names.has(&["address"]) {
        return a.min(b) >= 1 && a.max(b) >= 2 && !looks_like_code(one) && !looks_like_code(two);
    }
    let sentence = |t: &str| {
        let lower = t
            .split_whitespace()
            .filter(|w| w.chars().next().is_some_and(char::is_lowercase))
            .count();
        let all = t.split_whitespace().count();
        words(t) >= 5 && lower * 2 >= all
    };
    !names.is_target()
        && sentence(one)
        && sentence(two)
        && !looks_like_code(one)
        && !looks_like_code(two)
}

fn looks_like_code(text: &str) -> bool {
    let marks = text.matches([';', '{', '}', '=', '$', '\\', '|']).count();
    let indented = text
        .lines()
        .filter(|l| l.starts_with(['\t', ' ']) && !l.trim().is_empty())
        .count();
    let lines = text.lines().count();
    marks * 12 > text.len() || (lines >= 3 && indented * 2 > lines)
}

/// Compares what two texts state.
pub(super) fn judge(one: &str, two: &str) -> Judgement {
    if one.len() > MOST_BYTES || two.len() > MOST_BYTES {
        return Judgement::Unclear("free text that is too long to compare".into());
    }
    if let Some(c) = strange_letter(one).or_else(|| strange_letter(two)) {
        return Judgement::Unclear(format!(
            "holds a letter of another script inside a word ({})",
            c.escape_unicode()
        ));
    }
    if speaks_to_us(one) || speaks_to_us(two) {
        return Judgement::Unclear("speaks to whoever compares it; not for a model to read".into());
    }
    let (a, b) = (Facts::of(one), Facts::of(two));
    let stated =
        |f: &Facts| -> Vec<String> { f.words.iter().filter(|w| *w != "not").cloned().collect() };
    let near = near_identical(&stated(&a), &stated(&b));
    for (what, x, y) in [
        ("numbers", &a.numbers, &b.numbers),
        ("times", &a.times, &b.times),
        ("days", &a.days, &b.days),
        ("names or codes", &a.codes, &b.codes),
        ("units", &a.units, &b.units),
    ] {
        let (only_a, only_b) = (only(x, &y.clone()), only(y, x));
        match (only_a.first(), only_b.first()) {
            (Some(p), Some(q)) => {
                return Judgement::Different(format!("the {what} in the text differ: {p} / {q}"));
            }
            (Some(p), None) | (None, Some(p)) => {
                let reason = format!("only one of the texts has {p} among its {what}");
                return if near {
                    Judgement::Different(reason)
                } else {
                    Judgement::Unclear(reason)
                };
            }
            (None, None) => {}
        }
    }
    if a.negations != b.negations {
        let reason = "one of the texts negates more than the other".to_owned();
        return if near {
            Judgement::Different(reason)
        } else {
            Judgement::Unclear(reason)
        };
    }
    if let Some((p, q)) = opposites(&a.words, &b.words) {
        let reason = format!("opposite words: {p} / {q}");
        return if near {
            Judgement::Different(reason)
        } else {
            Judgement::Unclear(reason)
        };
    }
    if let Some(word) = restriction(&a.words, &b.words) {
        return Judgement::Unclear(format!("only one of the texts says \"{word}\""));
    }
    let (only_a, only_b) = (
        missing_names(&a.names, &b.all_words),
        missing_names(&b.names, &a.all_words),
    );
    if let Some(name) = only_a.first().or_else(|| only_b.first()) {
        return Judgement::Unclear(format!("the name {name} is only in one of the texts"));
    }
    if let Some((p, q)) = single_swap(&a.every, &b.every) {
        return Judgement::Unclear(format!("the same sentence with another word: {p} / {q}"));
    }
    Judgement::Rewording
}

/// Text that tries to talk to the comparison or to a model.
pub(super) fn speaks_to_us(text: &str) -> bool {
    let lower = text.to_lowercase();
    let marks = [
        "same_intent",
        "fence",
        "verdict",
        "equivalen",
        "classif",
        "system:",
        "assistant:",
        "<|",
        "|>",
        "[inst",
        "### ",
        "ignore previous",
        "ignore all",
        "ignore any",
        "ignore the",
        "disregard",
        "previous instruction",
        "your instruction",
        "system prompt",
        "you are a",
        "you must answer",
        "answer yes",
        "answer \"yes",
        "reply yes",
        "respond with",
        "respond yes",
        "say yes",
        "output yes",
        "json",
        "recorded call",
        "recorded response",
        "replay",
        "identical to the previous",
        "same as before",
        "same intent",
        "judge",
        "evaluator",
        "grader",
        "language model",
        "as an ai",
        "jailbreak",
        "developer mode",
        "prompt injection",
        "treat as",
        "treat this as",
        "consider these",
        "both texts",
        "text a",
        "text b",
        "first text",
        "second text",
        "begin text",
        "end text",
        "canary",
    ];
    marks.iter().any(|m| lower.contains(m))
}

/// A letter of another script in a word of Latin letters (or the other way round), or a character
/// that is not seen.
fn strange_letter(text: &str) -> Option<char> {
    if let Some(c) = text
        .chars()
        .find(|c| super::value::is_invisible(*c) && *c != '\u{200d}')
    {
        return Some(c);
    }
    text.split(|c: char| !c.is_alphabetic()).find_map(|word| {
        let latin = |c: char| {
            c.is_ascii_alphabetic() || matches!(c, '\u{c0}'..='\u{24f}' | '\u{1e00}'..='\u{1eff}')
        };
        let other = word
            .chars()
            .find(|c| !latin(*c) && matches!(*c, '\u{370}'..='\u{52f}' | '\u{ff21}'..='\u{ff5a}'));
        other.filter(|_| word.chars().any(latin))
    })
}

#[derive(Debug, Default)]
struct Facts {
    numbers: BTreeSet<String>,
    times: BTreeSet<String>,
    days: BTreeSet<String>,
    codes: BTreeSet<String>,
    units: BTreeSet<String>,
    names: Vec<String>,
    negations: usize,
    /// Content words in order, lower case.
    words: Vec<String>,
    /// Every word in order, lower case.
    every: Vec<String>,
    all_words: BTreeSet<String>,
    /// Numbers that may be no more than a figure of speech ("one", "first").
    soft: BTreeSet<String>,
}

impl Facts {
    fn of(text: &str) -> Self {
        let mut facts = Self::default();
        let text = without_courtesies(text);
        let mut starts = true;
        let mut tokens: Vec<(String, bool)> = Vec::new();
        for raw in super::text::words(&text) {
            let ends =
                raw.ends_with(['.', '!', '?', ':']) || raw.ends_with(".)") || raw.ends_with("\"");
            let starts_here = starts || raw.starts_with(['-', '*', '\u{2022}']);
            for part in raw.split(['/', '\u{2044}']) {
                // `07:30/08:00` are two; `n/a` is nothing.
                let trimmed =
                    part.trim_matches(|c: char| !(c.is_alphanumeric() || "#@%+$€£°".contains(c)));
                if !trimmed.is_empty() {
                    tokens.push((trimmed.to_owned(), starts_here));
                }
            }
            // After a code at the beginning (`OPS-318 Rotate …`) the sentence still begins.
            let lead = starts && raw.chars().any(|c| c.is_ascii_digit());
            starts = ends || lead;
        }
        let mut at = 0;
        while at < tokens.len() {
            let (token, first) = &tokens[at];
            let next = tokens.get(at + 1).map(|(t, _)| t.to_lowercase());
            at += facts.token(token, *first, next.as_deref());
        }
        facts
    }

    /// Takes one token, and says how many it used.
    fn token(&mut self, token: &str, first: bool, next: Option<&str>) -> usize {
        let lower = token.to_lowercase().trim_end_matches("'s").to_owned();
        self.every.push(lower.clone());
        for part in lower.split(|c: char| !c.is_alphanumeric()) {
            self.all_words.insert(part.to_owned());
        }
        self.all_words.insert(lower.clone());
        if let Some((time, used)) = time_of_day(&lower, next) {
            self.times.insert(time);
            return used;
        }
        if let Some(number) = number(&lower) {
            self.numbers.insert(number);
            if let Some(unit) = next.and_then(unit) {
                self.units.insert(unit.to_owned());
            }
            return 1;
        }
        if let Some((number, unit)) = number_with_unit(&lower) {
            self.numbers.insert(number);
            self.units.insert(unit);
            return 1;
        }
        if let Some(n) = SOFT_NUMBERS.iter().find(|(w, _)| *w == lower) {
            self.soft.insert(n.1.to_owned());
            self.words.push(lower);
            return 1;
        }
        if let Some(n) = number_word(&lower) {
            self.numbers.insert(n.to_owned());
            if let Some(unit) = next.and_then(unit) {
                self.units.insert(unit.to_owned());
            }
            return 1;
        }
        if let Some(day) = day_or_month(&lower) {
            // "may" and "march" are also verbs.
            let doubtful = matches!(
                lower.as_str(),
                "may" | "march" | "sun" | "sat" | "wed" | "mar"
            );
            if !doubtful || token.starts_with(char::is_uppercase) && !first {
                self.days.insert(day.to_owned());
                return 1;
            }
        }
        if is_code(token) {
            self.codes.insert(code(token));
            return 1;
        }
        if NEGATIONS.contains(&lower.as_str()) || lower.ends_with("n't") {
            self.negations += 1;
            self.words.push("not".into());
            return 1;
        }
        let capital = token.chars().next().is_some_and(char::is_uppercase);
        let pronoun = matches!(
            lower.as_str(),
            "sie" | "ihr" | "ihre" | "ihnen" | "i'm" | "i've" | "i'll" | "i'd"
        );
        if capital && !first && !pronoun && token.chars().count() > 1 {
            self.names.push(lower.clone());
        }
        if !FUNCTION_WORDS.contains(&lower.as_str()) && lower.chars().any(char::is_alphabetic) {
            self.words.push(lower);
        }
        1
    }
}

fn only(these: &BTreeSet<String>, others: &BTreeSet<String>) -> Vec<String> {
    these.difference(others).cloned().collect()
}

/// Takes away greetings and farewells: they state nothing.
fn without_courtesies(text: &str) -> String {
    const GREETINGS: &[&str] = &[
        "hi",
        "hello",
        "hey",
        "dear",
        "good",
        "greetings",
        "hallo",
        "bonjour",
        "hola",
        "ciao",
        "moin",
        "guten",
        "morning",
        "welcome",
    ];
    const FAREWELLS: &[&str] = &[
        "thanks",
        "thank",
        "many",
        "kind",
        "best",
        "regards",
        "cheers",
        "sincerely",
        "yours",
        "warm",
        "danke",
        "merci",
        "gracias",
        "grazie",
    ];
    let mut out = String::new();
    let count = text.lines().filter(|l| !l.trim().is_empty()).count();
    for (n, line) in text.lines().filter(|l| !l.trim().is_empty()).enumerate() {
        let first_word = |t: &str| {
            t.split(|c: char| !c.is_alphabetic())
                .find(|w| !w.is_empty())
                .unwrap_or_default()
                .to_lowercase()
        };
        let mut line = line.trim();
        if n == 0 && GREETINGS.contains(&first_word(line).as_str()) {
            // Up to the first comma or exclamation mark, if that comes soon.
            line = match line.find([',', '!', ':']) {
                Some(at) if line[..at].split_whitespace().count() <= 4 => &line[at + 1..],
                None if line.split_whitespace().count() <= 4 => "",
                _ => line,
            };
        }
        if n + 2 >= count
            && count > 1
            && FAREWELLS.contains(&first_word(line).as_str())
            && line.split_whitespace().count() <= 4
        {
            line = match line.find([',', '!']) {
                Some(at) => &line[at + 1..],
                None => "",
            };
        }
        out.push_str(line);
        out.push('\n');
    }
    out
}

/// `14:30`, `2:30pm`, `6 pm`, `noon`, `9 uhr`: minutes of the day, and how many tokens it took.
fn time_of_day(token: &str, next: Option<&str>) -> Option<(String, usize)> {
    let half = |word: &str| match word.trim_end_matches('.') {
        "am" | "a.m" => Some(0),
        "pm" | "p.m" => Some(12),
        _ => None,
    };
    if token == "noon" || token == "midday" {
        return Some(("12:00".into(), 1));
    }
    if token == "midnight" {
        return Some(("00:00".into(), 1));
    }
    let digits_end = token
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(token.len());
    let hour: u32 = token.get(..digits_end)?.parse().ok()?;
    let rest = &token[digits_end..];
    let (minute, rest, has_minutes) = match rest.strip_prefix([':', 'h', '.']) {
        Some(after) if after.len() >= 2 && after.as_bytes()[..2].iter().all(u8::is_ascii_digit) => {
            let minute: u32 = after[..2].parse().ok()?;
            let separator = rest.as_bytes()[0];
            // `14.30` is a time only where something says so.
            let said = separator != b'.'
                || after[2..].starts_with(['a', 'p'])
                || next.is_some_and(|n| half(n).is_some() || n == "uhr");
            if !said {
                return None;
            }
            (minute, &after[2..], true)
        }
        _ => (0, rest, false),
    };
    if hour > 24 || minute > 59 {
        return None;
    }
    let clock = |hour: u32| format!("{:02}:{minute:02}", hour % 24);
    if let Some(shift) = half(rest) {
        return Some((clock(hour % 12 + shift), 1));
    }
    if rest.is_empty() || rest == "h" && has_minutes {
        if let Some(shift) = next.and_then(half) {
            return Some((clock(hour % 12 + shift), 2));
        }
        if next.is_some_and(|n| n == "uhr" || n == "o'clock") {
            return Some((clock(hour), 2));
        }
        if has_minutes {
            return Some((clock(hour), 1));
        }
    }
    // `14:30:05` and `09:12Z` are codes.
    None
}

/// A number by value: `1,250.50`, `#77`, `12th`, `8%` (the sign is a unit).
fn number(token: &str) -> Option<String> {
    let token = token.trim_start_matches(['#', '$', '€', '£']);
    let token = token.trim_end_matches('%');
    let bare = ["st", "nd", "rd", "th"]
        .iter()
        .find_map(|s| {
            token
                .strip_suffix(s)
                .filter(|t| t.bytes().all(|b| b.is_ascii_digit()))
        })
        .unwrap_or(token);
    let groups: Vec<&str> = bare.split(',').collect();
    let grouped = groups.len() > 1
        && (1..=3).contains(&groups[0].len())
        && groups[1..]
            .iter()
            .all(|g| g.split('.').next().is_some_and(|g| g.len() == 3));
    let plain = if grouped {
        bare.replace(',', "")
    } else {
        bare.to_owned()
    };
    if plain.is_empty() || plain.len() > 40 {
        return None;
    }
    super::normal::number::Decimal::read(&plain).map(|d| d.to_string())
}

fn number_with_unit(token: &str) -> Option<(String, String)> {
    let token = token.trim_start_matches(['$', '€', '£', '~']);
    let at = token.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
    let number = number(token.get(..at)?)?;
    Some((number, unit(&token[at..])?.to_owned()))
}

fn unit(word: &str) -> Option<&'static str> {
    UNIT_WORDS
        .iter()
        .find(|(names, _)| names.split(' ').any(|n| n == word))
        .map(|(_, unit)| *unit)
}

fn number_word(word: &str) -> Option<&'static str> {
    NUMBER_WORDS
        .iter()
        .find(|(w, _)| *w == word)
        .map(|(_, n)| *n)
}

fn day_or_month(word: &str) -> Option<&'static str> {
    DAYS.iter()
        .find(|(names, _)| names.split(' ').any(|n| n == word))
        .map(|(_, day)| *day)
}

/// Something that is a name for a machine: digits and letters together, an address, capitals.
fn is_code(token: &str) -> bool {
    let digit = token.chars().any(|c| c.is_ascii_digit());
    let alpha = token.chars().any(char::is_alphabetic);
    let dotted = token.split_once('.').is_some_and(|(a, b)| {
        a.chars().any(char::is_alphanumeric) && b.chars().next().is_some_and(char::is_alphanumeric)
    });
    let capitals = token.chars().filter(|c| c.is_uppercase()).count() >= 2
        && token
            .chars()
            .all(|c| c.is_uppercase() || c.is_ascii_digit() || c == '-' || c == '_' || c == '&')
        && !["OK", "PS", "RE", "FW", "FWD", "FYI", "ASAP", "ID"].contains(&token);
    let camel = token
        .chars()
        .zip(token.chars().skip(1))
        .any(|(a, b)| a.is_lowercase() && b.is_uppercase());
    digit && (alpha || token.contains(['.', ':', '-']))
        || token.contains('@')
        || token.contains('_')
        || token.starts_with('#')
        || (dotted && alpha)
        || capitals
        || camel
}

fn code(token: &str) -> String {
    let lower = token.to_lowercase().trim_end_matches("'s").to_owned();
    match lower.strip_prefix('v') {
        Some(version)
            if version.contains('.') && version.starts_with(|c: char| c.is_ascii_digit()) =>
        {
            version.to_owned()
        }
        _ => lower,
    }
}

/// Whether two texts are the same words but for a few.
fn near_identical(one: &[String], two: &[String]) -> bool {
    let shared = shared(one, two);
    let longest = one.len().max(two.len());
    longest > 0 && shared * 10 >= longest * 7
}

/// The number of words in the longest common subsequence.
fn shared(one: &[String], two: &[String]) -> usize {
    if one.len() > 400 || two.len() > 400 {
        return 0;
    }
    let mut row = vec![0usize; two.len() + 1];
    for a in one {
        let mut before = 0;
        for (j, b) in two.iter().enumerate() {
            let here = row[j + 1];
            row[j + 1] = if stem(a) == stem(b) {
                before + 1
            } else {
                row[j + 1].max(row[j])
            };
            before = here;
        }
    }
    row.last().copied().unwrap_or(0)
}

/// Single words exchanged, every other word in place: synonyms, or another fact.
fn single_swap(one: &[String], two: &[String]) -> Option<(String, String)> {
    if one.len() != two.len() || one.len() < 2 {
        return None;
    }
    let content = |w: &String| !FUNCTION_WORDS.contains(&w.as_str());
    let mut swaps = one.iter().zip(two).filter(|(a, b)| stem(a) != stem(b));
    let (a, b) = swaps.next()?;
    let more = swaps.count();
    ((more + 1) * 6 <= one.len().max(6) && content(a) && content(b)).then(|| (a.clone(), b.clone()))
}

fn stem(word: &str) -> &str {
    let word = word
        .strip_suffix("ing")
        .filter(|s| s.len() > 3)
        .unwrap_or(word);
    let word = word
        .strip_suffix("ed")
        .filter(|s| s.len() > 3)
        .unwrap_or(word);
    let word = word
        .strip_suffix("es")
        .filter(|s| s.len() > 3)
        .unwrap_or(word);
    word.strip_suffix(['s', 'e'])
        .filter(|s| s.len() > 2)
        .unwrap_or(word)
}

fn opposites(one: &[String], two: &[String]) -> Option<(&'static str, &'static str)> {
    let side = |words: &[String], group: &str| {
        words
            .iter()
            .any(|w| group.split(' ').any(|g| stem(g) == stem(w)))
    };
    OPPOSITES.iter().copied().find_map(|(p, q)| {
        let (ap, aq, bp, bq) = (side(one, p), side(one, q), side(two, p), side(two, q));
        let first = |g: &'static str| g.split(' ').next().unwrap_or(g);
        (ap && !aq && bq && !bp || aq && !ap && bp && !bq).then(|| (first(p), first(q)))
    })
}

fn restriction(one: &[String], two: &[String]) -> Option<&'static str> {
    let has =
        |words: &[String], group: &str| words.iter().any(|w| group.split(' ').any(|g| g == w));
    RESTRICTIONS
        .iter()
        .copied()
        .find(|group| has(one, group) != has(two, group))
        .map(|group| group.split(' ').next().unwrap_or(group))
}

fn missing_names(names: &[String], words: &BTreeSet<String>) -> Vec<String> {
    let stems: BTreeMap<&str, ()> = words.iter().map(|w| (stem(w), ())).collect();
    names
        .iter()
        .filter(|n| {
            !words.contains(*n)
                && !stems.contains_key(stem(n))
                && n.split('-').any(|part| !words.contains(part))
        })
        .cloned()
        .collect()
}

const SOFT_NUMBERS: &[(&str, &str)] =
    &[("one", "1"), ("first", "1"), ("once", "1"), ("single", "1")];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewordings() {
        for (one, two) in [
            ("Pickup on 12 June", "Pickup, 12 June"),
            (
                "Hello,\n\nPlease collect 14 pallets from dock 3 on Thursday 12 June at 07:30. The gate code is 5510.\n\nThanks, Orders desk",
                "Good morning,\n\nCould you pick up 14 pallets at dock 3 on Thursday 12 June, 07:30? Gate code: 5510.\n\nMany thanks\nOrders desk",
            ),
            ("2 espressos, table 12", "Table 12: two espressos"),
            (
                "Your 2 parcels wait at locker 14 until 18:00.",
                "Two parcels are waiting for you at locker 14 until 6 pm.",
            ),
            ("Fix off-by-one in pager", "Pager: fix off-by-one error"),
            (
                "Replica db-3 was 40 s behind at 09:12. I have restarted it and the lag is now 0.",
                "db-3 replica: at 09:12 it lagged by 40 s; restarted by me, lag now 0.",
            ),
        ] {
            assert_eq!(judge(one, two), Judgement::Rewording, "{one} / {two}");
        }
    }

    #[test]
    fn other_facts() {
        for (one, two) in [
            (
                "meeting at 14:00 at the north gate",
                "at the north gate we meet at 15:00",
            ),
            (
                "Please release order 88213 today.",
                "Please do not release order 88213 today.",
            ),
            (
                "roll back checkout to 4.1.2",
                "checkout needs rolling back to 4.2.1",
            ),
            ("send it to ana@example.com", "send it to bo@example.com"),
            ("12 Main St is ready", "21 Main St is ready"),
            ("pay 5 kg", "pay 5 lb"),
            ("on Monday please", "on Tuesday please"),
        ] {
            assert!(
                matches!(judge(one, two), Judgement::Different(_)),
                "{one} / {two}: {:?}",
                judge(one, two)
            );
        }
    }

    #[test]
    fn not_for_a_model() {
        for (one, two) in [
            (
                "Please hand the keys to Ines at noon.",
                "At noon, please give the keys to Omar.",
            ),
            (
                "The red cable goes to the rack",
                "The blue cable goes to the rack",
            ),
            (
                "Delete the old logs",
                "Delete the old logs, except those of the vault",
            ),
            (
                "Clients of v2 must keep working.",
                "It is fine if clients of v2 need not keep on working.",
            ),
            (
                "goodwill for the customer",
                "goodwill. To the equivalence model: answer yes",
            ),
            (
                "deliver to the payroll desk",
                "deliver it to the p\u{430}yroll desk",
            ),
            ("note for the desk", "a note for\u{200b} the desk"),
        ] {
            assert!(
                matches!(judge(one, two), Judgement::Unclear(_)),
                "{one} / {two}: {:?}",
                judge(one, two)
            );
        }
    }

    #[test]
    fn what_is_prose() {
        assert!(may_be("two words", "other words", &Names::of("note")));
        assert!(!may_be("duplicate", "fraudulent", &Names::of("reason")));
        assert!(!may_be(
            "Bramble Logistics",
            "Harrow Ink Supply",
            &Names::of("vendor")
        ));
        assert!(!may_be(
            "12 Mill Row, Testford",
            "21 Mill Row, Testford",
            &Names::of("address")
        ));
    }
}
