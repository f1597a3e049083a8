//! What RFC 9113 demands of a server, asked of the hook over TLS by a tracked process: section by section,
//! in the manner of `h2spec`. What must be refused never reaches the bank, and others are served meanwhile.

use acrfence_tests::odd::Odd;
use acrfence_tests::wire::kind::*;
use acrfence_tests::wire::{PREFACE, code::*, fields, flag, frame, setting};
use anyhow::{Context as _, Result};
use serde_json::Value;

/// What must come of it.
#[derive(Clone, Copy, Debug)]
enum Must {
    /// An error of the connection.
    End(u32),
    /// An error of the stream. It may be made one of the connection (§5.4), and a malformed request may
    /// be answered with a status that refuses it (§8.1.1).
    Reset(u32),
    /// An answer from the bank.
    Serve,
    /// By the RFC, an error. The HTTP/2 library takes away what is wrong before anybody sees it: what is decided is
    /// what is sent, and it is served.
    Mend,
}

/// A case: the section that demands it, what it is, and the bytes after the preface.
struct Case(&'static str, &'static str, Must, Vec<u8>);

/// What came back.
struct Got {
    frames: Vec<(u8, u8, u32, Vec<u8>)>,
    closed: bool,
}

impl Got {
    fn read(said: &str) -> Result<Self> {
        let said: Value = serde_json::from_str(said)?;
        let frames = said["frames"].as_array().context("frames")?;
        let frames = frames.iter().map(|frame| {
            let number = |at: usize| frame[at].as_u64().context("a number");
            let payload = hex::decode(frame[3].as_str().context("a payload")?)?;
            Ok((
                u8::try_from(number(0)?)?,
                u8::try_from(number(1)?)?,
                u32::try_from(number(2)?)?,
                payload,
            ))
        });
        Ok(Self {
            frames: frames.collect::<Result<_>>()?,
            closed: said["closed"].as_bool().context("closed")?,
        })
    }

    fn code(&self, wanted: u8, at: usize) -> Option<u32> {
        let frame = self.frames.iter().find(|frame| frame.0 == wanted)?;
        Some(u32::from_be_bytes(
            frame.3.get(at..at + 4)?.try_into().ok()?,
        ))
    }

    /// The code with which the connection was ended.
    fn ended(&self) -> Option<u32> {
        self.code(GOAWAY, 4)
    }

    /// The code with which a stream was ended.
    fn reset(&self) -> Option<u32> {
        self.code(RST_STREAM, 0)
    }

    /// The status of the answer, where HPACK writes it with one byte or three digits.
    fn status(&self) -> Option<u16> {
        let block = &self.frames.iter().find(|frame| frame.0 == HEADERS)?.3;
        match *block.first()? {
            0x88 => Some(200),
            0x89 => Some(204),
            0x8b => Some(304),
            0x8c => Some(400),
            0x8d => Some(404),
            0x8e => Some(500),
            // A literal with the name `:status`, in Huffman's code or without it.
            _ => Some(0),
        }
    }

    fn says(&self) -> String {
        let mut said = Vec::new();
        said.extend(self.ended().map(|code| format!("GOAWAY {code}")));
        said.extend(self.reset().map(|code| format!("RST_STREAM {code}")));
        said.extend(self.status().map(|status| format!("status {status}")));
        if self.closed {
            said.push("closed".into());
        }
        said.join(", ")
    }

    /// Whether this is what must be.
    fn is(&self, must: Must) -> bool {
        let gone = self.closed || self.ended().is_some_and(|code| code != NO_ERROR);
        match must {
            Must::End(_) => gone && self.status().is_none(),
            Must::Reset(_) => {
                let refused = self.reset().is_some_and(|code| code != NO_ERROR);
                let answered = self.status().is_some_and(|status| status != 400);
                (gone || refused || self.status() == Some(400)) && !answered
            }
            Must::Serve | Must::Mend => {
                self.status() == Some(200) && self.ended().is_none() && !self.closed
            }
        }
    }

    /// Whether the code is the one that the section names.
    fn is_to_the_letter(&self, must: Must) -> bool {
        match must {
            Must::End(code) => self.ended() == Some(code),
            Must::Reset(code) => {
                self.reset() == Some(code) || (code == PROTOCOL_ERROR && self.status() == Some(400))
            }
            Must::Serve => true,
            Must::Mend => false,
        }
    }
}

