//! Restores of processes (CRIU, and what builds on it), as the kernel shows them: a dump is a checkpoint,
//! and a process that was put together from one begins a life that remembers as far as the dump.
//!
//! What is said here by programs (their arguments, directories, names) only helps to tell dumps apart.
//! That a process was restored, and whose it was, the kernel side knows by itself.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use acrfence_common::RESTORED;
use parking_lot::{Condvar, Mutex};

use super::dumpers::{Tool, is_traced_by, name_of, parent_of};
use super::kernel::{LifeIndex, Membership, ProcessFacts, RestoredProcess};
use super::lives::{NO_PROCESS_LEFT, boot_id};
use super::notices::TroubleNotice;
use super::now;
use super::service::{Daemon, life_index};
use crate::boundary::TroubleKind;
use crate::effect::{EffectFilter, Event, LogError};
use crate::lineage::RestoreTarget;
use crate::policy::RestoredConnections;
use crate::probe::{Primitive, ProbeEvent};
use crate::words::{
    AgentName, Checkpoint, Grade, Image, Incarnation, IncarnationCause, ProcessIdentity, Saved,
    Seq, Timestamp,
};

/// What is known of dumps and restores that are under way.
#[derive(Default)]
pub(super) struct Restores {
    kept: Mutex<Kept>,
    /// Notified when restored processes were taken in, or could not be.
    taken_in: Condvar,
}

#[derive(Default)]
struct Kept {
    /// Dumps that were written down: who made them, of which life.
    dumps: VecDeque<(ProcessIdentity, LifeIndex)>,
    /// Who asked for a process under which pid, and when.
    makers: VecDeque<(u32, Timestamp, Tool)>,
    /// Lives that restores began: whose, by whom.
    lives: VecDeque<(AgentName, ProcessIdentity, LifeIndex)>,
}

/// Things kept of each kind; the oldest go.
const MOST_KEPT: usize = 1024;
/// How long a connection waits for its process to be taken in.
const PATIENCE: Duration = Duration::from_secs(10);
/// An answer that came so shortly before a dump may not have been read by then (nanoseconds).
const UNREAD: u64 = 200_000_000;

impl Daemon {
    /// Somebody uses a restore primitive.
    pub(super) async fn restoring(&self, event: &ProbeEvent, primitive: Primitive, argument: u64) {
        let pid = u32::try_from(argument).unwrap_or(0);
        match primitive {
            Primitive::SetTid => {
                let tool = self.tool(event.process);
                keep(&mut self.restores.kept.lock().makers, (pid, event.at, tool));
            }
            Primitive::Seize => self.dump_begins(event, pid).await,
            Primitive::Restored => self.adopt_restored().await,
            Primitive::LastPid | Primitive::SetMm | Primitive::TcpRepair => {}
        }
    }

    /// Reports were lost. Restored processes are found all the same; a dump among the lost ones is not.
    pub(super) async fn restores_missed(&self, count: u64) {
        self.pipeline.notices().problem(format!(
            "the kernel reported faster than the daemon read ({count} reports at {}); a dump of an agent that began then is not known, and a restore from it fences more than it must",
            now()
        ));
        self.adopt_restored().await;
    }

    /// Tells the kernel side which processes are saved somewhere, by what the log knows: its own list
    /// does not outlive a reboot.
    pub(super) fn expect_restores(&self) {
        let known: Vec<(u32, u64, LifeIndex)> = self.pipeline.with_lineage(|lineage| {
            let mut known = vec![];
            for (name, line) in lineage.agents() {
                // A root is expected also where no dump of it was seen.
                known.extend(line.lives.iter().map(|life| {
                    let root = life.incarnation.root;
                    (root.tgid, root.start_ns, life_index(life.began))
                }));
                for (_, checkpoint) in lineage.checkpoints(name) {
                    let Some(image) = &checkpoint.image else {
                        continue;
                    };
                    let number = image.incarnation;
                    let life = line.lives.iter().find(|l| l.incarnation.number == number);
                    let index = life.map(|life| life_index(life.began));
                    let saved = image.processes.iter();
                    known.extend(saved.filter_map(|s| Some((s.pid, s.start_ns, index?))));
                }
            }
            known
        });
        for (pid, start_ns, life) in known {
            if let Err(e) = self.kernel.expect_restore(pid, start_ns, life) {
                self.expectation_failed(pid, &e);
            }
        }
    }

    fn expectation_failed(&self, pid: u32, e: &anyhow::Error) {
        self.pipeline.notices().problem(format!(
            "a restore of the saved process {pid} may not be noticed, and would then not be fenced: {e:#}"
        ));
    }

