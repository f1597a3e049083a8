//! The door of the boundary: takes redirected connections and finds out whose they are.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::config::{Config, Limits};
use super::connection::{self, Place};
use super::http::budget::Memory;
use super::http::upstream::Route;
use super::mcp::streams::Streams;
use super::namespace::Namespace;
use super::tls::accept::Leaves;
use super::tls::connect::Verified;
use super::{Arbiter, Callers};
use crate::words::{AgentName, Connection};

/// What all connections share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) arbiter: Arc<dyn Arbiter>,
    pub(crate) leaves: Arc<Leaves>,
    pub(crate) verified: Verified,
    pub(crate) memory: Memory,
    /// Everything that must come to its end before the boundary is closed.
    pub(crate) tasks: TaskTracker,
    /// Cancelled when no new requests are taken any more.
    pub(crate) stop: CancellationToken,
    /// Calls that wait for an answer over another stream.
    pub(crate) streams: Streams,
    callers: Arc<dyn Callers>,
    open: Mutex<HashMap<AgentName, usize>>,
    connections: Arc<Semaphore>,
}

impl Shared {
    pub(crate) fn limits(&self) -> &Limits {
        &self.config.limits
    }
}

/// The tool boundary.
pub struct Boundary {
    shared: Arc<Shared>,
    listeners: Vec<TcpListener>,
}

/// Lets a running boundary listen at more places.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
}

impl Boundary {
    /// Opens the listeners. Nothing is accepted before [`Self::run`].
    pub async fn bind(
        config: Config,
        callers: Arc<dyn Callers>,
        arbiter: Arc<dyn Arbiter>,
    ) -> anyhow::Result<Self> {
        let mut listeners = Vec::with_capacity(config.listen.len());
        for address in &config.listen {
            listeners.push(TcpListener::bind(address).await.with_context(|| {
                format!("cannot listen on {address} for redirected connections; is another daemon running?")
            })?);
        }
        let shared = Shared {
            leaves: Arc::new(Leaves::new(config.ca.clone())?),
            verified: Verified::new(config.roots.iter().cloned())?,
            memory: Memory::new(config.limits.memory_in_all),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            streams: Streams::default(),
            open: Mutex::default(),
            connections: Arc::new(Semaphore::new(config.limits.connections)),
            config,
            arbiter,
            callers,
        };
        Ok(Self {
            shared: Arc::new(shared),
            listeners,
        })
    }

    /// Where it listens, in the order of the configuration.
    pub fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.listeners.iter().map(TcpListener::local_addr).collect()
    }

    /// For listening at more places while it runs.
    pub fn handle(&self) -> Handle {
        Handle {
            shared: self.shared.clone(),
        }
    }

    /// Takes connections until `shutdown` resolves; then lets exchanges come to their end, within
    /// bounds.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let handle = self.handle();
        for listener in self.listeners {
            handle.listen(listener);
        }
        shutdown.await;
        let shared = self.shared;
        shared.stop.cancel();
        shared.tasks.close();
        let drain = shared.limits().drain;
        if tokio::time::timeout(drain, shared.tasks.wait())
            .await
            .is_err()
        {
            tracing::warn!(
                "{} exchanges or connections did not end within {drain:?}; effects among them are in doubt",
                shared.tasks.len()
            );
        }
    }
}

impl Handle {
    /// Takes connections from one more listener.
    pub fn listen(&self, listener: TcpListener) {
        self.accept(listener, None, CancellationToken::new());
    }

    /// Takes connections from a listener that was opened inside another network namespace, until
    /// `closed` is cancelled. Their upstreams are dialled from there.
    pub fn listen_in(
        &self,
        listener: TcpListener,
        namespace: Arc<Namespace>,
        closed: CancellationToken,
    ) {
        self.accept(listener, Some(namespace), closed);
    }

    fn accept(
        &self,
        listener: TcpListener,
        namespace: Option<Arc<Namespace>>,
        closed: CancellationToken,
    ) {
        let shared = self.shared.clone();
        self.shared.tasks.spawn(async move {
            let stop = shared.stop.clone();
            loop {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    () = stop.cancelled() => return,
                    () = closed.cancelled() => return,
                };
                match accepted {
                    Ok((stream, from)) => take(&shared, stream, from, namespace.as_ref()),
                    Err(error) => {
                        tracing::warn!("a redirected connection cannot be accepted: {error}");
                        // Out of descriptors: trying at once again would only burn the processor.
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                }
            }
        });
    }
}

fn take(
    shared: &Arc<Shared>,
    stream: TcpStream,
    from: SocketAddr,
    namespace: Option<&Arc<Namespace>>,
) {
    let from = canonical(from);
    let caller = match namespace {
        None => shared.callers.caller(from),
        Some(namespace) => shared.callers.caller_in(namespace.cookie(), from),
    };
    let Some(caller) = caller else {
        // Not redirected by us, or its destination was lost: never passed on.
        tracing::warn!("a connection from {from} was dropped: nobody knows where it wanted to go");
        reset(&stream);
        return;
    };
    let slot = match Slot::enter(shared, &caller.origin.agent) {
        Ok(slot) => Arc::new(slot),
        Err(why) => {
            tracing::warn!("a connection of {} was dropped: {why}", caller.origin.agent);
            reset(&stream);
            return;
        }
    };
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!("a socket option cannot be set: {error}");
    }
    let peer = canonical(caller.original);
    let mut origin = caller.origin;
    origin.connection = Some(Connection {
        peer,
        local: from,
        sni: None,
        tls: false,
        protocol: String::new(),
    });
    let place = Place {
        shared: shared.clone(),
        origin,
        peer,
        port: peer.port(),
        route: Route::Direct(peer, namespace.cloned()),
        depth: 0,
        _slot: slot,
    };
    shared
        .tasks
        .spawn(connection::serve(place, Box::new(stream)));
}

/// The place of one open connection.
pub(crate) struct Slot {
    shared: Arc<Shared>,
    agent: AgentName,
    _in_all: OwnedSemaphorePermit,
}

impl Slot {
    fn enter(shared: &Arc<Shared>, agent: &AgentName) -> Result<Self, &'static str> {
        let in_all = shared
            .connections
            .clone()
            .try_acquire_owned()
            .map_err(|_| "too many are open in all")?;
        let mut open = shared.open.lock();
        let count = open.entry(agent.clone()).or_insert(0);
        if *count >= shared.limits().connections_per_agent {
            return Err("it has too many open");
        }
        *count += 1;
        Ok(Self {
            shared: shared.clone(),
            agent: agent.clone(),
            _in_all: in_all,
        })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut open = self.shared.open.lock();
        if let Some(count) = open.get_mut(&self.agent) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.agent);
            }
        }
    }
}

/// Makes the agent see a reset instead of an orderly end.
fn reset(stream: &TcpStream) {
    let _ = nix::sys::socket::setsockopt(
        stream,
        nix::sys::socket::sockopt::Linger,
        &libc::linger {
            l_onoff: 1,
            l_linger: 0,
        },
    );
}

/// IPv4 addresses stay IPv4 on a socket that takes both.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => SocketAddr::new(IpAddr::V4(v4), address.port()),
            None => address,
        },
        IpAddr::V4(_) => address,
    }
}