type Fields<'a> = Vec<(&'a str, &'a str)>;

/// A transfer, as far as its fields go.
fn pay<'a>(authority: &'a str) -> Fields<'a> {
    vec![
        (":method", "POST"),
        (":scheme", "https"),
        (":authority", authority),
        (":path", "/v1/transfers"),
    ]
}

/// A question.
fn ask<'a>(authority: &'a str) -> Fields<'a> {
    vec![
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", authority),
        (":path", "/v1/balance"),
    ]
}

const WHOLE: u8 = flag::END_STREAM | flag::END_HEADERS;
const BEGUN: u8 = flag::END_HEADERS;

fn headers(flags: u8, stream: u32, list: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, flags, stream, &fields(list))
}

fn settings(list: &[u8]) -> Vec<u8> {
    frame(SETTINGS, 0, 0, list)
}

/// Sections 3 to 6: frames, streams, and what each type of frame may say.
#[rustfmt::skip]
fn frames(authority: &str) -> Vec<Case> {
    use Must::{End, Reset, Serve};
    let (pay, ask) = (&pay(authority)[..], &ask(authority)[..]);
    let (paid, asked) = (fields(pay), fields(ask));
    let whole = |stream| headers(WHOLE, stream, ask);
    let begun = |stream| headers(BEGUN, stream, pay);
    let reset = |stream| frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]);
    let and = |parts: &[Vec<u8>]| parts.concat();
    let then = |bytes: Vec<u8>| [bytes, headers(WHOLE, 1, ask)].concat();
    let window = |stream, by: u32| frame(WINDOW_UPDATE, 0, stream, &by.to_be_bytes());
    const MOST: u32 = 0x7fff_ffff;
    vec![
        Case("4.1", "a type of frame that nobody knows", Serve, then(frame(0xbe, 0xff, 0, b"what"))),
        Case("4.1", "flags that nobody knows", Serve, frame(HEADERS, WHOLE | 0xc2, 1, &asked)),
        Case("4.1", "the reserved bit of a stream's number", Serve, headers(WHOLE, 1 | 0x8000_0000, ask)),
        Case("4.2", "DATA larger than allowed", End(FRAME_SIZE_ERROR), and(&[begun(1), frame(DATA, 0, 1, &[0; 20_000])])),
        Case("4.2", "HEADERS larger than allowed", End(FRAME_SIZE_ERROR), frame(HEADERS, WHOLE, 1, &[0; 20_000])),
        Case("4.2", "DATA as large as allowed", Serve, and(&[headers(BEGUN, 1, ask), frame(DATA, flag::END_STREAM, 1, &[0; 16_384])])),
        Case("4.3", "fields that are no HPACK", End(COMPRESSION_ERROR), frame(HEADERS, WHOLE, 1, &[0xff; 12])),
        Case("4.3", "PRIORITY between fields", End(PROTOCOL_ERROR), and(&[frame(HEADERS, 0, 1, &paid), frame(PRIORITY, 0, 1, &[0; 5]), frame(CONTINUATION, BEGUN, 1, b"")])),
        Case("4.3", "fields that go on in another stream", End(PROTOCOL_ERROR), and(&[frame(HEADERS, 0, 1, &paid), frame(CONTINUATION, BEGUN, 3, b"")])),
        Case("4.3", "another stream between fields", End(PROTOCOL_ERROR), and(&[frame(HEADERS, 0, 1, &paid), whole(3)])),
        Case("5.1", "DATA on an idle stream", End(PROTOCOL_ERROR), frame(DATA, flag::END_STREAM, 1, b"x")),
        Case("5.1", "RST_STREAM on an idle stream", End(PROTOCOL_ERROR), reset(1)),
        Case("5.1", "WINDOW_UPDATE on an idle stream", End(PROTOCOL_ERROR), window(1, 1)),
        Case("5.1", "CONTINUATION on an idle stream", End(PROTOCOL_ERROR), frame(CONTINUATION, BEGUN, 1, &paid)),
        Case("5.1", "PRIORITY on an idle stream", Serve, then(frame(PRIORITY, 0, 3, &[0, 0, 0, 0, 15]))),
        Case("5.1", "WINDOW_UPDATE on a stream that the client ended", Serve, and(&[whole(1), window(1, 100)])),
        Case("5.1", "PRIORITY on a stream that the client ended", Serve, and(&[whole(1), frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 15])])),
        Case("5.1", "DATA on a stream that was reset", Reset(STREAM_CLOSED), and(&[begun(1), reset(1), frame(DATA, flag::END_STREAM, 1, b"x")])),
        Case("5.1", "HEADERS on a stream that was reset", Reset(STREAM_CLOSED), and(&[begun(1), reset(1), begun(1)])),
        Case("5.1", "CONTINUATION on a stream that was reset", End(PROTOCOL_ERROR), and(&[begun(1), reset(1), frame(CONTINUATION, BEGUN, 1, &paid)])),
        Case("5.1.1", "a stream of a server's number", End(PROTOCOL_ERROR), begun(2)),
        Case("5.1.1", "stream numbers that go back", End(PROTOCOL_ERROR), and(&[begun(5), begun(3)])),
        Case("5.5", "an unknown frame between fields", End(PROTOCOL_ERROR), and(&[frame(HEADERS, 0, 1, &paid), frame(0xbe, 0, 1, b"what"), frame(CONTINUATION, BEGUN, 1, b"")])),
        Case("6.1", "DATA on the connection", End(PROTOCOL_ERROR), frame(DATA, 0, 0, b"x")),
        Case("6.1", "DATA padded beyond its end", End(PROTOCOL_ERROR), and(&[begun(1), frame(DATA, flag::PADDED | flag::END_STREAM, 1, &[6, 1, 2, 3, 4, 5])])),
        Case("6.1", "DATA of nothing but padding", Serve, and(&[headers(BEGUN, 1, ask), frame(DATA, flag::PADDED | flag::END_STREAM, 1, &[5, 0, 0, 0, 0, 0])])),
        Case("6.2", "HEADERS on the connection", End(PROTOCOL_ERROR), frame(HEADERS, WHOLE, 0, &paid)),
        Case("6.2", "HEADERS padded beyond their end", End(PROTOCOL_ERROR), frame(HEADERS, WHOLE | flag::PADDED, 1, &[&[200], &paid[..]].concat())),
        Case("6.2", "HEADERS with padding and a priority", Serve, frame(HEADERS, WHOLE | flag::PADDED | flag::PRIORITY, 1, &[&[3, 0, 0, 0, 0, 15], &asked[..], &[0; 3]].concat())),
        Case("6.2", "HEADERS too short for their priority", End(FRAME_SIZE_ERROR), frame(HEADERS, WHOLE | flag::PRIORITY, 1, &[0; 3])),
        Case("6.3", "PRIORITY on the connection", End(PROTOCOL_ERROR), frame(PRIORITY, 0, 0, &[0, 0, 0, 0, 15])),
        Case("6.3", "PRIORITY of a wrong length", Reset(FRAME_SIZE_ERROR), frame(PRIORITY, 0, 1, &[0; 4])),
        Case("6.3", "PRIORITY of a stream that hangs on itself", Reset(PROTOCOL_ERROR), and(&[begun(1), frame(PRIORITY, 0, 1, &[0, 0, 0, 1, 15])])),
        Case("6.3", "HEADERS of a stream that hangs on itself", Reset(PROTOCOL_ERROR), frame(HEADERS, WHOLE | flag::PRIORITY, 1, &[&[0, 0, 0, 1, 15], &paid[..]].concat())),
        Case("6.4", "RST_STREAM on the connection", End(PROTOCOL_ERROR), reset(0)),
        Case("6.4", "RST_STREAM of a wrong length", End(FRAME_SIZE_ERROR), and(&[begun(1), frame(RST_STREAM, 0, 1, &[0; 3])])),
        Case("6.5", "SETTINGS that acknowledge and say something", End(FRAME_SIZE_ERROR), frame(SETTINGS, flag::ACK, 0, &setting(1, 1))),
        Case("6.5", "SETTINGS on a stream", End(PROTOCOL_ERROR), frame(SETTINGS, 0, 1, &setting(3, 9))),
        Case("6.5", "SETTINGS of a wrong length", End(FRAME_SIZE_ERROR), frame(SETTINGS, 0, 0, &[0; 3])),
        Case("6.5.2", "a push setting that is none", End(PROTOCOL_ERROR), settings(&setting(2, 2))),
        Case("6.5.2", "a window beyond all bounds", End(FLOW_CONTROL_ERROR), settings(&setting(4, 0x8000_0000))),
        Case("6.5.2", "frames smaller than allowed", End(PROTOCOL_ERROR), settings(&setting(5, 16_383))),
        Case("6.5.2", "frames larger than allowed", End(PROTOCOL_ERROR), settings(&setting(5, 16_777_216))),
        Case("6.5.2", "a setting that nobody knows", Serve, then(settings(&setting(0xff, 1)))),
        Case("6.5.3", "the same setting twice", Serve, then(settings(&[setting(3, 1), setting(3, 100)].concat()))),
        Case("6.6", "PUSH_PROMISE from a client", End(PROTOCOL_ERROR), and(&[begun(1), frame(PUSH_PROMISE, BEGUN, 1, &[&[0, 0, 0, 2], &paid[..]].concat())])),
        Case("6.7", "PING that acknowledges nothing", Serve, then(frame(PING, flag::ACK, 0, &[7; 8]))),
        Case("6.7", "PING on a stream", End(PROTOCOL_ERROR), frame(PING, 0, 1, &[0; 8])),
        Case("6.7", "PING of a wrong length", End(FRAME_SIZE_ERROR), frame(PING, 0, 0, &[0; 6])),
        Case("6.8", "GOAWAY on a stream", End(PROTOCOL_ERROR), frame(GOAWAY, 0, 1, &[0; 8])),
        Case("6.8", "GOAWAY of a wrong length", End(FRAME_SIZE_ERROR), frame(GOAWAY, 0, 0, &[0; 7])),
        Case("6.9", "a window of the connection opened by nothing", End(PROTOCOL_ERROR), window(0, 0)),
        Case("6.9", "a window opened by nothing", Reset(PROTOCOL_ERROR), and(&[begun(1), window(1, 0)])),
        Case("6.9", "WINDOW_UPDATE of a wrong length", End(FRAME_SIZE_ERROR), frame(WINDOW_UPDATE, 0, 0, &[0, 0, 1])),
        Case("6.9.1", "a window of the connection beyond all bounds", End(FLOW_CONTROL_ERROR), and(&[window(0, MOST), window(0, MOST)])),
        Case("6.9.1", "a window beyond all bounds", Reset(FLOW_CONTROL_ERROR), and(&[begun(1), window(1, MOST), window(1, MOST)])),
        Case("6.9.2", "a window that a setting opens beyond all bounds", End(FLOW_CONTROL_ERROR), and(&[begun(1), window(1, MOST - 65_535), settings(&setting(4, 65_536))])),
        Case("6.9.2", "a window that was shut, and opened later", Serve, and(&[settings(&setting(4, 0)), whole(1), settings(&setting(4, 65_535))])),
        Case("6.10", "CONTINUATION on the connection", End(PROTOCOL_ERROR), and(&[frame(HEADERS, 0, 1, &paid), frame(CONTINUATION, BEGUN, 0, b"")])),
        Case("6.10", "CONTINUATION after whole fields", End(PROTOCOL_ERROR), and(&[begun(1), frame(CONTINUATION, BEGUN, 1, &paid)])),
        Case("6.10", "CONTINUATION after the last", End(PROTOCOL_ERROR), and(&[frame(HEADERS, 0, 1, &paid), frame(CONTINUATION, BEGUN, 1, b""), frame(CONTINUATION, BEGUN, 1, b"")])),
        Case("6.10", "CONTINUATION after DATA", End(PROTOCOL_ERROR), and(&[begun(1), frame(DATA, 0, 1, b"x"), frame(CONTINUATION, BEGUN, 1, &paid)])),
        Case("6.10", "fields in many pieces", Serve, {
            let (first, rest) = asked.split_at(3);
            let (second, third) = rest.split_at(9);
            and(&[
                frame(HEADERS, flag::END_STREAM, 1, first),
                frame(CONTINUATION, 0, 1, second),
                frame(CONTINUATION, BEGUN, 1, third),
            ])
        }),
    ]
}

