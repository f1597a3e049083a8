//! The effect log as a list in memory: slow, simple, and what the real one is held to.

use parking_lot::Mutex;
use tokio::sync::broadcast;

use super::index::{code_of, did_not_happen, for_a_fold, host_of};
use super::{
    CandidateRow, CredentialHistory, EffectFilter, EffectLog, EffectRow, Event, LogError, Page,
};
use crate::words::{
    Effect, EffectId, Fingerprint, Outcome, Request, Resolution, Response, Seq, Status, ThreadId,
    ToolKey,
};

pub struct Model {
    pub events: Mutex<Vec<(Seq, Event)>>,
    sender: broadcast::Sender<Seq>,
}

impl Model {
    pub fn new() -> Self {
        Self {
            events: Mutex::default(),
            sender: broadcast::channel(16).0,
        }
    }

    pub fn push(&self, event: Event) -> Seq {
        let mut events = self.events.lock();
        let seq = Seq(events.len() as u64 + 1);
        events.push((seq, event.at_position(seq)));
        seq
    }

    fn all_effects(&self) -> Vec<Effect> {
        let events = self.events.lock();
        let mut effects: Vec<Effect> = Vec::new();
        for (seq, event) in events.iter() {
            match event {
                Event::Prepared(p) => effects.push(Effect {
                    id: EffectId(*seq),
                    key: p.key.clone(),
                    thread: p.thread,
                    branch: p.branch,
                    parent: p.parent,
                    co_parents: p.co_parents.clone(),
                    call: p.call.clone(),
                    presented: p.presented.clone(),
                    issued: Vec::new(),
                    status: Status::Prepared,
                    outcome: None,
                    ended: None,
                }),
                Event::Settled {
                    effect,
                    outcome,
                    at,
                    harvest,
                } => {
                    let effect = effects.iter_mut().find(|e| e.id == *effect).unwrap();
                    for f in &harvest.issued {
                        if !effect.issued.contains(f) {
                            effect.issued.push(*f);
                        }
                    }
                    climb(effect, outcome.clone(), *at);
                }
                Event::Resolved {
                    effect,
                    resolution,
                    by,
                    at,
                } => {
                    let effect = effects.iter_mut().find(|e| e.id == *effect).unwrap();
                    let outcome = match resolution {
                        Resolution::Happened(response) => Outcome::Completed(response.clone()),
                        Resolution::DidNotHappen => Outcome::Failed {
                            why: did_not_happen(by),
                            response: None,
                        },
                    };
                    climb(effect, outcome, *at);
                }
                _ => {}
            }
        }
        effects
    }
}

fn rung(status: Status) -> u8 {
    match status {
        Status::Prepared => 0,
        Status::InDoubt => 1,
        Status::Failed => 2,
        Status::Completed => 3,
    }
}

fn climb(effect: &mut Effect, outcome: Outcome, at: crate::words::Timestamp) {
    if rung(outcome.status()) > rung(effect.status) {
        effect.status = outcome.status();
        effect.outcome = Some(outcome);
        effect.ended = Some(at);
    }
}

fn row(effect: &Effect) -> EffectRow {
    EffectRow {
        id: effect.id,
        at: effect.call.at,
        ended: effect.ended,
        agent: effect.call.origin.agent.clone(),
        thread: effect.thread,
        branch: effect.branch,
        parent: effect.parent,
        co_parents: effect.co_parents.clone(),
        process: effect.call.origin.process,
        transport: effect.call.request.transport(),
        key: effect.key.clone(),
        host: host_of(&effect.call.request),
        status: effect.status,
        code: effect
            .outcome
            .as_ref()
            .and_then(Outcome::response)
            .and_then(code_of),
        why: match &effect.outcome {
            Some(Outcome::Failed { why, .. } | Outcome::InDoubt { why, .. }) => why.clone(),
            _ => String::new(),
        },
        gaps: effect.call.origin.gaps.clone(),
    }
}

