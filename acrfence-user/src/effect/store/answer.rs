//! What the log takes and answers: [`EffectLog`] over journal and index.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use tokio::sync::broadcast;

use super::Store;
use crate::effect::index::query::contains;
use crate::effect::index::{self, Row, Told, did_not_happen};
use crate::effect::journal::seal::Record;
use crate::effect::journal::{self, Claim, Loc};
use crate::effect::{
    CandidateRow, CredentialHistory, EffectFilter, EffectLog, EffectRow, Event, Harvest, LogError,
    Page, Prepared,
};
use crate::words::{
    Effect, EffectId, Fingerprint, Outcome, Request, Resolution, Response, Seq, Status, ThreadId,
    ToolKey,
};

/// Bytes of bodies that one call reads at most when it looks for a text.
const SEARCH: usize = 512 << 10;

impl Store {
    /// What a record may use of the room; an error when it speaks of an effect that is not there.
    fn claim(&self, event: &Event) -> Result<Claim, LogError> {
        let (effect, claim) = match event {
            Event::Prepared(_) => return Ok(Claim::Prepared),
            Event::Settled { effect, .. } => (*effect, Claim::Outcome(*effect)),
            Event::Resolved { effect, .. } => (*effect, Claim::Other),
            _ => return Ok(Claim::Other),
        };
        // The index may be out of order; an outcome is taken all the same.
        if self.journal.is_running(effect) || !matches!(self.index.row(effect), Ok(None)) {
            return Ok(claim);
        }
        Err(LogError::Unusable(format!(
            "there is no effect {effect} in the log whose outcome could be recorded"
        )))
    }

    /// The event of a record: from the journal, or from what is only noted.
    fn event(&self, seq: Seq, loc: Option<Loc>) -> Result<Option<Event>, LogError> {
        match loc {
            None => Ok(self.index.noted(seq).map(|event| (*event).clone())),
            Some(loc) => match self.journal.archive().read(loc, seq)? {
                Record::Event(event) => Ok(Some(event)),
                Record::Mark(_) => Ok(None),
            },
        }
    }

    fn assemble(&self, row: Row) -> Result<Option<Effect>, LogError> {
        let id = row.shown.id;
        let Some(Event::Prepared(prepared)) = self.event(id.0, row.prepared)? else {
            return Ok(None);
        };
        let outcome = match row.outcome {
            None => None,
            Some((seq, loc)) => match self.event(seq, loc)? {
                Some(event) => outcome_of(event),
                None => return Ok(None),
            },
        };
        let Prepared {
            key,
            thread,
            branch,
            parent,
            co_parents,
            call,
            presented,
            ..
        } = *prepared;
        Ok(Some(Effect {
            id,
            key,
            thread,
            branch,
            parent,
            co_parents,
            call,
            presented,
            issued: row.issued,
            status: row.shown.status,
            outcome,
            ended: row.shown.ended,
        }))
    }

    /// The events of records at these places.
    fn events(&self, places: Vec<(Seq, Option<Loc>)>) -> Result<Vec<(Seq, Event)>, LogError> {
        let mut events = Vec::with_capacity(places.len());
        for (seq, loc) in places {
            events.extend(self.event(seq, loc)?.map(|event| (seq, event)));
        }
        Ok(events)
    }

