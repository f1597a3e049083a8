//! Conversations of agents, where their model requests cross the boundary: read, journaled, and asked
//! where a call belongs (docs/lineage.md).
//!
//! [`Talks`] holds what is remembered. It is locked while a question is asked and its answer written
//! down, so that nothing changes in between. Order of locks: desk, talks, journal.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::Mutex;

use super::now;
use super::pipeline::{Pipeline, Place};
use crate::boundary::decoded_body;
use crate::effect::{Event, LogError};
use crate::lineage::Lineage;
use crate::lineage::conversation::{
    Absence, Bounds, CallSeen, Confidence, Conversations, Delta, Exchange, Finding, Format, Known,
    Marker, Needs, Observed, Placement, Reply, Rewind, Seen, Strand, TurnMemory, Turned,
    Unreadable, decode_change, encode_change, read_request, read_response,
};
use crate::words::{
    Absent, AgentName, BranchId, EffectId, Ending, Forgotten, HttpResponse, Origin, Request,
    Response, Seq, Status, ThreadId, ToolCall,
};

/// What is remembered of conversations.
pub(super) struct Talks {
    all: Mutex<Conversations>,
    marker: Marker,
}

/// Where a tool call belongs, by what its agent's conversations say.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    pub(super) placement: Placement,
    /// Position of the last request of that line.
    asked: Seq,
    /// What the line is known not to remember.
    absent: Vec<(EffectId, Absence)>,
    /// After a restore of the whole agent: effects of the thread that nothing but the time ties to a
    /// turn. That a conversation goes on says nothing of them: they may be something else's.
    pub(super) by_time: Vec<EffectId>,
}

/// A model request that waits for its answer.
#[derive(Clone, Debug)]
pub(super) struct Asking {
    pub(super) exchange: Exchange,
    pub(super) format: Format,
    origin: Origin,
}

impl Talks {
    /// Nothing remembered yet.
    pub(super) fn new(key: &[u8; 32]) -> Self {
        Self {
            all: Mutex::new(Conversations::new(Bounds::default())),
            marker: Marker::new(key),
        }
    }

    /// Takes in a record, at start.
    pub(super) fn apply(&mut self, event: &Event) {
        if let Event::Conversed { change, thread, .. } = event {
            match decode_change(change) {
                Ok(delta) => self.all.get_mut().apply(&delta),
                Err(e) => tracing::error!(
                    "what a conversation of thread {thread} remembered cannot be read ({e}); a restore of it may show as suspected only"
                ),
            }
        }
    }
}

impl Pipeline {
    /// Reads a model request, before it is sent on: what it shows, a branch where it does not
    /// remember everything. None when its history cannot be read.
    pub(super) async fn read_model_request(
        &self,
        call: &ToolCall,
        format: Format,
        body: &[u8],
    ) -> Result<Option<Asking>, LogError> {
        let Request::Http(http) = &call.request else {
            return Ok(None);
        };
        let marker = &self.0.talks.marker;
        let read =
            tokio::task::block_in_place(|| read_request(marker, format, &http.headers, body));
        let turned = match read {
            Ok(turned) => turned,
            Err(e) => {
                self.cannot_be_read(&call.origin, &e);
                return Ok(None);
            }
        };
        let exchange = self.observe(&call.origin, &turned).await?;
        Ok(Some(Asking {
            exchange,
            format,
            origin: call.origin.clone(),
        }))
    }

    fn cannot_be_read(&self, origin: &Origin, why: &Unreadable) {
        tracing::warn!(agent = %origin.agent, "{why}; a restore of this conversation is not noticed by it");
    }