fn has_text(effect: &Effect, text: &str) -> bool {
    let mut bytes: Vec<Vec<u8>> = Vec::new();
    match &effect.call.request {
        Request::Http(h) => bytes.extend([h.url.clone().into_bytes(), h.body.kept.to_vec()]),
        Request::Mcp(m) => bytes.push(m.arguments.clone().into_bytes()),
        Request::Exec(e) => bytes.extend(e.argv.iter().map(|a| a.clone().into_bytes())),
    }
    match effect.outcome.as_ref().and_then(Outcome::response) {
        Some(Response::Http(h)) => bytes.push(h.body.kept.to_vec()),
        Some(Response::Mcp(m)) => bytes.push(m.answer.clone().into_bytes()),
        Some(Response::Exec(e)) => bytes.push(e.stdout.kept.to_vec()),
        None => {}
    }
    bytes
        .iter()
        .any(|b| b.windows(text.len()).any(|w| w == text.as_bytes()))
}

#[async_trait::async_trait]
impl EffectLog for Model {
    async fn append(&self, event: Event) -> Result<Seq, LogError> {
        Ok(self.push(event))
    }

    fn note(&self, event: Event) {
        self.push(event);
    }

    fn effect(&self, id: EffectId) -> Result<Option<Effect>, LogError> {
        Ok(self.all_effects().into_iter().find(|e| e.id == id))
    }

    fn effects(&self, filter: &EffectFilter) -> Result<Page<EffectRow>, LogError> {
        let mut fitting: Vec<EffectRow> = self
            .all_effects()
            .iter()
            .filter(|e| {
                let row = row(e);
                filter.agent.as_ref().is_none_or(|v| *v == row.agent)
                    && filter.thread.is_none_or(|v| v == row.thread)
                    && filter.branch.is_none_or(|v| v == row.branch)
                    && filter
                        .tool
                        .as_ref()
                        .is_none_or(|v| row.key.0.contains(v.as_str()))
                    && filter.host.as_ref().is_none_or(|v| *v == row.host)
                    && filter.status.is_none_or(|v| v == row.status)
                    && filter.pid.is_none_or(|v| v == row.process.tgid)
                    && filter
                        .credential
                        .is_none_or(|v| e.presented.contains(&v) || e.issued.contains(&v))
                    && filter.since.is_none_or(|v| row.at >= v)
                    && filter.until.is_none_or(|v| row.at < v)
                    && filter.text.as_ref().is_none_or(|v| has_text(e, v))
                    && filter.after.is_none_or(|v| {
                        if filter.oldest_first {
                            e.id.0 > v
                        } else {
                            e.id.0 < v
                        }
                    })
            })
            .map(row)
            .collect();
        if !filter.oldest_first {
            fitting.reverse();
        }
        let limit = filter.limit.unwrap_or(50).clamp(1, 1000);
        let next = (fitting.len() > limit).then(|| fitting[limit - 1].id.0);
        fitting.truncate(limit);
        Ok(Page {
            items: fitting,
            next,
        })
    }

    fn candidates(
        &self,
        thread: ThreadId,
        key: &ToolKey,
        before: Seq,
    ) -> Result<Vec<CandidateRow>, LogError> {
        Ok(self
            .all_effects()
            .into_iter()
            .filter(|e| {
                e.thread == thread && e.key == *key && e.id.0 < before && e.status != Status::Failed
            })
            .map(|e| CandidateRow {
                id: e.id,
                branch: e.branch,
                status: e.status,
            })
            .collect())
    }

    fn credential(&self, fingerprint: Fingerprint) -> Result<CredentialHistory, LogError> {
        let effects = self.all_effects();
        let mut history = CredentialHistory::default();
        for (seq, event) in self.events.lock().iter() {
            let told = match event {
                Event::Settled {
                    effect, harvest, ..
                } => effects
                    .iter()
                    .find(|e| e.id == *effect)
                    .map(|e| (e.thread, harvest)),
                Event::Observed {
                    thread, harvest, ..
                } => Some((*thread, harvest)),
                _ => None,
            };
            if let Some((thread, harvest)) = told
                && harvest.issued.contains(&fingerprint)
                && !history.issued.iter().any(|(t, _)| *t == thread)
            {
                history.issued.push((thread, *seq));
            }
        }
        history.presented = effects
            .iter()
            .filter(|e| e.presented.contains(&fingerprint))
            .map(|e| (e.id, e.status))
            .collect();
        Ok(history)
    }