    /// Somebody seizes a process of an agent: writes a checkpoint down, once a dump.
    async fn dump_begins(&self, event: &ProbeEvent, pid: u32) {
        let Membership::Inside(life) = self.kernel.membership(pid) else {
            return;
        };
        let Some((agent, incarnation)) = self.agent_of(life) else {
            return;
        };
        let known = (event.process, life);
        if self.restores.kept.lock().dumps.contains(&known) {
            return;
        }
        // Whoever is inside could say at any time that it is saved, and so weaken its own fence.
        let from = self.kernel.membership(event.process.tgid);
        if matches!(from, Membership::Inside(_)) {
            tracing::warn!(agent = %agent, "process {} of an agent seizes process {pid}; that is not taken for a dump, because an agent may not move its own fork point", event.process.tgid);
            return;
        }
        let tool = self.tool(event.process);
        if !is_traced_by(pid, event.process.tgid).await {
            tracing::info!(agent = %agent, "process {} ({}) wanted to seize process {pid} and does not trace it; that is no dump", event.process.tgid, tool.name);
            return;
        }
        keep(&mut self.restores.kept.lock().dumps, known);
        let processes = self.kernel.members(life);
        for (process, inner) in &processes {
            if let Err(e) = self.kernel.expect_restore(*inner, process.start_ns, life) {
                self.expectation_failed(*inner, &e);
            }
        }
        let name = name_of(&tool);
        let through = self.read_until(&agent, event.at).unwrap_or_else(|e| {
            tracing::error!(
                "what was running at a dump cannot be told, so it is taken to remember nothing: {e}"
            );
            Seq(0)
        });
        let checkpoint = Checkpoint {
            agent: agent.clone(),
            name: name.clone(),
            thread: None,
            at: event.at,
            through: Some(through),
            image: Some(Image {
                incarnation,
                processes: processes
                    .iter()
                    .map(|(process, inner)| Saved {
                        pid: *inner,
                        start_ns: process.start_ns,
                        program: Self::program_of(*process),
                    })
                    .collect(),
                dir: tool.image.dir,
            }),
        };
        match self.pipeline.write(Event::CheckpointTaken(checkpoint)).await {
            Ok(_) => {
                tracing::info!(agent = %agent, "its processes are being saved by {}: checkpoint `{name}`", tool.name);
            }
            Err(e) => self.pipeline.notices().problem(format!(
                "a dump of agent `{agent}` could not be written down, so a restore from it fences more than it must: {e}"
            )),
        }
    }

    /// Up to where the agent's processes, stopped at this time, can remember: before the oldest effect
    /// whose answer they cannot have read.
    fn read_until(&self, agent: &AgentName, at: Timestamp) -> Result<Seq, LogError> {
        // What they sent before and nobody has taken in yet comes after this.
        let head = self.pipeline.log().head();
        let newest = EffectFilter {
            agent: Some(agent.clone()),
            limit: Some(1000),
            ..Default::default()
        };
        let rows = self.pipeline.log().effects(&newest)?.items;
        let unread = rows.iter().filter(|row| {
            row.ended
                .is_none_or(|ended| ended.0.saturating_add(UNREAD) >= at.0)
        });
        let unread = unread.map(|row| Seq(row.id.0.0.saturating_sub(1)));
        let running = self.pipeline.before_what_runs(agent);
        Ok(unread.chain(running).fold(head, Seq::min))
    }

    /// Begins lives for processes that were restored.
    pub(super) async fn adopt_restored(&self) {
        let _one_at_a_time = self.attaching.lock().await;
        let found = match self.kernel.restored() {
            Ok(found) => found,
            Err(e) => {
                let what = format!("restored processes cannot be looked for: {e:#}");
                tracing::error!("{what}");
                self.pipeline.notices().problem(what);
                return;
            }
        };
        if found.is_empty() {
            return;
        }
        if let Err(e) = self.end_those_without_processes(NO_PROCESS_LEFT).await {
            tracing::error!("it could not be written down that an agent ended: {e}");
        }
        for one in &found {
            if let Err(e) = self.adopt(one).await {
                let what = format!(
                    "process {} was restored from a saved one of an agent, and its new life cannot be begun: {e:#}. Its connections are dropped; end it and restore it again",
                    one.process.tgid
                );
                tracing::error!("{what}");
                self.pipeline.notices().problem(what);
            }
            self.fit_gates().await;
            // In any case: the program that restores it waits for it.
            if let Err(e) = self.kernel.go_on(one.process) {
                self.pipeline.notices().problem(format!("{e:#}"));
            }
        }
        drop(self.restores.kept.lock());
        self.restores.taken_in.notify_all();
    }

