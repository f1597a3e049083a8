//! Calls whose answer may come over another stream than the one they were made on: the older SSE
//! transport, and streams of sessions that are taken up again.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::boundary::Ticket;
use crate::boundary::http::body::Receipt;
use crate::words::{AgentName, EffectId, Ending};

/// Messages of ours that wait to be put into a stream.
const INJECTED: usize = 64;

/// Where an id means one call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Scope {
    agent: AgentName,
    name: String,
}

/// Sessions that are remembered; the oldest are forgotten.
const SESSIONS: u64 = 10_000;

/// Calls that wait for their answer, and streams that messages can be put into.
pub(crate) struct Streams {
    inner: Mutex<Inner>,
    sessions: moka::sync::Cache<Scope, ()>,
}

impl Default for Streams {
    fn default() -> Self {
        Self {
            inner: Mutex::default(),
            sessions: moka::sync::Cache::new(SESSIONS),
        }
    }
}

#[derive(Default)]
struct Inner {
    waiting: HashMap<Scope, HashMap<String, Waiting>>,
    open: HashMap<Scope, mpsc::Sender<Injected>>,
    /// Calls that are not decided yet.
    undecided: HashMap<(Scope, String), CancellationToken>,
    next: u64,
}

struct Waiting {
    ticket: Box<dyn Ticket>,
    number: u64,
}

/// A message of ours for a stream.
pub(crate) struct Injected {
    /// JSON text.
    pub(crate) message: String,
    pub(crate) receipt: Option<Receipt>,
}

impl Scope {
    /// The streams of a session.
    pub(crate) fn session(agent: &AgentName, server: &str, session: &str) -> Self {
        Self {
            agent: agent.clone(),
            name: format!("session {session} of {server}"),
        }
    }

    /// The one stream that belongs to an endpoint of the older transport.
    pub(crate) fn endpoint(agent: &AgentName, url: &str) -> Self {
        Self {
            agent: agent.clone(),
            name: format!("endpoint {url}"),
        }
    }
}

impl Streams {
    /// A server gave out a session.
    pub(crate) fn session_began(&self, scope: Scope) {
        self.sessions.insert(scope, ());
    }

    /// Whether a server gave out that session.
    pub(crate) fn is_session(&self, scope: &Scope) -> bool {
        self.sessions.contains_key(scope)
    }

    /// A scope that only one stream knows.
    pub(crate) fn alone(&self, agent: &AgentName) -> Scope {
        let mut inner = self.inner.lock();
        inner.next += 1;
        Scope {
            agent: agent.clone(),
            name: format!("alone {}", inner.next),
        }
    }

    /// Lets a call wait for the answer to `id`. Gives the ticket back when another call waits
    /// under that id, and otherwise the number of this wait.
    pub(crate) fn wait(
        &self,
        scope: &Scope,
        id: &str,
        ticket: Box<dyn Ticket>,
    ) -> Result<u64, Box<dyn Ticket>> {
        let mut inner = self.inner.lock();
        inner.next += 1;
        let number = inner.next;
        let waiting = inner.waiting.entry(scope.clone()).or_default();
        if waiting.contains_key(id) {
            return Err(ticket);
        }
        waiting.insert(id.to_owned(), Waiting { ticket, number });
        Ok(number)
    }