    /// Whether request or response of an effect contain a text.
    fn has_text(&self, id: EffectId, part: &str) -> Result<bool, LogError> {
        Ok(self.effect(id)?.is_some_and(|effect| {
            texts(&effect, &mut |text| {
                if contains(text, part.as_bytes()) {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            })
            .is_break()
        }))
    }

    fn note_or_drop(&self, event: Event) -> Result<(), LogError> {
        let claim = self.claim(&event)?;
        self.submit(event, claim)
    }

    fn submit(&self, event: Event, claim: Claim) -> Result<(), LogError> {
        let (plain, _) = self.sealer.encode(&event)?;
        let (sealed, event) = self.sealer.seal(self.journal.archive(), event, &plain)?;
        let record = Record::Event(event.clone());
        let seq = self.journal.submit(sealed, record, claim, None)?;
        self.index.note(seq, event.at_position(seq));
        Ok(())
    }
}

#[async_trait::async_trait]
impl EffectLog for Store {
    async fn append(&self, event: Event) -> Result<Seq, LogError> {
        let claim = self.claim(&event)?;
        let (plain, large) = self.sealer.encode(&event)?;
        let archive = self.journal.archive();
        let (sealed, event) = if large && tokio::runtime::Handle::try_current().is_ok() {
            let sealer = self.sealer.clone();
            let archive = archive.clone();
            let sealing = move || sealer.seal(&archive, event, &plain);
            tokio::task::spawn_blocking(sealing)
                .await
                .map_err(|e| LogError::Unusable(format!("sealing a record failed: {e}")))?
        } else {
            self.sealer.seal(archive, event, &plain)
        }?;
        let (seq, durable) = self
            .journal
            .enter(sealed, Record::Event(event), claim)
            .await?;
        let abandoned = (claim == Claim::Prepared).then(|| Abandoned { store: self, seq });
        let done = durable.wait().await;
        std::mem::forget(abandoned);
        done
    }

    fn note(&self, event: Event) {
        if let Err(e) = self.note_or_drop(event) {
            self.notes_dropped.fetch_add(1, Ordering::Relaxed);
            tracing::error!("a note was lost: {e}");
        }
    }

    fn effect(&self, id: EffectId) -> Result<Option<Effect>, LogError> {
        let _layout = self.layout.read();
        // A noted record may reach the disk between the look at its row and the look for it.
        for _ in 0..8 {
            let Some(row) = self.index.row(id)? else {
                return Ok(None);
            };
            if let Some(effect) = self.assemble(row)? {
                return Ok(Some(effect));
            }
        }
        Err(LogError::Corrupt {
            place: format!("effect {id}"),
            detail: "its row names records of another kind".to_owned(),
        })
    }

    fn effects(&self, filter: &EffectFilter) -> Result<Page<EffectRow>, LogError> {
        let _layout = self.layout.read();
        let text = |row: &Row, part: &str| {
            let Some(effect) = self.assemble(row.clone())? else {
                return Ok((false, 0));
            };
            let mut read = 0;
            let found = texts(&effect, &mut |text| {
                read += text.len();
                if contains(text, part.as_bytes()) {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            });
            Ok((found.is_break(), read))
        };
        self.index.effects(filter, &text, SEARCH)
    }

    fn candidates(
        &self,
        thread: ThreadId,
        key: &ToolKey,
        before: Seq,
    ) -> Result<Vec<CandidateRow>, LogError> {
        self.index.candidates(thread, key, before)
    }

    fn credential(&self, fingerprint: Fingerprint) -> Result<CredentialHistory, LogError> {
        self.index.credential(fingerprint)
    }

    fn first_seen(&self, thread: ThreadId, value: u64) -> Result<Option<Seq>, LogError> {
        self.index.first_seen(thread, value)
    }

    fn lineage_events(&self) -> Result<Vec<(Seq, Event)>, LogError> {
        let _layout = self.layout.read();
        let mut events = Vec::new();
        for Told { seq, loc, event } in self.index.lineage()? {
            let event = match event {
                Some(event) => Some(event),
                None => match self.event(seq, loc)? {
                    Some(event) => Some(event),
                    // It reached the disk meanwhile, or its note was lost with the journal.
                    None => self
                        .index
                        .lineage_at(seq)?
                        .map_or(Ok(None), |loc| self.event(seq, Some(loc)))?,
                },
            };
            events.extend(event.map(|event| (seq, index::for_a_fold(event))));
        }
        Ok(events)
    }

    fn refusals(&self, after: Seq, limit: usize) -> Result<Vec<(Seq, Event)>, LogError> {
        let _layout = self.layout.read();
        self.events(self.index.refusals(after, limit)?)
    }

    fn history(&self, effect: EffectId) -> Result<Vec<(Seq, Event)>, LogError> {
        let _layout = self.layout.read();
        self.events(self.index.history(effect)?)
    }

    fn changes(
        &self,
        after: Seq,
        filter: &EffectFilter,
    ) -> Result<(Vec<EffectRow>, Seq), LogError> {
        let (mut rows, reached) = match self.index.changes(after, filter) {
            Some(changes) => (changes.rows, changes.reached),
            None => self.changes_in_journal(after, filter)?,
        };
        if let Some(text) = &filter.text {
            let all = std::mem::take(&mut rows);
            for row in all {
                if self.has_text(row.id, text)? {
                    rows.push(row);
                }
            }
        }
        Ok((rows, reached))
    }

    fn unsettled(&self) -> Result<Vec<EffectId>, LogError> {
        self.index.with_status(Status::Prepared)
    }

    fn head(&self) -> Seq {
        self.journal.head().seq
    }

    fn follow(&self) -> (Seq, broadcast::Receiver<Seq>) {
        self.journal.follow()
    }
}

/// A *prepared* record whose writer may go away before it learns that it may send. Then nothing was
/// sent, and the effect is settled as such.
struct Abandoned<'a> {
    store: &'a Store,
    seq: Seq,
}

impl Drop for Abandoned<'_> {
    fn drop(&mut self) {
        let event = Event::Settled {
            effect: EffectId(self.seq),
            outcome: Outcome::Failed {
                why: "whoever wanted to send it went away before it was recorded; it was not sent"
                    .to_owned(),
                response: None,
            },
            at: journal::anchor::now(),
            harvest: Harvest::default(),
        };
        // Not through `note`: the effect need not be visible yet.
        if let Err(e) = self.store.submit(event, Claim::Outcome(EffectId(self.seq))) {
            tracing::error!("an effect that was not sent could not be settled: {e}");
        }
    }
}