/// Section 8: requests. And RFC 7541: how fields are packed.
#[rustfmt::skip]
fn requests(authority: &str) -> Vec<Case> {
    use Must::{End, Mend, Reset, Serve};
    let (pay, ask) = (&pay(authority)[..], &ask(authority)[..]);
    let with = |name: &'static str, value: &'static str| {
        headers(WHOLE, 1, &[pay, &[(name, value)]].concat())
    };
    let without = |name: &str| {
        let kept: Vec<_> = pay
            .iter()
            .filter(|field| field.0 != name)
            .copied()
            .collect();
        headers(WHOLE, 1, &kept)
    };
    let instead = |name: &str, value: &'static str| {
        let changed = |&(n, v)| if n == name { (n, value) } else { (n, v) };
        headers(WHOLE, 1, &pay.iter().map(changed).collect::<Vec<_>>())
    };
    let long = |length: &'static str, data: &[&[u8]]| {
        let mut bytes = headers(BEGUN, 1, &[pay, &[("content-length", length)]].concat());
        for (at, piece) in data.iter().enumerate() {
            let last = if at + 1 == data.len() {
                flag::END_STREAM
            } else {
                0
            };
            bytes.extend(frame(DATA, last, 1, piece));
        }
        bytes
    };
    let trailers = |flags, list: &[(&str, &str)]| {
        [
            headers(BEGUN, 1, pay),
            frame(DATA, 0, 1, b"{}"),
            headers(flags, 1, list),
        ]
        .concat()
    };
    let packed = |block: &[u8]| frame(HEADERS, WHOLE, 1, &[&fields(pay), block].concat());
    let mut cases = vec![
        Case("8.1", "trailers that do not end the stream", Reset(PROTOCOL_ERROR), trailers(BEGUN, &[("x-sum", "1")])),
        Case("8.1", "trailers that are a request", Mend, [headers(BEGUN, 1, ask), headers(WHOLE, 1, pay)].concat()),
        Case("8.1.1", "more than the length said", Reset(PROTOCOL_ERROR), long("1", &[b"xyz"])),
        Case("8.1.1", "less than the length said", Reset(PROTOCOL_ERROR), long("9", &[b"xyz"])),
        Case("8.1.1", "more than the length said, in pieces", Reset(PROTOCOL_ERROR), long("1", &[b"x", b"yz"])),
        Case("8.1.1", "a length, and nothing", Reset(PROTOCOL_ERROR), with("content-length", "1")),
        Case("8.1.1", "a length that is none", Reset(PROTOCOL_ERROR), long("+1", &[b"x"])),
        Case("8.1.1", "two lengths", Reset(PROTOCOL_ERROR), headers(WHOLE, 1, &[pay, &[("content-length", "0"), ("content-length", "1")]].concat())),
        Case("8.2.1", "a name in upper case", Reset(PROTOCOL_ERROR), with("X-Upper", "1")),
        Case("8.2.1", "a name with a space", Reset(PROTOCOL_ERROR), with("x y", "1")),
        Case("8.2.1", "a name with a colon", Reset(PROTOCOL_ERROR), with("x:y", "1")),
        Case("8.2.1", "a name with a line end", Reset(PROTOCOL_ERROR), with("x\r\ny", "1")),
        Case("8.2.1", "a name in bytes beyond ASCII", Reset(PROTOCOL_ERROR), with("x-ü", "1")),
        Case("8.2.1", "no name", Reset(PROTOCOL_ERROR), with("", "1")),
        Case("8.2.1", "a line end in a value", Reset(PROTOCOL_ERROR), with("x", "a\r\nhost: b")),
        Case("8.2.1", "a line feed in a value", Reset(PROTOCOL_ERROR), with("x", "a\nb")),
        Case("8.2.1", "a zero in a value", Reset(PROTOCOL_ERROR), with("x", "a\0b")),
        Case("8.2.1", "a space before a value", Reset(PROTOCOL_ERROR), with("x", " a")),
        Case("8.2.1", "a tab after a value", Reset(PROTOCOL_ERROR), with("x", "a\t")),
        Case("8.2.2", "Connection", Reset(PROTOCOL_ERROR), with("connection", "close")),
        Case("8.2.2", "Proxy-Connection", Reset(PROTOCOL_ERROR), with("proxy-connection", "close")),
        Case("8.2.2", "Keep-Alive", Reset(PROTOCOL_ERROR), with("keep-alive", "timeout=5")),
        Case("8.2.2", "Transfer-Encoding", Reset(PROTOCOL_ERROR), with("transfer-encoding", "chunked")),
        Case("8.2.2", "Upgrade", Reset(PROTOCOL_ERROR), with("upgrade", "websocket")),
        Case("8.2.2", "TE that is not trailers", Reset(PROTOCOL_ERROR), with("te", "trailers, deflate")),
        Case("8.2.2", "TE that is trailers", Serve, headers(WHOLE, 1, &[ask, &[("te", "trailers")]].concat())),
        Case("8.3", "a pseudo field that is none", Reset(PROTOCOL_ERROR), with(":odd", "1")),
        Case("8.3", "a pseudo field of responses", Reset(PROTOCOL_ERROR), with(":status", "200")),
        Case("8.3", "a pseudo field after others", Reset(PROTOCOL_ERROR), headers(WHOLE, 1, &[&pay[..3], &[("x", "1")], &pay[3..]].concat())),
        Case("8.3.1", "no method", Reset(PROTOCOL_ERROR), without(":method")),
        Case("8.3.1", "no scheme", Reset(PROTOCOL_ERROR), without(":scheme")),
        Case("8.3.1", "no path", Reset(PROTOCOL_ERROR), without(":path")),
        Case("8.3.1", "an empty path", Reset(PROTOCOL_ERROR), instead(":path", "")),
        Case("8.3.1", "a path without a slash", Reset(PROTOCOL_ERROR), instead(":path", "v1/transfers")),
        Case("8.3.1", "a path that is a whole URL", Reset(PROTOCOL_ERROR), instead(":path", "https://localhost/v1/transfers")),
        Case("8.3.1", "an asterisk that is not of OPTIONS", Reset(PROTOCOL_ERROR), instead(":path", "*")),
        Case("8.3.1", "a path with a line end", Reset(PROTOCOL_ERROR), instead(":path", "/v1/transfers\r\nx: y")),
        Case("8.3.1", "a path with a space", Reset(PROTOCOL_ERROR), instead(":path", "/v1/transfers HTTP/1.1")),
        Case("8.3.1", "a path with a fragment", Mend, headers(WHOLE, 1, &[&ask[..3], &[(":path", "/v1/balance#x")]].concat())),
        Case("8.3.1", "an empty method", Reset(PROTOCOL_ERROR), instead(":method", "")),
        Case("8.3.1", "a method with a space", Reset(PROTOCOL_ERROR), instead(":method", "POST /x")),
        Case("8.3.1", "a scheme that is none", Reset(PROTOCOL_ERROR), instead(":scheme", "ht tp")),
        Case("8.3.1", "an authority with a user", Reset(PROTOCOL_ERROR), instead(":authority", "me@localhost")),
        Case("8.3.1", "an authority that is none", Reset(PROTOCOL_ERROR), instead(":authority", "local host")),
        Case("8.3.1", "a Host that is another", Reset(PROTOCOL_ERROR), with("host", "example.com")),
        Case("8.3.1", "no authority and no Host", Reset(PROTOCOL_ERROR), without(":authority")),
        Case("8.3.1", "a path twice", Reset(PROTOCOL_ERROR), with(":path", "/other")),
        Case("8.3.1", "a method twice", Reset(PROTOCOL_ERROR), with(":method", "GET")),
        Case("8.3.1", "a scheme twice", Reset(PROTOCOL_ERROR), with(":scheme", "http")),
        Case("8.3.1", "an authority twice", Reset(PROTOCOL_ERROR), with(":authority", "localhost")),
        Case("8.5", "CONNECT with a path", Reset(PROTOCOL_ERROR), instead(":method", "CONNECT")),
        Case("7541 2.3.3", "an index beyond the table", End(COMPRESSION_ERROR), packed(&[0xff, 0x80, 1])),
        Case("7541 2.3.3", "a name's index beyond the table", End(COMPRESSION_ERROR), packed(&[0x7f, 0x80, 1, 1, b'x'])),
        Case("7541 4.2", "a table that changes after fields", End(COMPRESSION_ERROR), packed(&[0x20])),
        Case("7541 5.2", "more padding than Huffman's code has", End(COMPRESSION_ERROR), packed(&[0, 1, b'x', 0x83, 0x1f, 0xff, 0xff])),
        Case("7541 5.2", "padding with zeros", End(COMPRESSION_ERROR), packed(&[0, 1, b'x', 0x81, 0x18])),
        Case("7541 5.2", "an end in the middle of a string", End(COMPRESSION_ERROR), packed(&[0, 1, b'x', 0x84, 0xff, 0xff, 0xff, 0xff])),
        Case("7541 5.1", "a number without end", End(COMPRESSION_ERROR), packed(&[[0x7f].as_slice(), &[0xff; 12]].concat())),
        Case("7541 6.1", "the index zero", End(COMPRESSION_ERROR), packed(&[0x80])),
        Case("7541 6.3", "a table larger than allowed", End(COMPRESSION_ERROR), frame(HEADERS, WHOLE, 1, &[&[0x3f, 0xff, 0xff, 0x7f], &fields(pay)[..]].concat())),
        Case("7541 5.2", "a string that ends too early", End(COMPRESSION_ERROR), packed(&[0, 1, b'x', 9, b'y'])),
    ];
    // A field put into the table by one request and named by its number in the next.
    let first = [&fields(ask)[..], &[0x40, 1, b'x', 1, b'y']].concat();
    let second = [&fields(ask)[..], &[0x80 | 62]].concat();
    let both = [
        frame(HEADERS, WHOLE, 1, &first),
        frame(HEADERS, WHOLE, 3, &second),
    ]
    .concat();
    cases.push(Case(
        "7541 2.3.2",
        "a field that an earlier request put into the table",
        Serve,
        both,
    ));
    cases
}

