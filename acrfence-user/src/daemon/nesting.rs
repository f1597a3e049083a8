//! Nested boundaries (DESIGN.md §9): what happens inside a running tool call belongs to it.
//!
//! A stdio server or a gated command acts outside by itself: it connects, and it starts commands.
//! Its call was decided at the outermost boundary, so what it causes meanwhile is not decided again.
//! It is recorded as the call's child, and from then on says nothing by itself: it is fenced for as
//! long as its outer effect is, replayed with it, and in doubt with it. What the same process does
//! while no outer effect runs is an effect of its own.
//!
//! Two things are looked at all the same. A spent credential opens nothing, also inside (I2). And an
//! outer call that says "I failed" although something inside it went out is in doubt, not failed:
//! the next attempt would do that again.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::evidence::{self, Source};
use super::pipeline::{Inner, Pipeline, Place};
use crate::analyzer::credential;
use crate::boundary::{Admission, Ticket};
use crate::effect::{EffectFilter, EffectRow, LogError};
use crate::fence::{Decision, asks_for_input, status_of};
use crate::lineage::{Executed, Fenced, Lineage};
use crate::words::{
    AgentName, BranchId, Effect, EffectId, Ending, ProcessIdentity, RefusalCode, Status, ThreadId,
    Timestamp, ToolCall, ToolKey,
};

/// Tells the process that started a process; none where that is not known, or is no agent's.
pub(super) type ParentOf = Arc<dyn Fn(ProcessIdentity) -> Option<ProcessIdentity> + Send + Sync>;

/// How far up the tree an outer effect is looked for.
const MOST_ANCESTORS: usize = 256;

/// Effects that processes of an agent carry out right now, by the process.
#[derive(Default)]
pub(super) struct Nesting {
    parent_of: OnceLock<ParentOf>,
    running: Mutex<HashMap<ProcessIdentity, Vec<Outer>>>,
    /// Children of outer effects whose outcome is in doubt.
    doubtful: Mutex<HashMap<EffectId, Vec<EffectId>>>,
}

/// A running outer effect.
struct Outer {
    effect: EffectId,
    agent: AgentName,
    place: Place,
    children: Vec<(EffectId, ToolKey)>,
    /// Children that are on their way to the log.
    coming: usize,
}

/// The outer effects that a call belongs to. They know that a child is coming until this is dropped.
pub(super) struct Within<'a> {
    nesting: &'a Nesting,
    process: ProcessIdentity,
    /// At least one; the latest first.
    effects: Vec<EffectId>,
    place: Place,
}

impl Nesting {
    /// From now on the tree of processes is known.
    pub(super) fn sees(&self, parent_of: ParentOf) {
        // There is one kernel side, and it is set once.
        let _ = self.parent_of.set(parent_of);
    }

    /// A process and those that made it, nearest first, as far as that is known.
    pub(super) fn ancestors(&self, process: ProcessIdentity) -> Vec<ProcessIdentity> {
        let parent_of = self.parent_of.get();
        let up = |process: &ProcessIdentity| parent_of.and_then(|parent_of| parent_of(*process));
        std::iter::successors(Some(process), up)
            .take(MOST_ANCESTORS)
            .collect()
    }

    /// A process begins to carry out an effect.
    fn begin(&self, process: ProcessIdentity, effect: EffectId, agent: AgentName, place: Place) {
        let outer = Outer {
            effect,
            agent,
            place,
            children: Vec::new(),
            coming: 0,
        };
        self.running.lock().entry(process).or_default().push(outer);
    }

