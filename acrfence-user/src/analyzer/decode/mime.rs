//! MIME: mail messages, multipart bodies, HTTP requests inside batches.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::super::value::Value;
use super::{Undecodable, content};
use crate::words::Digest;

/// Most parts of one body, and most header fields of one part.
const MOST_PARTS: usize = 512;

/// Reads a multipart body. `form-data` becomes a map by field name, any other kind a list.
pub(in crate::analyzer) fn multipart(
    content_type: &str,
    bytes: &[u8],
    depth: usize,
) -> Result<Value<'static>, Undecodable> {
    let boundary = parameter(content_type, "boundary").ok_or(Undecodable)?;
    let parts = split(bytes, boundary.as_bytes())?;
    let form = media_type(content_type) == "multipart/form-data";
    let mut fields = Vec::new();
    let mut list = Vec::new();
    for part in parts {
        let (headers, body) = head_and_body(part)?;
        if form {
            let disposition = find(&headers, "content-disposition").ok_or(Undecodable)?;
            if media_type(disposition) != "form-data" {
                return Err(Undecodable);
            }
            let name = parameter(disposition, "name").ok_or(Undecodable)?;
            super::add_repeatable(
                &mut fields,
                Cow::Owned(name),
                form_field(&headers, disposition, body, depth)?,
            );
        } else {
            list.push(entity(&headers, body, depth)?);
        }
    }
    Ok(if form {
        Value::Map(fields)
    } else {
        Value::List(list)
    })
}

/// Reads a mail message: known header fields, an empty line, a body.
pub(in crate::analyzer) fn message(
    text: &str,
    depth: usize,
) -> Result<Value<'static>, Undecodable> {
    let (headers, body) = head_and_body(text.as_bytes())?;
    let known = [
        "from",
        "to",
        "subject",
        "date",
        "message-id",
        "mime-version",
        "cc",
        "bcc",
    ];
    let hits = headers
        .iter()
        .filter(|(name, _)| known.iter().any(|k| name.eq_ignore_ascii_case(k)))
        .count();
    if hits < 2 {
        return Err(Undecodable);
    }
    entity(&headers, body, depth)
}

/// Reads `POST path HTTP/1.1`, header fields, an empty line, a body.
fn http_request(bytes: &[u8], depth: usize) -> Result<Value<'static>, Undecodable> {
    let end = bytes.iter().position(|b| *b == b'\n').ok_or(Undecodable)?;
    let line = std::str::from_utf8(&bytes[..end]).map_err(|_| Undecodable)?;
    let mut words = line.split_whitespace();
    let (Some(method), Some(target), version) = (words.next(), words.next(), words.next()) else {
        return Err(Undecodable);
    };
    if version.is_some_and(|v| !v.starts_with("HTTP/")) {
        return Err(Undecodable);
    }
    let (headers, body) = head_and_body(&bytes[end + 1..])?;
    let Value::Map(mut entries) = entity(&headers, body, depth)? else {
        return Err(Undecodable);
    };
    entries.insert(0, ("method".into(), Value::text(method)));
    entries.insert(1, ("target".into(), Value::text(target)));
    Ok(Value::Map(entries))
}

/// The type without parameters, lower case.
pub(in crate::analyzer) fn media_type(content_type: &str) -> String {
    content_type
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase()
}

/// A parameter of a header value (`boundary`, `name`, `filename`, `charset`).
pub(in crate::analyzer) fn parameter(header: &str, wanted: &str) -> Option<String> {
    let mut rest = header.split_once(';')?.1;
    loop {
        let (name, after) = rest.split_once('=')?;
        let after = after.trim_start();
        let (value, next) = if let Some(quoted) = after.strip_prefix('"') {
            let mut value = String::new();
            let mut chars = quoted.char_indices();
            let mut end = None;
            while let Some((at, c)) = chars.next() {
                match c {
                    '\\' => value.extend(chars.next().map(|(_, c)| c)),
                    '"' => {
                        end = Some(at + 1);
                        break;
                    }
                    c => value.push(c),
                }
            }
            (value, &quoted[end?..])
        } else {
            let end = after.find(';').unwrap_or(after.len());
            (after[..end].trim().to_owned(), &after[end..])
        };
        if name.trim().eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        rest = next.trim_start().strip_prefix(';')?;
    }
}

type Headers = Vec<(String, String)>;