    async fn observe(&self, origin: &Origin, turned: &Turned) -> Result<Exchange, LogError> {
        let head = || self.log().head();
        {
            let mut all = self.0.talks.all.lock().await;
            let observed = self.look_at(&all, origin, turned, head());
            if observed.needs == Needs::Nothing {
                return self
                    .write_down(&mut all, origin, observed, None, None)
                    .await;
            }
        }
        // No call of the timeline that is being left may be on its way to the log.
        let mut owners = vec![origin.agent.clone()];
        loop {
            let alone = self.alone(&owners).await;
            let mut all = self.0.talks.all.lock().await;
            let observed = self.look_at(&all, origin, turned, head());
            match observed.needs {
                Needs::Nothing => {
                    return self
                        .write_down(&mut all, origin, observed, None, None)
                        .await;
                }
                Needs::Thread => {
                    let title = observed.findings.iter().find_map(|f| match f {
                        Finding::OpensThread { title, .. } => Some(title.as_str()),
                        _ => None,
                    });
                    let (thread, branch) = self
                        .open_thread(&origin.agent, title.unwrap_or("conversation"))
                        .await?;
                    return self
                        .write_down(&mut all, origin, observed, Some(thread), Some(branch))
                        .await;
                }
                Needs::Branch { thread, parent } => {
                    let owner = self.with_lineage(|l| l.thread(thread).map(|t| t.agent.clone()));
                    if let Some(owner) = owner.filter(|owner| !owners.contains(owner)) {
                        owners.push(owner);
                        continue;
                    }
                    let asked_before = all.thread(thread).map_or(Seq(0), |memory| {
                        let lines = memory.strands.iter().filter(|s| s.branch == parent);
                        lines.map(|s| s.asked).max().unwrap_or_default()
                    });
                    let (_, opened) = self
                        .write_from::<LogError>(|lineage| {
                            lineage
                                .rewound_by(parent, &observed, asked_before, now())
                                .ok_or_else(|| unknown(parent))
                        })
                        .await?;
                    let Event::BranchOpened(branch) = opened else {
                        return Err(LogError::Unusable("another record was given back".into()));
                    };
                    tracing::info!(agent = %origin.agent, thread = %thread, branch = %branch.id, "{}", branch.note);
                    let session = &turned.session.title;
                    self.suspect(&all, origin, session, &branch, &observed.absent);
                    let exchange = self
                        .write_down(&mut all, origin, observed, None, Some(branch.id))
                        .await;
                    drop(all);
                    drop(alone);
                    self.ask_own_store(branch.id).await?;
                    return exchange;
                }
            }
        }
    }

    fn look_at(&self, all: &Conversations, origin: &Origin, turned: &Turned, at: Seq) -> Observed {
        let window: Duration = self.config().fence.suspect_window.0;
        let outcomes = |effect| self.known(effect);
        let seen = seen(origin, at);
        tokio::task::block_in_place(|| {
            all.observe_request(&self.0.talks.marker, turned, &seen, window, &outcomes)
        })
    }

    /// Binds what was observed to where it belongs and writes it down.
    async fn write_down(
        &self,
        all: &mut Conversations,
        origin: &Origin,
        observed: Observed,
        thread: Option<ThreadId>,
        branch: Option<BranchId>,
    ) -> Result<Exchange, LogError> {
        for finding in &observed.findings {
            tracing::debug!(agent = %origin.agent, ?finding, "a model request");
        }
        let absent: Vec<EffectId> = observed.absent.iter().map(|(effect, _)| *effect).collect();
        let (exchange, delta) = observed.bind(thread, branch);
        if let Some(delta) = delta {
            all.apply(&delta);
            if let Delta::Asked(asked) = &delta {
                self.remember_what_is_shown(asked.strand.branch, &absent)
                    .await?;
            }
            self.note_change(&origin.agent, &delta);
        }
        Ok(exchange)
    }

    /// Effects that the branch was taken not to know and whose outcome the request shows after all.
    async fn remember_what_is_shown(
        &self,
        branch: BranchId,
        absent: &[EffectId],
    ) -> Result<(), LogError> {
        let effects = self.with_lineage(|lineage| {
            let Some(named) = lineage.branch(branch).and_then(|b| b.absent.as_ref()) else {
                return Vec::new();
            };
            named
                .iter()
                .map(|a| a.effect)
                .filter(|effect| !absent.contains(effect) && lineage.lacks(branch, *effect))
                .collect()
        });
        if effects.is_empty() {
            return Ok(());
        }
        let shown = Event::Remembered {
            branch,
            effects,
            at: now(),
        };
        self.write(shown).await.map(drop)
    }