    /// The outer effects that what `process` does now belongs to: those that it carries out, or else
    /// those of its nearest ancestor that carries out any.
    pub(super) fn around(&self, process: ProcessIdentity) -> Option<Within<'_>> {
        if self.running.lock().is_empty() {
            return None;
        }
        let mut next = Some(process);
        for _ in 0..MOST_ANCESTORS {
            let process = next?;
            if let Some(within) = self.enter(process) {
                return Some(within);
            }
            next = self
                .parent_of
                .get()
                .and_then(|parent_of| parent_of(process));
        }
        None
    }

    fn enter(&self, process: ProcessIdentity) -> Option<Within<'_>> {
        let mut running = self.running.lock();
        let outers = running.get_mut(&process)?;
        let place = outers.last()?.place;
        for outer in outers.iter_mut() {
            outer.coming += 1;
        }
        Some(Within {
            nesting: self,
            process,
            effects: outers.iter().rev().map(|outer| outer.effect).collect(),
            place,
        })
    }

    /// Children of a running outer effect, and whether more are on their way to the log.
    fn inside(&self, process: ProcessIdentity, effect: EffectId) -> (Vec<EffectId>, bool) {
        let running = self.running.lock();
        let outer = running
            .get(&process)
            .and_then(|outers| outers.iter().find(|outer| outer.effect == effect));
        outer.map_or_else(Default::default, |outer| {
            let children = outer.children.iter().map(|(child, _)| *child).collect();
            (children, outer.coming > 0)
        })
    }

    /// An outer effect runs no more. Gives its children.
    fn end(&self, process: ProcessIdentity, effect: EffectId) -> Vec<(EffectId, ToolKey)> {
        let mut running = self.running.lock();
        let Some(outers) = running.get_mut(&process) else {
            return Vec::new();
        };
        let at = outers.iter().position(|outer| outer.effect == effect);
        let children = at.map_or_else(Vec::new, |at| outers.remove(at).children);
        if outers.is_empty() {
            running.remove(&process);
        }
        children
    }

    /// An outer effect is in doubt, and so is this child of it.
    fn doubt(&self, child: EffectId, outer: EffectId) {
        let mut doubtful = self.doubtful.lock();
        let outers = doubtful.entry(child).or_default();
        if !outers.contains(&outer) {
            outers.push(outer);
        }
    }

    /// Whether an outer effect of this one ended in doubt; a person may have resolved it since.
    pub(super) fn is_doubtful(&self, child: EffectId) -> bool {
        self.doubtful.lock().contains_key(&child)
    }
}

impl Within<'_> {
    /// The branch that the outer effect belongs to, and so does everything inside.
    pub(super) fn place(&self) -> Place {
        self.place
    }

    /// The outer effects, the latest first.
    fn effects(&self) -> &[EffectId] {
        &self.effects
    }

    /// A child is in the log. Gives the outer effects that ended while it was on its way there.
    fn bears(&self, child: EffectId, key: &ToolKey) -> Vec<EffectId> {
        let mut running = self.nesting.running.lock();
        let mut ended = self.effects.clone();
        for outer in running.get_mut(&self.process).into_iter().flatten() {
            if self.effects.contains(&outer.effect) {
                outer.children.push((child, key.clone()));
                ended.retain(|effect| *effect != outer.effect);
            }
        }
        ended
    }
}

impl Drop for Within<'_> {
    fn drop(&mut self) {
        let mut running = self.nesting.running.lock();
        for outer in running.get_mut(&self.process).into_iter().flatten() {
            if self.effects.contains(&outer.effect) {
                outer.coming -= 1;
            }
        }
    }
}

impl Pipeline {
    /// From now on the tree of processes is known, and what happens inside calls belongs to them.
    pub(super) fn sees_processes(&self, parent_of: ParentOf) {
        self.0.nesting.sees(parent_of);
    }

    /// Lets a call inside a running effect go, as its child. Only a spent credential stops it.
    pub(super) async fn admit_within(
        &self,
        call: ToolCall,
        key: ToolKey,
        presented: Vec<credential::Secret>,
        within: Within<'_>,
    ) -> Result<Admission, LogError> {
        let presented = self.fingerprints(&presented);
        let place = within.place();
        let agent = call.origin.agent.clone();
        let _no_new_branch = self.shared(std::slice::from_ref(&agent)).await;
        let spent = evidence::spent_in(&self.0, &agent, place, &presented)?;
        if !spent.is_empty() && self.enforces() {
            let gathered = tokio::task::block_in_place(|| {
                evidence::gather(&self.0, &call, place, None, &key, &presented)
            })?;
            let judged = gathered.judge(&self.0, place)?;
            match judged.decision {
                Decision::Replay(effect) => {
                    let branch = gathered.branch_of(effect).unwrap_or(place.branch);
                    return self.replay(call, branch, None, effect, None).await;
                }
                Decision::Block {
                    code: RefusalCode::CredentialConsumed,
                    ..
                } => return self.refuse(call, place, &judged, None).await,
                _ => {}
            }
        }
        let outer = within.effects().to_vec();
        let (effect, ticket) = self
            .prepare(call, place, key.clone(), presented, &outer)
            .await?;
        for ended in within.bears(effect, &key) {
            // Its own end is in the log before it is taken off the list.
            let outer = self.0.log.effect(ended);
            if outer.is_ok_and(|outer| outer.is_some_and(|o| o.status != Status::InDoubt)) {
                continue;
            }
            self.0.nesting.doubt(effect, ended);
            self.0.doubtful.lock().insert((agent.clone(), key.clone()));
        }
        Ok(Admission::Forward(ticket))
    }

