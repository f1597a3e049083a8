//! Decides a call, makes the decision durable, and carries it out.

use super::admit::not_attached;
use super::evidence::Judged;
use super::holds::Whose;
use super::in_doubt::Doubt;
use super::pipeline::{Pipeline, Place, Running};
use super::stores::Looks;
use super::talks::Placed;
use super::ticket::EffectTicket;
use super::{evidence, now};
use crate::analyzer::{credential, harvest};
use crate::boundary::{Admission, Ticket};
use crate::effect::{Event, HoldDecision, LogError, Prepared};
use crate::fence::{Decision, HoldReason, refusal};
use crate::lineage::conversation::CallSeen;
use crate::policy::Mode;
use crate::words::{
    BranchId, EffectId, Ending, Fingerprint, HoldId, Refusal, RefusalCode, Seq, ToolCall, ToolKey,
};

impl Pipeline {
    /// Decides an effect's call until there is a verdict, waiting where the verdict is to wait.
    pub(super) async fn decide(
        &self,
        call: ToolCall,
        asks: Option<CallSeen>,
        key: ToolKey,
        presented: Vec<credential::Secret>,
        mut doubt: Doubt<'_>,
    ) -> Result<Admission, LogError> {
        let presented = self.fingerprints(&presented);
        let deadline = tokio::time::Instant::now() + self.config().fence.hold_timeout.0;
        let mut changed = self.0.changed.subscribe();
        let mut looks = Looks::new();
        loop {
            changed.mark_unchanged();
            // A restore or a fork may have been told while this call waited.
            let (turn, placed) = self.desk_alone(&call.origin, asks.as_ref()).await;
            if let Some(placed) = &placed
                && let Some(again) = &placed.placement.again
            {
                self.open_again(&call.origin, placed, again).await?;
                continue;
            }
            let placed = placed.as_ref();
            let Some(place) = self.place(&call.origin.agent, placed) else {
                return Ok(Admission::Refuse(not_attached()));
            };
            let mut gathered = tokio::task::block_in_place(|| {
                evidence::gather(&self.0, &call, place, placed, &key, &presented)
            })?;
            let mut judged = gathered.judge(&self.0, place)?;
            if let (
                Decision::Hold {
                    reason: HoldReason::Unsure,
                    ..
                },
                Some(llm),
            ) = (&judged.decision, &self.0.llm)
                && gathered.is_open()
            {
                gathered.settle(llm).await;
                judged = gathered.judge(&self.0, place)?;
            }
            // Only words speak for the restore so far; what the agent itself keeps may have been written
            // since they were heard.
            if gathered.is_suspected_in(place.branch) && self.looks(&mut looks, place.branch) {
                drop(turn);
                self.ask_own_store(place.branch).await?;
                continue;
            }
            if self.config().fence.mode == Mode::Observe {
                let about = judged.earlier.as_ref();
                let why = about.and_then(|earlier| gathered.why_again(earlier.id));
                self.note_what_would_be(&call, place, &judged, why);
                return self
                    .forward(call, place, placed, key, presented, None)
                    .await;
            }
            match judged.decision.clone() {
                Decision::Forward => {
                    return self
                        .forward(call, place, placed, key, presented, None)
                        .await;
                }
                Decision::Replay(effect) => {
                    let branch = gathered.branch_of(effect).unwrap_or(place.branch);
                    let why = gathered.why_again(effect);
                    return self.replay(call, branch, placed, effect, why).await;
                }
                Decision::Block { .. } => return self.refuse(call, place, &judged, None).await,
                Decision::AwaitTwin(_) => {
                    drop(turn);
                    // The twin's own time-outs bound this wait.
                    let stopping = changed.changed().await.is_err();
                    // One that gave up while it waited hears no answer, and must not use it up for
                    // the call that its agent makes instead.
                    if stopping || doubt.is_gone() {
                        return self.refuse(call, place, &judged, None).await;
                    }
                }
                Decision::Hold { effect, reason } => {
                    match self.decided_hold(&call, place, effect) {
                        Some((_, HoldDecision::Replay)) => {
                            let branch = gathered.branch_of(effect).unwrap_or(place.branch);
                            let why = gathered.why_again(effect);
                            return self.replay(call, branch, placed, effect, why).await;
                        }
                        Some((hold, HoldDecision::Forward)) => {
                            return self
                                .forward(call, place, placed, key, presented, Some(hold))
                                .await;
                        }
                        Some((hold, HoldDecision::Deny)) => {
                            return self.refuse(call, place, &judged, Some(hold)).await;
                        }
                        None => {}
                    }
                    if reason == HoldReason::InDoubt
                        && let Some(question) = self.question(&mut doubt, effect).await?
                    {
                        drop(turn);
                        self.ask(question).await?;
                        continue;
                    }
                    let hold = self.hold_for(&call, place, &key, effect, reason).await?;
                    drop(turn);
                    let next = self.next_of(&looks, place.branch);
                    let next = next.filter(|_| reason == HoldReason::Suspect);
                    let until = next.map_or(deadline, |next| deadline.min(next.into()));
                    let heard = tokio::time::timeout_at(until, changed.changed()).await;
                    let late = heard.is_err() && tokio::time::Instant::now() >= deadline;
                    if late || doubt.is_gone() {
                        return self.refuse(call, place, &judged, Some(hold)).await;
                    }
                }
            }
        }
    }

