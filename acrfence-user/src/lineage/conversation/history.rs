//! A conversation as one request shows it, and what came back, in one form for all formats.

use super::format::Format;
use super::ids::ProviderId;
use super::mark::Mark;
use super::session::Session;

/// What one request shows: the history that the agent remembers, and who it says it is.
///
/// Texts are there only as marks, except what tool calls brought: those are compared with the
/// record and dropped with this value.
#[derive(Clone, Debug)]
pub struct Turned {
    /// In which format it was sent.
    pub format: Format,
    /// The history in order, without system prompts and without context that clients add on their own.
    pub pieces: Vec<Piece>,
    /// Sessions it names.
    pub session: Session,
    /// Sketch of the tools it offers: the smallest of the marks of their names, sorted.
    pub tools: Vec<Mark>,
    /// Whether the model may answer with a tool call.
    pub may_call: bool,
    /// Something in it introduces itself as what is left of a longer conversation.
    pub summary: Option<Mark>,
    /// The middle of the history was too long to take in.
    pub clipped: bool,
}

/// One piece of a history.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// Who it comes from.
    pub from: From,
    /// Ids that it carries beside a call's own: of the message, of sealed reasoning.
    pub ids: Vec<ProviderId>,
    /// What it is.
    pub what: What,
}

/// Who a piece comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// The agent's side: a person, or the program.
    Agent,
    /// The model.
    Model,
}

/// What a piece is.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// Somebody said something.
    Words(Said),
    /// The model called a tool.
    Call(Called),
    /// A tool brought something.
    Result(Brought),
    /// Something that only its ids tell apart: sealed reasoning, a picture.
    Other(Mark),
}

/// Words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// Their mark.
    pub mark: Mark,
    /// Marks of their long lines.
    pub lines: Vec<Mark>,
    /// Mark of the words as a value, to find them in the arguments of a call.
    pub value: Mark,
}

/// A tool call.
#[derive(Clone, Debug, PartialEq)]
pub struct Called {
    /// Its id, where the format has one.
    pub id: Option<ProviderId>,
    /// Name of the tool, shortened when it is absurdly long.
    pub name: Box<str>,
    /// Mark of the arguments in their normal form.
    pub arguments: Mark,
    /// Marks of the values inside the arguments, sorted.
    pub values: Vec<Mark>,
    /// How often it says that it is to be done, with the mark of that value.
    pub times: Option<(u32, Mark)>,
}

/// What a tool call brought.
#[derive(Clone, Debug, PartialEq)]
pub struct Brought {
    /// The call, where the format says it by id.
    pub call: Option<ProviderId>,
    /// The tool, where the format says it by name.
    pub name: Option<Box<str>>,
    /// The text that the model is shown, its middle left out when it is very long.
    pub text: String,
    /// Whether it is marked as an error.
    pub is_error: bool,
    /// Mark of all of it.
    pub mark: Mark,
}

/// What came back from the model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reply {
    /// Ids of the response, its messages and its sealed reasoning.
    pub ids: Vec<ProviderId>,
    /// What the model said, where it said anything.
    pub said: Option<Said>,
    /// Tools it called, in order.
    pub calls: Vec<Called>,
    /// It said that it refuses or failed; nothing came of it.
    pub failed: bool,
    /// It came to its end.
    pub complete: bool,
}

impl Turned {
    /// Words of the agent's side, in order.
    pub fn prompts(&self) -> impl DoubleEndedIterator<Item = &Said> {
        self.pieces.iter().filter_map(|piece| match &piece.what {
            What::Words(said) if piece.from == From::Agent => Some(said),
            _ => None,
        })
    }

    /// The words that the conversation begins with.
    pub fn opening(&self) -> Option<Mark> {
        let first = self.pieces.iter().find(|p| p.from == From::Agent)?;
        self.prompts()
            .next()
            .map(|said| said.mark)
            .or(match first.what {
                What::Other(mark) => Some(mark),
                _ => None,
            })
    }

    /// Pieces after the model's last.
    pub fn input(&self) -> &[Piece] {
        let last = self.pieces.iter().rposition(|p| p.from == From::Model);
        &self.pieces[last.map_or(0, |at| at + 1)..]
    }
}

impl Piece {
    /// Its mark as part of a whole.
    pub fn mark(&self) -> Mark {
        match &self.what {
            What::Words(said) => said.mark,
            What::Call(call) => call.arguments,
            What::Result(result) => result.mark,
            What::Other(mark) => *mark,
        }
    }
}

impl Reply {
    /// Whether it holds anything that a history could show.
    pub fn is_empty(&self) -> bool {
        self.said.is_none() && self.calls.is_empty() && self.ids.is_empty()
    }
}