    fn first_seen(&self, thread: ThreadId, value: u64) -> Result<Option<Seq>, LogError> {
        let effects = self.all_effects();
        Ok(self.events.lock().iter().find_map(|(seq, event)| {
            let (in_thread, values) = match event {
                Event::Prepared(p) => (p.thread, &p.values),
                Event::Observed {
                    thread, harvest, ..
                } => (*thread, &harvest.values),
                Event::Settled {
                    effect, harvest, ..
                } => (
                    effects.iter().find(|e| e.id == *effect)?.thread,
                    &harvest.values,
                ),
                _ => return None,
            };
            (in_thread == thread && values.contains(&value)).then_some(*seq)
        }))
    }

    fn lineage_events(&self) -> Result<Vec<(Seq, Event)>, LogError> {
        let events = self.events.lock();
        let wanted = |event: &Event| {
            !matches!(
                event,
                Event::Prepared(_)
                    | Event::Settled { .. }
                    | Event::Observed { .. }
                    | Event::Opaque(_)
                    | Event::Ran(_)
                    | Event::Refused { .. }
                    | Event::Asked { .. }
                    | Event::Answered { .. }
            )
        };
        Ok(events
            .iter()
            .filter(|(_, e)| wanted(e))
            .map(|(seq, e)| (*seq, for_a_fold(e.clone())))
            .collect())
    }

    fn refusals(&self, after: Seq, limit: usize) -> Result<Vec<(Seq, Event)>, LogError> {
        let events = self.events.lock();
        Ok(events
            .iter()
            .filter(|(seq, event)| *seq > after && matches!(event, Event::Refused { .. }))
            .take(limit)
            .cloned()
            .collect())
    }

    fn history(&self, effect: EffectId) -> Result<Vec<(Seq, Event)>, LogError> {
        let about = |event: &Event| match event {
            Event::Refused { refusal, .. } => refusal.effect == Some(effect),
            Event::Replayed { effect: of, .. }
            | Event::HoldOpened { effect: of, .. }
            | Event::Resolved { effect: of, .. }
            | Event::Asked { effect: of, .. }
            | Event::Answered { effect: of, .. }
            | Event::OutcomeLost { effect: of, .. } => *of == effect,
            _ => false,
        };
        let events = self.events.lock();
        Ok(events.iter().filter(|(_, e)| about(e)).cloned().collect())
    }

    fn changes(
        &self,
        after: Seq,
        filter: &EffectFilter,
    ) -> Result<(Vec<EffectRow>, Seq), LogError> {
        let events = self.events.lock().clone();
        let filter = EffectFilter {
            after: None,
            limit: Some(1000),
            ..filter.clone()
        };
        let mut rows = Vec::new();
        let as_of = Self::new();
        for (seq, event) in &events {
            let before = as_of.all_effects();
            as_of.push(event.clone());
            if *seq <= after {
                continue;
            }
            let after_it = as_of.all_effects();
            let changed = after_it
                .iter()
                .filter(|now| !before.iter().any(|then| then == *now));
            for effect in changed {
                let fitting = as_of.effects(&filter)?.items;
                rows.extend(fitting.into_iter().filter(|row| row.id == effect.id));
            }
        }
        Ok((rows, Seq(events.len() as u64)))
    }

    fn unsettled(&self) -> Result<Vec<EffectId>, LogError> {
        Ok(self
            .all_effects()
            .iter()
            .filter(|e| e.status == Status::Prepared)
            .map(|e| e.id)
            .collect())
    }

    fn head(&self) -> Seq {
        Seq(self.events.lock().len() as u64)
    }

    fn follow(&self) -> (Seq, broadcast::Receiver<Seq>) {
        (self.head(), self.sender.subscribe())
    }
}
