//! What the first bytes of a connection say it is.

/// What a connection carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carries {
    /// A TLS handshake.
    Tls,
    /// An HTTP/1 request.
    Http1,
    /// HTTP/2 with prior knowledge.
    Http2,
    /// Something else.
    Other,
}

/// The connection preface of HTTP/2 (RFC 9113 §3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// A longer first word is no HTTP method.
const METHOD_MAX: usize = 32;
/// A longer first line is read by nobody.
const LINE_MAX: usize = 64 * 1024;

/// Says what `bytes` begin, or none when more of them are needed.
pub fn sniff(bytes: &[u8]) -> Option<Carries> {
    match bytes {
        [] => None,
        // Handshake record, version 3.x.
        [0x16] | [0x16, 0x03] => None,
        [0x16, 0x03, minor, ..] if *minor <= 4 => Some(Carries::Tls),
        _ => text(bytes),
    }
}

fn text(bytes: &[u8]) -> Option<Carries> {
    if bytes.starts_with(PREFACE) {
        return Some(Carries::Http2);
    }
    if PREFACE.starts_with(bytes) {
        return None;
    }
    // Empty lines before a request line are to be ignored (RFC 9112 §2.2).
    let line = {
        let skip = bytes
            .iter()
            .take_while(|b| matches!(b, b'\r' | b'\n'))
            .count();
        if skip > 8 {
            return Some(Carries::Other);
        }
        &bytes[skip..]
    };
    let strict = match line.iter().position(|b| *b == b' ') {
        Some(at) if at > 0 && is_method(&line[..at]) => request_line(&line[at + 1..]),
        None if line.len() <= METHOD_MAX && is_method(line) => Line::Pending,
        _ => Line::Otherwise,
    };
    match strict {
        Line::Http => Some(Carries::Http1),
        Line::Pending => None,
        Line::Otherwise => loosely(line),
    }
}

/// What a line is by the strict rule.
enum Line {
    Http,
    Otherwise,
    /// More of it is needed.
    Pending,
}

/// Methods are upper case in practice, and only in upper case can they be told from other words.
fn is_method(word: &[u8]) -> bool {
    word.len() <= METHOD_MAX
        && word
            .iter()
            .all(|b| b.is_ascii_uppercase() || matches!(b, b'-' | b'_'))
}

/// `GET /x HTTP/1.1`: a target that can stand in a request line, then the protocol's name. SMTP's
/// `HELO name` or a text protocol's `SET key` would otherwise pass.
fn request_line(target_on: &[u8]) -> Line {
    const VERSION: &[u8] = b" HTTP/1.";
    if target_on.first().is_some_and(|b| !b.is_ascii_graphic()) {
        return Line::Otherwise;
    }
    let end = target_on
        .iter()
        .position(|b| matches!(b, b' ' | b'\r' | b'\n'));
    // Too long to be read; as HTTP it is refused, as anything else it would pass.
    if end.unwrap_or(target_on.len()) > LINE_MAX {
        let is_target = target_on[0] == b'/' || target_on.starts_with(b"http");
        return if is_target {
            Line::Http
        } else {
            Line::Otherwise
        };
    }
    match end {
        Some(at) => {
            let rest = &target_on[at..];
            if rest.starts_with(VERSION) {
                Line::Http
            } else if VERSION.starts_with(rest) {
                Line::Pending
            } else {
                Line::Otherwise
            }
        }
        None => Line::Pending,
    }
}

/// A first line that names HTTP is taken for HTTP, whatever else is in it: `patch /x HTTP/1.1`, which
/// Node sends, is valid, and of `POST  /x HTTP/1.1` some servers make a request. What is no request is
/// refused; as anything else it would pass.
fn loosely(line: &[u8]) -> Option<Carries> {
    let is_text = |b: &u8| *b >= b' ' || matches!(b, b'\t' | b'\r' | 0x0b | 0x0c);
    let end = line.iter().take(LINE_MAX).position(|b| !is_text(b));
    let text = &line[..end.unwrap_or(line.len().min(LINE_MAX))];
    if !text.first().is_some_and(|b| is_token(*b)) {
        return (!line.is_empty()).then_some(Carries::Other);
    }
    let names_http = text.windows(7).any(|w| {
        matches!(w[0], b' ' | b'\t' | b'\r' | 0x0b | 0x0c)
            && w[1..6].eq_ignore_ascii_case(b"HTTP/")
            && w[6].is_ascii_digit()
    });
    if names_http {
        return Some(Carries::Http1);
    }
    (end.is_some() || line.len() >= LINE_MAX).then_some(Carries::Other)
}

