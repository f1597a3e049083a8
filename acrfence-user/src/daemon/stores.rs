//! Suspicions that an agent's own store may settle ([`crate::hints`]): asked when the branch opens, and
//! again before a call is decided by it and while it is held, since agents write down a moment later what
//! they go on from.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::now;
use super::pipeline::Pipeline;
use crate::effect::{Event, LogError};
use crate::hints::{self, Confirmed, Forgotten, Wanted};
use crate::lineage::conversation::{Absence, Conversations};
use crate::words::{Branch, BranchId, EffectId, Grade, Origin, ProcessIdentity};

/// Most suspicions that are kept. The oldest go first; then a person decides, as without a store.
const MOST: usize = 256;

/// How often a store is looked at for one suspicion.
const LOOKS: u8 = 32;

/// How long a held call waits before it looks again, the first time; then ever longer.
const PAUSE: Duration = Duration::from_millis(200);

/// Most calls that are looked for.
const MOST_CALLS: usize = 64;

/// Suspicions by the branch that they opened.
pub(super) struct Suspicions {
    open: Mutex<HashMap<BranchId, Suspicion>>,
    /// Stores are read one at a time. A file system that hangs keeps one thread, and no more.
    reading: Arc<Semaphore>,
}

impl Default for Suspicions {
    fn default() -> Self {
        Self {
            open: Mutex::default(),
            reading: Arc::new(Semaphore::new(1)),
        }
    }
}

#[derive(Clone)]
struct Suspicion {
    /// Whose store it is: the process that sent the model request.
    process: ProcessIdentity,
    /// The session that the request names; may be empty, or mean something else.
    session: String,
    wanted: Wanted,
    looks: u8,
}

/// When a call that meets a suspicion has its agent's store looked at: at once, and ever more rarely
/// while it is held.
pub(super) struct Looks {
    next: Instant,
    pause: Duration,
}

impl Looks {
    pub(super) fn new() -> Self {
        Self {
            next: Instant::now(),
            pause: PAUSE,
        }
    }

    /// Whether it is time for a look, which is then taken.
    fn take(&mut self) -> bool {
        let now = Instant::now();
        let is_due = now >= self.next;
        if is_due {
            self.next = now + self.pause;
            self.pause *= 2;
        }
        is_due
    }
}

impl Pipeline {
    /// Whether a call that meets a suspicion is to look at the store now.
    pub(super) fn looks(&self, looks: &mut Looks, branch: BranchId) -> bool {
        self.is_open(branch) && looks.take()
    }

    /// Until when a call that is held for a suspicion waits before it looks again.
    pub(super) fn next_of(&self, looks: &Looks, branch: BranchId) -> Option<Instant> {
        self.is_open(branch).then_some(looks.next)
    }

    fn is_open(&self, branch: BranchId) -> bool {
        self.0.suspicions.open.lock().contains_key(&branch)
    }

    /// Keeps in mind what a branch was only suspected to have forgotten. `all` is from before the
    /// request.
    pub(super) fn suspect(
        &self,
        all: &Conversations,
        origin: &Origin,
        session: &str,
        branch: &Branch,
        absent: &[(EffectId, Absence)],
    ) {
        if !self.config().fence.own_stores {
            return;
        }
        let named = branch.absent.iter().flatten();
        let effects: Vec<EffectId> = named
            .filter(|a| a.grade == Grade::Suspect)
            .map(|a| a.effect)
            // What another line did meanwhile was never this one's to forget.
            .filter(|effect| absent.contains(&(*effect, Absence::Forgotten)))
            .collect();
        let mut calls = all.calls_of(branch.thread, &effects);
        calls.truncate(MOST_CALLS);
        let Some(memory) = all.thread(branch.thread).filter(|_| !calls.is_empty()) else {
            return;
        };
        let mut forgotten: Vec<Forgotten> = Vec::new();
        for (effect, call) in calls {
            let call: Box<str> = call.as_str().into();
            match forgotten.iter_mut().find(|f| f.effect == effect) {
                Some(known) => known.calls.push(call),
                None => forgotten.push(Forgotten {
                    effect,
                    calls: vec![call],
                }),
            }
        }
        let suspicion = Suspicion {
            process: origin.process,
            session: session.to_owned(),
            wanted: Wanted {
                forgotten,
                since: memory.active,
            },
            looks: 0,
        };
        let mut open = self.0.suspicions.open.lock();
        if open.len() >= MOST
            && let Some(oldest) = open.keys().min().copied()
        {
            open.remove(&oldest);
        }
        open.insert(branch.id, suspicion);
    }

    /// Lets the agent's own store settle what a branch is only suspected to have forgotten, if it can.
    /// Waits [`hints::TIME`] at most.
    pub(super) async fn ask_own_store(&self, branch: BranchId) -> Result<(), LogError> {
        let Some(suspicion) = self.next_look(branch) else {
            return Ok(());
        };
        let Some(confirmed) = self.look(branch, suspicion).await else {
            return Ok(());
        };
        self.corroborate(branch, confirmed).await
    }

    fn next_look(&self, branch: BranchId) -> Option<Suspicion> {
        let mut open = self.0.suspicions.open.lock();
        let suspicion = open.get_mut(&branch)?;
        suspicion.looks += 1;
        if suspicion.looks >= LOOKS {
            return open.remove(&branch);
        }
        Some(suspicion.clone())
    }

    /// One look; none when it tells nothing, or takes too long.
    async fn look(&self, branch: BranchId, suspicion: Suspicion) -> Option<Confirmed> {
        let deadline = Instant::now() + hints::TIME;
        let reading = self.0.suspicions.reading.clone();
        let look = async move {
            let permit = reading.acquire_owned().await.ok()?;
            tokio::task::spawn_blocking(move || {
                let _permit = permit;
                let Suspicion {
                    process,
                    session,
                    wanted,
                    ..
                } = suspicion;
                let found = hints::read(process, Some(&session), &wanted, deadline);
                let told = |story| hints::confirm(&wanted, story);
                (found.stories.iter().find_map(told), found.troubles)
            })
            .await
            .ok()
        };
        let Ok(found) = tokio::time::timeout_at(deadline.into(), look).await else {
            tracing::debug!(%branch, "the agent's own store took too long and tells nothing");
            return None;
        };
        let (confirmed, troubles) = found?;
        for trouble in troubles {
            tracing::debug!(%branch, "an agent's own store tells nothing: {trouble}");
        }
        confirmed
    }

    async fn corroborate(&self, branch: BranchId, confirmed: Confirmed) -> Result<(), LogError> {
        let Confirmed { mut effects, why } = confirmed;
        let _order = self.0.writing.lock().await;
        self.with_lineage(|l| effects.retain(|effect| l.is_suspected(branch, *effect)));
        self.settled(branch, &effects);
        if effects.is_empty() {
            return Ok(());
        }
        tracing::info!(%branch, "certain because {why}");
        let event = Event::Corroborated {
            branch,
            effects,
            why,
            at: now(),
        };
        self.write_in_order(event).await.map(drop)
    }

    /// No more looks for what is settled.
    fn settled(&self, branch: BranchId, effects: &[EffectId]) {
        let mut open = self.0.suspicions.open.lock();
        if let Some(suspicion) = open.get_mut(&branch) {
            let forgotten = &mut suspicion.wanted.forgotten;
            forgotten.retain(|f| !effects.contains(&f.effect));
            if forgotten.is_empty() {
                open.remove(&branch);
            }
        }
    }
}

#[cfg(test)]
#[path = "stores_tests.rs"]
mod tests;
