//! The way of a call: place it, decide it, make the decision durable, hand out the verdict.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, watch};

use super::evidence::Judged;
use super::holds::{Hold, Holds, Whose};
use super::in_doubt::{Asking, Doubt};
use super::talks::{Placed, Talks};
use super::ticket::{EffectTicket, ObservedTicket};
use super::tools::ToolBook;
use super::{evidence, now};
use crate::analyzer::{Llm, credential, harvest};
use crate::boundary::{Admission, Arbiter, Courier, OpaqueFlow, Ticket, Trouble};
use crate::effect::{EffectFilter, EffectLog, Event, HoldDecision, LogError, Prepared};
use crate::fence::{Decision, Earlier, HoldReason, refusal, tool_key};
use crate::lineage::Lineage;
use crate::lineage::conversation::{CallSeen, ModelTraffic, may_be_model, recognise};
use crate::policy::{Config, Kind, Mode};
use crate::words::{
    AgentName, Branch, BranchId, Comparison, Effect, EffectId, Ending, Fingerprint, HoldId, Origin,
    ProcessIdentity, Refusal, RefusalCode, Request, Resolution, Seq, Status, ThreadId, ToolCall,
    ToolKey,
};

/// Keys of the hashes that the log keeps instead of secrets and values. They live as long as the log.
#[derive(Clone)]
pub struct Keys {
    /// For credentials' fingerprints.
    pub credentials: [u8; 32],
    /// For values.
    pub values: [u8; 32],
}

/// Why something a person asked for cannot be done.
#[derive(Debug, thiserror::Error)]
pub enum PipelineError {
    /// The log refused.
    #[error(transparent)]
    Log(#[from] LogError),
    /// There is no such thing.
    #[error("{0}")]
    NotFound(String),
    /// It is not in a state that allows it.
    #[error("{0}")]
    Conflict(String),
}

/// The title of the thread that calls belong to when no conversation tells.
const MAIN: &str = "main";

/// Where a call stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) thread: ThreadId,
    pub(super) branch: BranchId,
}

/// Takes every call the way of `docs/architecture.md`. Cheap to clone.
#[derive(Clone)]
pub struct Pipeline(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) log: Arc<dyn EffectLog>,
    pub(super) lineage: RwLock<Lineage>,
    pub(super) config: Arc<ArcSwap<Config>>,
    pub(super) keys: Keys,
    pub(super) tools: ToolBook,
    pub(super) holds: Mutex<Holds>,
    /// Effects whose upstream leg runs in this process.
    pub(super) running: Mutex<HashMap<EffectId, Running>>,
    /// Effects in doubt that policy asks about.
    pub(super) asking: Asking,
    /// Tool keys under which an effect's outcome is not known to its agent. Empty for an agent that
    /// was never restored and never lost an answer: then a call pays for its log write only.
    pub(super) doubtful: Mutex<HashSet<(AgentName, ToolKey)>>,
    /// Records that lineage is folded from are written one at a time, so that the fold sees them in
    /// journal order.
    writing: tokio::sync::Mutex<()>,
    /// Calls of an agent that need no look share its desk; a call that needs one, and a new branch,
    /// have it alone. So each candidate is consumed once, and no call of the timeline that is being
    /// left is on its way to the log while the new branch looks for candidates.
    desks: Mutex<HashMap<AgentName, Arc<tokio::sync::RwLock<()>>>>,
    /// What agents' conversations remember.
    pub(super) talks: Talks,
    /// Counts whatever could change a verdict: holds decided, effects settled and resolved.
    changed: watch::Sender<u64>,
    pub(super) notices: super::notices::Notices,
    pub(super) news: super::news::News,
    pub(super) nesting: super::nesting::Nesting,
    /// Reads prose that the comparison leaves open, where the operator has one.
    pub(super) llm: Option<Llm>,
}

/// An effect whose upstream leg runs in this process.
#[derive(Clone, Debug)]
pub(super) struct Running {
    pub(super) agent: AgentName,
    pub(super) place: Place,
    pub(super) key: ToolKey,
    /// Whether the agent hung up: its next equal call means this one.
    pub(super) abandoned: bool,
}

