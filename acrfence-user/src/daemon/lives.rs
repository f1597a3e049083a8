//! Lives of agents: attach, launch, detach, the end, and what is left after the daemon restarts.

use super::api_errors::{bad, error, forbidden, log_error, not_found};
use super::kernel::{LifeIndex, Membership};
use super::now;
use super::service::{Daemon, life_index};
use crate::control::{AgentStatus, ApiError, Attach, Attached, ErrorCode, Peer};
use crate::effect::{EffectFilter, Event, LogError};
use crate::lineage::{Lineage, RestoreTarget};
use crate::policy::OnRestart;
use crate::words::{AgentName, Cause, Grade, Incarnation, IncarnationCause, Seq, Timestamp};

/// Why a life ended, as a rule.
pub(super) const NO_PROCESS_LEFT: &str = "its last process ended";

impl Daemon {
    /// `POST /v1/agents`.
    pub async fn attach(&self, peer: Peer, wanted: Attach) -> Result<Attached, ApiError> {
        self.check_outside(peer)?;
        let _one_at_a_time = self.attaching.lock().await;
        self.end_those_without_processes(NO_PROCESS_LEFT)
            .await
            .map_err(log_error)?;
        if let Membership::Inside(life) = self.kernel.membership(wanted.pid) {
            let owner = self.agent_of(life).map_or_else(
                || "an agent".to_owned(),
                |(name, _)| format!("agent `{name}`"),
            );
            return Err(error(
                ErrorCode::Conflict,
                format!("process {} belongs to {owner} already", wanted.pid),
            ));
        }
        let root = self
            .kernel
            .identify(wanted.pid)
            .map_err(|e| not_found(format!("{e:#}")))?;
        let facts = self.kernel.facts(root);
        if !peer.is_root() && facts.uid != peer.uid {
            return Err(forbidden(&format!(
                "process {} belongs to uid {}; only root may attach to other users' processes",
                wanted.pid, facts.uid
            )));
        }
        if !self.kernel.covers(wanted.pid) {
            return Err(error(
                ErrorCode::Conflict,
                format!(
                    "process {} is outside the cgroup that this daemon watches (--cgroup), so its connections would not be fenced; move it there first, or run the daemon without --cgroup",
                    wanted.pid
                ),
            ));
        }
        let name = match wanted.name {
            Some(name) => name,
            None => name_from(&facts.exe, &facts.argv)?,
        };
        self.end_if_only_orphans_are_left(&name)
            .await
            .map_err(log_error)?;
        let number = self.next_life(peer, &name)?;
        let mut argv = if wanted.launch {
            wanted.command
        } else {
            facts.argv
        };
        self.pipeline.take_secrets_off(&mut argv);
        let incarnation = Incarnation {
            agent: name.clone(),
            number,
            cause: if wanted.launch {
                IncarnationCause::Launch
            } else {
                IncarnationCause::Attach
            },
            root,
            boot_id: boot_id(),
            uid: facts.uid,
            exe: facts.exe,
            argv,
            at: now(),
        };
        let was_told = self.pipeline.with_lineage(|lineage| {
            lineage
                .main_thread(&name)
                .is_none_or(|thread| lineage.restart_is_told(&name, thread))
        });
        let began = self
            .pipeline
            .write(Event::IncarnationBegan(incarnation))
            .await
            .map_err(log_error)?;
        let thread = self
            .pipeline
            .ensure_thread(&name)
            .await
            .map_err(log_error)?;
        let mut notes = Vec::new();
        if number > 1 && !was_told {
            self.note_restart(&name, &mut notes).await?;
        }
        let index = life_index(began);
        let processes = match self.kernel.track(root, index) {
            Ok(processes) => processes,
            Err(e) => {
                let why = format!("could not be tracked: {e:#}");
                self.end(&name, number, why).await.map_err(log_error)?;
                return Err(error(
                    ErrorCode::Conflict,
                    format!("process {} cannot be tracked: {e:#}", wanted.pid),
                ));
            }
        };
        self.attached.notify_one();
        self.expect_typed(&name, index).await;
        notes.extend(self.cover(index));
        let listed = if wanted.cut {
            self.kernel.cut(index)
        } else {
            self.kernel.open_connections(index)
        };
        let open_before = listed.unwrap_or_else(|e| {
            notes.push(format!(
                "Connections that were open before cannot be listed: {e:#}."
            ));
            Vec::new()
        });
        if open_before.iter().any(|c| !c.cut) {
            notes.push("Connections that were open before the attach are not fenced; `acrfence attach --cut` closes them so that they come back through the hook.".into());
        }
        self.open_before.lock().insert(index, open_before.clone());
        let branch = self
            .pipeline
            .with_lineage(|lineage| lineage.current(thread).map(|b| b.id));
        Ok(Attached {
            name,
            incarnation: number,
            root,
            processes,
            branch: branch
                .ok_or_else(|| error(ErrorCode::Unavailable, "the agent has no branch".into()))?,
            notes,
            open_before,
            environment: self.ca.environment.clone(),
        })
    }

