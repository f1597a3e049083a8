//! What people ask of the daemon: the control API's answers.

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::api_errors::{
    ServiceError, bad, error, forbidden, log_error, not_found, target_error, unknown_agent,
};
use super::kernel::{Kernel, LifeIndex, Membership};
use super::lives::NO_PROCESS_LEFT;
use super::nesting;
use super::now;
use super::pipeline::Pipeline;
use super::upkeep::SharedStore;
use crate::control::{
    AgentStatus, ApiError, CaInfo, CheckpointTaken, ErrorCode, Fork, Myself, Opened, Peer,
    Restored, Status, TakeCheckpoint, Tree, TreeEffect,
};
use crate::effect::{EffectFilter, Event};
use crate::lineage::{Executed, Life, Lineage, RestoreTarget};
use crate::policy::Config;
use crate::words::{
    AgentName, Branch, BranchId, Cause, Checkpoint, EffectId, Grade, Seq, Status as EffectStatus,
    ThreadId, Timestamp,
};

/// Everything that runs, behind one door.
pub struct Daemon {
    pub(super) pipeline: Pipeline,
    pub(super) store: SharedStore,
    pub(super) kernel: Arc<dyn Kernel>,
    pub(super) config: Arc<ArcSwap<Config>>,
    pub(super) reread: Box<dyn Fn() -> Result<Config, String> + Send + Sync>,
    pub(super) ca: CaInfo,
    pub(super) since: Timestamp,
    /// Attaching and detaching, one at a time.
    pub(super) attaching: tokio::sync::Mutex<()>,
    /// Connections that were open before each life was attached.
    pub(super) open_before: parking_lot::Mutex<
        std::collections::HashMap<LifeIndex, Vec<crate::control::OpenConnection>>,
    >,
    /// Dumps and restores of agents' processes.
    pub(super) restores: super::restores::Restores,
    /// Told when processes become an agent's that may live in another network namespace.
    pub(super) attached: tokio::sync::Notify,
    /// What of the exec gate there is.
    pub(super) gate: super::gate::Gate,
    /// What the kernel knows of commands that are typed.
    pub(super) typed: super::typed::Typed,
}

impl Daemon {
    /// Puts the daemon together.
    pub fn new(
        pipeline: Pipeline,
        store: SharedStore,
        kernel: Arc<dyn Kernel>,
        config: Arc<ArcSwap<Config>>,
        reread: Box<dyn Fn() -> Result<Config, String> + Send + Sync>,
        ca: CaInfo,
    ) -> Self {
        Self {
            pipeline,
            store,
            kernel,
            config,
            reread,
            ca,
            since: now(),
            attaching: tokio::sync::Mutex::new(()),
            open_before: parking_lot::Mutex::default(),
            restores: super::restores::Restores::default(),
            attached: tokio::sync::Notify::new(),
            gate: super::gate::Gate::default(),
            typed: super::typed::Typed::default(),
        }
    }

    /// `GET /v1/status`.
    pub async fn status(&self, peer: Peer) -> Result<Status, ApiError> {
        let in_doubt = EffectFilter {
            status: Some(EffectStatus::InDoubt),
            limit: Some(1000),
            ..Default::default()
        };
        let config = self.config.load();
        Ok(Status {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            since: self.since,
            mode: format!("{:?}", config.fence.mode).to_lowercase(),
            log_head: self.pipeline.log().head(),
            running: self.pipeline.running(),
            in_doubt: self
                .mine(
                    peer,
                    self.pipeline
                        .log()
                        .effects(&in_doubt)
                        .map_err(log_error)?
                        .items,
                )
                .len(),
            holds: self.holds(peer).len(),
            waiting: self.waiting(peer)?,
            agents: self
                .agents(peer)
                .into_iter()
                .filter(|a| a.running)
                .collect(),
            drops: self.drops(),
            problems: self.problems(),
            gate: self.gate.counts(self.kernel.denies_exec()),
            troubles: self
                .pipeline
                .notices()
                .troubles()
                .into_iter()
                .filter(|t| self.may_see(peer, &t.agent))
                .collect(),
        })
    }

