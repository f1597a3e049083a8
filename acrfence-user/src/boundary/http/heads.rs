//! The heads of HTTP/1 requests as they were on the wire, watched on their way to the HTTP
//! library: it mends some shapes silently that must be refused, and forgets order and case.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::words::Header;

/// A head as it was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The method.
    pub method: String,
    /// The request target.
    pub target: String,
    /// All fields in order, names in their own case.
    pub fields: Vec<Header>,
    /// Why it must be refused, where it must.
    pub problem: Option<&'static str>,
}

/// Heads that were seen and not yet asked for.
pub(crate) type Heads = Arc<Mutex<VecDeque<Head>>>;

/// Follows the bytes of a connection from head to head. Pure: bytes go in, heads come out.
#[derive(Debug)]
pub struct Watch {
    state: State,
    buffer: Vec<u8>,
    size_max: usize,
    count_max: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    Length(u64),
    /// In the line that tells a chunk's size; the size so far, and whether its digits are over.
    ChunkSize(u64, bool),
    ChunkData(u64),
    /// In the line end after a chunk.
    ChunkEnd,
    /// In the fields after the last chunk; whether the line is empty so far.
    Trailers(bool),
    /// What follows is no HTTP, or was refused.
    Lost,
}

impl Watch {
    /// A watch for heads of at most `size_max` bytes with at most `count_max` fields.
    pub fn new(size_max: usize, count_max: usize) -> Self {
        Self {
            state: State::Head,
            buffer: Vec::new(),
            size_max,
            count_max,
        }
    }

    /// Takes the next bytes of the connection; gives the heads that are complete now.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Vec<Head> {
        let mut heads = Vec::new();
        while let Some(&byte) = bytes.first() {
            match self.state {
                State::Lost => break,
                State::Head => {
                    bytes = &bytes[1..];
                    self.buffer.push(byte);
                    if byte == b'\n' && ends_head(&self.buffer) {
                        heads.extend(self.head());
                    } else if self.buffer.len() > self.size_max {
                        self.lose();
                    }
                }
                State::Length(left) => {
                    let (rest, left) = skip(bytes, left);
                    bytes = rest;
                    self.state = if left == 0 {
                        State::Head
                    } else {
                        State::Length(left)
                    };
                }
                State::ChunkData(left) => {
                    let (rest, left) = skip(bytes, left);
                    bytes = rest;
                    self.state = if left == 0 {
                        State::ChunkEnd
                    } else {
                        State::ChunkData(left)
                    };
                }
                _ => {
                    bytes = &bytes[1..];
                    self.chunk(byte);
                }
            }
        }
        heads
    }

    fn chunk(&mut self, byte: u8) {
        self.state = match (self.state, byte) {
            (State::ChunkSize(0, _), b'\n') => State::Trailers(true),
            (State::ChunkSize(size, _), b'\n') => State::ChunkData(size),
            (State::ChunkSize(size, false), _) if byte.is_ascii_hexdigit() => {
                let digit = u64::from((byte as char).to_digit(16).unwrap_or_default());
                match size
                    .checked_mul(16)
                    .and_then(|size| size.checked_add(digit))
                {
                    Some(size) => State::ChunkSize(size, false),
                    None => State::Lost,
                }
            }
            (State::ChunkSize(size, _), _) => State::ChunkSize(size, true),
            (State::ChunkEnd, b'\n') => State::ChunkSize(0, false),
            (State::ChunkEnd, b'\r') => State::ChunkEnd,
            (State::ChunkEnd, _) => State::Lost,
            (State::Trailers(true), b'\n') => State::Head,
            (State::Trailers(empty), b'\r') => State::Trailers(empty),
            (State::Trailers(_), b'\n') => State::Trailers(true),
            (State::Trailers(_), _) => State::Trailers(false),
            (other, _) => other,
        };
    }

    fn lose(&mut self) {
        self.state = State::Lost;
        self.buffer = Vec::new();
    }

    fn head(&mut self) -> Option<Head> {
        let mut fields = vec![httparse::EMPTY_HEADER; self.count_max];
        let mut request = httparse::Request::new(&mut fields);
        match request.parse(&self.buffer) {
            // Only empty lines so far.
            Ok(httparse::Status::Partial) => return None,
            Ok(httparse::Status::Complete(_)) => {}
            Err(_) => {
                // The HTTP library says what is wrong with it.
                self.lose();
                return None;
            }
        }
        let mut head = Head {
            method: request.method.unwrap_or_default().to_owned(),
            target: request.path.unwrap_or_default().to_owned(),
            fields: request
                .headers
                .iter()
                .map(|field| Header::new(field.name, Bytes::copy_from_slice(field.value)))
                .collect(),
            problem: None,
        };
        match framing(&head.fields) {
            Ok(state) => self.state = state,
            Err(problem) => {
                head.problem = Some(problem);
                self.state = State::Lost;
            }
        }
        if head.method == "CONNECT" {
            self.state = State::Lost;
        }
        self.buffer.clear();
        Some(head)
    }
}

