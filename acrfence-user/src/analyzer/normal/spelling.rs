//! Identifiers that are the same however they are written.

use unicode_normalization::{UnicodeNormalization as _, is_nfc};

use super::super::naming::{self, Names};
use super::number::Decimal;

/// Why two different texts name the same thing, or none. `names` are the words of the field.
///
/// `literal` says that the texts are words of a command line, where `a/`, `./a` and `a/../b` may be
/// told apart.
pub(in crate::analyzer) fn same(
    one: &str,
    two: &str,
    names: &Names,
    literal: bool,
) -> Option<&'static str> {
    if !(is_nfc(one) && is_nfc(two)) && one.nfc().eq(two.nfc()) {
        return Some("the same letters, composed differently");
    }
    let (one, two) = (one.trim(), two.trim());
    if one == two {
        return Some("the same but for blanks around it");
    }
    if !(one.is_ascii() && two.is_ascii()) || one.is_empty() || two.is_empty() {
        return None;
    }
    if let (Some(a), Some(b)) = (uuid(one), uuid(two))
        && a == b
    {
        return Some("the same UUID");
    }
    if let (Some(a), Some(b)) = (hex(one), hex(two))
        && a.eq_ignore_ascii_case(b)
    {
        return Some("the same hexadecimal number");
    }
    if let (Some((user, host)), Some((other, place))) = (mail(one), mail(two))
        && user == other
        && host.eq_ignore_ascii_case(place)
    {
        return Some("the same mail address: its domain ignores case");
    }
    if same_host(one, two, names) {
        return Some("the same host name");
    }
    if same_phone(one, two, names) {
        return Some("the same phone number");
    }
    if same_grouped(one, two) {
        return Some("the same code, written in groups");
    }
    if one.starts_with('/') && two.starts_with('/') && path(one, literal) == path(two, literal) {
        return Some("the same path");
    }
    let relative = |t: &str| t.contains('/') && !t.contains(':') && !t.starts_with('/');
    if !literal
        && (relative(one) || relative(two))
        && names.has(&[
            "path",
            "file",
            "filename",
            "dir",
            "directory",
            "folder",
            "filepath",
            "paths",
            "files",
        ])
        && path(one, false) == path(two, false)
        && one.starts_with('/') == two.starts_with('/')
    {
        return Some("the same path");
    }
    let untagged =
        |t: &str| !t.is_empty() && !t.rsplit('/').next().unwrap_or(t).contains([':', '@']);
    if names.last_is(&["image"])
        && (untagged(one) && two.strip_suffix(":latest") == Some(one)
            || untagged(two) && one.strip_suffix(":latest") == Some(two))
    {
        return Some("the same image: without a tag it is the latest");
    }
    if same_number_and_word(one, two) {
        return Some("the same number with the same unit");
    }
    if same_time_of_day(one, two) {
        return Some("the same time of day");
    }
    if same_base64(one, two) {
        return Some("the same bytes in another base64 alphabet");
    }
    if names.has(&["currency", "ccy"]) && one.len() == 3 && one.eq_ignore_ascii_case(two) {
        return Some("the same currency code");
    }
    if names.last_is(&["method", "verb"]) && one.eq_ignore_ascii_case(two) {
        return Some("the same method");
    }
    if names.is_set() && same_members(one, two, names) {
        return Some("the same set in another order");
    }
    None
}

/// A path without `.` and doubled slashes. Servers also take away `x/..` and a slash at the end;
/// programs may follow a link, and tell a folder from what is in it, so there both stay.
fn path(text: &str, literal: bool) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in text.split('/').filter(|p| !p.is_empty() && *p != ".") {
        if part == ".." && !literal && parts.last().is_some_and(|p| *p != "..") {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    let mut out = parts.join("/");
    if literal && (text.ends_with('/') || text.ends_with("/.")) {
        out.push('/');
    }
    out
}

/// `12.50 EUR` and `12.5 EUR`, `5%` and `5.0%`, `EUR 12.50` and `12.5 EUR`.
fn same_number_and_word(one: &str, two: &str) -> bool {
    let read = |t: &str| -> Option<(Decimal, String)> {
        let first = t.find(|c: char| c.is_ascii_digit())?;
        let last = t.rfind(|c: char| c.is_ascii_digit())?;
        let start = t[..first]
            .rfind('-')
            .filter(|at| at + 1 == first)
            .unwrap_or(first);
        let number = Decimal::read(&t[start..=last])?;
        let (before, after) = (t[..start].trim(), t[last + 1..].trim());
        let word = match (before.is_empty(), after.is_empty()) {
            (true, false) => after,
            (false, true) => before,
            _ => return None,
        };
        let unit = word == "%"
            || (word.len() <= 12
                && word.bytes().all(|b| b.is_ascii_alphabetic())
                && word.len() > 1);
        // `v1.10` is a version, `Room 1.0` a room.
        let currency = word.len() == 3 && word.bytes().all(|b| b.is_ascii_uppercase());
        (unit && (before.is_empty() || currency)).then(|| (number, word.to_owned()))
    };
    read(one).is_some_and(|a| Some(a) == read(two))
}

/// `9:00` and `09:00`. With seconds on one side only it could be a duration, so that is no match.
fn same_time_of_day(one: &str, two: &str) -> bool {
    let colons = one.split(':').count();
    let read = |t: &str| -> Option<[u8; 3]> {
        let parts: Vec<&str> = t.split(':').collect();
        if parts.len() != colons {
            return None;
        }
        if !(2..=3).contains(&parts.len()) {
            return None;
        }
        let mut out = [0; 3];
        for (i, part) in parts.iter().enumerate() {
            let fits = (1..=2).contains(&part.len())
                && part.bytes().all(|b| b.is_ascii_digit())
                && (i == 0 || part.len() == 2);
            out[i] = part.parse().ok().filter(|n| fits && *n < 60)?;
        }
        Some(out)
    };
    read(one).is_some_and(|a| Some(a) == read(two))
}

fn same_base64(one: &str, two: &str) -> bool {
    let plain = |t: &str| -> String {
        t.trim_end_matches('=')
            .chars()
            .map(|c| match c {
                '-' => '+',
                '_' => '/',
                c => c,
            })
            .collect()
    };
    let coded = |t: &str| {
        t.len() >= 24
            && t.bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"+/-_=".contains(&b))
            && t.bytes().any(|b| b"+/=".contains(&b))
    };
    (coded(one) || coded(two)) && plain(one) == plain(two)
}