    /// Events that were lost, on either side.
    fn drops(&self) -> Vec<crate::control::Drop> {
        let mut drops = self.kernel.drops();
        let unseen = self.pipeline.notices().unseen();
        if unseen > 0 {
            drops.push(crate::control::Drop {
                kind: "unfenced traffic".into(),
                cause: "the daemon was too slow to look at it".into(),
                count: unseen,
            });
        }
        drops
    }

    /// `GET /v1/self`.
    pub fn myself(&self, peer: Peer) -> Result<Myself, ApiError> {
        let agent = match self.kernel.membership(peer.pid) {
            Membership::Inside(life) => self.agent_of(life).map(|(agent, _)| agent),
            Membership::Outside | Membership::Unknown => None,
        };
        agent
            .map(|agent| Myself { agent })
            .ok_or_else(|| not_found("this process belongs to no agent".into()))
    }

    /// `GET /v1/agents`.
    pub fn agents(&self, peer: Peer) -> Vec<AgentStatus> {
        self.pipeline.with_lineage(|lineage| {
            lineage
                .agents()
                .filter_map(|(name, line)| Some(self.describe(lineage, name, line.lives.last()?)))
                .filter(|agent| peer.is_root() || agent.uid == peer.uid)
                .collect()
        })
    }

    /// `GET /v1/agents/NAME/tree`.
    pub async fn tree(&self, peer: Peer, agent: AgentName) -> Result<Tree, ApiError> {
        self.check_sees(peer, &agent)?;
        let threads = self.pipeline.with_lineage(|lineage| {
            let line = lineage.agent(&agent);
            line.map_or_else(Vec::new, |line| line.threads.clone())
        });
        let live = self.live_branches(&threads).await;
        let filter = EffectFilter {
            agent: Some(agent.clone()),
            oldest_first: true,
            limit: Some(1000),
            ..Default::default()
        };
        let rows = self
            .pipeline
            .log()
            .effects(&filter)
            .map_err(log_error)?
            .items;
        self.pipeline.with_lineage(|lineage| {
            let mut tree = lineage.tree(&agent).ok_or_else(|| unknown_agent(&agent))?;
            let branches = tree.threads.iter_mut().flat_map(|t| &mut t.branches);
            for branch in branches {
                branch.current = live.contains(&branch.branch.id);
            }
            let effects = rows
                .into_iter()
                .map(|row| {
                    let of_thread = |branch: &&BranchId| {
                        lineage
                            .branch(**branch)
                            .is_some_and(|b| b.thread == row.thread)
                    };
                    let mut here = live.iter().filter(of_thread);
                    let fenced = row.status != EffectStatus::Failed
                        && here.any(|branch| nesting::is_fenced(lineage, *branch, &row));
                    TreeEffect { row, fenced }
                })
                .collect();
            Ok(Tree { tree, effects })
        })
    }

    /// `POST /v1/agents/NAME/checkpoints`. Allowed from inside the agent's own tree: a checkpoint
    /// lifts no fence.
    pub async fn checkpoint(
        &self,
        peer: Peer,
        agent: AgentName,
        wanted: TakeCheckpoint,
    ) -> Result<CheckpointTaken, ApiError> {
        self.check_sees(peer, &agent)?;
        let name = wanted.name.unwrap_or_else(|| format!("at-{}", now()));
        if name.is_empty() || name.len() > 200 || name.chars().any(char::is_control) {
            return Err(bad(
                "the name of a checkpoint has 1 to 200 characters and no control characters",
            ));
        }
        // A name that reads as something else could never be restored to.
        if name.parse::<EffectId>().is_ok() || name.parse::<Timestamp>().is_ok() {
            return Err(bad(
                "a checkpoint cannot be named like an effect (`e17`) or a time",
            ));
        }
        if let Some(thread) = wanted.thread {
            self.pipeline
                .with_lineage(|l| l.thread_of(&agent, Some(thread)))
                .map_err(target_error)?;
        }
        let (at, through) = (now(), self.pipeline.before_what_runs(&agent));
        let checkpoint = Checkpoint {
            agent: agent.clone(),
            name: name.clone(),
            thread: wanted.thread,
            at,
            through,
            image: None,
        };
        let position = self
            .pipeline
            .write(Event::CheckpointTaken(checkpoint))
            .await
            .map_err(log_error)?;
        Ok(CheckpointTaken {
            agent,
            name,
            position,
        })
    }

