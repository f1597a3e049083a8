//! Server-sent events, cut out of a stream without changing a byte of it.

use bytes::{Bytes, BytesMut};

/// One event, or a part of the stream that carries none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// All its bytes, the empty line that ends it included.
    pub raw: Bytes,
    /// The `event` field.
    pub kind: Option<String>,
    /// The `id` field.
    pub id: Option<String>,
    /// The `data` fields, joined by newlines; none when it has none.
    pub data: Option<String>,
}

/// An event was longer than the bound.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event is longer than {bound} bytes")]
pub struct TooLong {
    /// The bound.
    pub bound: usize,
    /// The events before it.
    pub before: Vec<Event>,
    /// What was held of it so far.
    pub raw: Bytes,
}

/// Cuts a stream into events. The raw bytes of all events together are the stream.
#[derive(Debug)]
pub struct Splitter {
    buffer: BytesMut,
    /// Up to here, the buffer holds no end of an event.
    scanned: usize,
    /// Whether the line at `scanned` is empty so far.
    line_empty: bool,
    /// Whether the byte before `scanned` was a CR, whose LF may still come.
    after_cr: bool,
    bound: usize,
}

impl Splitter {
    /// A splitter that holds at most about `bound` bytes.
    pub fn new(bound: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            scanned: 0,
            line_empty: true,
            after_cr: false,
            bound,
        }
    }

    /// Takes bytes; gives the events that are complete now.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<Event>, TooLong> {
        self.buffer.extend_from_slice(bytes);
        let mut events = Vec::new();
        while let Some(end) = self.next_end() {
            let raw = self.buffer.split_to(end).freeze();
            self.scanned = 0;
            events.push(event(raw));
        }
        if self.buffer.len() > self.bound {
            return Err(TooLong {
                bound: self.bound,
                before: events,
                raw: self.buffer.split().freeze(),
            });
        }
        Ok(events)
    }

    /// How many bytes are held.
    pub fn held(&self) -> usize {
        self.buffer.len()
    }

    /// What is left when the stream ended: by the rules no event, but lenient readers take it for
    /// one.
    pub fn finish(self) -> Option<Event> {
        (!self.buffer.is_empty()).then(|| event(self.buffer.freeze()))
    }

    /// Where the first complete event ends.
    fn next_end(&mut self) -> Option<usize> {
        while let Some(&byte) = self.buffer.get(self.scanned) {
            self.scanned += 1;
            let lf_of_cr = byte == b'\n' && self.after_cr;
            self.after_cr = byte == b'\r';
            if lf_of_cr {
                // Belongs to the line end before. Where that ended an event, the event was given
                // out already, and this byte must not wait for the next one.
                if self.scanned == 1 {
                    return Some(1);
                }
                continue;
            }
            if !matches!(byte, b'\r' | b'\n') {
                self.line_empty = false;
                continue;
            }
            if self.line_empty {
                if byte == b'\r' && self.buffer.get(self.scanned) == Some(&b'\n') {
                    self.scanned += 1;
                    self.after_cr = false;
                }
                return Some(self.scanned);
            }
            self.line_empty = true;
        }
        None
    }
}

fn event(raw: Bytes) -> Event {
    let mut kind = None;
    let mut id = None;
    let mut data: Option<String> = None;
    let text = String::from_utf8_lossy(&raw);
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    for line in text.replace("\r\n", "\n").split(['\n', '\r']) {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "event" => kind = Some(value.to_owned()),
            "id" => id = Some(value.to_owned()),
            "data" => match &mut data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                none => *none = Some(value.to_owned()),
            },
            _ => {}
        }
    }
    Event {
        raw,
        kind,
        id,
        data,
    }
}

/// An event that carries `message` (JSON text, which may have line ends between its tokens).
pub fn message_event(message: &str) -> String {
    let mut text = "event: message\n".to_owned();
    for line in message.replace("\r\n", "\n").split(['\n', '\r']) {
        text.push_str("data: ");
        text.push_str(line);
        text.push('\n');
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split(stream: &[u8], sizes: &[usize]) -> (Vec<Event>, Option<Event>) {
        let mut splitter = Splitter::new(1 << 20);
        let mut events = Vec::new();
        let mut rest = stream;
        for size in sizes {
            let (now, later) = rest.split_at(rest.len().min(*size));
            events.extend(splitter.push(now).unwrap());
            rest = later;
        }
        events.extend(splitter.push(rest).unwrap());
        (events, splitter.finish())
    }

    #[test]
    fn events_end_at_an_empty_line_of_any_kind() {
        for end in ["\n", "\r\n", "\r"] {
            let stream = [
                "id: 1",
                "event: message",
                "data: a",
                "data:b",
                "",
                "data",
                "",
                ": ping",
                "",
                "",
            ]
            .join(end);
            let (events, left) = split(stream.as_bytes(), &[]);
            assert_eq!(left, None, "{end:?}");
            assert_eq!(events[0].data.as_deref(), Some("a\nb"), "{end:?}");
            assert_eq!(events[0].id.as_deref(), Some("1"));
            assert_eq!(events[0].kind.as_deref(), Some("message"));
            assert_eq!(events[1].data.as_deref(), Some(""));
            assert_eq!(events[2].data, None);
        }
    }

    #[test]
    fn too_long_an_event_is_given_back() {
        let mut splitter = Splitter::new(10);
        assert!(splitter.push(b"data: 1\n\n").is_ok());
        let error = splitter.push(b"data: 2\n\ndata: 1234567").unwrap_err();
        assert_eq!(error.before[0].raw, "data: 2\n\n");
        assert_eq!(error.raw, "data: 1234567");
    }

    proptest! {
        #[test]
        fn cutting_changes_neither_bytes_nor_events(
            stream in "(data: ?[a-z]{0,3}|event: m|id: 7|: c|\n|\r\n|\r){0,30}",
            sizes in proptest::collection::vec(1usize..5, 0..60),
        ) {
            let (whole, whole_left) = split(stream.as_bytes(), &[]);
            let (cut, cut_left) = split(stream.as_bytes(), &sizes);
            let bytes: Vec<u8> = cut.iter().chain(&cut_left).flat_map(|e| e.raw.to_vec()).collect();
            prop_assert_eq!(bytes, stream.as_bytes());
            let told = |events: Vec<Event>| -> Vec<_> {
                events.into_iter().filter(|e| e.data.is_some()).map(|e| (e.kind, e.id, e.data)).collect()
            };
            prop_assert_eq!(told(whole), told(cut));
            prop_assert_eq!(told(whole_left.into_iter().collect()), told(cut_left.into_iter().collect()));
        }

        #[test]
        fn a_message_comes_back_out_of_its_event(message in "[ -~\n]{0,40}") {
            let (events, left) = split(message_event(&message).as_bytes(), &[]);
            prop_assert_eq!(left, None);
            prop_assert_eq!(events.len(), 1);
            prop_assert_eq!(events[0].data.as_deref(), Some(message.as_str()));
        }
    }
}