/// What a method may be made of (RFC 9110 §5.6.2).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Says what a connection carries whose agent began a line and then waits: only half a line that begins
/// as a request does is worth more patience.
pub fn stalled(bytes: &[u8]) -> Option<Carries> {
    let word = bytes.split(|b| *b == b' ').next().unwrap_or_default();
    let http = PREFACE.starts_with(bytes) || is_method(word);
    let tls = bytes.first() == Some(&0x16);
    (!http && !tls && !bytes.is_empty()).then_some(Carries::Other)
}

/// What a connection that is neither TLS nor HTTP looks like, for a person to read.
pub fn guess(bytes: &[u8]) -> &'static str {
    match bytes {
        [b'S', b'S', b'H', b'-', ..] => "SSH",
        // Length, then the protocol version 3.0 or the request for TLS.
        [0, 0, _, _, 0, 3, 0, 0, ..] | [0, 0, 0, 8, 4, 0xd2, 0x16, 0x2f, ..] => "PostgreSQL",
        [b'*', b'0'..=b'9', ..] => "Redis",
        // OP_MSG or OP_QUERY of MongoDB, little-endian, after length and two ids.
        [_, _, _, 0, _, _, _, _, _, _, _, _, 0xdd, 7, 0, 0, ..]
        | [_, _, _, 0, _, _, _, _, _, _, _, _, 0xd4, 7, 0, 0, ..] => "MongoDB",
        [5, 1..=8, ..] => "SOCKS5 proxy",
        [4, 1, ..] => "SOCKS4 proxy",
        [0x10, ..] if bytes.windows(4).take(10).any(|w| w == b"MQTT") => "MQTT",
        [b'A', b'M', b'Q', b'P', ..] => "AMQP",
        _ => "neither TLS nor HTTP",
    }
}

/// Why a connection is opaque whose agent waits for the other side.
pub const SPEAKS_FIRST: &str = "the server speaks first";

/// Ports on which the server speaks first, so that waiting for the agent's first bytes is in vain.
pub fn server_speaks_first(port: u16) -> bool {
    matches!(
        port,
        21 | 22 | 23 | 25 | 110 | 119 | 143 | 587 | 2525 | 3306 | 5900 | 6667
    )
}

