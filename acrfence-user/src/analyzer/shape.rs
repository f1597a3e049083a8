//! What a value looks like.

/// Whether `text` looks like an identifier that stands for one particular thing, rather than a
/// word of an API: a number, a UUID (also an invalid one), a hash, a code with digits.
pub fn is_id_like(text: &str) -> bool {
    let digits = text.bytes().filter(u8::is_ascii_digit).count();
    let letters = text.bytes().filter(u8::is_ascii_alphabetic).count();
    if digits == 0 || text.len() > 512 {
        return false;
    }
    if letters == 0 {
        return true;
    }
    // `v1`, `2030-04-01` versions and `oauth2` are words of an API.
    let version = text.len() <= 4 && text.starts_with(['v', 'V']);
    !version && (digits >= 3 || digits + letters >= 8)
}