    pub(super) fn fingerprints(&self, presented: &[credential::Secret]) -> Vec<Fingerprint> {
        let key = &self.0.keys.credentials;
        presented
            .iter()
            .map(|secret| credential::fingerprint(key, &secret.value))
            .collect()
    }

    /// Makes the call durable and lets it go.
    pub(super) async fn forward(
        &self,
        call: ToolCall,
        place: Place,
        placed: Option<&Placed>,
        key: ToolKey,
        presented: Vec<Fingerprint>,
        by_hold: Option<HoldId>,
    ) -> Result<Admission, LogError> {
        if let Some(hold) = by_hold {
            self.write(Event::HoldUsed { hold, at: now() }).await?;
        }
        let origin = placed.map(|_| call.origin.clone());
        let (effect, ticket) = self.prepare(call, place, key, presented, &[]).await?;
        if let (Some(placed), Some(origin)) = (placed, &origin)
            && let Err(e) = self.attach(origin, placed, effect, effect.0).await
        {
            let why = format!("a rewind that the call shows could not be written down: {e}");
            ticket.settle(Ending::NotSent { why }).await?;
            return Err(e);
        }
        Ok(Admission::Forward(ticket))
    }

    /// Makes the call durable, inside the effects `outer`.
    pub(super) async fn prepare(
        &self,
        call: ToolCall,
        place: Place,
        key: ToolKey,
        presented: Vec<Fingerprint>,
        outer: &[EffectId],
    ) -> Result<(EffectId, Box<dyn Ticket>), LogError> {
        let values = harvest::request(&self.0.keys.values, &call.request).values;
        let request = call.request.clone();
        let agent = call.origin.agent.clone();
        let prepared = Prepared {
            key: key.clone(),
            thread: place.thread,
            branch: place.branch,
            parent: outer.first().copied(),
            co_parents: outer.get(1..).unwrap_or_default().to_vec(),
            call,
            presented,
            values,
            retry_of: None,
        };
        let effect = EffectId(
            self.0
                .log
                .append(Event::Prepared(Box::new(prepared)))
                .await?,
        );
        self.0.running.lock().insert(
            effect,
            Running {
                agent,
                place,
                key,
                abandoned: false,
            },
        );
        let ticket = EffectTicket::new(self.clone(), effect, request);
        Ok((effect, Box::new(ticket)))
    }

    /// Puts the effect into this branch's timeline and gives its response. `why` is given where nothing
    /// of the effect is forgotten.
    pub(super) async fn replay(
        &self,
        call: ToolCall,
        branch: BranchId,
        placed: Option<&Placed>,
        effect: EffectId,
        why: Option<String>,
    ) -> Result<Admission, LogError> {
        let known = self.0.log.effect(effect)?;
        let response = known
            .and_then(|e| e.outcome)
            .and_then(|o| o.response().cloned());
        let Some(response) = response else {
            return Err(LogError::Corrupt {
                place: effect.to_string(),
                detail: "it is completed but has no response".into(),
            });
        };
        let origin = placed.map(|_| call.origin.clone());
        let entered = self
            .write(Event::Replayed {
                effect,
                branch,
                call: Box::new(call),
                why,
                at: now(),
            })
            .await?;
        if let (Some(placed), Some(origin)) = (placed, &origin) {
            self.attach(origin, placed, effect, entered).await?;
        }
        Ok(Admission::Replay { effect, response })
    }