/// Ports on which TLS begins at once and carries no HTTP.
pub(super) fn tls_without_http(port: u16) -> bool {
    matches!(
        port,
        465 | 563 | 636 | 853 | 989 | 990 | 992 | 993 | 995 | 5671 | 6697 | 8883
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn beginnings() {
        for (bytes, carries) in [
            (&b"\x16\x03\x01\x02\x00"[..], Some(Carries::Tls)),
            (b"\x16", None),
            (b"GET / HTTP/1.1\r\n", Some(Carries::Http1)),
            (b"\r\nPOST /pay HTTP/1.0\r\n", Some(Carries::Http1)),
            (b"POST http://a/b HTTP/1.1\r\n", Some(Carries::Http1)),
            (b"CONNECT a:443 HTTP/1.1\r\n", Some(Carries::Http1)),
            (b"M-SEARCH * HTTP/1.1\r\n", Some(Carries::Http1)),
            (b"GE", None),
            (b"GET /long", None),
            (b"GET / HT", None),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Some(Carries::Http2)),
            (b"PRI * HTTP/2.0", None),
            (b"SSH-2.0-OpenSSH_9.2\r\n", Some(Carries::Other)),
            (b"EHLO example.org\r\n", Some(Carries::Other)),
            (b"\x00\x00\x00\x08\x04\xd2\x16\x2f", Some(Carries::Other)),
            (b"*1\r\n$4\r\nPING\r\n", Some(Carries::Other)),
            (b"SET key value\r\n", Some(Carries::Other)),
            (b"SET key value", None),
            // Node's fetch leaves a method in the case it was given.
            (b"patch /x HTTP/1.1\r\n", Some(Carries::Http1)),
            (b"patch /x", None),
            // Some servers make a request of these.
            (b"POST  /x HTTP/1.1\r\n", Some(Carries::Http1)),
            (b"POST\t/x\tHTTP/1.1\r\n", Some(Carries::Http1)),
            (b"POST /x http/1.1\r\n", Some(Carries::Http1)),
            (b"POST /x HTTP/2.0\r\n", Some(Carries::Http1)),
            (b"G.T /a b c HTTP/1.1\r\n", Some(Carries::Http1)),
            (b"{\"GET\": \"/ HTTP/1.1\"}\n", Some(Carries::Other)),
            (b"0\x0c\x02\x01\x01", Some(Carries::Other)),
            (b"003egit-upload-pack /x\0host=y\0", Some(Carries::Other)),
            (b"SIP/2.0 200 OK\r\nVia: HTTP/1.1\r\n", Some(Carries::Other)),
        ] {
            assert_eq!(sniff(bytes), carries, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn a_line_without_an_end_is_still_told_apart() {
        for (begin, carries) in [
            ("GET /", Carries::Http1),
            ("POST http://a/", Carries::Http1),
            ("SET ", Carries::Other),
            ("hello", Carries::Other),
        ] {
            let line = format!("{begin}{}", "a".repeat(LINE_MAX + 1));
            assert_eq!(sniff(line.as_bytes()), Some(carries), "{begin}");
        }
    }

    #[test]
    fn patience_is_for_what_begins_as_a_request_does() {
        for (bytes, patient) in [
            ("POS", true),
            ("POST /x", true),
            ("PRI * HTTP", true),
            ("\x16", true),
            ("", true),
            ("hello", false),
            ("patch /x", false),
        ] {
            assert_eq!(stalled(bytes.as_bytes()).is_none(), patient, "{bytes}");
        }
    }

    #[test]
    fn well_known_protocols_have_a_name() {
        assert_eq!(guess(b"\x00\x00\x00\x08\x04\xd2\x16\x2f"), "PostgreSQL");
        assert_eq!(guess(b"*1\r\n$4\r\nPING\r\n"), "Redis");
        assert_eq!(guess(b"\x05\x01\x00"), "SOCKS5 proxy");
        assert_eq!(guess(b""), "neither TLS nor HTTP");
    }

    proptest! {
        /// Once decided, more bytes change nothing; so the answer does not depend on how the
        /// bytes were cut into packets.
        #[test]
        fn decisions_stand(bytes in proptest::collection::vec(any::<u8>(), 0..64), cut in 0usize..64) {
            let cut = cut.min(bytes.len());
            if let Some(early) = sniff(&bytes[..cut]) {
                prop_assert_eq!(sniff(&bytes), Some(early));
            }
        }

        /// The same for bytes that nearly are a request.
        #[test]
        fn near_decisions_stand(
            words in proptest::collection::vec(
                proptest::sample::select(vec![
                    "GET", "patch", "PRI", " ", "  ", "\t", "/x", "*", "HTTP/1.1", " HTTP/", "1", "http/1", "\r\n", "\n", "\r",
                    "\0", "SM", "\x7f", "a.b", "{",
                ]),
                0..10,
            ),
            cut in 0usize..40,
        ) {
            let bytes = words.concat().into_bytes();
            let cut = cut.min(bytes.len());
            if let Some(early) = sniff(&bytes[..cut]) {
                prop_assert_eq!(sniff(&bytes), Some(early));
            }
        }

        #[test]
        fn every_request_line_is_http(method in "[A-Za-z]{1,12}", target in "/[!-~]{0,40}", minor in 0u8..2) {
            let line = format!("{method} {target} HTTP/1.{minor}\r\n");
            prop_assert_eq!(sniff(line.as_bytes()), Some(Carries::Http1));
        }
    }
}
