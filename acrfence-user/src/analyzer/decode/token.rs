//! Tokens that carry a readable payload: JWT and its relatives, base64 of JSON, base64 of text.

use std::borrow::Cow;

use base64::Engine as _;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use super::super::value::Value;
use super::Undecodable;

/// Name of the entry that holds the parts of a token that carry no payload.
pub(in crate::analyzer) const SIGNATURE: &str = "signature";

/// Largest token that is looked into.
const MOST_BYTES: usize = 64 << 10;

/// Reads `part.part…` where at least one part is base64 of a JSON object. Parts that are none are
/// collected as the signature.
pub(in crate::analyzer) fn read(text: &str) -> Result<Value<'static>, Undecodable> {
    if text.len() > MOST_BYTES || !text.contains('.') || text.contains(char::is_whitespace) {
        return Err(Undecodable);
    }
    let mut entries: Vec<(Cow<'static, str>, Value<'static>)> = Vec::new();
    let mut signature = Vec::new();
    let parts: Vec<&str> = text.split('.').collect();
    if parts.len() > 5 {
        return Err(Undecodable);
    }
    for part in &parts {
        match json(part) {
            Ok(value @ Value::Map(_)) => {
                // The header of a JWT names algorithm and key; its payload is what is granted.
                let header = entries.is_empty() && parts.len() >= 3 && value.get("alg").is_some();
                let name = if header { "header" } else { "claims" };
                super::add_repeatable(&mut entries, name.into(), value);
            }
            _ => signature.push(*part),
        }
    }
    if entries.is_empty() {
        return Err(Undecodable);
    }
    if !signature.is_empty() {
        entries.push((SIGNATURE.into(), Value::text(signature.join("."))));
    }
    Ok(Value::Map(entries))
}

/// Reads base64 (either alphabet, padded or not) of a JSON object or list.
pub(in crate::analyzer) fn json(text: &str) -> Result<Value<'static>, Undecodable> {
    let decoded = decode(text)?;
    let decoded = std::str::from_utf8(&decoded).map_err(|_| Undecodable)?;
    if !decoded.trim_start().starts_with(['{', '[']) {
        return Err(Undecodable);
    }
    super::json::read(decoded).map(Value::into_owned)
}

/// Reads base64 of readable text: several words, no control characters.
pub(in crate::analyzer) fn text(text: &str) -> Result<String, Undecodable> {
    let decoded = String::from_utf8(decode(text)?).map_err(|_| Undecodable)?;
    let readable = decoded
        .chars()
        .all(|c| !c.is_control() || matches!(c, '\n' | '\r' | '\t'));
    if readable && decoded.len() >= 16 && decoded.trim().contains([' ', '\n']) {
        Ok(decoded)
    } else {
        Err(Undecodable)
    }
}

fn decode(text: &str) -> Result<Vec<u8>, Undecodable> {
    let text = text.trim();
    if text.len() < 8 || text.len() > (1 << 20) {
        return Err(Undecodable);
    }
    // Line breaks inside are how MIME writes it.
    let packed: Cow<'_, str> = if text.contains(['\r', '\n']) {
        Cow::Owned(text.split_whitespace().collect())
    } else {
        Cow::Borrowed(text)
    };
    let config = GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true);
    let alphabet = if packed.contains(['-', '_']) {
        URL_SAFE
    } else {
        STANDARD
    };
    GeneralPurpose::new(&alphabet, config)
        .decode(packed.as_bytes())
        .map_err(|_| Undecodable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_read() {
        // {"op":"delete","n":"c1"} and a signature of another kind.
        let value = read("eyJvcCI6ImRlbGV0ZSIsIm4iOiJjMSJ9.d19f8d4406cb2c2c").unwrap();
        assert_eq!(
            value
                .get("claims")
                .and_then(|c| c.get("op"))
                .and_then(Value::as_text),
            Some("delete")
        );
        assert_eq!(
            value.get(SIGNATURE).and_then(Value::as_text),
            Some("d19f8d4406cb2c2c")
        );
        for bad in ["a.b.c", "example.com", "1.2.3", "eyJ.x", "v1.2"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn trailing_bits_do_not_make_two_tokens_one() {
        // Both decode to the same bytes; the comparison must still see that the text differs.
        assert!(json("eyJhIjoxfQ==").is_ok());
        assert!(json("not base64 at all").is_err());
        assert!(text("SGVsbG8gd29ybGQsIGhlcmU=").is_ok());
    }
}