impl Pipeline {
    /// Starts over the log: folds the lineage, and puts in doubt what a dead daemon left running.
    pub async fn start(
        log: Arc<dyn EffectLog>,
        config: Arc<ArcSwap<Config>>,
        keys: Keys,
        llm: Option<Llm>,
    ) -> Result<Self, LogError> {
        let mut lineage = Lineage::default();
        let mut holds = Holds::default();
        let mut talks = Talks::new(&keys.values);
        for (seq, event) in log.lineage_events()? {
            lineage.apply(seq, &event);
            holds.apply(seq, &event);
            talks.apply(&event);
        }
        let pipeline = Self(Arc::new(Inner {
            log,
            lineage: RwLock::new(lineage),
            config,
            keys,
            tools: ToolBook::default(),
            holds: Mutex::new(holds),
            running: Mutex::default(),
            asking: Asking::default(),
            doubtful: Mutex::default(),
            writing: tokio::sync::Mutex::new(()),
            desks: Mutex::default(),
            talks,
            changed: watch::Sender::new(0),
            notices: super::notices::Notices::default(),
            news: super::news::News::default(),
            nesting: super::nesting::Nesting::default(),
            llm,
        }));
        pipeline.put_in_doubt_what_was_left_running().await?;
        pipeline.remember_doubts()?;
        pipeline.remember_doubtful_children()?;
        Ok(pipeline)
    }

    /// A copy-free look at the lineage.
    pub fn with_lineage<T>(&self, look: impl FnOnce(&Lineage) -> T) -> T {
        look(&self.0.lineage.read())
    }

    /// The effect log.
    pub fn log(&self) -> &Arc<dyn EffectLog> {
        &self.0.log
    }

    /// The configuration in force.
    pub fn config(&self) -> arc_swap::Guard<Arc<Config>> {
        self.0.config.load()
    }

    /// What a person should know about connections and opaque flows.
    pub fn notices(&self) -> &super::notices::Notices {
        &self.0.notices
    }

    /// Writes a record that lineage is folded from, in order, and takes it in.
    pub async fn write(&self, event: Event) -> Result<Seq, LogError> {
        let _order = self.0.writing.lock().await;
        self.write_in_order(event).await
    }

    /// Like [`Self::write`], with the record made from the lineage as it is at that moment.
    pub async fn write_from<E: From<LogError>>(
        &self,
        make: impl FnOnce(&Lineage) -> Result<Event, E>,
    ) -> Result<(Seq, Event), E> {
        let _order = self.0.writing.lock().await;
        let event = make(&self.0.lineage.read())?;
        let seq = self.write_in_order(event.clone()).await?;
        Ok((seq, event.at_position(seq)))
    }

    async fn write_in_order(&self, event: Event) -> Result<Seq, LogError> {
        let seq = self.0.log.append(event.clone()).await?;
        self.0.lineage.write().apply(seq, &event);
        self.0.holds.lock().apply(seq, &event);
        self.0.touch();
        Ok(seq)
    }

    /// Opens branches of an agent: `make` gives the records, from the lineage as it is when no call
    /// of the agent is on its way to the log. Gives the branches as they were opened.
    pub async fn open_branches<E: From<LogError>>(
        &self,
        agent: &AgentName,
        make: impl FnOnce(&Lineage) -> Result<Vec<Event>, E>,
    ) -> Result<Vec<Branch>, E> {
        let mut owners = vec![agent.clone()];
        owners.extend(self.with_lineage(|lineage| {
            let threads = lineage.agent(agent).map_or(&[][..], |line| &line.threads);
            let owners = threads.iter().filter_map(|t| lineage.thread(*t));
            owners.map(|t| t.agent.clone()).collect::<Vec<_>>()
        }));
        let _alone = self.alone(&owners).await;
        let _order = self.0.writing.lock().await;
        let events = make(&self.0.lineage.read())?;
        let mut opened = Vec::new();
        for event in events {
            let seq = self.write_in_order(event.clone()).await?;
            if let Event::BranchOpened(branch) = event.at_position(seq) {
                opened.push(branch);
            }
        }
        Ok(opened)
    }

