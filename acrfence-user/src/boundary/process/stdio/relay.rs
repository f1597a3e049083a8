//! The two directions of a relay and what they share.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, watch};

use super::{Class, Sink, Source, to_agent, to_server};
use crate::boundary::mcp::jsonrpc;
use crate::boundary::{Admission, Arbiter, Ticket, Trouble, TroubleKind};
use crate::words::{
    EffectId, Ending, McpRequest, Origin, ProcessIdentity, Request, Timestamp, ToolCall,
};

/// The four ends of a relay.
#[derive(Debug)]
pub struct Ends {
    /// What the agent writes.
    pub agent_in: Source,
    /// What the agent reads.
    pub agent_out: Sink,
    /// What the program reads.
    pub server_in: Sink,
    /// What the program writes.
    pub server_out: Source,
}

/// Whose relay it is and who decides.
#[derive(Clone)]
pub struct Session {
    /// Decides calls.
    pub arbiter: Arc<dyn Arbiter>,
    /// The process that talks to the program: its calls come from it.
    pub origin: Origin,
    /// The program: what it and its descendants do while a call runs belongs to the call.
    pub inside: Option<ProcessIdentity>,
    /// The program's command line, which names it as a server.
    pub server: String,
    /// Bounds in bytes and time.
    pub limits: Limits,
}

/// Bounds of a relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest line that is read. A longer one from the agent is refused; a longer one from the
    /// server passes unread, and the effect it answers is in doubt.
    pub message: usize,
    /// How much of a first line is kept back while it may still become JSON-RPC.
    pub first: usize,
    /// How long what comes after a call waits for its admission, so that order is kept; after
    /// that, other traffic (its cancellation, too) overtakes it.
    pub patience: Duration,
    /// How long the answer to a call may take after the agent cancelled it.
    pub after_cancel: Duration,
    /// How long the server is kept from the end of its input while calls run: it would give them up.
    pub linger: Duration,
    /// Bytes of the server's output that may wait for an answer before them to be on disk.
    pub behind: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            message: 64 << 20,
            first: 8 << 20,
            patience: Duration::from_millis(200),
            after_cancel: Duration::from_secs(5),
            linger: Duration::from_secs(10),
            behind: 4 << 20,
        }
    }
}

/// What a relay did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Whether it was JSON-RPC.
    pub is_rpc: bool,
    /// Bytes that came from the agent.
    pub sent: u64,
    /// Bytes that came from the program.
    pub received: u64,
}

/// Relays until both directions have ended.
pub async fn relay(ends: Ends, session: Session) -> Summary {
    let (answers, own_answers) = mpsc::channel(64);
    let shared = Arc::new(Shared {
        session,
        waiting: Mutex::new(Waiting::default()),
        fewer: Notify::new(),
        answers,
        class: watch::Sender::new(Class::Undecided),
    });
    let (sent, received) = tokio::join!(
        to_server::run(shared.clone(), ends.agent_in, ends.server_in),
        to_agent::run(shared.clone(), ends.server_out, ends.agent_out, own_answers),
    );
    Summary {
        is_rpc: *shared.class.borrow() == Class::Rpc,
        sent,
        received,
    }
}

/// What both directions know.
pub(super) struct Shared {
    pub(super) session: Session,
    pub(super) waiting: Mutex<Waiting>,
    /// Told when an awaited call has come to its end.
    pub(super) fewer: Notify,
    /// Lines of our own for the agent.
    pub(super) answers: mpsc::Sender<Said>,
    /// What the agent's first line told.
    pub(super) class: watch::Sender<Class>,
}

/// A line of our own for the agent, and the effects whose record it plays back.
pub(super) struct Said {
    pub(super) line: String,
    pub(super) effects: Vec<EffectId>,
}

/// Requests that the server has and has not answered.
#[derive(Default)]
pub(super) struct Waiting {
    /// By what the id is compared by.
    calls: Vec<(String, Box<dyn Ticket>)>,
    lists: Vec<String>,
}

impl Waiting {
    /// Whether an answer is awaited that must be read.
    pub(super) fn is_any(&self) -> bool {
        !self.calls.is_empty() || !self.lists.is_empty()
    }

    /// Whether calls are awaited.
    pub(super) fn has_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    /// Whether a call with this id (as JSON text) is awaited.
    pub(super) fn has_call(&self, id: &str) -> bool {
        let key = jsonrpc::id_key(id);
        self.calls.iter().any(|(own, _)| *own == key)
    }