    /// A call was admitted that `inside` carries out: from now until its ticket is settled, what
    /// `inside` and its descendants do belongs to it.
    pub(super) fn carried_out(&self, admitted: Admission, inside: ProcessIdentity) -> Admission {
        let Admission::Forward(ticket) = admitted else {
            return admitted;
        };
        let Some(effect) = ticket.effect() else {
            return Admission::Forward(ticket);
        };
        let place = self
            .0
            .running
            .lock()
            .get(&effect)
            .map(|running| (running.agent.clone(), running.place));
        let Some((agent, place)) = place else {
            return Admission::Forward(ticket);
        };
        self.0.nesting.begin(inside, effect, agent, place);
        Admission::Forward(Box::new(OuterTicket {
            inner: Some(ticket),
            pipeline: self.clone(),
            process: inside,
            effect,
        }))
    }

    /// What a call that says "I failed" is taken for: in doubt, when something inside it went out.
    fn honest(&self, process: ProcessIdentity, effect: EffectId, ending: Ending) -> Ending {
        let (children, more) = self.0.nesting.inside(process, effect);
        let went_out = |child: &EffectId| match self.0.log.effect(*child) {
            Ok(Some(child)) => child.status != Status::Failed,
            // What cannot be read may have gone out.
            Ok(None) | Err(_) => true,
        };
        let first = children.into_iter().find(went_out);
        if first.is_none() && !more {
            return ending;
        }
        let what = first.map_or_else(
            || "a call inside it".to_owned(),
            |child| format!("{child}, which it made,"),
        );
        match ending {
            // It asks before it acts; the next leg is a call of its own.
            Ending::Response(response) if asks_for_input(&response) => Ending::Response(response),
            Ending::Response(response) => Ending::Broken {
                why: format!("it says that it failed, but {what} went out"),
                partial: Some(response),
            },
            Ending::NotSent { why } => Ending::Broken {
                why: format!("{why}; but {what} went out"),
                partial: None,
            },
            broken @ Ending::Broken { .. } => broken,
        }
    }

    fn ended(&self, process: ProcessIdentity, effect: EffectId, status: Status) {
        let agent = self
            .0
            .nesting
            .running
            .lock()
            .get(&process)
            .and_then(|outers| outers.iter().find(|outer| outer.effect == effect))
            .map(|outer| outer.agent.clone());
        let children = self.0.nesting.end(process, effect);
        if let (Some(agent), Status::InDoubt) = (agent, status) {
            for (child, key) in children {
                self.0.nesting.doubt(child, effect);
                self.0.doubtful.lock().insert((agent.clone(), key));
            }
        }
    }

    /// Effects that were made inside one, oldest first.
    pub(super) fn children(&self, outer: &Effect) -> Result<Vec<EffectRow>, LogError> {
        self.inside(outer.id, &outer.call.origin.agent, outer.ended)
    }

    fn inside(
        &self,
        outer: EffectId,
        agent: &AgentName,
        ended: Option<Timestamp>,
    ) -> Result<Vec<EffectRow>, LogError> {
        let mut filter = EffectFilter {
            agent: Some(agent.clone()),
            // A child that was on its way when its outer effect ended is a little later.
            until: ended.map(|at| Timestamp(at.0.saturating_add(LATE))),
            oldest_first: true,
            after: Some(outer.0),
            limit: Some(1000),
            ..Default::default()
        };
        let mut children = Vec::new();
        loop {
            let page = self.0.log.effects(&filter)?;
            let inside = |row: &EffectRow| row.outer().any(|of| of == outer);
            children.extend(page.items.into_iter().filter(inside));
            match page.next {
                Some(next) => filter.after = Some(next),
                None => return Ok(children),
            }
        }
    }