    /// The desks of these agents, alone.
    pub(super) async fn alone(&self, agents: &[AgentName]) -> Vec<OwnedRwLockWriteGuard<()>> {
        let mut guards = Vec::new();
        // In one order everywhere, so that nobody waits in a circle.
        for agent in agents.iter().collect::<BTreeSet<_>>() {
            guards.push(self.0.desk(agent).write_owned().await);
        }
        guards
    }

    /// The desks that a call needs alone, and where it belongs as long as they are held.
    async fn desk_alone(
        &self,
        origin: &Origin,
        asks: Option<&CallSeen>,
    ) -> (Vec<OwnedRwLockWriteGuard<()>>, Option<Placed>) {
        let mut owners = vec![origin.agent.clone()];
        loop {
            let guards = self.alone(&owners).await;
            let placed = self.placed(origin, asks).await;
            match self.owner_of(placed.as_ref()) {
                Some(owner) if !owners.contains(&owner) => owners.push(owner),
                _ => return (guards, placed),
            }
        }
    }

    /// The same, shared with other calls that need no look.
    async fn desk_shared(
        &self,
        origin: &Origin,
        asks: Option<&CallSeen>,
    ) -> (Vec<OwnedRwLockReadGuard<()>>, Option<Placed>) {
        let mut owners = vec![origin.agent.clone()];
        loop {
            let guards = self.shared(&owners).await;
            let placed = self.placed(origin, asks).await;
            match self.owner_of(placed.as_ref()) {
                Some(owner) if !owners.contains(&owner) => owners.push(owner),
                _ => return (guards, placed),
            }
        }
    }

    fn owner_of(&self, placed: Option<&Placed>) -> Option<AgentName> {
        let thread = placed?.placement.at.thread;
        self.with_lineage(|lineage| lineage.thread(thread).map(|t| t.agent.clone()))
    }

    pub(super) async fn shared(&self, agents: &[AgentName]) -> Vec<OwnedRwLockReadGuard<()>> {
        let mut guards = Vec::new();
        for agent in agents.iter().collect::<BTreeSet<_>>() {
            guards.push(self.0.desk(agent).read_owned().await);
        }
        guards
    }

    /// Opens a thread with its first branch.
    pub(super) async fn open_thread(
        &self,
        agent: &AgentName,
        title: &str,
    ) -> Result<(ThreadId, BranchId), LogError> {
        let _order = self.0.writing.lock().await;
        let (thread, branch) = Lineage::first_thread(agent, title, now());
        let seq = self.write_in_order(thread).await?;
        let branch = self.write_in_order(branch(seq)).await?;
        Ok((ThreadId(seq), BranchId(branch)))
    }

    /// Gives an agent that has none its first line of work.
    pub async fn ensure_thread(&self, agent: &AgentName) -> Result<ThreadId, LogError> {
        let _order = self.0.writing.lock().await;
        if let Some(thread) = self.0.lineage.read().main_thread(agent) {
            return Ok(thread);
        }
        let (thread, branch) = Lineage::first_thread(agent, MAIN, now());
        let seq = self.write_in_order(thread).await?;
        self.write_in_order(branch(seq)).await?;
        Ok(ThreadId(seq))
    }

    /// Takes in a person's answer about an effect in doubt.
    pub async fn resolve(
        &self,
        effect: EffectId,
        resolution: Resolution,
        by: String,
    ) -> Result<(), PipelineError> {
        let known = self.0.log.effect(effect)?.ok_or_else(|| {
            PipelineError::NotFound(format!(
                "there is no effect {effect}; `acrfence effects` lists them"
            ))
        })?;
        if known.status != Status::InDoubt {
            return Err(PipelineError::Conflict(format!(
                "{effect} is {}, only an effect that is in_doubt can be resolved",
                known.status
            )));
        }
        self.write(Event::Resolved {
            effect,
            resolution,
            by,
            at: now(),
        })
        .await?;
        Ok(())
    }