    /// `POST /v1/agents/NAME/restored`. From inside the agent's own tree only where the new branch
    /// remembers no more than the current one: an agent must not lift its own fence.
    pub async fn restored(
        &self,
        peer: Peer,
        agent: AgentName,
        wanted: Restored,
    ) -> Result<Opened, ApiError> {
        self.check_sees(peer, &agent)?;
        let inside = self.is_inside(peer);
        self.end_what_ended(NO_PROCESS_LEFT)
            .await
            .map_err(log_error)?;
        let target = self.target(&agent, wanted.to.as_deref())?;
        let note = if wanted.note.is_empty() {
            format!("told by uid {}", peer.uid)
        } else {
            wanted.note
        };
        let grade = Grade::Certain;
        let make = |lineage: &Lineage| {
            let events = match wanted.thread {
                None => lineage.restored_whole(&agent, &target, grade, &note, now()),
                Some(thread) => lineage
                    .thread_of(&agent, Some(thread))
                    .and_then(|t| lineage.restored(&agent, t, &target, grade, &note, now()))
                    .map(|event| vec![event]),
            };
            let events = events.map_err(target_error)?;
            let leaves_another = |event: &Event| match event {
                Event::BranchOpened(branch) => {
                    branch.parent != lineage.current(branch.thread).map(|b| b.id)
                }
                _ => false,
            };
            if inside && events.iter().any(leaves_another) {
                return Err(forbidden(
                    "a process of the agent may not say that it was restored to another timeline; ask a person to",
                ));
            }
            Ok(events)
        };
        let opened = self
            .pipeline
            .open_branches::<ServiceError>(&agent, |l| make(l).map_err(ServiceError))
            .await?;
        // Before anybody hears that it counts.
        self.fit_gates().await;
        self.opened(agent, &opened)
    }

    /// `POST /v1/agents/NAME/fork`.
    pub async fn fork(
        &self,
        peer: Peer,
        agent: AgentName,
        wanted: Fork,
    ) -> Result<Opened, ApiError> {
        self.check_changes(peer, &agent)?;
        self.end_what_ended(NO_PROCESS_LEFT)
            .await
            .map_err(log_error)?;
        let threads = self
            .pipeline
            .with_lineage(|l| {
                l.thread_of(&agent, wanted.thread)?;
                let all = l.agent(&agent).map(|line| line.threads.clone());
                Ok(wanted.thread.map(|t| vec![t]).or(all).unwrap_or_default())
            })
            .map_err(target_error)?;
        let note = if wanted.note.is_empty() {
            format!("forked by uid {}", peer.uid)
        } else {
            wanted.note
        };
        let live = self.live_branches(&threads).await;
        let make = |lineage: &Lineage| {
            let is_restored = |b: &&BranchId| {
                lineage
                    .branch(**b)
                    .is_some_and(|b| b.cause == Cause::Restore)
            };
            let mut parents: Vec<BranchId> = live.iter().filter(is_restored).copied().collect();
            if parents.is_empty() {
                parents.extend(live.first());
            }
            let parents = parents.iter().filter_map(|b| lineage.branch(*b));
            Ok(parents.map(|b| Lineage::forked(b, &note, now())).collect())
        };
        let opened = self
            .pipeline
            .open_branches::<ServiceError>(&agent, make)
            .await?;
        for branch in &opened {
            if let Some(parent) = branch.parent {
                self.pipeline.move_lines(&agent, parent, branch.id).await;
            }
        }
        self.fit_gates().await;
        self.opened(agent, &opened)
    }

    /// `GET /v1/ca`.
    pub fn ca(&self) -> CaInfo {
        self.ca.clone()
    }

    /// `POST /v1/reload`: reads the configuration again; an invalid one changes nothing.
    pub fn reload(&self, peer: Peer) -> Result<(), ApiError> {
        if !peer.is_root() || self.is_inside(peer) {
            return Err(forbidden("only root may reload the configuration"));
        }
        self.reread().map_err(|e| bad(&e))
    }

    /// Reads the configuration again; an invalid one changes nothing.
    pub fn reread(&self) -> Result<(), String> {
        let config =
            (self.reread)().map_err(|e| format!("{e}\nThe configuration in force was kept."))?;
        self.config.store(Arc::new(config));
        // What waits, or flows, may be decided otherwise now.
        self.pipeline.0.touch();
        Ok(())
    }