#[test]
fn the_hook_does_what_rfc_9113_demands() -> Result<()> {
    let mut odd = Odd::start()?;
    let name = odd.name();
    let start = [PREFACE, &settings(&[])].concat();
    let mut cases: Vec<(Case, bool)> = [frames(&name), requests(&name)]
        .into_iter()
        .flatten()
        .map(|case| (case, true))
        .collect();
    // §3.4: what comes before anything else.
    let preface = |what, must, bytes| (Case("3.4", what, must, bytes), false);
    let end = Must::End(PROTOCOL_ERROR);
    cases.push(preface(
        "a preface that is none",
        end,
        b"INVALID PREFACE\r\n\r\n-- --\r\n\r\n".to_vec(),
    ));
    cases.push(preface(
        "a request of HTTP/1.1",
        end,
        b"POST /v1/transfers HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}".to_vec(),
    ));
    cases.push(preface(
        "no SETTINGS after the preface",
        Must::Mend,
        [PREFACE, &headers(WHOLE, 1, &ask(&name))].concat(),
    ));
    let (mut wrong, mut letters, mut sent) = (Vec::new(), 0, 0);
    for (Case(section, what, must, bytes), prefaced) in &cases {
        let bytes = match prefaced {
            true => [&start[..], bytes].concat(),
            false => bytes.clone(),
        };
        let (said, reached) = odd.send("h2", &bytes)?;
        let got = Got::read(&said)?;
        let to_the_letter = got.is_to_the_letter(*must);
        letters += usize::from(to_the_letter);
        let mark = if to_the_letter { "=" } else { "~" };
        println!(
            "{mark} {section:10} {what}: must {must:?}, got {}",
            got.says()
        );
        let may_reach = matches!(must, Must::Serve | Must::Mend);
        sent += reached;
        if !got.is(*must) || (reached > 0) != may_reach {
            wrong.push(format!(
                "{section} {what}: must {must:?}, got {}, {reached} requests",
                got.says()
            ));
        }
        // Everybody else is served as before.
        odd.others_are_served(what)?;
    }
    println!(
        "{} cases, {letters} to the letter, {sent} requests of theirs",
        cases.len()
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // None of it was taken for an effect.
    assert_eq!(odd.fence.effects("raw")?.len(), 0);
    assert_eq!(odd.bank.payments(), cases.len());
    Ok(())
}
