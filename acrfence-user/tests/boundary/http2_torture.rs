//! Frames that no client may send: RFC 9113 says how each is answered. None may become a call, and
//! none may harm anybody else.

use std::time::Duration;

use acrfence_user::words::{Body, Ending, Response as Recorded};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::hook::{Hook, Http2, post, text};
use crate::site::{Site, bank};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const REFUSED_STREAM: u32 = 7;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ACK: u8 = 1;
const PADDED: u8 = 8;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Fields as literals without indexing (RFC 7541, 6.2.2), uncompressed.
fn fields(list: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in list {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend(text.as_bytes());
        }
    }
    block
}

const REQUEST: [(&str, &str); 4] = [
    (":method", "POST"),
    (":scheme", "http"),
    (":authority", "bank.test"),
    (":path", "/pay"),
];

/// A request for stream 1 that goes on, with these fields besides.
fn request(more: &[(&str, &str)]) -> Vec<u8> {
    frame(
        HEADERS,
        END_HEADERS,
        1,
        &fields(&[&REQUEST[..], more].concat()),
    )
}

/// A whole request with exactly these fields.
fn odd(list: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, 1, &fields(list))
}

/// How an odd thing was answered.
#[derive(Debug, PartialEq)]
enum Answer {
    /// GOAWAY with this code, or the connection was just closed.
    Gone(Option<u32>),
    /// RST_STREAM with this code.
    Reset(u32),
    /// A response.
    Response,
}

async fn answer(stream: &mut tokio::net::TcpStream) -> Answer {
    loop {
        let mut head = [0; 9];
        if stream.read_exact(&mut head).await.is_err() {
            return Answer::Gone(None);
        }
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let mut payload = vec![0; length];
        if stream.read_exact(&mut payload).await.is_err() {
            return Answer::Gone(None);
        }
        let number = |at: usize| {
            let bytes = payload.get(at..at + 4).expect("a code");
            u32::from_be_bytes(bytes.try_into().unwrap())
        };
        match head[3] {
            GOAWAY => return Answer::Gone(Some(number(4))),
            RST_STREAM => return Answer::Reset(number(0)),
            HEADERS => return Answer::Response,
            _ => {}
        }
    }
}