fn uuid(text: &str) -> Option<String> {
    let bare = text
        .strip_prefix("urn:uuid:")
        .or_else(|| text.strip_prefix('{').and_then(|t| t.strip_suffix('}')))
        .unwrap_or(text);
    let hex: String = bare.chars().filter(|c| *c != '-').collect();
    let dashes = bare.len() - hex.len();
    (hex.len() == 32 && (dashes == 0 || dashes == 4) && hex.bytes().all(|b| b.is_ascii_hexdigit()))
        .then(|| hex.to_ascii_lowercase())
}

fn hex(text: &str) -> Option<&str> {
    let digits = match text.strip_prefix("0x") {
        Some(digits) if digits.len() >= 8 => digits,
        Some(_) => return None,
        None if text.len() >= 32 => text,
        None => return None,
    };
    digits
        .bytes()
        .all(|b| b.is_ascii_hexdigit())
        .then_some(text)
}

fn mail(text: &str) -> Option<(&str, &str)> {
    let (user, host) = text.rsplit_once('@')?;
    let fits =
        |s: &str| !s.is_empty() && !s.contains(|c: char| c.is_whitespace() || "<>,;@".contains(c));
    (fits(user) && fits(host) && host.contains('.')).then_some((user, host))
}

fn same_host(one: &str, two: &str, names: &Names) -> bool {
    let bare = |t: &str| {
        t.bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-._*".contains(&b))
            && t.contains('.')
    };
    if !(bare(one) && bare(two)) {
        return false;
    }
    let rooted = one.ends_with('.') || two.ends_with('.');
    let said = names.has(&[
        "host",
        "hostname",
        "domain",
        "fqdn",
        "server",
        "zone",
        "cname",
        "nameserver",
        "mx",
        "sni",
    ]);
    (rooted || said)
        && one.trim_end_matches('.').eq_ignore_ascii_case(two.trim_end_matches('.'))
        // Without a final dot a name in a zone file is relative.
        && (said || one.ends_with('.') == two.ends_with('.'))
}

fn same_phone(one: &str, two: &str, names: &Names) -> bool {
    let digits = |t: &str| -> Option<String> {
        let plain = t
            .bytes()
            .all(|b| b.is_ascii_digit() || b" +-().".contains(&b));
        let digits: String = t
            .chars()
            .filter(|c| c.is_ascii_digit() || *c == '+')
            .collect();
        (plain && digits.len() >= 8).then_some(digits)
    };
    let (Some(a), Some(b)) = (digits(one), digits(two)) else {
        return false;
    };
    let phone = a.starts_with('+')
        || names.has(&[
            "phone",
            "tel",
            "telephone",
            "mobile",
            "msisdn",
            "fax",
            "cell",
        ]);
    phone && a == b
}

/// Codes of capital letters and digits that differ in blanks only (IBAN, card numbers).
fn same_grouped(one: &str, two: &str) -> bool {
    let packed = |t: &str| -> Option<String> {
        let code = t
            .bytes()
            .all(|b| b.is_ascii_digit() || b.is_ascii_uppercase() || b == b' ');
        let short_groups = t
            .split(' ')
            .all(|g| !g.is_empty() && (g.len() <= 6 || !t.contains(' ')));
        let packed: String = t.chars().filter(|c| *c != ' ').collect();
        let digits = packed.bytes().filter(u8::is_ascii_digit).count();
        (code && short_groups && packed.len() >= 10 && digits * 2 >= packed.len()).then_some(packed)
    };
    (one.contains(' ') || two.contains(' ')) && packed(one).is_some_and(|a| Some(a) == packed(two))
}