/// How the body is framed that follows a head, or why nobody should have to guess.
fn framing(fields: &[Header]) -> Result<State, &'static str> {
    let values = |name| {
        fields
            .iter()
            .filter(move |field| field.is(name))
            .map(|field| &field.value)
    };
    let mut lengths = values("content-length");
    let mut encodings = values("transfer-encoding");
    let (length, encoding) = (lengths.next(), encodings.next());
    if lengths.next().is_some() {
        return Err("it has more than one Content-Length field");
    }
    if encodings.next().is_some() {
        return Err("it has more than one Transfer-Encoding field");
    }
    match (length, encoding) {
        (Some(_), Some(_)) => Err("it has both Transfer-Encoding and Content-Length"),
        (None, None) => Ok(State::Head),
        (None, Some(encoding)) if encoding.eq_ignore_ascii_case(b"chunked") => {
            Ok(State::ChunkSize(0, false))
        }
        (None, Some(_)) => Err("its Transfer-Encoding is another than `chunked`"),
        (Some(length), None) => {
            let digits = std::str::from_utf8(length)
                .ok()
                .filter(|text| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()));
            match digits.and_then(|text| text.parse().ok()) {
                Some(0) => Ok(State::Head),
                Some(length) => Ok(State::Length(length)),
                None => Err("its Content-Length is not a number"),
            }
        }
    }
}

fn ends_head(buffer: &[u8]) -> bool {
    buffer.ends_with(b"\n\r\n") || buffer.ends_with(b"\n\n") || buffer == b"\r\n" || buffer == b"\n"
}

fn skip(bytes: &[u8], left: u64) -> (&[u8], u64) {
    let n = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
    (&bytes[n..], left - n as u64)
}

/// A transport whose incoming bytes are watched.
pub(crate) struct Watched<T> {
    inner: T,
    watch: Watch,
    heads: Heads,
}

impl<T> Watched<T> {
    pub(crate) fn new(inner: T, watch: Watch, heads: Heads) -> Self {
        Self {
            inner,
            watch,
            heads,
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Watched<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buf))?;
        let heads = self.watch.feed(&buf.filled()[before..]);
        if !heads.is_empty() {
            self.heads.lock().extend(heads);
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Watched<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn watch() -> Watch {
        Watch::new(1 << 16, 64)
    }

    #[test]
    fn heads_are_found_between_bodies() {
        let stream = b"\r\nPOST /a HTTP/1.1\r\nHOST: b\r\nX-a: 1\r\ncontent-length: 3\r\n\r\nabc\
            POST /b HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n3;x=y\r\n\r\n\r\r\n0A\r\n0123456789\r\n0\r\nt: 1\r\n\r\n\
            GET /c HTTP/1.1\r\n\r\nGET /d HTTP/1.1\r\n\r\n";
        let heads = watch().feed(stream);
        let targets: Vec<_> = heads.iter().map(|h| h.target.as_str()).collect();
        assert_eq!(targets, ["/a", "/b", "/c", "/d"]);
        assert_eq!(heads[0].fields[0], Header::new("HOST", "b"));
        assert_eq!(heads[0].fields[1], Header::new("X-a", "1"));
    }

    #[test]
    fn what_readers_would_frame_differently_is_told() {
        for fields in [
            "content-length: 1\r\ntransfer-encoding: chunked",
            "transfer-encoding: chunked\r\ncontent-length: 1",
            "content-length: 1\r\ncontent-length: 1",
            "content-length: 1,1",
            "content-length: +1",
            "content-length: ",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked",
            "transfer-encoding: gzip, chunked",
        ] {
            let text = format!("POST / HTTP/1.1\r\n{fields}\r\n\r\nGET / HTTP/1.1\r\n\r\n");
            let heads = watch().feed(text.as_bytes());
            assert_eq!(heads.len(), 1, "{fields}");
            assert!(heads[0].problem.is_some(), "{fields}");
        }
    }

    proptest! {
        #[test]
        fn cutting_changes_nothing(
            parts in proptest::collection::vec(prop_oneof![
                Just("GET /x HTTP/1.1\r\nA: 1\r\n\r\n"),
                Just("POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\n\r\n\r\n"),
                Just("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n\r\n\r\n0\r\n\r\n"),
                Just("\r\n"), Just("x"),
            ], 0..6),
            sizes in proptest::collection::vec(1usize..7, 0..60),
        ) {
            let stream = parts.concat();
            let whole = watch().feed(stream.as_bytes());
            let mut cut = watch();
            let mut heads = Vec::new();
            let mut rest = stream.as_bytes();
            for size in sizes {
                let (now, later) = rest.split_at(rest.len().min(size));
                heads.extend(cut.feed(now));
                rest = later;
            }
            heads.extend(cut.feed(rest));
            prop_assert_eq!(whole, heads);
        }

        #[test]
        fn nothing_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut watch = Watch::new(200, 4);
            watch.feed(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n");
            watch.feed(&bytes);
            prop_assert!(watch.buffer.len() <= 201);
        }
    }
}