#[tokio::test]
async fn frames_that_nobody_may_send_are_no_calls_and_harm_nobody() {
    let site = Site::plain(bank()).await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let with = |name: &str, value: &str| {
        let more = [(name.to_owned(), value.to_owned())];
        let more: Vec<_> = more.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        odd(&[&REQUEST[..], &more].concat())
    };
    let without = |name: &str| {
        let kept: Vec<_> = REQUEST
            .iter()
            .filter(|(n, _)| *n != name)
            .copied()
            .collect();
        odd(&kept)
    };
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("DATA on the connection", frame(DATA, 0, 0, b"x")),
        ("DATA on an idle stream", frame(DATA, 0, 1, b"x")),
        (
            "DATA padded beyond its end",
            [request(&[]), frame(DATA, PADDED, 1, &[9, 1])].concat(),
        ),
        (
            "HEADERS on the connection",
            frame(HEADERS, END_HEADERS | END_STREAM, 0, &fields(&REQUEST)),
        ),
        (
            "a stream of the server's number",
            frame(HEADERS, END_HEADERS | END_STREAM, 2, &fields(&REQUEST)),
        ),
        (
            "HEADERS padded beyond their end",
            frame(HEADERS, END_HEADERS | PADDED, 1, &[200, 0]),
        ),
        ("PRIORITY of a wrong length", frame(PRIORITY, 0, 1, &[0; 4])),
        (
            "RST_STREAM on the connection",
            frame(RST_STREAM, 0, 0, &[0; 4]),
        ),
        (
            "RST_STREAM on an idle stream",
            frame(RST_STREAM, 0, 1, &[0; 4]),
        ),
        (
            "RST_STREAM of a wrong length",
            [request(&[]), frame(RST_STREAM, 0, 1, &[0; 3])].concat(),
        ),
        ("SETTINGS of a wrong length", frame(SETTINGS, 0, 0, &[0; 5])),
        ("SETTINGS on a stream", frame(SETTINGS, 0, 1, &[])),
        (
            "SETTINGS that acknowledge and say something",
            frame(SETTINGS, ACK, 0, &[0; 6]),
        ),
        (
            "a push setting that is none",
            frame(SETTINGS, 0, 0, &[0, 2, 0, 0, 0, 2]),
        ),
        (
            "a window beyond all bounds",
            frame(SETTINGS, 0, 0, &[0, 4, 0x80, 0, 0, 0]),
        ),
        (
            "frames smaller than allowed",
            frame(SETTINGS, 0, 0, &[0, 5, 0, 0, 0, 1]),
        ),
        (
            "PUSH_PROMISE from a client",
            frame(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2]),
        ),
        ("PING of a wrong length", frame(PING, 0, 0, &[0; 7])),
        ("PING on a stream", frame(PING, 0, 1, &[0; 8])),
        ("GOAWAY on a stream", frame(GOAWAY, 0, 1, &[0; 8])),
        (
            "a window of the connection opened by nothing",
            frame(WINDOW_UPDATE, 0, 0, &[0; 4]),
        ),
        (
            "a window opened by nothing",
            [request(&[]), frame(WINDOW_UPDATE, 0, 1, &[0; 4])].concat(),
        ),
        (
            "a window opened on an idle stream",
            frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]),
        ),
        (
            "a window opened beyond all bounds",
            frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff]),
        ),
        (
            "a window update of a wrong length",
            frame(WINDOW_UPDATE, 0, 0, &[0; 3]),
        ),
        (
            "CONTINUATION of nothing",
            frame(CONTINUATION, END_HEADERS, 1, &fields(&REQUEST)),
        ),
        (
            "CONTINUATION of whole fields",
            [request(&[]), frame(CONTINUATION, END_HEADERS, 1, b"")].concat(),
        ),
        (
            "another frame between fields",
            [
                frame(HEADERS, 0, 1, &fields(&REQUEST)),
                frame(PING, 0, 0, &[0; 8]),
            ]
            .concat(),
        ),
        (
            "fields that go on in another stream",
            [
                frame(HEADERS, 0, 1, &fields(&REQUEST)),
                frame(CONTINUATION, END_HEADERS, 3, b""),
            ]
            .concat(),
        ),
        (
            "a frame larger than allowed",
            frame(DATA, 0, 1, &[0; 20_000]),
        ),
        (
            "fields that are no HPACK",
            frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0xff; 12]),
        ),
        (
            "an index that is none",
            frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0x80]),
        ),
        (
            "stream numbers that go back",
            [odd_on(5), odd_on(3)].concat(),
        ),
        ("a name in upper case", with("X-Upper", "1")),
        ("a connection field", with("connection", "close")),
        ("a framing field", with("transfer-encoding", "chunked")),
        ("TE that is not trailers", with("te", "gzip")),
        ("a pseudo field that is none", with(":odd", "1")),
        ("a pseudo field of responses", with(":status", "200")),
        ("a path twice", with(":path", "/other")),
        ("a method twice", with(":method", "GET")),
        (
            "a pseudo field after others",
            odd(&[&REQUEST[..3], &[("x", "1"), (":path", "/pay")]].concat()),
        ),
        ("no method", without(":method")),
        ("no scheme", without(":scheme")),
        ("no path", without(":path")),
        (
            "an empty path",
            odd(&[&REQUEST[..3], &[(":path", "")]].concat()),
        ),
        ("a line end in a value", with("x", "a\r\nhost: b")),
        (
            "more than the length said",
            [
                request(&[("content-length", "1")]),
                frame(DATA, END_STREAM, 1, b"xyz"),
            ]
            .concat(),
        ),
        (
            "less than the length said",
            [
                request(&[("content-length", "9")]),
                frame(DATA, END_STREAM, 1, b"x"),
            ]
            .concat(),
        ),
        (
            "trailers that do not end",
            [
                request(&[]),
                frame(HEADERS, END_HEADERS, 1, &fields(&[("x", "1")])),
            ]
            .concat(),
        ),
    ];
    let count = cases.len();
    for (what, bytes) in cases {
        let mut stream = hook.tcp().await;
        let settings = frame(SETTINGS, 0, 0, &[]);
        stream
            .write_all(&[PREFACE, &settings, &bytes].concat())
            .await
            .unwrap();
        let answered = tokio::time::timeout(Duration::from_secs(10), answer(&mut stream)).await;
        println!("{what}: {answered:?}");
        // An error of the stream or of the connection, never an answer. Which code of several that fit is
        // the library's choice.
        let refused = match answered {
            Ok(Answer::Gone(code)) => code != Some(0),
            Ok(Answer::Reset(code)) => code != 0,
            Ok(Answer::Response) | Err(_) => false,
        };
        assert!(refused, "{what}: {answered:?}");
        let calls = hook.fence.http_calls();
        assert!(calls.is_empty(), "{what} became a call: {calls:?}");
    }
    assert_eq!(site.accepted(), 0, "nothing was dialled");
    // Everybody else is served as before.
    let agent = Http2::over(hook.tcp().await).await;
    let response = agent.send(post("http://bank.test/pay", "1")).await.unwrap();
    assert_eq!(text(response).await, "paid 1");
    assert!(count > 45);
}

