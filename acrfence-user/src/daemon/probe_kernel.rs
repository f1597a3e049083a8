//! The probe as the daemon's kernel side.

use std::net::SocketAddr;

use super::kernel::{Claimed, Kernel, LifeIndex, Membership, ProcessFacts, RestoredProcess};
use crate::control::{Drop, OpenConnection};
use crate::probe::{self, Probe};
use crate::words::ProcessIdentity;

impl Kernel for Probe {
    fn identify(&self, pid: u32) -> anyhow::Result<ProcessIdentity> {
        Ok(Probe::identify(self, pid)?)
    }

    fn track(&self, process: ProcessIdentity, life: LifeIndex) -> anyhow::Result<usize> {
        let tracked = Probe::track(self, process.tgid, life)?;
        if tracked.first() != Some(&process) {
            Probe::untrack(self, life)?;
            anyhow::bail!(
                "process {} ended, and another one has its pid now",
                process.tgid
            );
        }
        Ok(tracked.len())
    }

    fn covers(&self, pid: u32) -> bool {
        Probe::covers(self, pid)
    }

    fn gate(&self, life: LifeIndex, refuses_what_is_typed: bool) -> anyhow::Result<()> {
        let mut bits = probe::GateWhy::ALL;
        if refuses_what_is_typed {
            bits |= probe::GateWhy::REFUSE_JOBS;
        }
        Ok(self.gate_agent(life, bits)?)
    }

    fn denies_exec(&self) -> bool {
        Probe::denies_exec(self)
    }

    fn untrack(&self, life: LifeIndex) -> anyhow::Result<()> {
        Ok(Probe::untrack(self, life)?)
    }

    fn membership(&self, pid: u32) -> Membership {
        match Probe::membership(self, pid) {
            Ok(probe::Membership::Inside { agent, .. }) => Membership::Inside(agent),
            Ok(probe::Membership::Outside) => Membership::Outside,
            Ok(probe::Membership::Gone) => Membership::Unknown,
            Err(e) => {
                tracing::error!("it cannot be told whether process {pid} belongs to an agent: {e}");
                Membership::Unknown
            }
        }
    }

    fn processes(&self, life: LifeIndex) -> usize {
        self.tracked().map_or(0, |tracked| {
            tracked.values().filter(|owner| **owner == life).count()
        })
    }

    fn claim(&self, from: SocketAddr) -> Option<Claimed> {
        Probe::claim(self, from).map(claimed)
    }

    fn claim_in(&self, netns: u64, from: SocketAddr) -> Option<Claimed> {
        Probe::claim_in(self, netns, from).map(claimed)
    }

    fn facts(&self, process: ProcessIdentity) -> ProcessFacts {
        // Asked before an attach too, to know whose process it is.
        let known = self.any_process(process);
        let Some(known) = known else {
            return ProcessFacts {
                exe: "?".into(),
                // Nobody's: an unknown process belongs to no user who may ask for it.
                uid: u32::MAX,
                gaps: "the process was gone before it could be looked at".into(),
                ..Default::default()
            };
        };
        ProcessFacts {
            exe: known.exe,
            argv: known.argv,
            cwd: known.cwd,
            uid: known.uid,
            environment: known.env.into_iter().collect(),
            gaps: self.gaps(known.agent),
        }
    }

    fn open_connections(&self, life: LifeIndex) -> anyhow::Result<Vec<OpenConnection>> {
        Ok(Probe::open_connections(self, life)?
            .iter()
            .map(shown)
            .collect())
    }

    fn cut(&self, life: LifeIndex) -> anyhow::Result<Vec<OpenConnection>> {
        let open = Probe::open_connections(self, life)?;
        Ok(open
            .iter()
            .map(|connection| {
                let cut = Probe::cut(self, connection).unwrap_or_else(|e| {
                    tracing::warn!("{e}");
                    false
                });
                OpenConnection {
                    cut,
                    ..shown(connection)
                }
            })
            .collect())
    }

    fn restored(&self) -> anyhow::Result<Vec<RestoredProcess>> {
        let found = Probe::restored(self)?.into_iter();
        Ok(found
            .map(|one| RestoredProcess {
                process: one.process,
                was: one.was,
                pid: one.pid,
            })
            .collect())
    }

    fn adopt(&self, process: ProcessIdentity, life: LifeIndex) -> anyhow::Result<usize> {
        Ok(Probe::adopt(self, process, life)?.len())
    }

    fn let_go(&self, process: ProcessIdentity) -> anyhow::Result<()> {
        Ok(Probe::let_go(self, process)?)
    }

    fn go_on(&self, process: ProcessIdentity) -> anyhow::Result<()> {
        Ok(Probe::go_on(self, process)?)
    }

    fn members(&self, life: LifeIndex) -> Vec<(ProcessIdentity, u32)> {
        let tracked = self.tracked().unwrap_or_default().into_iter();
        tracked
            .filter(|(_, owner)| *owner == life)
            .filter_map(|(process, _)| Some((process, self.innermost_pid(process)?)))
            .collect()
    }

    fn expect_restore(&self, pid: u32, start_ns: u64, life: LifeIndex) -> anyhow::Result<()> {
        Ok(Probe::expect_restore(self, pid, start_ns, life)?)
    }

    fn drops(&self) -> Vec<Drop> {
        let accounts = self.accounts().unwrap_or_default();
        accounts
            .into_iter()
            .flat_map(|account| {
                let kind = account.sort.to_string();
                account.dropped.into_iter().map(move |(cause, count)| Drop {
                    kind: kind.clone(),
                    cause: cause.into(),
                    count,
                })
            })
            .filter(|drop| drop.count > 0)
            .collect()
    }

    fn problems(&self) -> Vec<String> {
        self.refused_hooks()
            .iter()
            .map(|(hook, why)| format!("this kernel refuses the hook {hook}: {why}"))
            .collect()
    }
}

fn claimed(claimed: probe::Claimed) -> Claimed {
    Claimed {
        original: claimed.original,
        process: claimed.process,
        life: claimed.agent,
    }
}

fn shown(connection: &crate::probe::OpenConnection) -> OpenConnection {
    OpenConnection {
        pid: connection.process.tgid,
        local: connection.local.to_string(),
        peer: format!("{} ({})", connection.peer, connection.protocol),
        cut: false,
    }
}
