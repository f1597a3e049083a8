//! What a record changes in the index. Applying a record twice gives the same as applying it once.
//!
//! The life of an effect is a ladder: prepared, in doubt, failed, completed. A record moves an effect
//! up, never down, so that a late word about a call cannot undo a response that was recorded.

use crate::effect::journal::Loc;
use crate::effect::journal::frame::Hash;
use crate::effect::{EffectRow, Event, Harvest, Prepared};
use crate::words::{
    EffectId, Outcome, Request, Resolution, Response, Seq, Status, ThreadId, Timestamp,
};

use super::key::{self, Names, Tree};
use super::ordered::{Change, IndexFault};
use super::pack;
use super::row::{Row, status_byte};
use super::told;

/// Reads the row of an effect as it is before the record.
pub type RowOf<'a> = &'a dyn Fn(EffectId) -> Result<Option<Row>, IndexFault>;

/// A record as the index sees it.
pub struct Seen<'a> {
    /// Its position.
    pub seq: Seq,
    /// Where it lies; none while it is not on disk.
    pub loc: Option<Loc>,
    /// The body file it names.
    pub body: Option<Hash>,
    /// What it holds.
    pub event: &'a Event,
}

/// What a record changes.
pub fn facts(seen: &Seen<'_>, names: &Names, row_of: RowOf<'_>) -> Result<Vec<Change>, IndexFault> {
    let mut out = Vec::with_capacity(24);
    if let Some(digest) = &seen.body {
        out.push((key::body(digest), Some(seen.seq.0.to_be_bytes().to_vec())));
    }
    match seen.event {
        Event::Prepared(prepared) => began(seen, prepared, names, &mut out),
        Event::Settled {
            effect,
            outcome,
            at,
            harvest,
        } => {
            let Some(row) = row_of(*effect)? else {
                return Ok(out);
            };
            harvested(harvest, row.shown.thread, seen.seq, &mut out);
            for fingerprint in &harvest.issued {
                let entry = pack::credential(effect.0, pack::ISSUED);
                out.push((key::credential(*fingerprint, *effect), Some(entry)));
            }
            let (code, why) = told(outcome);
            let step = Step {
                status: outcome.status(),
                at: *at,
                code,
                why,
            };
            moved(seen, row, step, &harvest.issued, names, &mut out);
        }
        Event::Resolved {
            effect,
            resolution,
            by,
            at,
        } => {
            told::place(seen, &mut out);
            let Some(row) = row_of(*effect)? else {
                return Ok(out);
            };
            let step = match resolution {
                Resolution::Happened(response) => Step {
                    status: Status::Completed,
                    at: *at,
                    code: code_of(response),
                    why: String::new(),
                },
                Resolution::DidNotHappen => Step {
                    status: Status::Failed,
                    at: *at,
                    code: None,
                    why: did_not_happen(by),
                },
            };
            moved(seen, row, step, &[], names, &mut out);
        }
        Event::Observed {
            thread, harvest, ..
        } => harvested(harvest, *thread, seen.seq, &mut out),
        // It changes no answer about effects; it is read from the journal.
        Event::Opaque(_) | Event::Ran(_) => {}
        Event::IncarnationBegan(_)
        | Event::IncarnationEnded { .. }
        | Event::ThreadOpened(_)
        | Event::BranchOpened(_)
        | Event::CheckpointTaken(_)
        | Event::Replayed { .. }
        | Event::Refused { .. }
        | Event::HoldOpened { .. }
        | Event::HoldDecided { .. }
        | Event::HoldUsed { .. }
        | Event::Asked { .. }
        | Event::Answered { .. }
        | Event::OutcomeLost { .. }
        | Event::Remembered { .. }
        | Event::Corroborated { .. }
        | Event::Conversed { .. } => told::place(seen, &mut out),
    }
    Ok(out)
}

/// Whether a record is looked up by itself, apart from what it changes of an effect.
pub fn is_told(event: &Event) -> bool {
    !matches!(
        event,
        Event::Prepared(_)
            | Event::Settled { .. }
            | Event::Observed { .. }
            | Event::Opaque(_)
            | Event::Ran(_)
    )
}

/// Joins what two layers say about one key: packed entries one by one, the earlier position for first
/// times, the wider span for times, otherwise what `newer` says.
pub fn merge(key: &[u8], older: &[u8], newer: Vec<u8>) -> Vec<u8> {
    if let Some(joined) = pack::join(key, older, &newer) {
        return joined;
    }
    match key.first() {
        Some(&key::ISSUED) => newer.min(older.to_vec()),
        Some(&key::ZONE) => {
            let span = |bytes: &[u8]| Some((*bytes.first_chunk::<8>()?, *bytes.last_chunk::<8>()?));
            match (span(older), span(&newer)) {
                (Some(a), Some(b)) => [a.0.min(b.0), a.1.max(b.1)].concat(),
                _ => newer,
            }
        }
        _ => newer,
    }
}

/// Whether [`merge`] looks at both sides.
pub fn merges(key: &[u8]) -> bool {
    pack::is_packed(key) || matches!(key.first(), Some(&key::ISSUED | &key::ZONE))
}

/// Why an effect failed that a person said did not happen.
pub fn did_not_happen(by: &str) -> String {
    format!("{by} said that it did not happen")
}