    pub(super) async fn refuse(
        &self,
        call: ToolCall,
        place: Place,
        judged: &Judged,
        hold: Option<HoldId>,
    ) -> Result<Admission, LogError> {
        let refusal = self.words(&call, judged, hold);
        let event = Event::Refused {
            branch: place.branch,
            call: Box::new(call),
            refusal: refusal.clone(),
            enforced: true,
            at: now(),
        };
        self.0.log.append(event).await?;
        Ok(Admission::Refuse(refusal))
    }

    fn words(&self, call: &ToolCall, judged: &Judged, hold: Option<HoldId>) -> Refusal {
        let told = refusal(
            &judged.decision,
            &call.origin.agent,
            judged.earlier.as_ref(),
            hold,
        );
        told.unwrap_or_else(|| Refusal {
            code: RefusalCode::Held,
            title: "An equal call is still running.".into(),
            detail: "The daemon stops, or whoever called hung up. Nothing was sent. Try again when it runs.".into(),
            effect: judged.earlier.as_ref().map(|e| e.id),
            fields: Vec::new(),
            hold,
        })
    }

    /// Whether verdicts are carried out.
    pub(super) fn enforces(&self) -> bool {
        self.config().fence.mode == Mode::Enforce
    }

    /// Observe mode: writes down what enforcing would have done.
    fn note_what_would_be(
        &self,
        call: &ToolCall,
        place: Place,
        judged: &Judged,
        why_again: Option<String>,
    ) {
        let refusal = match (&judged.decision, &judged.earlier) {
            (Decision::Forward, _) => return,
            (
                Decision::Replay(effect)
                | Decision::AwaitTwin(effect)
                | Decision::Hold {
                    effect,
                    reason: HoldReason::Again,
                },
                _,
            ) => Refusal {
                code: RefusalCode::Duplicate,
                title: match &why_again {
                    Some(why) => format!("This call repeats {effect}: {why}."),
                    None => format!("This call repeats {effect}."),
                },
                detail: match &judged.decision {
                    Decision::Hold { .. } => {
                        "Enforced, a person would have been asked. It was sent."
                    }
                    _ => "Enforced, it would have been answered from the record. It was sent.",
                }
                .into(),
                effect: Some(*effect),
                fields: judged
                    .earlier
                    .as_ref()
                    .and_then(|e| e.comparison.as_ref())
                    .map(|c| c.fields.clone())
                    .unwrap_or_default(),
                hold: None,
            },
            _ => self.words(call, judged, None),
        };
        self.0.log.note(Event::Refused {
            branch: place.branch,
            call: Box::new(call.clone()),
            refusal,
            enforced: false,
            at: now(),
        });
    }

    /// Holds that count for this call: its agent's, since that was last restored as a whole.
    fn whose(&self, call: &ToolCall, place: Place) -> Whose {
        Whose {
            agent: call.origin.agent.clone(),
            since: self.with_lineage(|lineage| {
                let newest = lineage.wide(place.thread);
                newest.map_or(Seq(0), |b| b.id.0)
            }),
        }
    }

    /// What a person decided about an equal call that met the same effect, if anybody did.
    fn decided_hold(
        &self,
        call: &ToolCall,
        place: Place,
        effect: EffectId,
    ) -> Option<(HoldId, HoldDecision)> {
        let held = self
            .0
            .holds
            .lock()
            .decided(&self.whose(call, place), effect);
        held.into_iter()
            .find(|(id, _, earlier)| evidence::same_call(&self.0, (*id, earlier), call, place))
            .map(|(id, decision, _)| (id, decision))
    }

    /// The hold that this call waits in: an equal one that is open, or a new one.
    async fn hold_for(
        &self,
        call: &ToolCall,
        place: Place,
        key: &ToolKey,
        effect: EffectId,
        reason: HoldReason,
    ) -> Result<HoldId, LogError> {
        let open = self
            .0
            .holds
            .lock()
            .undecided(&self.whose(call, place), effect);
        if let Some((id, _)) = open
            .into_iter()
            .find(|(id, earlier)| evidence::same_call(&self.0, (*id, earlier), call, place))
        {
            return Ok(id);
        }
        let event = Event::HoldOpened {
            branch: place.branch,
            effect,
            key: key.clone(),
            call: Box::new(call.clone()),
            why: evidence::reason_words(reason).into(),
            at: now(),
        };
        let seq = self.write(event).await?;
        Ok(HoldId(seq))
    }
}