    /// A call is to be decided. The token says whether the agent cancelled it meanwhile; the call is
    /// forgotten with what this returns.
    pub(crate) fn decide(&self, scope: &Scope, id: &str) -> Undecided<'_> {
        let cancelled = CancellationToken::new();
        let key = (scope.clone(), id.to_owned());
        self.inner
            .lock()
            .undecided
            .insert(key.clone(), cancelled.clone());
        Undecided {
            streams: self,
            key,
            cancelled,
        }
    }

    /// The agent cancels the call with that id, should it not be decided yet.
    pub(crate) fn cancel(&self, scope: &Scope, id: &str) {
        let key = (scope.clone(), id.to_owned());
        if let Some(cancelled) = self.inner.lock().undecided.get(&key) {
            cancelled.cancel();
        }
    }

    /// Takes the ticket of the call that waits for the answer to `id`.
    pub(crate) fn take(&self, scope: &Scope, id: &str) -> Option<Box<dyn Ticket>> {
        self.take_if(scope, id, |_| true)
    }

    /// The same, if it still is that wait.
    pub(crate) fn take_wait(
        &self,
        scope: &Scope,
        id: &str,
        number: u64,
    ) -> Option<Box<dyn Ticket>> {
        self.take_if(scope, id, |waiting| waiting.number == number)
    }

    /// Whether any call waits there.
    pub(crate) fn is_awaited(&self, scope: &Scope) -> bool {
        self.inner.lock().waiting.contains_key(scope)
    }

    /// Whether a call waits there for the answer to `id`.
    pub(crate) fn is_awaited_for(&self, scope: &Scope, id: &str) -> bool {
        let inner = self.inner.lock();
        inner
            .waiting
            .get(scope)
            .is_some_and(|ids| ids.contains_key(id))
    }

    /// The call that waits there for the answer to `id`: the number of its wait, and its effect.
    pub(crate) fn waits(&self, scope: &Scope, id: &str) -> Option<(u64, Option<EffectId>)> {
        let inner = self.inner.lock();
        let waiting = inner.waiting.get(scope)?.get(id)?;
        Some((waiting.number, waiting.ticket.effect()))
    }

    /// A stream of the older transport is there: messages can be put into it.
    pub(crate) fn open(&self, scope: &Scope) -> mpsc::Receiver<Injected> {
        let (sender, receiver) = mpsc::channel(INJECTED);
        self.inner.lock().open.insert(scope.clone(), sender);
        receiver
    }

    /// Whether such a stream is there.
    pub(crate) fn is_open(&self, scope: &Scope) -> bool {
        self.inner
            .lock()
            .open
            .get(scope)
            .is_some_and(|sender| !sender.is_closed())
    }

    /// Puts a message into such a stream. False when it is gone.
    pub(crate) async fn inject(&self, scope: &Scope, injected: Injected) -> bool {
        let sender = self.inner.lock().open.get(scope).cloned();
        match sender {
            Some(sender) => sender.send(injected).await.is_ok(),
            None => false,
        }
    }

    /// Such a stream is gone: whoever waits there gets no answer any more.
    pub(crate) async fn close(&self, scope: &Scope, why: &str) {
        let lost = {
            let mut inner = self.inner.lock();
            inner.open.remove(scope);
            inner.waiting.remove(scope).unwrap_or_default()
        };
        for waiting in lost.into_values() {
            broken(waiting.ticket, why).await;
        }
    }

    fn take_if(
        &self,
        scope: &Scope,
        id: &str,
        is_it: impl FnOnce(&Waiting) -> bool,
    ) -> Option<Box<dyn Ticket>> {
        let mut inner = self.inner.lock();
        let waiting = inner.waiting.get_mut(scope)?;
        if !is_it(waiting.get(id)?) {
            return None;
        }
        let found = waiting.remove(id)?;
        if waiting.is_empty() {
            inner.waiting.remove(scope);
        }
        Some(found.ticket)
    }
}

/// A call that is being decided.
pub(crate) struct Undecided<'a> {
    streams: &'a Streams,
    key: (Scope, String),
    cancelled: CancellationToken,
}

impl Undecided<'_> {
    /// Whether its agent cancelled it.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.is_cancelled()
    }
}

impl Drop for Undecided<'_> {
    fn drop(&mut self) {
        self.streams.inner.lock().undecided.remove(&self.key);
    }
}

/// Settles a call that was sent and gets no answer.
pub(crate) async fn broken(ticket: Box<dyn Ticket>, why: &str) {
    let ending = Ending::Broken {
        why: why.to_owned(),
        partial: None,
    };
    if let Err(error) = ticket.settle(ending).await {
        tracing::error!("the outcome of a call could not be recorded: {error}");
    }
}