    /// The branch that a model request's line goes on in; none on the side.
    pub(super) async fn speaks_in(&self, asking: &Asking) -> Option<Place> {
        let (thread, strand) = (asking.exchange.thread?, asking.exchange.strand()?);
        let lines = self.lines(thread).await;
        let (_, branch) = lines.into_iter().find(|(number, _)| *number == strand)?;
        Some(Place { thread, branch })
    }

    /// Reads the answer to a model request, before the agent sees its end.
    pub(super) async fn read_model_reply(&self, asking: &Asking, ending: &Ending) {
        let response = match ending {
            Ending::Response(Response::Http(response))
            | Ending::Broken {
                partial: Some(Response::Http(response)),
                ..
            } => response,
            _ => return,
        };
        let marker = &self.0.talks.marker;
        let Some(reply) = read_reply(marker, asking.format, response, ending).await else {
            return;
        };
        let mut all = self.0.talks.all.lock().await;
        let at = self.log().head();
        let seen = seen(&asking.origin, at);
        if let Some(delta) = all.observe_reply(&asking.exchange, &reply, &seen) {
            all.apply(&delta);
            self.note_change(&asking.origin.agent, &delta);
        }
    }

    /// What a conversation can know of a call; none when its agent has shown none. Taken before
    /// credentials are taken out of the call.
    pub(super) async fn asks(&self, call: &ToolCall) -> Option<CallSeen> {
        if !self.0.talks.all.lock().await.knows(&call.origin.agent) {
            return None;
        }
        let marker = &self.0.talks.marker;
        Some(tokio::task::block_in_place(|| match plain(&call.request) {
            Some(plain) => CallSeen::of(marker, &plain),
            None => CallSeen::of(marker, &call.request),
        }))
    }

    /// Where a tool call belongs, by the agent's conversations; none when they do not tell.
    pub(super) async fn placed(&self, origin: &Origin, call: Option<&CallSeen>) -> Option<Placed> {
        let call = call?;
        let all = self.0.talks.all.lock().await;
        let ancestors = self.0.nesting.ancestors(origin.process);
        let at = self.log().head();
        let placement = all.place(call, &seen(origin, at), &ancestors)?;
        let thread = all.thread(placement.at.thread)?;
        let line = thread.strand(placement.at.strand);
        let was_restored =
            self.with_lineage(|l| l.restored_from_outside(placement.at.thread).is_some());
        let by_time = if was_restored {
            let ties = thread.turns.iter().flat_map(TurnMemory::ties);
            let loose = ties.filter(|tie| tie.confidence == Confidence::Time);
            loose.map(|tie| tie.effect).collect()
        } else {
            Vec::new()
        };
        Some(Placed {
            by_time,
            asked: line.map_or(Seq(0), |line| line.asked),
            absent: line.map_or_else(Vec::new, |line| line.absent.clone()),
            placement,
        })
    }

    /// The branch that a call belongs to.
    ///
    /// A line of conversation that has not spoken since the agent as a whole was restored says nothing
    /// of what that forgot: its calls belong to the branch that the restore opened.
    pub(super) fn place(&self, agent: &AgentName, placed: Option<&Placed>) -> Option<Place> {
        let lineage = self.0.lineage.read();
        let main = || {
            let thread = lineage.main_thread(agent)?;
            Some(Place {
                thread,
                branch: lineage.current(thread)?.id,
            })
        };
        let Some(placed) = placed else {
            return main();
        };
        let at = &placed.placement.at;
        if lineage.branch(at.branch).is_none() {
            return main();
        }
        Some(Place {
            thread: at.thread,
            branch: in_force(&lineage, at.thread, at.branch, placed.asked),
        })
    }