    /// Takes in a person's decision about a held call.
    pub async fn decide_hold(
        &self,
        id: HoldId,
        decision: HoldDecision,
        by: String,
    ) -> Result<(), PipelineError> {
        let hold = self.0.holds.lock().get(id).cloned();
        let hold = hold.ok_or_else(|| {
            PipelineError::NotFound(format!(
                "there is no hold {id}; `acrfence holds` lists them"
            ))
        })?;
        let effect = hold.effect;
        let status = self.0.log.effect(effect)?.map(|e| {
            (
                e.status,
                e.outcome
                    .is_some_and(|o| o.response().is_some_and(|r| r.is_whole())),
            )
        });
        match (decision, status) {
            (HoldDecision::Deny, _) => {}
            (_, Some((Status::InDoubt, _))) => {
                return Err(PipelineError::Conflict(format!(
                    "{effect} is in doubt, so it is not known what there is to repeat; find out and run `acrfence resolve {effect} --happened RESPONSE` or `--did-not-happen`"
                )));
            }
            (HoldDecision::Replay, Some((_, false)) | None) => {
                return Err(PipelineError::Conflict(format!(
                    "the response of {effect} was not kept whole, so it cannot be given again; `acrfence approve {id} --as forward` sends the call, `acrfence deny {id}` refuses it"
                )));
            }
            (HoldDecision::Replay | HoldDecision::Forward, _) => {}
        }
        self.write(Event::HoldDecided {
            hold: id,
            decision,
            by,
            at: now(),
        })
        .await?;
        Ok(())
    }

    /// How a call compares to an earlier effect, with the evidence there is now.
    pub fn compare(&self, effect: &Effect, call: &ToolCall) -> Comparison {
        evidence::examine(&self.0, effect, call).comparison
    }

    /// Holds that wait for a person, oldest first.
    pub fn open_holds(&self) -> Vec<Hold> {
        self.0.holds.lock().open()
    }

    /// One hold.
    pub fn hold(&self, id: HoldId) -> Option<Hold> {
        self.0.holds.lock().get(id).cloned()
    }

    /// Effects that are running in this process.
    pub fn running(&self) -> usize {
        self.0.running.lock().len()
    }

    /// The agent hung up on a running effect: from now on an equal call of its thread means that one.
    pub(super) fn abandon(&self, effect: EffectId) {
        let doubt = self.0.running.lock().get_mut(&effect).map(|running| {
            running.abandoned = true;
            (running.agent.clone(), running.key.clone())
        });
        if let Some(doubt) = doubt {
            self.0.doubtful.lock().insert(doubt);
        }
    }

    pub(super) fn is_abandoned(&self, effect: EffectId) -> bool {
        self.0
            .running
            .lock()
            .get(&effect)
            .is_some_and(|running| running.abandoned)
    }

    /// Writes down that the outcome of a settled effect, or its replay, never reached its agent.
    pub(super) async fn lose_outcome(&self, effect: EffectId) -> Result<(), LogError> {
        let Some(known) = self.0.log.effect(effect)? else {
            return Ok(());
        };
        // What is fenced already is answered again anyway.
        if known.status != Status::Completed || self.with_lineage(|l| l.is_lost(effect)) {
            return Ok(());
        }
        let agent = known.call.origin.agent;
        self.0.doubtful.lock().insert((agent, known.key));
        let why = "the agent hung up before it was given the response".into();
        self.write(Event::OutcomeLost {
            effect,
            why,
            at: now(),
        })
        .await
        .map(drop)
    }

    async fn put_in_doubt_what_was_left_running(&self) -> Result<(), LogError> {
        for effect in self.0.log.unsettled()? {
            let outcome = crate::words::Outcome::InDoubt {
                why: "the daemon ended while the call was running".into(),
                response: None,
            };
            let settled = Event::Settled {
                effect,
                outcome,
                at: now(),
                harvest: Default::default(),
            };
            self.0.log.append(settled).await?;
        }
        Ok(())
    }

