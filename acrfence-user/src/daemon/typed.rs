//! Commands that nobody could be asked about: a person, or the agent, typed them into an interactive
//! shell, or somebody traces them.
//!
//! They cannot be compared with what was done before. So after a certain restore, and until somebody
//! forks, the kernel refuses those that are typed (policy `after_restore.interactive`). The kernel is told
//! beforehand: when a command comes, there is no time to ask.

use std::collections::HashMap;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::kernel::LifeIndex;
use super::now;
use super::pipeline::Pipeline;
use super::service::{Daemon, life_index};
use crate::boundary::process::quoted;
use crate::boundary::{Arbiter as _, Trouble, TroubleKind, Unasked};
use crate::policy::{Mode, Opaqueness};
use crate::words::{AgentName, Opaque, OpaqueClass, OpaqueStep};

/// Lives whose processes the gate stops, and whether what is typed in them is refused.
#[derive(Default)]
pub(super) struct Typed {
    told: parking_lot::Mutex<HashMap<LifeIndex, bool>>,
    /// One look at a time: an older one must not have the last word.
    looking: tokio::sync::Mutex<()>,
}

impl Typed {
    /// Tells the kernel, with `tell`, that the gate covers a life.
    pub(super) fn cover<E>(
        &self,
        life: LifeIndex,
        tell: impl FnOnce(bool) -> Result<(), E>,
    ) -> Result<(), E> {
        // Held meanwhile: what is known here is what was told last.
        tell(*self.told.lock().entry(life).or_default())
    }
}

impl Daemon {
    /// Before the gate covers a life: what is typed in it is refused from the first moment on, or not.
    pub(super) async fn expect_typed(&self, agent: &AgentName, life: LifeIndex) {
        let _one_at_a_time = self.typed.looking.lock().await;
        let refuses = self.pipeline.refuses_what_is_typed(agent).await;
        self.typed.told.lock().insert(life, refuses);
    }

    /// Tells the kernel in which lives commands that are typed are refused. Also in those that ended and
    /// left something running: a terminal outlives the agent that opened it.
    pub(super) async fn fit_gates(&self) {
        let _one_at_a_time = self.typed.looking.lock().await;
        let agents: Vec<(AgentName, Vec<LifeIndex>)> = self.pipeline.with_lineage(|lineage| {
            let told = self.typed.told.lock();
            let of = |lives: &[crate::lineage::Life]| {
                let lives = lives.iter().map(|life| life_index(life.began));
                lives.filter(|life| told.contains_key(life)).collect()
            };
            let agents = lineage.agents();
            agents
                .map(|(name, line)| (name.clone(), of(&line.lives)))
                .filter(|(_, lives): &(_, Vec<_>)| !lives.is_empty())
                .collect()
        });
        for (agent, lives) in agents {
            let refuses = self.pipeline.refuses_what_is_typed(&agent).await;
            for life in lives {
                let mut told = self.typed.told.lock();
                if told.get(&life) == Some(&refuses) {
                    continue;
                }
                if self.kernel.processes(life) == 0 {
                    told.remove(&life);
                    continue;
                }
                match self.kernel.gate(life, refuses) {
                    Ok(()) => {
                        told.insert(life, refuses);
                    }
                    Err(e) => {
                        let what = format!(
                            "the kernel could not be told whether commands that are typed in `{agent}` may run: {e:#}"
                        );
                        tracing::error!("{what}");
                        self.pipeline.notices().problem(what);
                    }
                }
            }
        }
    }

    /// Does so whenever it may have changed, until `stop`.
    pub(super) async fn keep_gates_fit(self: Arc<Self>, stop: CancellationToken) {
        let mut changed = self.pipeline.0.changed.subscribe();
        loop {
            self.fit_gates().await;
            tokio::select! {
                heard = changed.changed() => if heard.is_err() { return },
                () = stop.cancelled() => return,
            }
        }
    }
}

impl Pipeline {
    /// Whether a command is refused that is typed into an interactive shell of this agent.
    async fn refuses_what_is_typed(&self, agent: &AgentName) -> bool {
        let wanted = {
            let config = self.config();
            config.fence.mode == Mode::Enforce
                && config.after_restore.interactive == Opaqueness::Deny
        };
        wanted && self.is_restored_now(agent).await
    }

    /// Writes down a command that nobody could be asked about, and says so.
    pub(super) fn note_unasked(&self, mut unasked: Unasked) {
        self.take_secrets_off(&mut unasked.origin.argv);
        let line = quoted(&unasked.origin.argv);
        let step = if unasked.refused {
            OpaqueStep::Refused
        } else {
            OpaqueStep::Began
        };
        self.note_opaque(Opaque {
            origin: unasked.origin.clone(),
            class: OpaqueClass::Command,
            peer: line.clone(),
            why: unasked.why.to_owned(),
            step,
            sent: 0,
            received: 0,
            digest: None,
            digested: 0,
            at: now(),
        });
        let became = if unasked.refused {
            "was not run"
        } else {
            "runs and is not fenced"
        };
        self.trouble(Trouble {
            kind: TroubleKind::NotGated,
            detail: format!("`{line}` {became}: {}", unasked.detail),
            origin: unasked.origin,
        });
    }
}