    /// Opens the branch of a call that another life of the agent executed already, and moves its line
    /// there. The caller has the agent's desk alone.
    pub(super) async fn open_again(
        &self,
        origin: &Origin,
        placed: &Placed,
        again: &Rewind,
    ) -> Result<(), LogError> {
        let mut all = self.0.talks.all.lock().await;
        let known: HashMap<EffectId, Absence> = placed.absent.iter().copied().collect();
        self.open_for(&mut all, origin, placed.placement.at.strand, again, &known)
            .await
    }

    async fn open_for(
        &self,
        all: &mut Conversations,
        origin: &Origin,
        strand: Strand,
        rewind: &Rewind,
        known: &HashMap<EffectId, Absence>,
    ) -> Result<(), LogError> {
        let absent_of = |lineage: &Lineage| {
            let before = lineage
                .branch(rewind.parent)
                .and_then(|b| b.absent.clone())
                .unwrap_or_default();
            let mut absent: Vec<Absent> = before
                .into_iter()
                .filter(|a| known.contains_key(&a.effect))
                .filter(|a| !rewind.forgotten.contains(&a.effect))
                .collect();
            absent.extend(rewind.forgotten.iter().map(|effect| Absent {
                effect: *effect,
                forgotten: Forgotten::Call,
                grade: rewind.grade,
            }));
            absent.sort_unstable_by_key(|a| a.effect);
            absent
        };
        let (seq, _) = self
            .write_from::<LogError>(|lineage| {
                let parent = lineage
                    .branch(rewind.parent)
                    .ok_or_else(|| unknown(rewind.parent))?;
                let absent = absent_of(lineage);
                Ok(Lineage::rewound(
                    parent,
                    rewind.fork_point,
                    absent,
                    &rewind.note,
                    now(),
                ))
            })
            .await?;
        tracing::info!(agent = %origin.agent, thread = %rewind.thread, branch = %BranchId(seq), "{}", rewind.note);
        let delta = rewind.moved(strand, BranchId(seq));
        all.apply(&delta);
        self.note_change(&origin.agent, &delta);
        Ok(())
    }

    /// Hangs an effect on the turn that caused it. `at` is where it entered the timeline.
    pub(super) async fn attach(
        &self,
        origin: &Origin,
        placed: &Placed,
        effect: EffectId,
        at: Seq,
    ) -> Result<(), LogError> {
        let mut all = self.0.talks.all.lock().await;
        let attached = all.attach_effect(&placed.placement, effect, at, &seen(origin, at));
        all.apply(&attached.delta);
        self.note_change(&origin.agent, &attached.delta);
        for (strand, rewind) in attached.late {
            let line = all.thread(rewind.thread).and_then(|t| t.strand(strand));
            let known = line.map(|line| line.absent.iter().copied().collect());
            let known = known.unwrap_or_default();
            self.open_for(&mut all, origin, strand, &rewind, &known)
                .await?;
        }
        Ok(())
    }

    /// Lines of conversation by the branch that is in force for their calls, of one thread.
    pub(super) async fn lines(&self, thread: ThreadId) -> Vec<(Strand, BranchId)> {
        let all = self.0.talks.all.lock().await;
        let Some(memory) = all.thread(thread) else {
            return Vec::new();
        };
        let lineage = self.0.lineage.read();
        let strands = memory.strands.iter();
        strands
            .map(|s| (s.number, in_force(&lineage, thread, s.branch, s.asked)))
            .collect()
    }

    /// Lets lines of conversation go on in a fork of their branch.
    pub(super) async fn move_lines(&self, agent: &AgentName, from: BranchId, to: BranchId) {
        let Some(thread) = self.with_lineage(|l| l.branch(from).map(|b| b.thread)) else {
            return;
        };
        let mut all = self.0.talks.all.lock().await;
        let strands = all.thread(thread).map_or_else(Vec::new, |memory| {
            let here = memory.strands.iter().filter(|s| s.branch == from);
            here.map(|s| s.number).collect()
        });
        for strand in strands {
            let delta = Delta::Moved {
                thread,
                strand,
                branch: to,
                absent: Vec::new(),
            };
            all.apply(&delta);
            self.note_change(agent, &delta);
        }
    }