/// A set written as one text. Blanks separate only where that is usual; a comma also stands between
/// the parts of one name ("Lee, Kim"), so members must look like single words or addresses.
fn same_members(one: &str, two: &str, names: &Names) -> bool {
    let people = names.has(&[
        "to",
        "cc",
        "bcc",
        "recipients",
        "attendees",
        "names",
        "members",
        "participants",
    ]);
    let members = |t: &str| -> Option<Vec<String>> {
        let separator = if t.contains(',') {
            ','
        } else if names.has(&[
            "scope",
            "scopes",
            "permissions",
            "tags",
            "labels",
            "keywords",
        ]) {
            ' '
        } else {
            return None;
        };
        let mut list: Vec<String> = t
            .split(separator)
            .map(|m| m.trim().to_owned())
            .filter(|m| !m.is_empty())
            .collect();
        list.sort_unstable();
        let distinct = list.windows(2).all(|w| w[0] != w[1]);
        let word = |m: &String| {
            let address = m.contains('@') || m.starts_with('+');
            if people {
                address
            } else {
                address || !m.contains(char::is_whitespace)
            }
        };
        (list.len() > 1 && distinct && list.iter().all(word)).then_some(list)
    };
    members(one).is_some_and(|a| Some(a) == members(two))
}

/// Words of a text for provenance: whole words with inner `-_.:@/`, and their parts.
pub(in crate::analyzer) fn pieces(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_alphanumeric() || "-_.:@/+#".contains(c)))
        .map(|w| w.trim_matches(|c: char| "-_.:/+".contains(c)))
        .filter(|w| w.len() > 1)
        .flat_map(|whole| {
            let parts = whole
                .split(|c: char| !c.is_alphanumeric())
                .filter(move |part| part.len() < whole.len() && naming::tells_apart(part));
            std::iter::once(whole).chain(parts)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Names {
        Names::of(text)
    }

    #[test]
    fn the_same_thing() {
        for (one, two, name) in [
            ("ZZ12 0000 3344 5566 7788", "ZZ120000334455667788", "to"),
            ("+1 (555) 010-0199", "+15550100199", "to"),
            ("kim@Example.COM", "kim@example.com", "to"),
            ("EDGE.cdn.example.", "edge.cdn.example.", "content"),
            ("Web1.example.com", "web1.example.com", "host"),
            ("/a/./b//c", "/a/b/c", "path"),
            ("/a/x/../b", "/a/b", "path"),
            ("/a/b/", "/a/b", "path"),
            ("./a/b", "a/b", "file"),
            ("12.50 EUR", "EUR 12.5", "price"),
            ("5%", "5.0%", "discount"),
            ("9:00", "09:00", "at"),
            ("3q2-7w3q2-7w3q2-7wAAAA", "3q2+7w3q2+7w3q2+7wAAAA==", "data"),
            (
                "A1B2C3D4-E5F6-7890-A1B2-C3D4E5F6A7B8",
                "a1b2c3d4e5f67890a1b2c3d4e5f6a7b8",
                "id",
            ),
            ("read:mail write:mail", "write:mail read:mail", "scope"),
            ("Zoe\u{308}", "Zo\u{eb}", "name"),
            ("EUR", "eur", "currency"),
        ] {
            assert!(same(one, two, &names(name), false).is_some(), "{one} {two}");
        }
    }

    #[test]
    fn another_thing() {
        for (one, two, name) in [
            ("Kim@example.com", "kim@example.com", "to"),
            ("ZZ12 0000 3344 5566 7788", "ZZ120000334455667789", "to"),
            ("Report.PDF", "report.pdf", "file"),
            ("v1.10", "v1.1", "version"),
            ("1.10", "1.1", "version"),
            ("Room 1.0", "Room 1", "room"),
            ("5%", "5", "discount"),
            ("9:00", "9:01", "at"),
            ("1:30", "01:30:00", "length"),
            ("p\u{430}yroll@example.com", "payroll@example.com", "to"),
            ("a b", "ab", "title"),
            ("12 34", "1234", "code"),
            ("a b", "b a", "title"),
            ("Lee, Kim", "Kim, Lee", "to"),
            ("5 Main Street", "Street Main 5", "to"),
            ("ACC-1", "ACC-\u{ff11}", "to"),
            ("edge.cdn.example", "edge.cdn.example.", "content"),
            ("+15550100199", "15550100199", "to"),
        ] {
            assert_eq!(same(one, two, &names(name), false), None, "{one} {two}");
        }
        for (one, two) in [("/a/../b", "/b"), ("/a/b", "/a/b/"), ("./a", "a")] {
            assert_eq!(same(one, two, &names("args"), true), None, "{one} {two}");
        }
    }

    #[test]
    fn pieces_are_words_and_their_parts() {
        let got: Vec<&str> = pieces("Paid INV-3310, see order-7719-charge.").collect();
        for wanted in ["INV-3310", "3310", "order-7719-charge", "7719"] {
            assert!(got.contains(&wanted), "{wanted} in {got:?}");
        }
    }
}