    /// `DELETE /v1/agents/NAME`: the agent goes on without the fence.
    pub async fn detach(&self, peer: Peer, name: AgentName) -> Result<AgentStatus, ApiError> {
        self.check_changes(peer, &name)?;
        let _one_at_a_time = self.attaching.lock().await;
        let living: Vec<_> = self.pipeline.with_lineage(|lineage| {
            let lives = lineage.agent(&name).into_iter().flat_map(|l| l.running());
            lives
                .map(|life| (life.began, life.incarnation.number))
                .collect()
        });
        if living.is_empty() {
            return Err(error(
                ErrorCode::Conflict,
                format!("agent `{name}` is not running"),
            ));
        }
        for (began, number) in living {
            self.kernel
                .untrack(life_index(began))
                .map_err(|e| error(ErrorCode::Unavailable, format!("{e:#}")))?;
            self.end(&name, number, format!("detached by uid {}", peer.uid))
                .await
                .map_err(log_error)?;
        }
        // Also what earlier lives left behind.
        let lives: Vec<LifeIndex> = self.pipeline.with_lineage(|lineage| {
            let lives = lineage.agent(&name).map_or(&[][..], |line| &line.lives);
            lives.iter().map(|life| life_index(life.began)).collect()
        });
        for index in lives {
            if self.kernel.processes(index) > 0 {
                self.kernel
                    .untrack(index)
                    .map_err(|e| error(ErrorCode::Unavailable, format!("{e:#}")))?;
            }
        }
        self.pipeline
            .with_lineage(|lineage| {
                let life = lineage.agent(&name).and_then(|line| line.lives.last())?;
                Some(self.describe(lineage, &name, life))
            })
            .ok_or_else(|| not_found(format!("agent `{name}` is not known any more")))
    }

    /// Ends the lives whose last process is gone. Called when the kernel side says that a process
    /// ended, at start for those that ended while no daemon ran, and before a person's word is taken
    /// about what comes after: it must not be older than the end of the life before it.
    pub async fn end_what_ended(&self, why: &str) -> Result<(), LogError> {
        let _one_at_a_time = self.attaching.lock().await;
        self.end_those_without_processes(why).await
    }

    pub(super) async fn end_those_without_processes(&self, why: &str) -> Result<(), LogError> {
        let living: Vec<_> = self.pipeline.with_lineage(|lineage| {
            lineage
                .agents()
                .flat_map(|(name, line)| line.running().map(move |life| (name, life)))
                .map(|(name, life)| (name.clone(), life.began, life.incarnation.number))
                .collect()
        });
        for (name, began, number) in living {
            if self.kernel.processes(life_index(began)) == 0 {
                self.end(&name, number, why.into()).await?;
            }
        }
        Ok(())
    }

    /// Ends a life whose root process is gone though something that it left goes on (a tool call of a
    /// killed agent): who starts the agent again starts a new life. What is left stays behind the fence
    /// as what it was.
    async fn end_if_only_orphans_are_left(&self, name: &AgentName) -> Result<(), LogError> {
        let living = self.pipeline.with_lineage(|lineage| {
            let life = lineage.agent(name)?.living()?;
            Some((life.began, life.incarnation.number, life.incarnation.root))
        });
        let Some((began, number, root)) = living else {
            return Ok(());
        };
        let index = life_index(began);
        if self.kernel.membership(root.tgid) == Membership::Inside(index) {
            return Ok(());
        }
        let left = self.kernel.processes(index);
        let why = format!(
            "its root process ended and it is started again; {left} of its processes go on"
        );
        self.end(name, number, why).await
    }

    /// The agent and life that the kernel side knows by this number.
    pub fn agent_of(&self, index: LifeIndex) -> Option<(AgentName, u32)> {
        self.pipeline.with_lineage(|lineage| {
            lineage.agents().find_map(|(name, line)| {
                let life = line
                    .lives
                    .iter()
                    .rev()
                    .find(|life| life_index(life.began) == index)?;
                Some((name.clone(), life.incarnation.number))
            })
        })
    }