    fn note_change(&self, agent: &AgentName, delta: &Delta) {
        let event = Event::Conversed {
            thread: delta.thread(),
            agent: agent.clone(),
            change: encode_change(delta),
        };
        // Whatever is written after it and reaches the disk has it before it.
        self.0.lineage.write().apply(Seq(0), &event);
        self.0.log.note(event);
    }

    fn known(&self, effect: EffectId) -> Known {
        let found = match self.0.log.effect(effect) {
            Ok(Some(found)) => found,
            Ok(None) => return Known::Nothing,
            Err(e) => {
                tracing::error!("the outcome of {effect} cannot be read: {e}");
                return Known::InDoubt;
            }
        };
        match found.status {
            Status::Prepared => Known::Running,
            Status::Failed => Known::Nothing,
            Status::InDoubt => Known::InDoubt,
            Status::Completed => match found.outcome.and_then(|o| o.response().cloned()) {
                Some(Response::Http(response)) => {
                    let plain = decoded_response(&response);
                    Known::Response(Box::new(Response::Http(plain.unwrap_or(response))))
                }
                Some(response) => Known::Response(Box::new(response)),
                None => Known::InDoubt,
            },
        }
    }
}

/// The branch in force for calls of a line: the one that a restore of the whole agent opened, as long
/// as the line has neither spoken nor been moved since.
fn in_force(lineage: &Lineage, thread: ThreadId, branch: BranchId, asked: Seq) -> BranchId {
    let unheard = lineage
        .restored_from_outside(thread)
        .is_some_and(|restored| restored.id > branch && restored.id.0 > asked);
    match lineage.wide(thread) {
        Some(wide) if unheard => wide.id,
        _ => branch,
    }
}

async fn read_reply(
    marker: &Marker,
    format: Format,
    response: &HttpResponse,
    ending: &Ending,
) -> Option<Reply> {
    let body = match decoded_body(&response.headers, &response.body.kept, LARGEST_REPLY).await {
        Some(body) => body,
        None => {
            tracing::warn!(
                "a model's answer could not be decoded; its calls are not known by their ids"
            );
            return None;
        }
    };
    let mut reply =
        tokio::task::block_in_place(|| read_response(marker, format, response.status, &body));
    let is_whole = matches!(ending, Ending::Response(_)) && response.body.is_whole();
    reply.complete &= is_whole;
    Some(reply)
}

/// Most bytes of a model's answer that are read.
pub(super) const LARGEST_REPLY: usize = 16 << 20;

/// The response with its content encoding taken off; none where there is none, or it cannot be.
fn decoded_response(response: &HttpResponse) -> Option<HttpResponse> {
    // In memory, so it never waits.
    let body =
        decoded_body(&response.headers, &response.body.kept, LARGEST_REPLY).now_or_never()??;
    Some(HttpResponse {
        body: crate::words::Body::whole(body),
        ..response.clone()
    })
}

/// The request with its content encoding taken off; none where there is none, or it cannot be.
fn plain(request: &Request) -> Option<Request> {
    let Request::Http(http) = request else {
        return None;
    };
    if !http.headers.iter().any(|h| h.is("content-encoding")) {
        return None;
    }
    let body = decoded_body(&http.headers, &http.body.kept, LARGEST_REPLY).now_or_never()??;
    let mut plain = http.clone();
    plain.body = crate::words::Body::whole(body);
    Some(Request::Http(plain))
}

fn seen(origin: &Origin, at: Seq) -> Seen<'_> {
    Seen {
        agent: &origin.agent,
        process: origin.process,
        incarnation: origin.incarnation,
        at,
        now: now(),
    }
}

fn unknown(branch: BranchId) -> LogError {
    LogError::Unusable(format!("branch {branch} is not known"))
}