fn split<'b>(bytes: &'b [u8], boundary: &[u8]) -> Result<Vec<&'b [u8]>, Undecodable> {
    if boundary.is_empty() || boundary.len() > 200 {
        return Err(Undecodable);
    }
    let mut delimiter = b"--".to_vec();
    delimiter.extend_from_slice(boundary);
    let mut parts = Vec::new();
    let mut start = None;
    let mut line = 0;
    while line < bytes.len() {
        let end = bytes[line..]
            .iter()
            .position(|b| *b == b'\n')
            .map_or(bytes.len(), |n| line + n + 1);
        let text = bytes[line..end].trim_ascii_end();
        if let Some(after) = text.strip_prefix(delimiter.as_slice()) {
            let last = after == b"--";
            if last || after.is_empty() {
                if let Some(start) = start {
                    // The line break before a delimiter belongs to the delimiter.
                    let mut until = line;
                    if until > start && bytes[until - 1] == b'\n' {
                        until -= 1;
                    }
                    if until > start && bytes[until - 1] == b'\r' {
                        until -= 1;
                    }
                    parts.push(&bytes[start..until]);
                }
                if last {
                    return Ok(parts);
                }
                if parts.len() > MOST_PARTS {
                    return Err(Undecodable);
                }
                start = Some(end);
            }
        }
        line = end;
    }
    // Without a closing delimiter something is missing.
    Err(Undecodable)
}

fn head_and_body(bytes: &[u8]) -> Result<(Headers, &[u8]), Undecodable> {
    let mut headers: Headers = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let end = bytes[at..]
            .iter()
            .position(|b| *b == b'\n')
            .map_or(bytes.len(), |n| at + n + 1);
        let line = bytes[at..end].trim_ascii_end();
        at = end;
        if line.is_empty() {
            return Ok((headers, &bytes[at..]));
        }
        let line = std::str::from_utf8(line).map_err(|_| Undecodable)?;
        if line.starts_with([' ', '\t']) {
            let (_, value) = headers.last_mut().ok_or(Undecodable)?;
            value.push(' ');
            value.push_str(line.trim());
            continue;
        }
        let (name, value) = line.split_once(':').ok_or(Undecodable)?;
        if name.is_empty()
            || headers.len() > MOST_PARTS
            || !name
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
        {
            return Err(Undecodable);
        }
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    Ok((headers, &[]))
}

fn find<'h>(headers: &'h Headers, name: &str) -> Option<&'h str> {
    headers
        .iter()
        .find(|(n, _)| n == name)
        .map(|(_, value)| value.as_str())
}

fn form_field(
    headers: &Headers,
    disposition: &str,
    body: &[u8],
    depth: usize,
) -> Result<Value<'static>, Undecodable> {
    let content_type = find(headers, "content-type");
    let value = decoded_content(headers, content_type, body, depth)?;
    let filename = parameter(disposition, "filename");
    let extra = headers.iter().filter(|(name, _)| {
        !matches!(
            name.as_str(),
            "content-disposition" | "content-type" | "content-length" | "content-transfer-encoding"
        )
    });
    let mut entries: Vec<(Cow<'static, str>, Value<'static>)> = Vec::new();
    if let Some(filename) = filename {
        entries.push(("filename".into(), Value::text(filename)));
    }
    for (name, header) in extra {
        entries.push((Cow::Owned(name.clone()), Value::text(header.clone())));
    }
    if let Some(content_type) = content_type.filter(|_| !entries.is_empty()) {
        entries.push(("content-type".into(), Value::text(media_type(content_type))));
    }
    if entries.is_empty() {
        return Ok(value);
    }
    entries.push(("content".into(), value));
    Ok(Value::Map(entries))
}

/// Headers and body as a tree. Framing (boundary, length, encoding) is not part of it.
fn entity(headers: &Headers, body: &[u8], depth: usize) -> Result<Value<'static>, Undecodable> {
    let content_type = find(headers, "content-type");
    let mut fields: Vec<(Cow<'static, str>, Value<'static>)> = Vec::new();
    for (name, value) in headers {
        let value = match name.as_str() {
            "content-length" | "content-transfer-encoding" => continue,
            "content-type" => Value::text(media_type(value)),
            "to" | "cc" | "bcc" | "reply-to" => addresses(value),
            _ => Value::text(words_decoded(value)),
        };
        super::add_repeatable(&mut fields, Cow::Owned(name.clone()), value);
    }
    let body = decoded_content(headers, content_type, body, depth)?;
    Ok(Value::Map(vec![
        ("headers".into(), Value::Map(fields)),
        ("body".into(), body),
    ]))
}

fn decoded_content(
    headers: &Headers,
    content_type: Option<&str>,
    body: &[u8],
    depth: usize,
) -> Result<Value<'static>, Undecodable> {
    if depth == 0 {
        return Err(Undecodable);
    }
    let encoding = find(headers, "content-transfer-encoding")
        .unwrap_or_default()
        .to_ascii_lowercase();
    let body: Cow<'_, [u8]> = match encoding.as_str() {
        "base64" => {
            let packed: Vec<u8> = body
                .iter()
                .copied()
                .filter(|b| !b.is_ascii_whitespace())
                .collect();
            Cow::Owned(STANDARD.decode(packed).map_err(|_| Undecodable)?)
        }
        "quoted-printable" => Cow::Owned(quoted_printable(body)),
        _ => Cow::Borrowed(body),
    };
    let kind = content_type.map(media_type).unwrap_or_default();
    if kind == "application/http" {
        return http_request(&body, depth - 1);
    }
    if kind == "message/rfc822" {
        let text = std::str::from_utf8(&body).map_err(|_| Undecodable)?;
        return message(text, depth - 1);
    }
    if kind.starts_with("multipart/") {
        return multipart(content_type.unwrap_or_default(), &body, depth - 1);
    }
    match std::str::from_utf8(&body) {
        Ok(text) => Ok(content(content_type, text, depth - 1).into_owned()),
        Err(_) => Ok(opaque(&body)),
    }
}