    /// Remembers what is in doubt because its outer effect is. For the start.
    pub(super) fn remember_doubtful_children(&self) -> Result<(), LogError> {
        let mut filter = EffectFilter {
            status: Some(Status::InDoubt),
            oldest_first: true,
            limit: Some(1000),
            ..Default::default()
        };
        loop {
            let page = self.0.log.effects(&filter)?;
            // What goes to another machine has its inside there.
            let here = |row: &EffectRow| row.host.is_empty();
            for outer in page.items.into_iter().filter(here) {
                for child in self.inside(outer.id, &outer.agent, outer.ended)? {
                    self.0.nesting.doubt(child.id, outer.id);
                    self.0.doubtful.lock().insert((child.agent, child.key));
                }
            }
            match page.next {
                Some(next) => filter.after = Some(next),
                None => return Ok(()),
            }
        }
    }
}

/// How long after its outer effect a child may be in the log, in nanoseconds.
const LATE: u64 = 1_000_000_000;

/// What an effect is to a branch, with its outer effects taken into account: those of which any is
/// fenced decide, unless all of them failed. `own` is what it would be by itself.
pub(super) fn with_outer(
    inner: &Inner,
    source: &Source,
    effect: &Effect,
    own: Option<Fenced>,
) -> Result<Option<(Fenced, Status)>, LogError> {
    let alone = own.map(|fenced| (fenced, effect.status));
    let mut stands_alone = true;
    let mut found = None;
    for id in effect.outer() {
        let Some(outer) = inner.log.effect(id)? else {
            continue;
        };
        if outer.status == Status::Failed {
            continue;
        }
        stands_alone = false;
        let executed = Executed {
            id,
            branch: outer.branch,
        };
        let Some(fenced) = evidence::fenced(inner, source, executed, outer.status) else {
            continue;
        };
        if outer.status == Status::InDoubt {
            return Ok(Some((fenced, Status::InDoubt)));
        }
        found.get_or_insert((fenced, effect.status));
    }
    Ok(if stands_alone { alone } else { found })
}

impl Pipeline {
    /// The effects of a thread that a branch is fenced against, of the newest thousand, newest first.
    pub(super) fn fenced_rows(
        &self,
        thread: ThreadId,
        branch: BranchId,
    ) -> Result<Vec<EffectRow>, LogError> {
        let filter = EffectFilter {
            thread: Some(thread),
            limit: Some(1000),
            ..Default::default()
        };
        let mut rows = self.log().effects(&filter)?.items;
        self.with_lineage(|lineage| {
            rows.retain(|row| row.status != Status::Failed && is_fenced(lineage, branch, row));
        });
        Ok(rows)
    }
}

/// Whether the branch is fenced against an effect in a list: by itself, or by its outer effects.
pub(super) fn is_fenced(lineage: &Lineage, branch: BranchId, row: &EffectRow) -> bool {
    let fenced = |id: EffectId| {
        let executed = Executed {
            id,
            // What happens inside a call is recorded in the call's branch.
            branch: row.branch,
        };
        lineage.fenced(branch, executed).is_some()
    };
    match row.parent {
        None => fenced(row.id),
        Some(_) => row.outer().any(fenced),
    }
}

/// Branches that an effect was replayed into, by itself or with an outer effect.
pub(super) fn replays(lineage: &Lineage, effect: &Effect) -> Vec<BranchId> {
    let mut into: Vec<BranchId> = std::iter::once(effect.id)
        .chain(effect.outer())
        .flat_map(|id| lineage.replays_of(id))
        .collect();
    into.sort_unstable();
    into.dedup();
    into
}

/// The ticket of an effect that has an inside.
struct OuterTicket {
    /// Taken when settled.
    inner: Option<Box<dyn Ticket>>,
    pipeline: Pipeline,
    process: ProcessIdentity,
    effect: EffectId,
}

#[async_trait::async_trait]
impl Ticket for OuterTicket {
    fn effect(&self) -> Option<EffectId> {
        Some(self.effect)
    }

    fn holds_end(&self) -> bool {
        true
    }

    async fn settle(mut self: Box<Self>, ending: Ending) -> Result<(), LogError> {
        let Some(inner) = self.inner.take() else {
            return Ok(());
        };
        let mut ending = ending;
        let mut status = status_of(&ending);
        if status == Status::Failed {
            ending = self.pipeline.honest(self.process, self.effect, ending);
            status = status_of(&ending);
        }
        let settled = inner.settle(ending).await;
        let status = if settled.is_ok() {
            status
        } else {
            Status::InDoubt
        };
        self.pipeline.ended(self.process, self.effect, status);
        settled
    }
}

impl Drop for OuterTicket {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
            drop(inner);
            self.pipeline
                .ended(self.process, self.effect, Status::InDoubt);
        }
    }
}