/// HTTP status or exit status of a response.
pub fn code_of(response: &Response) -> Option<i32> {
    match response {
        Response::Http(http) => Some(http.status.into()),
        Response::Mcp(_) => None,
        Response::Exec(exec) => Some(exec.exit),
    }
}

/// The host that a request goes to, without port; empty where there is none.
pub fn host_of(request: &Request) -> String {
    let url = match request {
        Request::Http(http) => &http.url,
        Request::Mcp(mcp) => &mcp.server,
        Request::Exec(_) => return String::new(),
    };
    url::Url::parse(url)
        .ok()
        .and_then(|url| url.host_str().map(str::to_owned))
        .unwrap_or_default()
}

struct Step {
    status: Status,
    at: Timestamp,
    code: Option<i32>,
    why: String,
}

fn began(seen: &Seen<'_>, prepared: &Prepared, names: &Names, out: &mut Vec<Change>) {
    let origin = &prepared.call.origin;
    let row = Row {
        shown: EffectRow {
            id: EffectId(seen.seq),
            at: prepared.call.at,
            ended: None,
            agent: origin.agent.clone(),
            thread: prepared.thread,
            branch: prepared.branch,
            parent: prepared.parent,
            co_parents: prepared.co_parents.clone(),
            process: origin.process,
            transport: prepared.call.request.transport(),
            key: prepared.key.clone(),
            host: host_of(&prepared.call.request),
            status: Status::Prepared,
            code: None,
            why: String::new(),
            gaps: origin.gaps.clone(),
        },
        presented: prepared.presented.clone(),
        issued: Vec::new(),
        prepared: seen.loc,
        outcome: None,
    };
    let shown = &row.shown;
    let tool = names.hash(Tree::Tool, &shown.key.0);
    let agent = names.hash(Tree::Agent, shown.agent.as_str());
    let mut lists = vec![
        (Tree::All, 0),
        (Tree::Agent, agent),
        (Tree::Branch, shown.branch.0.0),
        (Tree::Process, shown.process.tgid.into()),
        (Tree::Thread, shown.thread.0.0),
        (Tree::Tool, tool),
    ];
    if !shown.host.is_empty() {
        lists.push((Tree::Host, names.hash(Tree::Host, &shown.host)));
    }
    for (tree, property) in lists {
        let key = key::listed(tree, property, seen.seq);
        out.push((key, Some(pack::listed(seen.seq))));
    }
    out.push((key::with_status(0, seen.seq), Some(Vec::new())));
    let name = shown.key.0.clone().into_bytes();
    out.push((key::name(Tree::Tool, tool), Some(name)));
    for fingerprint in &prepared.presented {
        let entry = pack::credential(seen.seq, pack::PRESENTED);
        out.push((key::credential(*fingerprint, shown.id), Some(entry)));
    }
    for value in &prepared.values {
        sighted(out, prepared.thread, *value, seen.seq);
    }
    let at = shown.at.0.to_be_bytes();
    out.push((key::zone(seen.seq), Some([at, at].concat())));
    out.push((
        key::candidate(prepared.thread, tool, seen.seq),
        Some(pack::candidate(seen.seq, shown.branch, Status::Prepared)),
    ));
    out.push((key::at(key::ROW, seen.seq), Some(row.encode())));
}

fn moved(
    seen: &Seen<'_>,
    mut row: Row,
    step: Step,
    issued: &[crate::words::Fingerprint],
    names: &Names,
    out: &mut Vec<Change>,
) {
    let again = row.outcome.is_some_and(|(seq, _)| seq == seen.seq);
    let up = status_byte(step.status) > status_byte(row.shown.status);
    let more: Vec<_> = issued
        .iter()
        .filter(|f| !row.issued.contains(f))
        .copied()
        .collect();
    if !up && !again && more.is_empty() {
        return;
    }
    row.issued.extend(more);
    let id = row.shown.id;
    if up || again {
        row.shown.status = step.status;
        row.shown.ended = Some(step.at);
        row.shown.code = step.code;
        row.shown.why = step.why;
        row.outcome = Some((seen.seq, seen.loc));
        for status in [Status::Prepared, Status::InDoubt, Status::Failed] {
            if let Some(number) = key::status_number(status) {
                let there = (status == step.status).then(Vec::new);
                out.push((key::with_status(number, id.0), there));
            }
        }
        let tool = names.hash(Tree::Tool, &row.shown.key.0);
        out.push((
            key::candidate(row.shown.thread, tool, id.0),
            Some(pack::candidate(id.0, row.shown.branch, step.status)),
        ));
    }
    out.push((key::at(key::ROW, id.0), Some(row.encode())));
}

fn harvested(harvest: &Harvest, thread: ThreadId, seq: Seq, out: &mut Vec<Change>) {
    for fingerprint in &harvest.issued {
        let at = seq.0.to_be_bytes().to_vec();
        out.push((key::issued(*fingerprint, thread), Some(at)));
    }
    for value in &harvest.values {
        sighted(out, thread, *value, seq);
    }
}

fn told(outcome: &Outcome) -> (Option<i32>, String) {
    let code = outcome.response().and_then(code_of);
    match outcome {
        Outcome::Completed(_) => (code, String::new()),
        Outcome::Failed { why, .. } | Outcome::InDoubt { why, .. } => (code, why.clone()),
    }
}

fn sighted(out: &mut Vec<Change>, thread: ThreadId, value: u64, seq: Seq) {
    out.push((key::value(thread, value), Some(pack::sighting(value, seq))));
}