    /// Lets the exec gate cover the lives that a daemon before this one left, also those that ended and left
    /// something running.
    pub(super) async fn gate_the_living(&self) {
        let all: Vec<_> = self.pipeline.with_lineage(|lineage| {
            let lives = lineage
                .agents()
                .flat_map(|(name, line)| line.lives.iter().map(move |life| (name, life)));
            lives
                .map(|(name, life)| (name.clone(), life_index(life.began)))
                .collect()
        });
        for (agent, life) in all {
            if self.kernel.processes(life) == 0 {
                continue;
            }
            self.expect_typed(&agent, life).await;
            if let Some(note) = self.cover(life) {
                tracing::error!("{note}");
            }
        }
    }

    pub(super) async fn end(
        &self,
        agent: &AgentName,
        number: u32,
        why: String,
    ) -> Result<(), LogError> {
        self.pipeline
            .write(Event::IncarnationEnded {
                agent: agent.clone(),
                number,
                at: now(),
                why,
            })
            .await
            .map(drop)
    }

    fn next_life(&self, peer: Peer, name: &AgentName) -> Result<u32, ApiError> {
        self.pipeline.with_lineage(|lineage| {
            let Some(line) = lineage.agent(name) else { return Ok(1) };
            if let Some(life) = line.living() {
                let root = life.incarnation.root.tgid;
                return Err(error(
                    ErrorCode::Conflict,
                    format!("agent `{name}` runs already (root process {root}); give another --name, or `acrfence detach {name}` first"),
                ));
            }
            let last = line.lives.last();
            if !peer.is_root() && last.is_some_and(|life| life.incarnation.uid != peer.uid) {
                return Err(forbidden(&format!("the name `{name}` belongs to another user's agent; give another --name")));
            }
            Ok(last.map_or(1, |life| life.incarnation.number + 1))
        })
    }

    /// A known agent starts again and nobody said why (DESIGN.md §8, point 4).
    async fn note_restart(
        &self,
        agent: &AgentName,
        notes: &mut Vec<String>,
    ) -> Result<(), ApiError> {
        let policy = self.config.load().fence.clone();
        if policy.on_restart != OnRestart::Fence {
            return Ok(());
        }
        let back = now().0.saturating_sub(policy.restart_window.nanos());
        let remembered = EffectFilter {
            agent: Some(agent.clone()),
            until: Some(Timestamp(back)),
            limit: Some(1),
            ..Default::default()
        };
        let last = self
            .pipeline
            .log()
            .effects(&remembered)
            .map_err(log_error)?
            .items;
        let since = EffectFilter {
            agent: Some(agent.clone()),
            since: Some(Timestamp(back)),
            limit: Some(1),
            ..Default::default()
        };
        if self
            .pipeline
            .log()
            .effects(&since)
            .map_err(log_error)?
            .items
            .is_empty()
        {
            return Ok(());
        }
        let point = RestoreTarget::Position(last.first().map_or(Seq(0), |row| row.id.0));
        let note = format!(
            "restarted; what it did in the last {} may be forgotten",
            policy.restart_window
        );
        let make = |lineage: &Lineage| {
            let opened = lineage.restored_whole(agent, &point, Grade::Suspect, &note, now());
            let mut events = opened
                .map_err(|e| LogError::Unusable(format!("a restart cannot be noted: {e}")))?;
            for event in &mut events {
                // Whoever is fenced for certain does not get a weaker fence by starting again.
                if let Event::BranchOpened(branch) = event
                    && let Some(before) = lineage.wide(branch.thread)
                    && before.cause == Cause::Restore
                {
                    branch.grade = before.grade;
                }
            }
            Ok(events)
        };
        self.pipeline
            .open_branches::<LogError>(agent, make)
            .await
            .map_err(log_error)?;
        notes.push(format!(
            "Agent `{agent}` starts again. What it did in the last {} is fenced as a suspected restore: equal calls are held. `acrfence restored {agent}` says that it was restored, and to where.",
            policy.restart_window
        ));
        Ok(())
    }
}

fn name_from(exe: &str, argv: &[String]) -> Result<AgentName, ApiError> {
    let base = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    let name = if exe.is_empty() {
        argv.first().map(|a| base(a)).unwrap_or_default()
    } else {
        base(exe)
    };
    name.parse()
        .map_err(|e: String| bad(&format!("{e}; give a name with --name")))
}

pub(super) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|id| id.trim().to_owned())
        .unwrap_or_default()
}
