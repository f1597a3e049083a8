//! What a comparison may know beside the two calls.

use crate::words::{Request, Response, Timestamp};

use super::{harvest, notes};

/// What a comparison may know beside the two calls.
#[derive(Clone, Copy)]
pub struct Evidence<'a> {
    /// What was seen before the recorded call.
    pub provenance: &'a dyn Provenance,
    /// What the tool's server says about the tool, where that is known.
    pub schema: Option<&'a ToolSchema>,
    /// When the recorded call was seen.
    pub recorded_at: Timestamp,
    /// When the restored call was seen.
    pub restored_at: Timestamp,
}

/// What was seen before the recorded call took place, and is still known to the restored agent
/// (up to its fork point). The recorded call itself and everything after it must be left out:
/// a value that is found here is one that the agent did not make up.
pub trait Provenance {
    /// Where a value was seen, in words ("the answer of bank check_balance"), or none.
    ///
    /// An implementation over hashes looks up [`value_hash`](super::value_hash) of `value`.
    fn seen(&self, value: &str) -> Option<String>;

    /// What earlier answers of the *same server* said about a field of this name.
    fn notes(&self, field: &str) -> Vec<Note> {
        let _ = field;
        Vec::new()
    }
}

/// A statement about a field, found in a tool schema or in an answer of the same server. Content
/// of untrusted origin: it counts only together with other evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// What it says.
    pub kind: NoteKind,
    /// The words it was taken from, shortened.
    pub said: String,
}

/// What a [`Note`] says about a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoteKind {
    /// The caller makes up a new value for every call.
    FreshPerCall,
    /// The value selects or names something.
    Meaningful,
    /// What the server assumes when the field is missing, as text.
    Default(String),
    /// Elements are used in the order given.
    Ordered,
    /// The order of elements means nothing.
    Unordered,
    /// Names may be written `like_this` or `likeThis`.
    EitherCase,
}

/// What a server says about one of its tools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolSchema {
    /// The tool's description.
    pub description: String,
    /// Its input schema as JSON text.
    pub input: String,
}

/// Nothing was seen before.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nothing;

impl Provenance for Nothing {
    fn seen(&self, _value: &str) -> Option<String> {
        None
    }
}

/// Provenance over earlier calls that are at hand.
pub struct Transcript {
    seen: std::collections::HashMap<u64, usize>,
    places: Vec<String>,
    /// What the server of the compared call said.
    texts: Vec<String>,
}

impl Transcript {
    /// Reads earlier calls with their answers. `about` is the call that will be compared: only its
    /// own server's answers may say something about its fields.
    pub fn of(prior: &[(Request, Response)], about: &Request) -> Self {
        let mut seen = std::collections::HashMap::new();
        let mut places = Vec::new();
        let mut texts = Vec::new();
        for (request, response) in prior {
            let told = harvest::request(&KEY, request)
                .values
                .into_iter()
                .chain(harvest::response(&KEY, &KEY, Some(request), response).values);
            for value in told {
                seen.entry(value).or_insert(places.len());
            }
            places.push(match request {
                Request::Http(r) => format!("{} {}", r.method, r.url),
                Request::Mcp(r) => format!("{} {}", r.server, r.name),
                Request::Exec(r) => r.argv.first().cloned().unwrap_or_default(),
            });
            if server(request) == server(about) {
                texts.extend(harvest::texts(response));
            }
        }
        Self {
            seen,
            places,
            texts,
        }
    }
}

impl Provenance for Transcript {
    fn seen(&self, value: &str) -> Option<String> {
        let at = self.seen.get(&harvest::value_hash(&KEY, value))?;
        self.places
            .get(*at)
            .map(|place| format!("an earlier call ({place})"))
    }

    fn notes(&self, field: &str) -> Vec<Note> {
        self.texts
            .iter()
            .flat_map(|text| notes::of_text(text, field))
            .collect()
    }
}

/// Who answers a request: the MCP server, the host, the program.
fn server(request: &Request) -> String {
    match request {
        Request::Http(r) => {
            let rest = r
                .url
                .split_once("://")
                .map_or(r.url.as_str(), |(_, rest)| rest);
            rest.split(['/', '?'])
                .next()
                .unwrap_or_default()
                .to_ascii_lowercase()
        }
        Request::Mcp(r) => r.server.clone(),
        Request::Exec(r) => r.argv.first().cloned().unwrap_or_default(),
    }
}

/// The hashes of a transcript never leave it, so they need no secret.
const KEY: [u8; 32] = [0; 32];
