//! Tickets: the duty to say how a call ended.

use bytes::Bytes;

use super::inform::Note;
use super::now;
use super::pipeline::Pipeline;
use super::talks::{Asking, LARGEST_REPLY};
use crate::analyzer::harvest;
use crate::boundary::Ticket;
use crate::effect::{Event, Harvest, LogError};
use crate::fence::outcome_of;
use crate::words::{EffectId, Ending, Outcome, Request, Response, Status, ThreadId};

/// The ticket of an effect.
pub(super) struct EffectTicket {
    pipeline: Pipeline,
    effect: EffectId,
    request: Request,
    settled: bool,
}

impl EffectTicket {
    pub(super) fn new(pipeline: Pipeline, effect: EffectId, request: Request) -> Self {
        Self {
            pipeline,
            effect,
            request,
            settled: false,
        }
    }

    fn event(&self, outcome: Outcome) -> Event {
        let harvest = match outcome.response() {
            Some(response) => {
                let keys = &self.pipeline.0.keys;
                harvest::response(
                    &keys.values,
                    &keys.credentials,
                    Some(&self.request),
                    response,
                )
            }
            None => Harvest::default(),
        };
        Event::Settled {
            effect: self.effect,
            outcome,
            at: now(),
            harvest,
        }
    }

    /// Takes the effect off the list of running ones, after its outcome was given to the log.
    fn end(&mut self, status: Status) {
        self.settled = true;
        let inner = &self.pipeline.0;
        let ended = inner.running.lock().remove(&self.effect);
        if let (Some(running), Status::InDoubt) = (ended, status) {
            inner.doubtful.lock().insert((running.agent, running.key));
        }
        inner.touch();
    }
}

#[async_trait::async_trait]
impl Ticket for EffectTicket {
    fn effect(&self) -> Option<EffectId> {
        Some(self.effect)
    }

    fn holds_end(&self) -> bool {
        true
    }

    async fn settle(mut self: Box<Self>, ending: Ending) -> Result<(), LogError> {
        let outcome = outcome_of(ending);
        let status = outcome.status();
        self.pipeline.0.log.append(self.event(outcome)).await?;
        // Still on the list of running effects until this is said too: an equal call that comes in
        // between finds one or the other.
        if status == Status::Completed && self.pipeline.is_abandoned(self.effect) {
            self.pipeline.lose_outcome(self.effect).await?;
        }
        self.end(status);
        Ok(())
    }
}

impl Drop for EffectTicket {
    fn drop(&mut self) {
        if !self.settled {
            let why = "the task that sent the call ended before it said what became of it".into();
            let event = self.event(Outcome::InDoubt {
                why,
                response: None,
            });
            self.pipeline.0.log.note(event);
            self.end(Status::InDoubt);
        }
    }
}

/// The ticket of a call that is no effect: what it told is written down, nothing waits for it.
pub(super) struct ObservedTicket {
    pipeline: Pipeline,
    thread: ThreadId,
    request: Request,
    model: bool,
    /// The conversation that waits for the answer.
    asking: Option<Asking>,
    /// What the model is told beside it.
    note: Option<Note>,
}

impl ObservedTicket {
    pub(super) fn read(pipeline: Pipeline, thread: ThreadId, request: Request) -> Self {
        Self {
            pipeline,
            thread,
            request,
            model: false,
            asking: None,
            note: None,
        }
    }

    pub(super) fn model(
        pipeline: Pipeline,
        thread: ThreadId,
        request: Request,
        asking: Option<Asking>,
    ) -> Self {
        Self {
            pipeline,
            thread,
            request,
            model: true,
            asking,
            note: None,
        }
    }

    /// The same with a note that is sent along.
    pub(super) fn with(self, note: Option<Note>) -> Self {
        Self { note, ..self }
    }
}

#[async_trait::async_trait]
impl Ticket for ObservedTicket {
    fn effect(&self) -> Option<EffectId> {
        None
    }

    fn keeps(&self) -> Option<usize> {
        self.asking.as_ref().map(|_| LARGEST_REPLY)
    }

    fn instead(&self) -> Option<Bytes> {
        self.note.as_ref().map(|note| note.body.clone())
    }

    /// What the model called is known before the agent can act on the end of its answer.
    fn holds_end(&self) -> bool {
        self.asking.is_some()
    }

    async fn settle(self: Box<Self>, ending: Ending) -> Result<(), LogError> {
        if let Some(asking) = &self.asking {
            self.pipeline.read_model_reply(asking, &ending).await;
        }
        if let (Some(note), Ending::Response(Response::Http(response))) = (&self.note, &ending)
            && (200..300).contains(&response.status)
        {
            self.pipeline.0.informed.told(note);
        }
        let keys = &self.pipeline.0.keys;
        // A conversation tells by what the model was told. What the model answers is made up, and a
        // value it made up must not look like one it was given.
        let harvest = match &ending {
            _ if self.model => harvest::request(&keys.values, &self.request),
            Ending::Response(response) => harvest::response(
                &keys.values,
                &keys.credentials,
                Some(&self.request),
                response,
            ),
            _ => Harvest::default(),
        };
        let harvest = self.pipeline.0.news.only_new(self.thread, harvest);
        if harvest != Harvest::default() {
            self.pipeline.0.log.note(Event::Observed {
                thread: self.thread,
                harvest,
                at: now(),
            });
        }
        Ok(())
    }
}