    fn remember_doubts(&self) -> Result<(), LogError> {
        let mut filter = EffectFilter {
            status: Some(Status::InDoubt),
            oldest_first: true,
            limit: Some(1000),
            ..Default::default()
        };
        loop {
            let page = self.0.log.effects(&filter)?;
            let mut doubtful = self.0.doubtful.lock();
            doubtful.extend(page.items.into_iter().map(|row| (row.agent, row.key)));
            match page.next {
                Some(next) => filter.after = Some(next),
                None => break,
            }
        }
        let lost: Vec<EffectId> = self.0.lineage.read().lost().collect();
        for id in lost {
            if let Some(effect) = self.0.log.effect(id)? {
                let agent = effect.call.origin.agent;
                self.0.doubtful.lock().insert((agent, effect.key));
            }
        }
        Ok(())
    }

    /// Decides an effect's call until there is a verdict, waiting where the verdict is to wait.
    async fn decide(
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
            if self.config().fence.mode == Mode::Observe {
                self.note_what_would_be(&call, place, &judged);
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
                    return self.replay(call, branch, placed, effect).await;
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
                            return self.replay(call, branch, placed, effect).await;
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
                    let late = tokio::time::timeout_at(deadline, changed.changed())
                        .await
                        .is_err();
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
    async fn forward(
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

    /// Puts the effect into this branch's timeline and gives its response.
    pub(super) async fn replay(
        &self,
        call: ToolCall,
        branch: BranchId,
        placed: Option<&Placed>,
        effect: EffectId,
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
    fn note_what_would_be(&self, call: &ToolCall, place: Place, judged: &Judged) {
        let refusal = match (&judged.decision, &judged.earlier) {
            (Decision::Forward, _) => return,
            (Decision::Replay(effect) | Decision::AwaitTwin(effect), _) => Refusal {
                code: RefusalCode::Duplicate,
                title: format!("This call repeats {effect}."),
                detail: "Enforced, it would have been answered from the record. It was sent."
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

impl Inner {
    /// Tells everyone who waits that a verdict may have changed.
    pub(super) fn touch(&self) {
        self.changed.send_modify(|n| *n += 1);
    }

    fn desk(&self, agent: &AgentName) -> Arc<tokio::sync::RwLock<()>> {
        self.desks.lock().entry(agent.clone()).or_default().clone()
    }

    /// Whether a call has to be looked at: not for an agent that was never restored and has no
    /// effect of that key whose outcome it does not know.
    fn needs_a_look(&self, agent: &AgentName, place: Place, key: &ToolKey) -> bool {
        let lineage = self.lineage.read();
        lineage.is_restored(place.branch)
            || lineage.is_restored_whole(agent)
            || self.doubtful.lock().contains(&(agent.clone(), key.clone()))
    }
}

#[async_trait::async_trait]
impl Arbiter for Pipeline {
    async fn admit(&self, call: ToolCall) -> Admission {
        self.take(call, None, None).await
    }

    async fn admit_asking(&self, call: ToolCall, courier: &dyn Courier) -> Admission {
        self.take(call, None, Some(courier)).await
    }

    async fn admit_inside(&self, call: ToolCall, inside: ProcessIdentity) -> Admission {
        let admitted = self.take(call, None, None).await;
        self.carried_out(admitted, inside)
    }

    fn wants_whole(&self, method: &str, url: &str) -> bool {
        may_be_model(method, url)
    }

    async fn admit_whole(&self, call: ToolCall, body: Bytes, courier: &dyn Courier) -> Admission {
        self.take(call, Some(&body), Some(courier)).await
    }

    async fn admit_opaque(&self, _flow: &OpaqueFlow) -> Result<(), Refusal> {
        Ok(())
    }

    fn opaque_ended(&self, flow: OpaqueFlow) {
        self.0.notices.opaque(flow);
    }

    fn trouble(&self, trouble: Trouble) {
        tracing::warn!(agent = %trouble.origin.agent, pid = trouble.origin.process.tgid, "{}", trouble.detail);
        self.0.notices.trouble(trouble);
    }

    fn abandoned(&self, _origin: &Origin, effect: EffectId) {
        self.abandon(effect);
    }

    fn undelivered(&self, _origin: &Origin, effect: EffectId) {
        let pipeline = self.clone();
        tokio::spawn(async move {
            if let Err(e) = pipeline.lose_outcome(effect).await {
                tracing::error!(
                    "it could not be written down that the outcome of {effect} was lost: {e}"
                );
            }
        });
    }

    fn tools_seen(&self, _origin: &Origin, server: &str, tools: &str) {
        self.0.tools.learn(server, tools);
    }
}

impl Pipeline {
    /// Takes a call its way. `body` is there where it may be a model request: whole and decoded. A
    /// `courier` goes the way that the call would take.
    async fn take(
        &self,
        call: ToolCall,
        body: Option<&[u8]>,
        courier: Option<&dyn Courier>,
    ) -> Admission {
        let Some(thread) = self.with_lineage(|l| l.main_thread(&call.origin.agent)) else {
            return Admission::Refuse(not_attached());
        };
        let hints = match &call.request {
            Request::Mcp(mcp) => self.0.tools.hints(&mcp.server, &mcp.name),
            _ => Default::default(),
        };
        let traffic = match (&call.request, body) {
            (Request::Http(http), Some(body)) => {
                tokio::task::block_in_place(|| recognise(&http.method, &http.url, body, false))
            }
            _ => None,
        };
        let treatment = self.config().classify(&call, traffic.is_some(), hints);
        let admitted = match treatment.kind {
            Kind::Effect => self.effect(call, courier).await,
            Kind::ReadOnly => {
                let ticket = ObservedTicket::read(self.clone(), thread, call.request);
                Ok(Admission::Forward(Box::new(ticket)))
            }
            Kind::Model => {
                let conversation = match (traffic, body) {
                    (Some(ModelTraffic::Conversation(format)), Some(body)) => {
                        self.read_model_request(&call, format, body).await
                    }
                    _ => Ok(None),
                };
                conversation.map(|asking| {
                    let request = call.request;
                    let ticket = ObservedTicket::model(self.clone(), thread, request, asking);
                    Admission::Forward(Box::new(ticket) as _)
                })
            }
        };
        admitted.unwrap_or_else(|e| cannot_record(&e))
    }

    /// Takes an effect's call its way.
    async fn effect(
        &self,
        mut call: ToolCall,
        courier: Option<&dyn Courier>,
    ) -> Result<Admission, LogError> {
        let asks = self.asks(&call).await;
        let presented = credential::presented(&call.request);
        let doubt = Doubt::of(&self.config(), &call.request, courier);
        self.take_secrets_out(&mut call.request);
        let key = tool_key(&call.request);
        if let Some(within) = self.0.nesting.around(call.origin.process) {
            return self.admit_within(call, key, presented, within).await;
        }
        // Only now is the branch the one that the record will stand in.
        let (shared, placed) = self.desk_shared(&call.origin, asks.as_ref()).await;
        let placed = placed.as_ref();
        let Some(place) = self.place(&call.origin.agent, placed) else {
            return Ok(Admission::Refuse(not_attached()));
        };
        let again = placed.is_some_and(|p| p.placement.again.is_some());
        if again || self.0.needs_a_look(&call.origin.agent, place, &key) {
            drop(shared);
            return self.decide(call, asks, key, presented, doubt).await;
        }
        let presented = self.fingerprints(&presented);
        self.forward(call, place, placed, key, presented, None)
            .await
    }
}

fn cannot_record(error: &LogError) -> Admission {
    tracing::error!("a call was refused because the effect log could not take it: {error}");
    Admission::Refuse(unavailable(
        "The effect log cannot take this call.",
        &format!("Nothing was sent. {error}."),
    ))
}

fn not_attached() -> Refusal {
    Refusal {
        code: RefusalCode::Policy,
        ..unavailable(
            "This agent is not attached any more.",
            "Nothing was sent. Attach it again with `acrfence attach PID`.",
        )
    }
}

fn unavailable(title: &str, detail: &str) -> Refusal {
    Refusal {
        code: RefusalCode::LogUnavailable,
        title: title.into(),
        detail: detail.into(),
        effect: None,
        fields: Vec::new(),
        hold: None,
    }
}

/// What an earlier effect is to a refusal.
pub(super) fn earlier(
    effect: &crate::words::Effect,
    comparison: Option<crate::words::Comparison>,
) -> Earlier {
    Earlier {
        id: effect.id,
        key: effect.key.clone(),
        at: effect.call.at,
        status: effect.status,
        comparison,
    }
}
