//! The way of a call: place it, decide it, make the decision durable, hand out the verdict.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use super::holds::Holds;
use super::in_doubt::Asking;
use super::now;
use super::stores::Suspicions;
use super::talks::Talks;
use super::tools::ToolBook;
use crate::analyzer::Llm;
use crate::effect::{EffectFilter, EffectLog, Event, LogError};
use crate::fence::Earlier;
use crate::lineage::Lineage;
use crate::policy::Config;
use crate::words::{AgentName, BranchId, EffectId, Seq, Status, ThreadId, ToolKey};

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
pub(super) const MAIN: &str = "main";

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
    pub(super) writing: tokio::sync::Mutex<()>,
    /// Calls of an agent that need no look share its desk; a call that needs one, and a new branch,
    /// have it alone. So each candidate is consumed once, and no call of the timeline that is being
    /// left is on its way to the log while the new branch looks for candidates.
    desks: Mutex<HashMap<AgentName, Arc<tokio::sync::RwLock<()>>>>,
    /// What agents' conversations remember.
    pub(super) talks: Talks,
    /// Suspicions that an agent's own store may settle.
    pub(super) suspicions: Suspicions,
    /// Counts whatever could change a verdict: holds decided, effects settled and resolved.
    pub(super) changed: watch::Sender<u64>,
    /// What goes on unfenced.
    pub(super) flows: super::opaque::Flows,
    pub(super) notices: super::notices::Notices,
    pub(super) news: super::news::News,
    pub(super) nesting: super::nesting::Nesting,
    pub(super) decided: super::ran::Decided,
    pub(super) informed: super::inform::Informed,
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
            suspicions: Suspicions::default(),
            changed: watch::Sender::new(0),
            flows: super::opaque::Flows::default(),
            notices: super::notices::Notices::default(),
            news: super::news::News::default(),
            nesting: super::nesting::Nesting::default(),
            decided: super::ran::Decided::default(),
            informed: super::inform::Informed::default(),
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

    pub(super) async fn write_in_order(&self, event: Event) -> Result<Seq, LogError> {
        let seq = self.0.log.append(event.clone()).await?;
        self.0.lineage.write().apply(seq, &event);
        self.0.holds.lock().apply(seq, &event);
        self.0.touch();
        Ok(seq)
    }

    /// Effects that are running in this process.
    pub fn running(&self) -> usize {
        self.0.running.lock().len()
    }

    /// One position before the oldest effect of an agent that is running; none when none is.
    pub(super) fn before_what_runs(&self, agent: &AgentName) -> Option<Seq> {
        let running = self.0.running.lock();
        let mine = running.iter().filter(|(_, one)| &one.agent == agent);
        mine.map(|(effect, _)| Seq(effect.0.0.saturating_sub(1)))
            .min()
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
}

impl Inner {
    /// Tells everyone who waits that a verdict may have changed.
    pub(super) fn touch(&self) {
        self.changed.send_modify(|n| *n += 1);
    }

    pub(super) fn desk(&self, agent: &AgentName) -> Arc<tokio::sync::RwLock<()>> {
        self.desks.lock().entry(agent.clone()).or_default().clone()
    }

    /// Whether a call has to be looked at: not for an agent that was never restored and has no
    /// effect of that key whose outcome it does not know.
    pub(super) fn needs_a_look(&self, agent: &AgentName, place: Place, key: &ToolKey) -> bool {
        let lineage = self.lineage.read();
        lineage.is_restored(place.branch)
            || lineage.is_restored_whole(agent)
            || self.doubtful.lock().contains(&(agent.clone(), key.clone()))
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
