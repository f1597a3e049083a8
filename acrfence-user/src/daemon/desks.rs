//! Desks, threads and branches: who may act while a timeline is left.

use std::collections::BTreeSet;

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard};

use super::now;
use super::pipeline::{MAIN, Pipeline};
use super::talks::Placed;
use crate::effect::{Event, LogError};
use crate::lineage::Lineage;
use crate::lineage::conversation::CallSeen;
use crate::words::{AgentName, Branch, BranchId, Origin, ThreadId};

impl Pipeline {
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
        let alone = self.alone(&owners).await;
        let order = self.0.writing.lock().await;
        let events = make(&self.0.lineage.read())?;
        let mut opened = Vec::new();
        for event in events {
            let seq = self.write_in_order(event.clone()).await?;
            if let Event::BranchOpened(branch) = event.at_position(seq) {
                opened.push(branch);
            }
        }
        drop((order, alone));
        self.flows_took_it_in().await;
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
    pub(super) async fn desk_alone(
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
    pub(super) async fn desk_shared(
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
        self.open_thread_in_order(agent, title).await
    }

    async fn open_thread_in_order(
        &self,
        agent: &AgentName,
        title: &str,
    ) -> Result<(ThreadId, BranchId), LogError> {
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
        let (thread, _) = self.open_thread_in_order(agent, MAIN).await?;
        Ok(thread)
    }
}