/// Bytes by length and digest.
pub(in crate::analyzer) fn opaque(bytes: &[u8]) -> Value<'static> {
    Value::Opaque(Cow::Owned(format!(
        "{} bytes, sha256 {}",
        bytes.len(),
        Digest::of(bytes)
    )))
}

fn addresses(value: &str) -> Value<'static> {
    let decoded = words_decoded(value);
    let mut list: Vec<Value<'static>> = decoded
        .split(',')
        .map(|one| Value::text(one.trim()))
        .filter(|one| !one.is_empty())
        .collect();
    if list.len() == 1 {
        list.remove(0)
    } else {
        Value::List(list)
    }
}

/// Decodes `=?utf-8?B?…?=` and `=?utf-8?Q?…?=`; anything else stays as it is.
fn words_decoded(value: &str) -> String {
    let mut out = String::new();
    let mut rest = value;
    while let Some((before, after)) = rest.split_once("=?") {
        let mut pieces = after.splitn(4, '?');
        let decoded = match (pieces.next(), pieces.next(), pieces.next(), pieces.next()) {
            (Some(charset), Some(kind), Some(data), Some(tail))
                if charset.eq_ignore_ascii_case("utf-8") && tail.starts_with('=') =>
            {
                let bytes = match kind {
                    "B" | "b" => STANDARD.decode(data).ok(),
                    "Q" | "q" => Some(quoted_printable(data.replace('_', " ").as_bytes())),
                    _ => None,
                };
                bytes
                    .and_then(|b| String::from_utf8(b).ok())
                    .map(|text| (text, &tail[1..]))
            }
            _ => None,
        };
        match decoded {
            Some((text, tail)) => {
                // Blanks between two encoded words are not part of the text.
                if !before.trim().is_empty() || out.is_empty() {
                    out.push_str(before);
                }
                out.push_str(&text);
                rest = tail;
            }
            None => {
                out.push_str(before);
                out.push_str("=?");
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

fn quoted_printable(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] != b'=' {
            out.push(bytes[at]);
            at += 1;
            continue;
        }
        let rest = &bytes[at + 1..];
        if rest.starts_with(b"\r\n") {
            at += 3;
        } else if rest.starts_with(b"\n") {
            at += 2;
        } else {
            let hex = |i: usize| rest.get(i).and_then(|b| char::from(*b).to_digit(16));
            match (hex(0), hex(1)) {
                (Some(high), Some(low)) => {
                    out.push((high * 16 + low) as u8);
                    at += 3;
                }
                _ => {
                    out.push(b'=');
                    at += 1;
                }
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn form_data_is_told_by_name() {
        let one = "--A\r\nContent-Disposition: form-data; name=\"x\"\r\n\r\n1\r\n--A\r\nContent-Disposition: form-data; name=\"f\"; filename=\"a.bin\"\r\n\r\nZ\r\n--A--\r\n";
        let value = multipart("multipart/form-data; boundary=A", one.as_bytes(), 4).unwrap();
        assert_eq!(value.get("x").and_then(Value::as_text), Some("1"));
        assert_eq!(
            value
                .get("f")
                .and_then(|f| f.get("filename"))
                .and_then(Value::as_text),
            Some("a.bin")
        );
        let cut = &one.as_bytes()[..one.len() - 8];
        assert!(multipart("multipart/form-data; boundary=A", cut, 4).is_err());
    }

    #[test]
    fn a_message_is_headers_and_body() {
        let mail = "From: a@example.com\nTo: b@example.com,\n c@example.com\nSubject: =?UTF-8?Q?Gr=C3=BC=C3=9Fe?=\n\nHi\n";
        let value = message(mail, 4).unwrap();
        let headers = value.get("headers").unwrap();
        assert_eq!(
            headers.get("subject").and_then(Value::as_text),
            Some("Grüße")
        );
        assert!(matches!(headers.get("to"), Some(Value::List(l)) if l.len() == 2));
        assert!(message("Hello: you\nWorld: me\n\nx", 4).is_err());
    }

    #[test]
    fn parameters_may_be_quoted() {
        assert_eq!(
            parameter("form-data; name=\"a;b\"; filename=x.txt", "filename").as_deref(),
            Some("x.txt")
        );
        assert_eq!(
            parameter("form-data; name=\"a\\\"b\"", "name").as_deref(),
            Some("a\"b")
        );
        assert_eq!(parameter("text/plain", "charset"), None);
    }
}
