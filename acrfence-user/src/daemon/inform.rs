//! Policy `after_restore.inform`: a restored agent's model is told what is done already, so that the agent need
//! not run into the fence (DESIGN.md §9, "Told beforehand").
//!
//! Off unless policy names the model's host: the note says there what the agent did. It is put behind
//! the messages of the first answered request of a branch, and neither lineage nor provenance ever sees
//! it, because both read what the agent sent.

use std::collections::HashMap;
use std::fmt::Write as _;

use bytes::Bytes;
use parking_lot::Mutex;

use super::evidence;
use super::pipeline::{Pipeline, Place};
use super::talks::Asking;
use crate::effect::LogError;
use crate::lineage::conversation::{Exchange, append_words};
use crate::policy::Mode;
use crate::words::{
    AgentName, BranchId, Effect, Grade, Header, HttpRequest, Request, Status, ToolCall,
};

/// Most effects that a note names.
const MOST_NAMED: usize = 20;
/// Most characters of what a call said.
const MOST_SAID: usize = 300;

/// Branches whose model was told, and at which request.
#[derive(Default)]
pub(super) struct Informed(Mutex<HashMap<BranchId, Exchange>>);

impl Informed {
    /// The request that carried the note was answered.
    pub(super) fn told(&self, note: &Note) {
        let mut all = self.0.lock();
        all.insert(note.branch, note.exchange.clone());
    }

    /// Whether the model knows from a request before this one. An answer that its agent forgot again
    /// told nobody.
    fn knows(&self, branch: BranchId, asks: &Exchange) -> bool {
        let all = self.0.lock();
        all.get(&branch).is_some_and(|told| !asks.asks_again(told))
    }
}

/// What is sent in place of a model request.
pub(super) struct Note {
    pub(super) body: Bytes,
    branch: BranchId,
    exchange: Exchange,
}

impl Pipeline {
    /// The model request with the note, where policy wants one and there is something to say.
    pub(super) async fn note_for(
        &self,
        call: &ToolCall,
        asking: &Asking,
        body: &[u8],
    ) -> Option<Note> {
        let Request::Http(http) = &call.request else {
            return None;
        };
        if !self.informs(http) {
            return None;
        }
        let place = self.speaks_in(asking).await?;
        if self.0.informed.knows(place.branch, &asking.exchange) {
            return None;
        }
        let agent = &call.origin.agent;
        let words = tokio::task::block_in_place(|| self.words_for(agent, place));
        let words = match words {
            Ok(words) => words?,
            Err(e) => {
                tracing::error!(agent = %agent, "its model is told nothing: {e}");
                return None;
            }
        };
        let longer = tokio::task::block_in_place(|| append_words(asking.format, body, &words));
        let Some(longer) = longer else {
            tracing::info!(agent = %agent, "its model is told nothing: a note cannot be put behind this request");
            return None;
        };
        tracing::info!(agent = %agent, branch = %place.branch, "its model is told what was done already");
        Some(Note {
            body: longer.into(),
            branch: place.branch,
            exchange: asking.exchange.clone(),
        })
    }

    fn informs(&self, http: &HttpRequest) -> bool {
        let config = self.config();
        let named = url::Url::parse(&http.url).is_ok_and(|url| {
            url.host_str()
                .is_some_and(|host| config.after_restore.informs(host))
        });
        if config.fence.mode == Mode::Observe || !named {
            return false;
        }
        let signed = http.headers.iter().find(|h| covers_the_body(h));
        if let Some(header) = signed {
            tracing::warn!(
                "a model is told nothing: `{}` signs what was sent, and a note would break it",
                header.name
            );
        }
        signed.is_none()
    }

    /// What to say of what a branch forgot; none when it forgot nothing.
    fn words_for(&self, agent: &AgentName, place: Place) -> Result<Option<String>, LogError> {
        let mut fenced = Vec::new();
        // What the agent as a whole forgot may come again in any conversation.
        let branches = self.with_lineage(|lineage| {
            let threads = lineage.agent(agent).map_or(&[][..], |line| &line.threads);
            let others = threads.iter().filter(|t| **t != place.thread);
            let wide = others.filter_map(|t| Some((*t, lineage.wide(*t)?.id)));
            std::iter::once((place.thread, place.branch))
                .chain(wide)
                .collect::<Vec<_>>()
        });
        for (thread, branch) in branches {
            let rows = self.fenced_rows(thread, branch)?.into_iter();
            fenced.extend(rows.filter(|row| row.parent.is_none()).map(|row| row.id));
        }
        fenced.sort_unstable();
        let (left_out, named) = fenced.split_at(fenced.len().saturating_sub(MOST_NAMED));
        if named.is_empty() {
            return Ok(None);
        }
        let is_certain = self.with_lineage(|lineage| {
            lineage
                .branch(place.branch)
                .is_some_and(|b| b.grade == Grade::Certain)
        });
        let mut words = opening(is_certain).to_owned();
        if !left_out.is_empty() {
            let _ = write!(words, "\n- {} earlier ones, not listed", left_out.len());
        }
        for &id in named {
            let Some(effect) = self.log().effect(id)? else {
                continue;
            };
            let spent = evidence::spent_in(&self.0, agent, place, &effect.presented)?;
            let spent = spent.iter().any(|spent| spent.consumed_by == id);
            words.push_str(&line(&effect, spent));
        }
        words.push_str(CLOSING);
        Ok(Some(words))
    }
}

fn opening(is_certain: bool) -> &'static str {
    if is_certain {
        "[Note by ACRFence, a local safety layer, not by the user] This conversation was taken back to an earlier point. \
         What follows was done outside after that point, and still stands; the conversation above does not show it:"
    } else {
        "[Note by ACRFence, a local safety layer, not by the user] This conversation may have been taken back to an \
         earlier point. What follows was done outside already, and still stands; the conversation above does not show it:"
    }
}

const CLOSING: &str = "\nDo not do these again because of what was asked before. A call that means the same gets the \
                       recorded result and is not carried out a second time; a different one may be stopped until a \
                       person allows it.";

fn line(effect: &Effect, spent: bool) -> String {
    let what = match &effect.call.request {
        Request::Http(http) => {
            let body = str::from_utf8(&http.body.kept).unwrap_or("(binary)");
            format!("{} {} {}", http.method, http.url, said(body))
        }
        Request::Mcp(mcp) => {
            format!("tool {} {}", mcp.name, said(&mcp.arguments))
        }
        Request::Exec(exec) => format!("command {}", said(&exec.argv.join(" "))),
    };
    let became = match effect.status {
        Status::Completed => "done",
        Status::Prepared => "on its way",
        Status::InDoubt => "sent, what became of it is not known",
        Status::Failed => "refused",
    };
    let spent = if spent {
        "; it used a single-use credential, which is spent"
    } else {
        ""
    };
    format!(
        "\n- {} at {}: {} ({became}{spent})",
        effect.id,
        effect.call.at,
        what.trim_end()
    )
}

/// What a call said, on one line and not too long.
fn said(text: &str) -> String {
    let line: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(MOST_SAID)
        .collect();
    if text.chars().nth(MOST_SAID).is_some() {
        line + "…"
    } else {
        line
    }
}

/// Whether a header signs or digests the body: a changed body would be refused.
fn covers_the_body(header: &Header) -> bool {
    const BY_NAME: [&str; 6] = [
        "x-amz-content-sha256",
        "content-digest",
        "repr-digest",
        "digest",
        "content-md5",
        "signature",
    ];
    BY_NAME.iter().any(|name| header.is(name))
        || header.is("authorization") && header.value.starts_with(b"AWS4-")
}
