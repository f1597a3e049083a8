//! Gathers the pieces of a history, whatever format they come from.

use serde_json::Value;

use super::arguments::{mark_arguments, mark_times, value_mark};
use crate::lineage::conversation::format::Format;
use crate::lineage::conversation::history::{
    Brought, Called, From, Piece, Reply, Said, Turned, What,
};
use crate::lineage::conversation::ids::ProviderId;
use crate::lineage::conversation::mark::{Kind, Mark, Marker};
use crate::lineage::conversation::session::Session;
use crate::lineage::conversation::words::{introduces_summary, long_lines, plain};

/// Most pieces of a history that are taken in: half from its beginning, half from its end.
const MOST_PIECES: usize = 16_384;

/// Most of a result's text that is compared.
const MOST_RESULT: usize = 64 << 10;

/// Longest name of a tool that is kept.
const LONGEST_NAME: usize = 128;

/// Size of the sketch of the tools a request offers.
const TOOL_SKETCH: usize = 16;

/// A history that is being read.
pub(super) struct Pieces<'m> {
    pub(super) marker: &'m Marker,
    pieces: Vec<Piece>,
    /// Pieces of the second half, as a ring, once the first half is full.
    late: std::collections::VecDeque<Piece>,
    /// What the model said and did since the agent's side last did: one answer.
    answer: Vec<Piece>,
    /// Its words, however many blocks they came in.
    answer_words: String,
    clipped: bool,
    tools: Vec<Mark>,
    summary: Option<Mark>,
    pub(super) no_calls: bool,
}

impl<'m> Pieces<'m> {
    pub(super) fn new(marker: &'m Marker) -> Self {
        Self {
            marker,
            pieces: Vec::new(),
            late: std::collections::VecDeque::new(),
            answer: Vec::new(),
            answer_words: String::new(),
            clipped: false,
            tools: Vec::new(),
            summary: None,
            no_calls: false,
        }
    }

    /// Somebody said something. Context that clients add is left out.
    pub(super) fn words(&mut self, from: From, text: &str, ids: Vec<ProviderId>) {
        if from == From::Model {
            self.answer_words.push_str(text);
            self.answer_words.push('\n');
            if !ids.is_empty() {
                self.other(from, &Value::Null, ids);
            }
            return;
        }
        self.look_for_summary(text);
        if let Some(said) = said(self.marker, text) {
            let what = What::Words(said);
            self.push(Piece { from, ids, what });
        }
    }

    /// A system prompt says nothing of the history, except when it carries a summary.
    pub(super) fn system(&mut self, text: &str) {
        self.look_for_summary(text);
    }

    /// Something stands for a history that was dropped.
    pub(super) fn stands_for_history(&mut self, item: &Value) {
        let text = item.to_string();
        self.summary = Some(self.marker.mark(Kind::Words, text.as_bytes()));
    }

    pub(super) fn call(
        &mut self,
        id: Option<&str>,
        name: &str,
        arguments: &Value,
        ids: Vec<ProviderId>,
    ) {
        let what = What::Call(called(self.marker, id, name, arguments));
        self.push(Piece {
            from: From::Model,
            ids,
            what,
        });
    }

    /// A tool brought something.
    pub(super) fn result(
        &mut self,
        call: Option<&str>,
        name: Option<&str>,
        text: &str,
        is_error: bool,
        ids: Vec<ProviderId>,
    ) {
        let what = What::Result(Brought {
            call: call.map(|id| ProviderId::new(self.marker, id)),
            name: name.map(bounded_name),
            mark: self.marker.mark(Kind::Result, plain(text).as_bytes()),
            text: shortened(text),
            is_error,
        });
        self.push(Piece {
            from: From::Agent,
            ids,
            what,
        });
    }

    /// Something that has no words.
    pub(super) fn other(&mut self, from: From, item: &Value, ids: Vec<ProviderId>) {
        let mark = self.marker.mark(Kind::Words, item.to_string().as_bytes());
        let what = What::Other(mark);
        self.push(Piece { from, ids, what });
    }