/// A request without its end, on a stream of this number.
fn odd_on(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &fields(&REQUEST))
}

#[tokio::test]
async fn floods_of_frames_are_cut_off() {
    let site = Site::plain(bank()).await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let begun = frame(HEADERS, 0, 1, &fields(&REQUEST));
    let more = frame(CONTINUATION, 0, 1, &fields(&[("x", &"a".repeat(100))]));
    // Streams that are begun and reset at once, over and over.
    let mut resets = Vec::new();
    for n in 0..4000 {
        let stream = 2 * n + 1;
        resets.extend(odd_on(stream));
        resets.extend(frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]));
    }
    for (what, bytes) in [
        ("fields without end", [begun, more.repeat(20_000)].concat()),
        ("begun and reset", resets),
    ] {
        println!("{what}");
        ends(&hook, bytes).await;
        assert!(hook.fence.http_calls().is_empty(), "{what}");
    }
    assert_eq!(site.accepted(), 0);
    let agent = Http2::over(hook.tcp().await).await;
    let response = agent.send(post("http://bank.test/pay", "1")).await.unwrap();
    assert_eq!(text(response).await, "paid 1");
}

/// Writes all of it, also when the other side has had enough; whoever reads hears how that ended.
async fn ends(hook: &Hook, bytes: Vec<u8>) -> Vec<u8> {
    let (mut read, mut write) = hook.tcp().await.into_split();
    let settings = frame(SETTINGS, 0, 0, &[]);
    let bytes = [PREFACE, &settings, &bytes].concat();
    let writing = tokio::spawn(async move {
        let _ = write.write_all(&bytes).await;
        write
    });
    let mut seen = Vec::new();
    let _ = tokio::time::timeout(Duration::from_secs(30), read.read_to_end(&mut seen))
        .await
        .expect("the connection stays open");
    drop(writing.await);
    seen
}

/// Whole requests that are taken back at once: what of them became a call is settled as every call is,
/// and the connection does not live on.
#[tokio::test]
async fn whole_requests_that_are_reset_at_once_are_cut_off() {
    let site = Site::plain(bank()).await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let mut bytes = Vec::new();
    for n in 0..20_000 {
        let stream = 2 * n + 1;
        bytes.extend(frame(
            HEADERS,
            END_HEADERS | END_STREAM,
            stream,
            &fields(&REQUEST),
        ));
        bytes.extend(frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]));
    }
    ends(&hook, bytes).await;
    let calls = hook.fence.http_calls().len();
    println!("{calls} calls, {} requests", site.requests());
    assert!(calls < 1000, "{calls}");
    let agent = Http2::over(hook.tcp().await).await;
    let response = agent.send(post("http://bank.test/pay", "1")).await.unwrap();
    assert_eq!(text(response).await, "paid 1");
}

/// More requests at once than are allowed are refused, one by one, with the code that says that nothing
/// was done; the others are served.
#[tokio::test]
async fn more_streams_than_allowed_are_refused() {
    let site = Site::plain(bank()).await;
    let hook = Hook::with(site.address, Vec::new(), |c| c.limits.streams = 4).await;
    hook.fence.close();
    let mut stream = hook.tcp().await;
    let settings = frame(SETTINGS, 0, 0, &[]);
    let mut bytes = [PREFACE, &settings].concat();
    for n in 0..6 {
        let kind = END_HEADERS | END_STREAM;
        bytes.extend(frame(HEADERS, kind, 2 * n + 1, &fields(&REQUEST)));
    }
    stream.write_all(&bytes).await.unwrap();
    for _ in 0..2 {
        assert_eq!(answer(&mut stream).await, Answer::Reset(REFUSED_STREAM));
    }
    hook.fence.open();
    for _ in 0..4 {
        assert_eq!(answer(&mut stream).await, Answer::Response);
    }
    assert_eq!(hook.fence.http_calls().len(), 4);
}

