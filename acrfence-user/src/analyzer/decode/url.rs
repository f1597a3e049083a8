//! URLs, query strings and forms.

use std::borrow::Cow;

use super::super::value::Value;

/// Percent-decodes; `plus` says whether `+` is a blank. None where the result is no UTF-8.
pub(in crate::analyzer) fn unescape(text: &str, plus: bool) -> Option<Cow<'_, str>> {
    let bytes = text.as_bytes();
    if !bytes.iter().any(|b| *b == b'%' || (plus && *b == b'+')) {
        return Some(Cow::Borrowed(text));
    }
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = |i: usize| bytes.get(i).and_then(|b| char::from(*b).to_digit(16));
        match bytes[at] {
            b'%' => match (hex(at + 1), hex(at + 2)) {
                (Some(high), Some(low)) => {
                    out.push((high * 16 + low) as u8);
                    at += 2;
                }
                _ => out.push(b'%'),
            },
            b'+' if plus => out.push(b' '),
            other => out.push(other),
        }
        at += 1;
    }
    String::from_utf8(out).ok().map(Cow::Owned)
}

/// A query string or form body: names with one value, or a list of values where a name repeats.
pub(in crate::analyzer) fn form(text: &str) -> Value<'_> {
    let mut entries: Vec<(Cow<'_, str>, Value<'_>)> = Vec::new();
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = match pair.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (pair, None),
        };
        let name = unescape(name, true).unwrap_or(Cow::Borrowed(name));
        let value = match value {
            // `?acl` switches something on by being there; `?acl=` says nothing.
            None => Value::Bool(true),
            Some(value) => match unescape(value, true) {
                Some(value) => Value::Text(value),
                None => Value::Opaque(Cow::Borrowed(value)),
            },
        };
        match entries.iter_mut().find(|(n, _)| *n == name) {
            Some((_, Value::List(values))) => values.push(value),
            Some((_, first)) => {
                let earlier = std::mem::replace(first, Value::Null);
                *first = Value::List(vec![earlier, value]);
            }
            None => entries.push((name, value)),
        }
    }
    Value::Map(entries)
}

/// Whether text can be a form body: `name=value` pairs without blanks.
pub(in crate::analyzer) fn looks_like_form(text: &str) -> bool {
    text.contains('=')
        && !text.contains(char::is_whitespace)
        && !text.starts_with(['{', '[', '<', '"'])
        && text.split('&').all(|pair| {
            pair.split('=').next().is_some_and(|name| {
                !name.is_empty()
                    && name
                        .bytes()
                        .all(|b| b.is_ascii_alphanumeric() || b"-_.[]%+$@:*~".contains(&b))
            })
        })
}

/// An absolute URL as a tree: scheme, host, path (segments), query. The fragment stays on the
/// client. None where it is no `scheme://host…`.
pub(in crate::analyzer) fn read(text: &str) -> Option<Value<'_>> {
    let (scheme, rest) = text.split_once("://")?;
    if scheme.is_empty()
        || !scheme
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
        || rest.contains(char::is_whitespace)
    {
        return None;
    }
    let scheme = lower(scheme);
    let rest = rest.split('#').next().unwrap_or(rest);
    let (rest, query) = match rest.split_once('?') {
        Some((rest, query)) => (rest, Some(query)),
        None => (rest, None),
    };
    let (authority, path) = match rest.find('/') {
        Some(at) => (&rest[..at], &rest[at..]),
        None => (rest, ""),
    };
    let (user, host) = match authority.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, authority),
    };
    let mut entries = vec![(Cow::Borrowed("scheme"), Value::Text(scheme.clone()))];
    if let Some(user) = user {
        entries.push((Cow::Borrowed("user"), Value::Text(Cow::Borrowed(user))));
    }
    entries.push((
        Cow::Borrowed("host"),
        Value::Text(without_default_port(lower(host), &scheme)),
    ));
    entries.push((Cow::Borrowed("path"), Value::List(segments(path))));
    if let Some(query) = query.filter(|q| !q.is_empty()) {
        entries.push((Cow::Borrowed("query"), form(query)));
    }
    Some(Value::Map(entries))
}

/// Path segments, decoded, without `.` and with `..` applied. An empty last segment (a slash at
/// the end) is kept: some servers tell it apart.
fn segments(path: &str) -> Vec<Value<'_>> {
    let mut out: Vec<Value<'_>> = Vec::new();
    let parts: Vec<&str> = path.strip_prefix('/').unwrap_or(path).split('/').collect();
    if parts == [""] {
        return out;
    }
    for (i, part) in parts.iter().enumerate() {
        let last = i + 1 == parts.len();
        match *part {
            "." => {
                if last {
                    out.push(Value::Text(Cow::Borrowed("")));
                }
            }
            ".." => {
                out.pop();
                if last {
                    out.push(Value::Text(Cow::Borrowed("")));
                }
            }
            // An escaped slash is not a separator, so a segment with one stays as it is written.
            part => out.push(Value::Text(match unescape(part, false) {
                Some(text) if !text.contains('/') => text,
                _ => Cow::Borrowed(part),
            })),
        }
    }
    out
}

fn lower(text: &str) -> Cow<'_, str> {
    if text.bytes().any(|b| b.is_ascii_uppercase()) {
        Cow::Owned(text.to_ascii_lowercase())
    } else {
        Cow::Borrowed(text)
    }
}

fn without_default_port<'a>(host: Cow<'a, str>, scheme: &str) -> Cow<'a, str> {
    let port = match scheme {
        "http" | "ws" => ":80",
        "https" | "wss" => ":443",
        _ => return host,
    };
    match host.strip_suffix(port) {
        Some(bare) => Cow::Owned(bare.to_owned()),
        None => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spelling_of_a_url_does_not_matter() {
        let same = [
            "https://Api.example.com:443/a/./b%41?x=1&y=a+b#frag",
            "https://api.example.com/a/c/../bA?x=1&y=a%20b",
        ];
        assert_eq!(read(same[0]), read(same[1]));
        assert_ne!(read("https://h/a%2Fb"), read("https://h/a/b"));
        assert_ne!(read("https://h/a"), read("https://h/a/"));
        assert_ne!(read("https://h/a"), read("https://h/A"));
        assert_eq!(read("https://h"), read("https://h/"));
        assert_ne!(read("http://h"), read("https://h"));
    }

    #[test]
    fn forms_keep_the_order_of_a_repeated_name() {
        assert_ne!(form("a=1&a=2"), form("a=2&a=1"));
        assert_eq!(form("a=%31"), form("a=1"));
        assert_eq!(form("a=%zz"), form("a=%25zz"));
        assert_ne!(form("a"), form("a="));
    }
}
