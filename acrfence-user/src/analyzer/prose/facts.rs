//! What a text states: numbers, times, days, codes, units, names, negations.

use std::collections::BTreeSet;

use super::vocabulary::{DAYS, FUNCTION_WORDS, NEGATIONS, NUMBER_WORDS, UNIT_WORDS};

#[derive(Debug, Default)]
pub(super) struct Facts {
    pub numbers: BTreeSet<String>,
    pub times: BTreeSet<String>,
    pub days: BTreeSet<String>,
    pub codes: BTreeSet<String>,
    pub units: BTreeSet<String>,
    pub names: Vec<String>,
    pub negations: usize,
    /// Content words in order, lower case.
    pub words: Vec<String>,
    /// Every word in order, lower case.
    pub every: Vec<String>,
    pub all_words: BTreeSet<String>,
    /// Numbers that may be no more than a figure of speech ("one", "first"), and words that may be
    /// the name of a month or day.
    pub soft: BTreeSet<String>,
}

impl Facts {
    pub fn of(text: &str) -> Self {
        let mut facts = Self::default();
        let (text, greeted) = without_courtesies(text);
        facts.names = greeted;
        let mut starts = true;
        let mut tokens: Vec<(String, bool)> = Vec::new();
        for raw in crate::analyzer::text::words(&text) {
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
            if token.starts_with(char::is_uppercase) {
                self.soft.insert(day.to_owned());
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

/// Takes away greetings and farewells: they state nothing. Gives what is left, and who was greeted by
/// name.
pub(super) fn without_courtesies(text: &str) -> (String, Vec<String>) {
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
    // "Good morning", but not "Good news".
    const TIMES: &[&str] = &[
        "morning",
        "afternoon",
        "evening",
        "day",
        "tag",
        "morgen",
        "abend",
    ];
    const EVERYBODY: &[&str] = &[
        "all",
        "team",
        "everyone",
        "everybody",
        "folks",
        "there",
        "both",
    ];
    let greets = |line: &str| {
        let mut words = line
            .split(|c: char| !c.is_alphabetic())
            .filter(|w| !w.is_empty())
            .map(str::to_lowercase);
        let first = words.next().unwrap_or_default();
        match first.as_str() {
            "good" | "guten" => words.next().is_some_and(|w| TIMES.contains(&w.as_str())),
            first => GREETINGS.contains(&first),
        }
    };
    let mut greeted = Vec::new();
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
        if n == 0 && greets(line) {
            // Up to the first comma or exclamation mark, if that comes soon; a line that is all there
            // is stays.
            let end = match line.find([',', '!', ':']) {
                Some(at) if line[..at].split_whitespace().count() <= 4 => at + 1,
                None if line.split_whitespace().count() <= 4 && count > 1 => line.len(),
                _ => 0,
            };
            greeted = line[..end]
                .split(|c: char| !c.is_alphanumeric())
                .filter(|w| w.starts_with(char::is_uppercase))
                .map(str::to_lowercase)
                .filter(|w| !GREETINGS.contains(&w.as_str()) && !EVERYBODY.contains(&w.as_str()))
                .collect();
            line = &line[end..];
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
    (out, greeted)
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
    crate::analyzer::normal::number::Decimal::read(&plain).map(|d| d.to_string())
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

pub(super) fn number_word(word: &str) -> Option<&'static str> {
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

const SOFT_NUMBERS: &[(&str, &str)] =
    &[("one", "1"), ("first", "1"), ("once", "1"), ("single", "1")];