/// A few bytes that stand for megabytes of fields: a long one is put into HPACK's table once and then
/// named by its number.
#[tokio::test]
async fn fields_that_unpack_beyond_the_limit_are_refused() {
    let site = Site::plain(bank()).await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let mut stream = hook.tcp().await;
    let settings = frame(SETTINGS, 0, 0, &[]);
    let mut block = fields(&REQUEST);
    // A literal with indexing: name `x`, and a value of 3000 bytes (2873 + 127 in HPACK's number).
    block.extend([0x40, 1, b'x', 0x7f, 0xb9, 0x16]);
    block.extend([b'a'; 3000]);
    // The newest entry of the table is number 62.
    block.extend([0x80 | 62; 12_000]);
    let bomb = frame(HEADERS, END_HEADERS | END_STREAM, 1, &block);
    stream
        .write_all(&[PREFACE, &settings, &bomb].concat())
        .await
        .unwrap();
    let answered = tokio::time::timeout(Duration::from_secs(10), answer(&mut stream)).await;
    println!("fields that unpack to 36 MB: {answered:?}");
    assert!(answered.is_ok(), "no answer");
    assert!(hook.fence.http_calls().is_empty());
    assert_eq!(site.accepted(), 0);
    let agent = Http2::over(hook.tcp().await).await;
    let response = agent.send(post("http://bank.test/pay", "1")).await.unwrap();
    assert_eq!(text(response).await, "paid 1");
}

/// Frames that each want an answer, from somebody who reads none: they wait where they are.
#[tokio::test]
async fn answers_that_nobody_reads_do_not_pile_up() {
    let site = Site::plain(bank()).await;
    let hook = Hook::to(site.address, Vec::new()).await;
    for (what, one) in [
        ("PING", frame(PING, 0, 0, &[7; 8])),
        ("SETTINGS", frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 9])),
    ] {
        let mut stream = hook.tcp().await;
        let settings = frame(SETTINGS, 0, 0, &[]);
        stream
            .write_all(&[PREFACE, &settings].concat())
            .await
            .unwrap();
        let many = one.repeat(4096);
        let mut written = 0_usize;
        // Until the kernel's buffers are full, both ways. Who takes 64 MiB of them keeps the answers.
        let stuck = loop {
            let next = tokio::time::timeout(Duration::from_secs(2), stream.write_all(&many));
            match next.await {
                Err(_) => break true,
                Ok(Err(_)) => break true,
                Ok(Ok(())) => written += many.len(),
            }
            if written > 64 << 20 {
                break false;
            }
        };
        println!("{what}: {} MiB were taken", written >> 20);
        assert!(stuck, "{what}: {written} bytes were taken");
    }
    let agent = Http2::over(hook.tcp().await).await;
    let response = agent.send(post("http://bank.test/pay", "1")).await.unwrap();
    assert_eq!(text(response).await, "paid 1");
}

/// An agent that leaves no room for the answer has made its call all the same.
#[tokio::test]
async fn an_agent_that_opens_no_window_loses_no_outcome() {
    let site = Site::plain(bank()).await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let mut stream = hook.tcp().await;
    let no_room = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let whole = frame(HEADERS, END_HEADERS | END_STREAM, 1, &fields(&REQUEST));
    stream
        .write_all(&[PREFACE, &no_room, &whole].concat())
        .await
        .unwrap();
    assert_eq!(answer(&mut stream).await, Answer::Response);
    let Ending::Response(Recorded::Http(recorded)) = hook.fence.ending().await else {
        panic!("no outcome");
    };
    assert_eq!(recorded.body, Body::whole("paid "));
}

/// The HTTP/2 library takes these for trailers without fields. That is no harm as long as what was
/// decided is what is sent.
#[tokio::test]
async fn pseudo_fields_in_trailers_change_nothing() {
    let site = Site::plain(bank()).await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let mut stream = hook.tcp().await;
    let settings = frame(SETTINGS, 0, 0, &[]);
    let trailers = fields(&[(":path", "/other"), (":method", "GET")]);
    let trailers = frame(HEADERS, END_HEADERS | END_STREAM, 1, &trailers);
    stream
        .write_all(&[PREFACE, &settings, &request(&[]), &trailers].concat())
        .await
        .unwrap();
    assert_eq!(answer(&mut stream).await, Answer::Response);
    let calls = hook.fence.http_calls();
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0].method, "POST");
    assert_eq!(calls[0].url, "http://bank.test/pay");
    assert!(!calls[0].headers.iter().any(|h| h.name.starts_with(':')));
}