    async fn adopt(&self, one: &RestoredProcess) -> anyhow::Result<()> {
        let was = one.was.and_then(|life| self.agent_of(life));
        let Some((agent, old)) = was else {
            anyhow::bail!("the effect log does not know whose it was");
        };
        // Pids of other namespaces are small, and many have the same.
        let program = Self::program_of(one.process);
        if one.pid != one.process.tgid
            && !self
                .pipeline
                .with_lineage(|l| l.may_be_saved(&agent, one.pid, &program))
        {
            tracing::info!(
                "process {} ({program}) was restored, and is none of agent `{agent}`, which saved another program under its pid {}",
                one.process.tgid,
                one.pid
            );
            return self.kernel.let_go(one.process);
        }
        let restorer = self.restorer_of(one);
        // Another process of the same tree came first.
        if let Some(life) = restorer
            .as_ref()
            .and_then(|r| self.begun_by(&agent, r.process))
        {
            self.kernel.adopt(one.process, life)?;
            self.look_at_connections(&agent, one, life);
            return Ok(());
        }
        let image = restorer
            .as_ref()
            .map(|r| r.image.clone())
            .unwrap_or_default();
        let (dump, number, before) = self.pipeline.with_lineage(|lineage| {
            let dump = lineage
                .dump_of(&agent, one.pid, &image, self.since)
                .cloned();
            let lives = lineage.agent(&agent).map_or(&[][..], |line| &line.lives);
            let number = lives
                .iter()
                .map(|l| l.incarnation.number)
                .max()
                .unwrap_or(0)
                + 1;
            let before = lives.iter().find(|life| life.incarnation.number == old);
            (dump, number, before.map(|life| life.incarnation.clone()))
        });
        let by = restorer.as_ref().map_or_else(
            || "by a program that was gone before it could be looked at".to_owned(),
            |r| format!("by {} ({})", r.name, r.process.tgid),
        );
        let (target, note) = match &dump {
            Some((seq, dump)) => (
                RestoreTarget::CheckpointAt(*seq),
                format!(
                    "process {} restored {by} from `{}`",
                    one.process.tgid, dump.name
                ),
            ),
            None => (
                RestoreTarget::Unknown,
                format!(
                    "process {} restored {by} from a dump that nobody noticed",
                    one.process.tgid
                ),
            ),
        };
        tracing::warn!(agent = %agent, "{note}");
        // Its owner and its program are put back last, so the saved process is asked for them.
        let same = before.filter(|before| before.root.tgid == one.pid);
        let facts = match &same {
            Some(_) => ProcessFacts::default(),
            None => self.facts(one.process),
        };
        let began = self
            .pipeline
            .write(Event::IncarnationBegan(Incarnation {
                agent: agent.clone(),
                number,
                cause: IncarnationCause::Restore,
                root: one.process,
                boot_id: boot_id(),
                uid: same.as_ref().map_or(facts.uid, |b| b.uid),
                exe: same.as_ref().map_or(facts.exe, |b| b.exe.clone()),
                argv: same.as_ref().map_or(facts.argv, |b| b.argv.clone()),
                at: now(),
            }))
            .await?;
        let adopted = self.fence_and_adopt(&agent, one, &target, &note, life_index(began));
        match adopted.await {
            Ok(0) => {
                self.end(&agent, number, "ended while it was restored".into())
                    .await?;
                return Ok(());
            }
            Ok(_) => {}
            Err(e) => {
                self.end(&agent, number, format!("could not be taken in: {e:#}"))
                    .await?;
                return Err(e);
            }
        }
        if let Some(restorer) = restorer {
            let entry = (agent.clone(), restorer.process, life_index(began));
            keep(&mut self.restores.kept.lock().lives, entry);
        }
        self.look_at_what_is_not_fenced(&agent, one, life_index(began));
        Ok(())
    }

    /// Opens the branches, and only then lets the process be somebody: until then what it sends is
    /// dropped.
    async fn fence_and_adopt(
        &self,
        agent: &AgentName,
        one: &RestoredProcess,
        target: &RestoreTarget,
        note: &str,
        life: LifeIndex,
    ) -> anyhow::Result<usize> {
        self.pipeline.ensure_thread(agent).await?;
        self.pipeline
            .open_branches::<LogError>(agent, |lineage| {
                lineage
                    .restored_whole(agent, target, Grade::Certain, note, now())
                    .map_err(|e| LogError::Unusable(e.to_string()))
            })
            .await?;
        self.kernel.adopt(one.process, life)
    }

    fn look_at_what_is_not_fenced(
        &self,
        agent: &AgentName,
        one: &RestoredProcess,
        life: LifeIndex,
    ) {
        if !self.kernel.covers(one.process.tgid) {
            self.say(agent, one, "It was restored outside the control group that this daemon watches (--cgroup), so it is NOT FENCED. End it, and restore it inside, or run the daemon without --cgroup.".into());
        }
        if let Some(note) = self.cover(life) {
            self.say(agent, one, note);
        }
        self.look_at_connections(agent, one, life);
    }