    pub(super) fn describe(&self, lineage: &Lineage, name: &AgentName, life: &Life) -> AgentStatus {
        let thread = lineage.main_thread(name);
        let branch = thread.and_then(|t| lineage.current(t));
        let index = life_index(life.began);
        let running = life.ended.is_none();
        AgentStatus {
            name: name.clone(),
            running,
            incarnation: life.incarnation.number,
            root: life.incarnation.root,
            uid: life.incarnation.uid,
            exe: life.incarnation.exe.clone(),
            argv: life.incarnation.argv.clone(),
            since: life.incarnation.at,
            ended: life
                .ended
                .as_ref()
                .map(|(_, why)| why.clone())
                .unwrap_or_default(),
            processes: if running {
                self.kernel.processes(index)
            } else {
                0
            },
            thread,
            branch: branch.map(|b| b.id),
            branch_cause: branch
                .map(|b| format!("{:?}", b.cause).to_lowercase())
                .unwrap_or_default(),
            branch_grade: branch
                .map(|b| format!("{:?}", b.grade).to_lowercase())
                .unwrap_or_default(),
            open_before: self
                .open_before
                .lock()
                .get(&index)
                .cloned()
                .unwrap_or_default(),
            not_fenced: self.pipeline.notices().opaque_of(name),
            commands: self.pipeline.notices().ran_of(name),
        }
    }

    /// Reads what a person named as the point of a restore.
    fn target(&self, agent: &AgentName, to: Option<&str>) -> Result<RestoreTarget, ApiError> {
        let Some(to) = to else {
            return Ok(RestoreTarget::Unknown);
        };
        if let Ok(id) = to.parse::<EffectId>() {
            let effect = self.pipeline.log().effect(id).map_err(log_error)?;
            let effect = effect
                .filter(|e| e.call.origin.agent == *agent)
                .ok_or_else(|| not_found(format!("agent `{agent}` has no effect {id}; `acrfence effects --agent {agent}` lists them")))?;
            return Ok(RestoreTarget::Effect(Executed {
                id,
                branch: effect.branch,
            }));
        }
        if let Ok(time) = to.parse::<Timestamp>() {
            let filter = EffectFilter {
                agent: Some(agent.clone()),
                until: Some(time),
                limit: Some(1),
                ..Default::default()
            };
            let last = self
                .pipeline
                .log()
                .effects(&filter)
                .map_err(log_error)?
                .items;
            return Ok(RestoreTarget::Position(
                last.first().map_or(Seq(0), |row| row.id.0),
            ));
        }
        Ok(RestoreTarget::Checkpoint(to.to_owned()))
    }

    /// Branches that calls of these threads may belong to now: those that are in force for their lines
    /// of conversation, and where there are none, the newest.
    pub(super) async fn live_branches(&self, threads: &[ThreadId]) -> Vec<BranchId> {
        let mut live = Vec::new();
        for &thread in threads {
            let lines = self.pipeline.lines(thread).await;
            let wide = self.pipeline.with_lineage(|lineage| {
                let newest = lineage.wide(thread).map(|b| b.id);
                newest.or_else(|| {
                    let current = lineage.current(thread).map(|b| b.id);
                    current.filter(|_| lines.is_empty())
                })
            });
            live.extend(wide);
            live.extend(lines.into_iter().map(|(_, branch)| branch));
        }
        live.sort_unstable();
        live.dedup();
        live
    }

    fn opened(&self, agent: AgentName, branches: &[Branch]) -> Result<Opened, ApiError> {
        let mut fenced = 0;
        for branch in branches {
            let rows = self.pipeline.fenced_rows(branch.thread, branch.id);
            fenced += rows.map_err(log_error)?.len();
        }
        let first = branches.first().ok_or_else(|| {
            error(
                ErrorCode::Unavailable,
                "the log gave back another record than was written".into(),
            )
        })?;
        Ok(Opened {
            agent,
            thread: first.thread,
            branch: first.id,
            parent: first.parent,
            fenced,
        })
    }
}

/// The kernel side's number of a life that began at this position.
pub(super) fn life_index(began: Seq) -> LifeIndex {
    // Positions wrap after four thousand million records; two lives would have to begin exactly that
    // far apart and both run.
    (began.0 & u64::from(u32::MAX)) as u32
}
