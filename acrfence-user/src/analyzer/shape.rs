//! What a value looks like.

/// Whether `text` looks like an identifier that stands for one particular thing, rather than a
/// word of an API: a number, a UUID (also an invalid one), a hash, a code with digits.
///
/// For path segments: `*` may stand for those that do.
pub fn is_id_like(text: &str) -> bool {
    let digits = text.bytes().filter(u8::is_ascii_digit).count();
    let letters = text.bytes().filter(u8::is_ascii_alphabetic).count();
    if digits == 0 || text.len() > 512 {
        return false;
    }
    if letters == 0 {
        return true;
    }
    // `v1`, `v2beta1` and `oauth2` are words of an API.
    let mut rest = text.trim_start_matches(['v', 'V']);
    if rest.len() < text.len() {
        rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        if rest.is_empty() || rest.starts_with("alpha") || rest.starts_with("beta") {
            return false;
        }
    }
    digits >= 2 || randomness(text) > Randomness::None
}

/// How much a value looks made up by a machine (or by a model that plays one).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Randomness {
    /// A word, a number, a code that people give.
    None,
    /// A short run of mixed letters and digits (`pay-7k2m`).
    Weak,
    /// A UUID, valid or not, a hash, a long random string.
    Strong,
}

/// How random `text` looks.
pub(super) fn randomness(text: &str) -> Randomness {
    let text = text
        .trim()
        .trim_start_matches("urn:uuid:")
        .trim_matches(|c| "<>{}\"".contains(c));
    let plain = text
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b"-_.:@+/=~%\\".contains(&b));
    if text.is_empty() || text.len() > 512 || !plain {
        return Randomness::None;
    }
    let local = text.split('@').next().unwrap_or(text);
    if is_uuid_like(local) {
        return Randomness::Strong;
    }
    let mut best = Randomness::None;
    for chunk in local.split(|c: char| !c.is_ascii_alphanumeric()) {
        best = best.max(chunk_randomness(chunk));
    }
    // A long string of base64 has `-`, `_`, `+`, `/` inside.
    if best < Randomness::Strong && local.len() >= 20 {
        let packed: String = local.chars().filter(|c| !"-_+/=".contains(*c)).collect();
        let other = local.len() - packed.len();
        if other <= local.len() / 8 && chunk_randomness(&packed) == Randomness::Strong && other <= 4
        {
            best = Randomness::Strong;
        }
    }
    best
}

/// Groups of 8-4-4-4-12 letters and digits, whatever the letters are, or the same without dashes.
pub(super) fn is_uuid_like(text: &str) -> bool {
    let mut groups = text.split('-');
    let wanted = [8, 4, 4, 4, 12];
    let fits = wanted.iter().all(|length| {
        groups
            .next()
            .is_some_and(|g| g.len() == *length && g.bytes().all(|b| b.is_ascii_alphanumeric()))
    });
    fits && groups.next().is_none() && text.bytes().filter(u8::is_ascii_digit).count() >= 6
}

/// Whether two random values were made up independently: then they differ nearly everywhere. Two
/// that differ in a letter or two are one value and a slip (or a neighbour).
pub(super) fn are_unrelated(one: &str, two: &str) -> bool {
    if one.len() != two.len() {
        return true;
    }
    let (mut all, mut differ) = (0, 0);
    for (a, b) in one.bytes().zip(two.bytes()) {
        if a.is_ascii_alphanumeric() || b.is_ascii_alphanumeric() {
            all += 1;
            differ += usize::from(a != b);
        }
    }
    // A common prefix (`cnon:demo-ok-`, `sk_live_`) is not what was made up.
    let common = one
        .bytes()
        .zip(two.bytes())
        .take_while(|(a, b)| a == b)
        .count();
    let prefix = one
        .get(..common)
        .and_then(|p| p.rfind(['_', '-', ':', '.']))
        .map_or(0, |at| at + 1);
    let made_up = all
        - one
            .bytes()
            .take(prefix)
            .filter(u8::is_ascii_alphanumeric)
            .count();
    differ * 4 >= made_up && differ >= 3.min(made_up)
}

fn chunk_randomness(chunk: &str) -> Randomness {
    let digits = chunk.bytes().filter(u8::is_ascii_digit).count();
    let letters = chunk.len() - digits;
    let length = chunk.len();
    if length < 4 {
        return Randomness::None;
    }
    let mut turns = 0;
    let mut case_turns = 0;
    let bytes = chunk.as_bytes();
    for pair in bytes.windows(2) {
        turns += usize::from(pair[0].is_ascii_digit() != pair[1].is_ascii_digit());
        case_turns += usize::from(
            pair[0].is_ascii_lowercase() && pair[1].is_ascii_uppercase()
                || pair[0].is_ascii_uppercase() && pair[1].is_ascii_lowercase(),
        );
    }
    let hex = bytes
        .iter()
        .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(b));
    if length >= 16 && digits >= 2 && letters >= 2 && turns >= 3 {
        return Randomness::Strong;
    }
    if length >= 16 && digits >= 1 && case_turns + turns >= length / 3 {
        return Randomness::Strong;
    }
    if length >= 12 && hex && digits >= 2 && letters >= 1 && turns >= 2 {
        return Randomness::Strong;
    }
    if length >= 20 && letters == length && case_turns >= length / 3 {
        return Randomness::Strong;
    }
    if digits >= 1 && letters >= 1 && turns >= 2 {
        return Randomness::Weak;
    }
    if hex && digits >= 2 && letters >= 2 {
        return Randomness::Weak;
    }
    Randomness::None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_values() {
        for strong in [
            "a1b2c3d4-e5f6-7890-g1h2-i3j4k5l6m7n8",
            "e01b319a-da42-468e-a618-24c063f9c121",
            "395c9f697cce6e1021f2b8a4",
            "01HV5Z2Q7M8N9P0RSTUVWX4YZA",
            "urn:uuid:2c6e3a36-8b0e-44f2-bc2e-bb1f8c3f1a52",
            "su_c531dd68d963041436bbb4870de3",
            "Q2yF46ZQVo0I2F9ve3o329XRGCEWdC9szdvcw4-qZDU",
            "SplxlOBeZQQYbYS6WxSbIA",
            "otk_d53958273e1ab44fef0baf12",
        ] {
            assert_eq!(randomness(strong), Randomness::Strong, "{strong}");
        }
        for weak in [
            "pay-7k2m", "pay-x9qd", "t-51c9e", "c-81f2", "n-7Qe1", "L7K2M9", "0ad94",
        ] {
            assert_eq!(randomness(weak), Randomness::Weak, "{weak}");
        }
        for none in [
            "INV-3310",
            "lunch-club-feb",
            "k-2031-11",
            "SO9001",
            "debian-12",
            "rent share",
            "ACC-204817",
            "gym-2031-02",
            "main",
            "2031-09-01",
            "12 Mill Row",
            "BX-20",
            "Oakfern",
            "10.1.2.0",
        ] {
            assert_eq!(randomness(none), Randomness::None, "{none}");
        }
    }

    #[test]
    fn ids_in_paths() {
        for yes in [
            "310554217",
            "7a1f5b46-58a1-4a7e-9d50-9b8f6f0ce001",
            "SO-9001",
            "VCH-8H2K-PP04",
            "rec_31",
            "42",
        ] {
            assert!(is_id_like(yes), "{yes}");
        }
        for no in [
            "orders", "v1", "v2beta1", "oauth2", "charges", "ec2", "me", "s3",
        ] {
            assert!(!is_id_like(no), "{no}");
        }
    }
}
