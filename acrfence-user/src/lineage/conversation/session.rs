//! Sessions that a request names: in headers, in metadata, in its parameters.

use serde_json::{Map, Value};

use super::ids::ProviderId;
use super::mark::{Kind, Mark, Marker};
use crate::words::Header;

/// Longest session id that is shown.
const LONGEST_TITLE: usize = 64;

/// What a request says about where it belongs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Session {
    /// The session for people to read, empty when none is named.
    pub title: String,
    /// Sessions it belongs to: any of them ties it to a thread.
    pub family: Vec<Mark>,
    /// The one line of work within the session: the main one, or one sub-agent.
    pub line: Option<Mark>,
    /// Whether that line is a sub-agent's.
    pub is_child: bool,
    /// Sessions that this one was split off from.
    pub origins: Vec<Mark>,
    /// Keys that may mean a session or something else: they prove nothing alone.
    pub hints: Vec<Mark>,
    /// How often the client has compacted this session's history.
    pub window: Option<u64>,
    /// The client says that this request only writes a summary, a title or the like.
    pub aside: bool,
    /// The response that this request continues; its history stays with the provider.
    pub after: Option<ProviderId>,
    /// The history stays with the provider, under a conversation id.
    pub held_by_provider: bool,
}

/// What each room of a request says.
pub(super) fn read(marker: &Marker, headers: &[Header], body: &Map<String, Value>) -> Session {
    let mut session = Session::default();
    claude(marker, headers, body, &mut session);
    codex(marker, headers, body, &mut session);
    provider_held(marker, body, &mut session);
    general(marker, headers, body, &mut session);
    session.family.sort_unstable();
    session.family.dedup();
    session
}

/// `X-Claude-Code-Session-Id`, `X-Claude-Code-Agent-Id`, and `metadata.user_id`, which is JSON or, in
/// older versions, `user_…_account_…_session_…`.
fn claude(marker: &Marker, headers: &[Header], body: &Map<String, Value>, session: &mut Session) {
    let in_header = header(headers, "x-claude-code-session-id").map(str::to_owned);
    let in_metadata = body
        .get("metadata")
        .and_then(|m| m.get("user_id"))
        .and_then(Value::as_str)
        .and_then(|user| {
            if user.trim_start().starts_with('{') {
                let user: Value = serde_json::from_str(user).ok()?;
                Some(user.get("session_id")?.as_str()?.to_owned())
            } else {
                let at = user.rfind("_session_")?;
                Some(user[at + "_session_".len()..].to_owned())
            }
        });
    let Some(id) = in_header.or(in_metadata).filter(|id| !id.is_empty()) else {
        return;
    };
    let child = header(headers, "x-claude-code-agent-id").filter(|a| !a.is_empty());
    join(marker, session, &id, child.unwrap_or("main"));
    session.is_child |= child.is_some();
}

/// `session-id`, `thread-id` and `x-codex-turn-metadata`, the last also in `client_metadata`.
fn codex(marker: &Marker, headers: &[Header], body: &Map<String, Value>, session: &mut Session) {
    let client = body.get("client_metadata");
    let turn: Value = header(headers, "x-codex-turn-metadata")
        .or_else(|| client?.get("x-codex-turn-metadata")?.as_str())
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or(Value::Null);
    let said = |key: &str| turn.get(key).and_then(Value::as_str);
    let is_codex = !turn.is_null()
        || header(headers, "originator").is_some_and(|o| o.contains("codex"))
        || header(headers, "x-codex-window-id").is_some();
    if !is_codex {
        return;
    }
    let group = header(headers, "session-id")
        .or_else(|| header(headers, "session_id"))
        .or_else(|| said("session_id"));
    let thread = header(headers, "thread-id")
        .or_else(|| header(headers, "conversation_id"))
        .or_else(|| said("thread_id"))
        .or(group);
    let Some(thread) = thread.filter(|id| !id.is_empty()) else {
        return;
    };
    let parent = header(headers, "x-codex-parent-thread-id").or_else(|| said("parent_thread_id"));
    join(marker, session, group.unwrap_or(thread), thread);
    let mark = |id: &str| marker.mark(Kind::Session, id.as_bytes());
    session.family.push(mark(thread));
    session.family.extend(parent.map(mark));
    session
        .origins
        .extend(said("forked_from_thread_id").map(mark));
    session.is_child |= parent.is_some()
        || header(headers, "x-openai-subagent").is_some()
        || said("subagent_kind").is_some();
    session.aside |= said("request_kind").is_some_and(|kind| {
        ["compact", "title", "summar", "memor", "prewarm"]
            .iter()
            .any(|k| kind.contains(k))
    });
    session.window = turn
        .get("window_number")
        .and_then(Value::as_u64)
        .or_else(|| {
            header(headers, "x-codex-window-id")?
                .rsplit(':')
                .next()?
                .parse()
                .ok()
        });
}

/// `previous_response_id` and `conversation` of the Responses API.
fn provider_held(marker: &Marker, body: &Map<String, Value>, session: &mut Session) {
    session.after = body
        .get("previous_response_id")
        .and_then(Value::as_str)
        .map(|id| ProviderId::new(marker, id));
    let conversation = body.get("conversation").and_then(|c| {
        c.as_str()
            .or_else(|| c.get("id").and_then(Value::as_str))
            .filter(|id| !id.is_empty())
    });
    if let Some(id) = conversation {
        join(marker, session, id, "main");
        session.held_by_provider = true;
    }
}

/// Keys that any program may send, with whatever meaning.
fn general(marker: &Marker, headers: &[Header], body: &Map<String, Value>, session: &mut Session) {
    let metadata = body.get("metadata");
    let in_metadata = ["session_id", "thread_id", "conversation_id", "run_id"]
        .into_iter()
        .filter_map(|key| metadata?.get(key)?.as_str());
    let in_headers = ["x-session-id", "x-conversation-id", "x-thread-id"]
        .into_iter()
        .filter_map(|name| header(headers, name));
    let cache = body.get("prompt_cache_key").and_then(Value::as_str);
    for id in in_metadata.chain(in_headers).chain(cache) {
        if !id.is_empty() {
            session
                .hints
                .push(marker.mark(Kind::Session, id.as_bytes()));
            if session.title.is_empty() {
                session.title = shown(id);
            }
        }
    }
    session.hints.sort_unstable();
    session.hints.dedup();
}

fn join(marker: &Marker, session: &mut Session, id: &str, line: &str) {
    let family = marker.mark(Kind::Session, id.as_bytes());
    session.family.push(family);
    let within = marker.mark(Kind::Session, line.as_bytes());
    session.line = Some(marker.whole([family, within]));
    if session.title.is_empty() {
        session.title = shown(id);
    }
}

fn header<'h>(headers: &'h [Header], name: &str) -> Option<&'h str> {
    headers.iter().find(|h| h.is(name))?.text().map(str::trim)
}

fn shown(id: &str) -> String {
    id.chars()
        .filter(|c| !c.is_control())
        .take(LONGEST_TITLE)
        .collect()
}
