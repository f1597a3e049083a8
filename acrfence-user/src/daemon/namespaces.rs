//! Agents in network namespaces of their own: a hook is opened inside each, as soon as a process of an
//! agent is seen to live there.
//!
//! Until then its connections are refused (`EPERM`), never passed. It is seen when a process starts a
//! program there (`unshare`, `ip netns exec`, `bwrap` and container runtimes all do), when an agent is
//! attached, when a daemon takes over, and at the latest when a connection was refused. Upstreams are
//! dialled from inside, so that a sandbox without a network stays without one.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::service::Daemon;
use crate::boundary::{Arbiter as _, Handle, Namespace, Opened, Trouble, TroubleKind};
use crate::probe::{Listeners, Probe, Received, Treatment, What};
use crate::words::ProcessIdentity;

/// The namespaces that have a hook.
pub(super) struct Namespaces {
    daemon: Arc<Daemon>,
    probe: Arc<Probe>,
    hook: Handle,
    own: u64,
    open: Mutex<HashMap<u64, Hook>>,
    stop: CancellationToken,
}

/// A hook inside a namespace, or the reason why there is none.
struct Hook {
    namespace: Option<Arc<Namespace>>,
    closed: CancellationToken,
}

impl Namespaces {
    /// None of them is open yet.
    pub(super) fn new(
        daemon: Arc<Daemon>,
        probe: Arc<Probe>,
        hook: Handle,
        stop: CancellationToken,
    ) -> std::io::Result<Self> {
        use std::os::unix::fs::MetadataExt as _;
        Ok(Self {
            own: std::fs::metadata("/proc/self/ns/net")?.ino(),
            daemon,
            probe,
            hook,
            open: Mutex::default(),
            stop,
        })
    }

    /// Opens and closes hooks as processes come and go, until told to stop.
    pub(super) async fn watch(self) {
        let mut events = self.probe.events();
        tokio::task::block_in_place(|| self.look_around());
        loop {
            let received = tokio::select! {
                received = events.next_ones() => received,
                () = self.daemon.attached.notified() => Some(vec![Received::Missed(0)]),
                () = self.stop.cancelled() => return,
            };
            let Some(received) = received else {
                return;
            };
            let mut ended = false;
            for one in &received {
                ended |= self.received(one);
            }
            if ended && !self.open.lock().is_empty() {
                tokio::task::block_in_place(|| self.close_what_is_empty());
            }
        }
    }

    /// Gives whether a process ended.
    fn received(&self, received: &Received) -> bool {
        let Received::Event(event) = received else {
            tokio::task::block_in_place(|| self.look_around());
            return false;
        };
        match &event.what {
            What::Executed(execution) => {
                if execution.netns.is_none_or(|number| !self.is_open(number)) {
                    tokio::task::block_in_place(|| self.cover(event.process));
                }
                false
            }
            What::Connected {
                treatment: Treatment::RefusedNoListener,
                ..
            } => {
                tokio::task::block_in_place(|| self.cover(event.process));
                false
            }
            What::Exited { .. } => true,
            _ => false,
        }
    }

    /// Whether there is a hook in a namespace already, or it is known that there can be none.
    fn is_open(&self, number: u64) -> bool {
        number == self.own || self.open.lock().contains_key(&number)
    }

    /// Looks where every process of every agent lives.
    fn look_around(&self) {
        match self.probe.namespaces() {
            Ok(lived_in) => lived_in
                .into_values()
                .for_each(|process| self.cover(process)),
            Err(e) => tracing::error!("it cannot be told in which namespaces agents live: {e}"),
        }
    }

    /// Opens a hook in the namespace of a process, if there is none yet.
    fn cover(&self, process: ProcessIdentity) {
        // Who has ended needs none.
        let Ok((number, file)) = self.probe.namespace_of(process) else {
            return;
        };
        if self.is_open(number) {
            return;
        }
        let closed = CancellationToken::new();
        let namespace = match Namespace::open(file) {
            Ok(opened) => {
                let namespace = opened.namespace.clone();
                self.enter(process, opened, &closed).then_some(namespace)
            }
            Err(e) => {
                let why = format!("no hook could be opened in its network namespace ({e})");
                self.trouble(process, why);
                None
            }
        };
        self.open.lock().insert(number, Hook { namespace, closed });
    }

    fn enter(&self, process: ProcessIdentity, opened: Opened, closed: &CancellationToken) -> bool {
        let Opened {
            namespace,
            listeners,
            loopback_is_up,
            has_network,
        } = opened;
        let port = |v4| {
            let fits = listeners.iter().filter_map(|l| l.local_addr().ok());
            let mut fits = fits.filter(|address| address.is_ipv4() == v4);
            fits.next().map(|address| address.port())
        };
        let ports = Listeners {
            v4: port(true),
            v6: port(false),
        };
        // Listened to first: the kernel sends connections there from the next line on.
        for listener in listeners {
            self.hook
                .listen_in(listener, namespace.clone(), closed.clone());
        }
        if let Err(e) = self.probe.set_listeners(namespace.cookie(), ports) {
            closed.cancel();
            self.trouble(
                process,
                format!("the kernel does not take the hook in its network namespace ({e})"),
            );
            return false;
        }
        if has_network && !loopback_is_up {
            self.trouble(
                process,
                "its network namespace has a network and no loopback interface that is up, so that no connection reaches the hook; `ip link set lo up` inside it helps".into(),
            );
        }
        tracing::info!(
            pid = process.tgid,
            "an agent lives in network namespace {}: it has a hook now",
            namespace.cookie()
        );
        true
    }

    /// Closes the hooks of namespaces that nobody lives in any more, so that the kernel can let them go.
    fn close_what_is_empty(&self) {
        let lived_in = match self.probe.namespaces() {
            Ok(lived_in) => lived_in,
            Err(e) => {
                tracing::error!("it cannot be told in which namespaces agents live: {e}");
                return;
            }
        };
        self.open.lock().retain(|number, hook| {
            if lived_in.contains_key(number) {
                return true;
            }
            hook.closed.cancel();
            if let Some(namespace) = &hook.namespace
                && let Err(e) = self.probe.forget_listeners(namespace.cookie())
            {
                tracing::error!("the hook of a namespace cannot be taken back: {e}");
            }
            false
        });
    }

    fn trouble(&self, process: ProcessIdentity, why: String) {
        let life = self
            .probe
            .tracked()
            .ok()
            .and_then(|tracked| tracked.get(&process).copied());
        let Some(origin) = life.and_then(|life| self.daemon.origin(process, life)) else {
            tracing::warn!(pid = process.tgid, "{why}");
            return;
        };
        self.daemon.pipeline.trouble(Trouble {
            origin,
            kind: TroubleKind::NoHook,
            detail: format!("its connections fail: {why}"),
        });
    }
}