/// What a record says of the end of its effect.
fn outcome_of(event: Event) -> Option<Outcome> {
    match event {
        Event::Settled { outcome, .. } => Some(outcome),
        Event::Resolved {
            resolution: Resolution::Happened(response),
            ..
        } => Some(Outcome::Completed(response)),
        Event::Resolved {
            resolution: Resolution::DidNotHappen,
            by,
            ..
        } => Some(Outcome::Failed {
            why: did_not_happen(&by),
            response: None,
        }),
        _ => None,
    }
}

/// Visits every piece of request and response that a text search looks at.
fn texts(effect: &Effect, visit: &mut dyn FnMut(&[u8]) -> ControlFlow<()>) -> ControlFlow<()> {
    match &effect.call.request {
        Request::Http(http) => {
            visit(http.method.as_bytes())?;
            visit(http.url.as_bytes())?;
            http.headers.iter().try_for_each(|h| visit(&h.value))?;
            visit(&http.body.kept)?;
        }
        Request::Mcp(mcp) => {
            visit(mcp.server.as_bytes())?;
            visit(mcp.name.as_bytes())?;
            visit(mcp.arguments.as_bytes())?;
        }
        Request::Exec(exec) => {
            exec.argv.iter().try_for_each(|arg| visit(arg.as_bytes()))?;
            visit(exec.cwd.as_bytes())?;
            if let Some(stdin) = &exec.stdin {
                visit(&stdin.kept)?;
            }
        }
    }
    match effect.outcome.as_ref().and_then(Outcome::response) {
        Some(Response::Http(http)) => {
            http.headers
                .iter()
                .chain(&http.trailers)
                .try_for_each(|h| visit(&h.value))?;
            visit(&http.body.kept)
        }
        Some(Response::Mcp(mcp)) => visit(mcp.answer.as_bytes()),
        Some(Response::Exec(exec)) => {
            visit(&exec.stdout.kept)?;
            visit(&exec.stderr.kept)
        }
        None => ControlFlow::Continue(()),
    }
}