    /// Effects of awaited calls.
    pub(super) fn effects(&self) -> Vec<EffectId> {
        self.calls
            .iter()
            .filter_map(|(_, ticket)| ticket.effect())
            .collect()
    }

    /// The effect of an awaited call.
    pub(super) fn effect(&self, id: &str) -> Option<EffectId> {
        let key = jsonrpc::id_key(id);
        self.calls
            .iter()
            .find(|(own, _)| *own == key)
            .and_then(|(_, ticket)| ticket.effect())
    }

    /// What ids of awaited calls, and of awaited lists of tools, are compared by.
    pub(super) fn ids(&self) -> (Vec<String>, Vec<String>) {
        let calls = self.calls.iter().map(|(id, _)| id.clone()).collect();
        (calls, self.lists.clone())
    }

    pub(super) fn add_call(&mut self, id: String, ticket: Box<dyn Ticket>) {
        self.calls.push((jsonrpc::id_key(&id), ticket));
    }

    /// Awaits a list of tools. A server that never answers such requests is asked no more often
    /// than this bound keeps.
    pub(super) fn add_list(&mut self, id: String) {
        const MOST: usize = 32;
        if self.lists.len() == MOST {
            self.lists.remove(0);
        }
        self.lists.push(jsonrpc::id_key(&id));
    }

    pub(super) fn end_list(&mut self, key: &str) {
        self.lists.retain(|own| own != key);
    }

    /// The ticket of a call that is awaited no more.
    pub(super) fn take_call(&mut self, id: &str) -> Option<Box<dyn Ticket>> {
        self.take_key(&jsonrpc::id_key(id))
    }

    /// The same, by what its id is compared by.
    pub(super) fn take_key(&mut self, key: &str) -> Option<Box<dyn Ticket>> {
        let at = self.calls.iter().position(|(own, _)| own == key)?;
        Some(self.calls.remove(at).1)
    }

    /// The ticket of the only call that is awaited.
    pub(super) fn take_only_call(&mut self) -> Option<Box<dyn Ticket>> {
        (self.calls.len() == 1)
            .then(|| self.calls.pop())
            .flatten()
            .map(|(_, ticket)| ticket)
    }

    fn take_calls(&mut self) -> Vec<(String, Box<dyn Ticket>)> {
        std::mem::take(&mut self.calls)
    }
}

impl Shared {
    pub(super) fn limits(&self) -> &Limits {
        &self.session.limits
    }

    /// Asks whether a call may be sent.
    pub(super) async fn admit(&self, request: McpRequest) -> Admission {
        let session = &self.session;
        let call = ToolCall {
            at: now(),
            request: Request::Mcp(request),
            origin: session.origin.clone(),
        };
        match session.inside {
            Some(process) => session.arbiter.admit_inside(call, process).await,
            None => session.arbiter.admit(call).await,
        }
    }

    /// Reports what a person should know.
    pub(super) fn trouble(&self, detail: String) {
        self.session.arbiter.trouble(Trouble {
            origin: self.session.origin.clone(),
            kind: TroubleKind::BadRequest,
            detail: format!("{}: {detail}", self.session.server),
        });
    }

    /// The agent no longer waits for the outcome of a running effect.
    pub(super) fn abandoned(&self, effect: EffectId) {
        let session = &self.session;
        session.arbiter.abandoned(&session.origin, effect);
    }

    /// The agent never saw an answer that was on its way to it.
    pub(super) fn undelivered(&self, effects: &[EffectId]) {
        let session = &self.session;
        for &effect in effects {
            session.arbiter.undelivered(&session.origin, effect);
        }
    }

    /// Settles all awaited calls as broken.
    pub(super) async fn break_calls(&self, why: &str) {
        let calls = self.waiting.lock().take_calls();
        for (_, ticket) in calls {
            settle(ticket, broken(why)).await;
        }
        self.fewer.notify_waiters();
    }
}

/// Settles where nothing depends on it any more.
pub(super) async fn settle(ticket: Box<dyn Ticket>, ending: Ending) {
    if let Err(error) = ticket.settle(ending).await {
        tracing::error!("the outcome of a call could not be recorded: {error}");
    }
}

/// The ending of a call that was sent and not answered.
pub(super) fn broken(why: &str) -> Ending {
    Ending::Broken {
        why: why.to_owned(),
        partial: None,
    }
}

/// The ending of a call that was not sent.
pub(super) fn not_sent(why: &str) -> Ending {
    Ending::NotSent {
        why: why.to_owned(),
    }
}

fn now() -> Timestamp {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
