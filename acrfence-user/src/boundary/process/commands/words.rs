//! The words of a command line: which are options, which are values of options, and which say what
//! is to be done.

/// The words of a command line that are no options and no values of options, as far as that can
/// be told without knowing the program.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Words<'a> {
    /// Such words in order.
    plain: Vec<&'a str>,
    /// Whether the first of them may be the value of an option that is not known.
    first_may_be_value: bool,
}

impl<'a> Words<'a> {
    /// Reads the arguments after the program's name. `value_flags` are options whose value is the
    /// next word.
    pub(super) fn of(arguments: &'a [String], value_flags: &[String]) -> Self {
        let mut plain = Vec::new();
        let mut first_may_be_value = false;
        let mut words = arguments.iter().map(String::as_str);
        let mut over = false;
        while let Some(word) = words.next() {
            if over || !word.starts_with('-') || word == "-" {
                plain.push(word);
            } else if word == "--" {
                over = true;
            } else if value_flags.iter().any(|flag| flag == word) {
                words.next();
            } else if plain.is_empty() && !word.contains('=') {
                first_may_be_value = true;
            }
        }
        Self {
            plain,
            first_may_be_value,
        }
    }

    /// Whether they begin with `wanted` (`rollout restart`).
    pub(super) fn begin_with(&self, wanted: &str, ignore_case: bool) -> bool {
        self.has_at(0, wanted, ignore_case)
            || (self.first_may_be_value && self.has_at(1, wanted, ignore_case))
    }

    /// Whether they begin with `wanted` beyond doubt.
    pub(super) fn surely_begin_with(&self, wanted: &str, ignore_case: bool) -> bool {
        !self.first_may_be_value && self.has_at(0, wanted, ignore_case)
    }

    /// Whether `wanted` is one of them.
    pub(super) fn contain(&self, wanted: &str) -> bool {
        self.plain.contains(&wanted)
    }

    fn has_at(&self, at: usize, wanted: &str, ignore_case: bool) -> bool {
        let mut own = self.plain.iter().skip(at);
        wanted.split(' ').all(|wanted| {
            own.next().is_some_and(|own| {
                *own == wanted || (ignore_case && own.eq_ignore_ascii_case(wanted))
            })
        })
    }
}

/// Whether `flag` is among the options: alone, or with its value behind `=`.
pub(super) fn has_flag(arguments: &[String], flag: &str) -> bool {
    arguments
        .iter()
        .take_while(|word| *word != "--")
        .any(|word| word == flag)
}

/// What options a command line may have, to be understood.
pub(super) struct Known<'a> {
    /// Options whose values are wanted.
    pub(super) wanted: &'a [String],
    /// Other options with a value.
    pub(super) valued: &'a [String],
    /// Options without one.
    pub(super) switches: &'a [String],
}

impl Known<'_> {
    /// The values of the wanted options: `-c X`, `-cX`, `-Atc X`, `--command X`, `--command=X`. None
    /// when there is an option that is not known: it may be anything, and hide anything.
    pub(super) fn values<'a>(&self, arguments: &'a [String]) -> Option<Vec<&'a str>> {
        let has = |list: &[String], name: &str| list.iter().any(|own| own == name);
        let mut found = Vec::new();
        let mut words = arguments.iter().map(String::as_str);
        while let Some(word) = words.next() {
            if word == "--" {
                break;
            }
            if word.starts_with("--") {
                let (name, value) = match word.split_once('=') {
                    Some((name, value)) => (name, Some(value)),
                    None => (word, None),
                };
                if value.is_none() && has(self.switches, name) {
                    continue;
                }
                let is_wanted = has(self.wanted, name);
                if !is_wanted && !has(self.valued, name) {
                    return None;
                }
                let value = value.or_else(|| words.next())?;
                found.extend(is_wanted.then_some(value));
                continue;
            }
            let Some(letters) = word.strip_prefix('-') else {
                continue;
            };
            for (at, letter) in letters.char_indices() {
                let name = format!("-{letter}");
                if has(self.switches, &name) {
                    continue;
                }
                let is_wanted = has(self.wanted, &name);
                if !is_wanted && !has(self.valued, &name) {
                    return None;
                }
                let rest = &letters[at + letter.len_utf8()..];
                let value = if rest.is_empty() { words.next()? } else { rest };
                found.extend(is_wanted.then_some(value));
                break;
            }
        }
        Some(found)
    }
}