    pub(super) fn tool(&mut self, name: &str) {
        let mark = self.marker.mark(Kind::Name, name.as_bytes());
        // The sketch is the smallest marks: two offers are compared by them alone.
        if let Err(at) = self.tools.binary_search(&mark) {
            self.tools.insert(at, mark);
            self.tools.truncate(TOOL_SKETCH);
        }
    }

    pub(super) fn ids<const N: usize>(&self, sent: [Option<&str>; N]) -> Vec<ProviderId> {
        sent.into_iter()
            .flatten()
            .filter(|id| !id.is_empty())
            .map(|id| ProviderId::new(self.marker, id))
            .collect()
    }

    pub(super) fn turned(mut self, format: Format, session: Session) -> Turned {
        self.end_answer();
        let mut pieces = self.pieces;
        pieces.extend(self.late);
        Turned {
            format,
            pieces,
            session,
            may_call: !self.tools.is_empty() && !self.no_calls,
            tools: self.tools,
            summary: self.summary,
            clipped: self.clipped,
        }
    }

    /// The one answer that was read.
    pub(super) fn reply(self, complete: bool) -> Reply {
        let mut reply = Reply {
            said: said(self.marker, &self.answer_words),
            complete,
            ..Reply::default()
        };
        for piece in self.answer {
            reply.ids.extend(piece.ids);
            if let What::Call(call) = piece.what {
                reply.calls.push(call);
            }
        }
        reply
    }

    fn push(&mut self, piece: Piece) {
        if piece.from == From::Model {
            self.answer.push(piece);
            return;
        }
        self.end_answer();
        self.keep(piece);
    }

    fn end_answer(&mut self) {
        let words = std::mem::take(&mut self.answer_words);
        if let Some(said) = said(self.marker, &words) {
            self.keep(Piece {
                from: From::Model,
                ids: Vec::new(),
                what: What::Words(said),
            });
        }
        for piece in std::mem::take(&mut self.answer) {
            self.keep(piece);
        }
    }

    fn keep(&mut self, piece: Piece) {
        if self.pieces.len() < MOST_PIECES / 2 {
            self.pieces.push(piece);
            return;
        }
        if self.late.len() >= MOST_PIECES / 2 {
            self.late.pop_front();
            self.clipped = true;
        }
        self.late.push_back(piece);
    }

    fn look_for_summary(&mut self, text: &str) {
        if introduces_summary(text) {
            self.summary = Some(self.marker.mark(Kind::Words, text.as_bytes()));
        }
    }
}

/// Words by their marks; none where there were none.
pub(super) fn said(marker: &Marker, text: &str) -> Option<Said> {
    let words = plain(text);
    (!words.is_empty()).then(|| Said {
        mark: marker.mark(Kind::Words, words.as_bytes()),
        lines: long_lines(marker, text),
        value: value_mark(marker, text),
    })
}

/// A call by its marks.
pub(super) fn called(marker: &Marker, id: Option<&str>, name: &str, arguments: &Value) -> Called {
    let times = mark_times(marker, arguments);
    let (arguments, values) = mark_arguments(marker, arguments);
    Called {
        id: id
            .filter(|id| !id.is_empty())
            .map(|id| ProviderId::new(marker, id)),
        name: bounded_name(name),
        arguments,
        values,
        times,
    }
}

fn bounded_name(name: &str) -> Box<str> {
    name.chars().take(LONGEST_NAME).collect::<String>().into()
}

/// A long text without its middle.
fn shortened(text: &str) -> String {
    if text.len() <= MOST_RESULT {
        return text.to_owned();
    }
    let mut head = MOST_RESULT * 3 / 4;
    while !text.is_char_boundary(head) {
        head -= 1;
    }
    let mut tail = text.len() - MOST_RESULT / 4;
    while !text.is_char_boundary(tail) {
        tail += 1;
    }
    format!("{}\n…\n{}", &text[..head], &text[tail..])
}