    /// Connections that were restored alive pass by the hook.
    fn look_at_connections(&self, agent: &AgentName, one: &RestoredProcess, life: LifeIndex) {
        let keeps = self.config.load().probe.restored_connections == RestoredConnections::Keep;
        let listed = if keeps {
            self.kernel.open_connections(life)
        } else {
            self.kernel.cut(life)
        };
        let listed = match listed {
            Ok(listed) => listed,
            Err(e) => {
                let what =
                    format!("Connections that were restored with it cannot be listed: {e:#}.");
                return self.say(agent, one, what);
            }
        };
        for open in &listed {
            let what = if open.cut {
                "was cut, so that it comes back through the fence"
            } else if keeps {
                "goes on and is NOT FENCED (policy `probe.restored_connections`)"
            } else {
                "could not be cut and is NOT FENCED"
            };
            let sentence = format!(
                "Its connection {} to {} was restored alive; it {what}.",
                open.local, open.peer
            );
            self.say(agent, one, sentence);
        }
        self.open_before
            .lock()
            .entry(life)
            .or_default()
            .extend(listed);
    }

    fn say(&self, agent: &AgentName, one: &RestoredProcess, detail: String) {
        tracing::warn!(agent = %agent, pid = one.process.tgid, "{detail}");
        self.pipeline.notices().note(TroubleNotice {
            at: now(),
            agent: agent.clone(),
            pid: one.process.tgid,
            exe: self.kernel.facts(one.process).exe,
            kind: TroubleKind::RestoredProcess,
            detail,
        });
    }

    /// The life that a connection's process belongs to, waiting for one that is being restored.
    pub(super) fn begun(&self, life: LifeIndex, process: ProcessIdentity) -> Option<LifeIndex> {
        if life != RESTORED {
            return Some(life);
        }
        let deadline = Instant::now() + PATIENCE;
        tokio::task::block_in_place(|| {
            let mut kept = self.restores.kept.lock();
            loop {
                match self.kernel.membership(process.tgid) {
                    Membership::Inside(RESTORED) => {}
                    Membership::Inside(life) => return Some(life),
                    Membership::Outside | Membership::Unknown => return None,
                }
                let waited = self.restores.taken_in.wait_until(&mut kept, deadline);
                if waited.timed_out() {
                    return None;
                }
            }
        })
    }

    /// The living life that this restorer began.
    fn begun_by(&self, agent: &AgentName, restorer: ProcessIdentity) -> Option<LifeIndex> {
        let kept = self.restores.kept.lock();
        let began = kept
            .lives
            .iter()
            .rev()
            .find(|(whose, by, _)| whose == agent && *by == restorer)
            .map(|(.., life)| *life)?;
        self.pipeline.with_lineage(|lineage| {
            let mut lives = lineage.agent(agent)?.running();
            lives
                .any(|life| life_index(life.began) == began)
                .then_some(began)
        })
    }

    /// The program that puts a process together: who asked for its pid, and who asked for that one's.
    /// Where nobody was seen to ask, its parent.
    fn restorer_of(&self, one: &RestoredProcess) -> Option<Tool> {
        let kept = self.restores.kept.lock();
        let made_by = |pid: u32, process: ProcessIdentity| {
            let mut asked = kept.makers.iter().rev();
            asked.find_map(|(wanted, at, tool)| {
                (*wanted == pid && is_born_of(process, *at)).then(|| tool.clone())
            })
        };
        let mut found = made_by(one.pid, one.process);
        // A tree of processes is never so deep; whatever was kept, this ends.
        for _ in 0..256 {
            match found.as_ref().and_then(|t| made_by(t.pid, t.process)) {
                Some(above) => found = Some(above),
                None => break,
            }
        }
        drop(kept);
        found.or_else(|| {
            let parent = parent_of(one.process.tgid)?;
            let identity = self.kernel.identify(parent).ok()?;
            Some(self.tool(identity))
        })
    }
}

fn keep<T>(kept: &mut VecDeque<T>, one: T) {
    if kept.len() == MOST_KEPT {
        kept.pop_front();
    }
    kept.push_back(one);
}

/// Whether a process can be the one that was asked for at this time. Pids are used again.
fn is_born_of(process: ProcessIdentity, asked: Timestamp) -> bool {
    const EARLIEST: u64 = 50_000_000;
    const LATEST: u64 = 2_000_000_000;
    let since_boot = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME);
    let Ok(since_boot) = since_boot.map(Duration::from) else {
        return false;
    };
    let since_boot = u64::try_from(since_boot.as_nanos()).unwrap_or(u64::MAX);
    let born = (now().0 - since_boot.min(now().0)).saturating_add(process.start_ns);
    (asked.0.saturating_sub(EARLIEST)..asked.0.saturating_add(LATEST)).contains(&born)
}
