//! What the kernel saw go past the hook: unix sockets, datagrams, connections that were never
//! redirected, and programs that no rule names. Counted and written down with the process it came
//! from; nothing of it is fenced.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::now;
use super::ran::Running;
use super::service::Daemon;
use crate::policy::class_of;
use crate::probe::{Channel, Probe, ProbeEvent, Received, Treatment, What, Write};
use crate::words::{Digest, Opaque, OpaqueClass, OpaqueStep, Origin, ProcessIdentity};

/// What goes on is written down again after this time.
const AGAIN: Duration = Duration::from_secs(60);
/// Most peers remembered of all processes; with more, the memory begins anew, and some are written
/// down once more.
const MOST_PEERS: usize = 20_000;
/// Most sockets to one peer whose bytes are told apart.
const MOST_SOCKETS: usize = 64;

/// One process and one peer.
struct Peer {
    origin: Origin,
    class: OpaqueClass,
    why: &'static str,
    /// Bytes so far by socket, so that only what is new is counted.
    sockets: HashMap<u64, u64>,
    /// Counted and not written down yet.
    unwritten: u64,
    written: Instant,
    digest: Option<(Digest, u64)>,
}

/// Looks at what the kernel reports until `stop`.
pub(super) async fn observe(
    daemon: Arc<Daemon>,
    probe: Arc<Probe>,
    run_dir: PathBuf,
    stop: CancellationToken,
) {
    let mut events = probe.events();
    let mut observer = Observer {
        daemon,
        probe,
        run_dir,
        seen: HashMap::new(),
        running: HashMap::new(),
        gaps: HashMap::new(),
    };
    loop {
        let received = tokio::select! {
            received = events.next_ones() => received,
            () = stop.cancelled() => {
                // What the kernel has reported and woke nobody for.
                observer.probe.drain();
                let left: Vec<Received> = std::iter::from_fn(|| events.try_next()).collect();
                observer.received(&left);
                return observer.leave();
            }
        };
        match received {
            None => return observer.leave(),
            // Looking a process up may read /proc.
            Some(all) => tokio::task::block_in_place(|| observer.received(&all)),
        }
    }
}

pub(super) struct Observer {
    pub(super) daemon: Arc<Daemon>,
    pub(super) probe: Arc<Probe>,
    run_dir: PathBuf,
    seen: HashMap<ProcessIdentity, HashMap<String, Peer>>,
    /// What processes run, since the last time that they began a program.
    pub(super) running: HashMap<ProcessIdentity, Running>,
    /// What was lost of each life, as it stood when the reports that are being looked at came.
    pub(super) gaps: HashMap<u32, String>,
}

impl Observer {
    /// Takes in reports that came together.
    fn received(&mut self, all: &[Received]) {
        self.gaps.clear();
        for received in all {
            match received {
                Received::Missed(count) => self.daemon.pipeline.notices().missed(*count),
                Received::Event(event) => self.take(event),
            }
        }
    }

    fn take(&mut self, event: &ProbeEvent) {
        match &event.what {
            What::Wrote(write) => {
                let Some((peer, class, why)) = self.past_the_hook(event.process, write) else {
                    return;
                };
                self.wrote(event, write, peer, class, why);
            }
            What::Connected {
                peer,
                protocol,
                treatment,
            } => {
                let Some((step, why)) = became(*treatment) else {
                    return;
                };
                let peer = match *protocol {
                    6 | 262 => peer.to_string(),
                    17 => format!("udp {peer}"),
                    other => format!("protocol {other} {peer}"),
                };
                self.connected(event, peer, *protocol, step, why);
            }
            What::Executed(execution) => self.executed(event, execution),
            What::Exited { status } => {
                self.exited(event, *status);
                for (peer, known) in self.seen.remove(&event.process).unwrap_or_default() {
                    self.note(&known, peer, OpaqueStep::Ended);
                }
            }
            What::Born { .. } | What::Restoring { .. } => {}
        }
    }

    /// Where a write goes, unless it stays inside or answers somebody.
    fn past_the_hook(
        &self,
        process: ProcessIdentity,
        write: &Write,
    ) -> Option<(String, OpaqueClass, &'static str)> {
        match write.channel {
            // What it is for is decided by who is at the other end: children are agents' too.
            Channel::Pipe => None,
            Channel::Unix => {
                // Without a name it is a pair, or the far end of somebody who connected here.
                let path = write.path.clone().filter(|path| !path.is_empty())?;
                let is_ours = Path::new(&path).starts_with(&self.run_dir);
                (!is_ours).then_some((path, OpaqueClass::Unix, "a unix socket"))
            }
            Channel::Tcp => {
                let peer = write.peer?;
                let known = self.seen.get(&process);
                let is_known = known.is_some_and(|peers| peers.contains_key(&peer.to_string()));
                if !is_known && self.probe.is_accepted(process, write.inode) {
                    return None;
                }
                let why = "a connection that no hook saw begin";
                Some((peer.to_string(), class_of(why, peer.port()), why))
            }
            Channel::Udp => {
                let peer = write.peer?;
                Some((format!("udp {peer}"), OpaqueClass::Udp, "datagrams"))
            }
            Channel::Inet => {
                let peer = write
                    .peer
                    .map_or_else(String::new, |peer| peer.ip().to_string());
                Some((format!("ip {peer}"), OpaqueClass::Other, "no TCP"))
            }
        }
    }

    fn wrote(
        &mut self,
        event: &ProbeEvent,
        write: &Write,
        to: String,
        class: OpaqueClass,
        why: &'static str,
    ) {
        let is_new = !self.knows(event.process, &to);
        if is_new && !self.meet(event, to.clone(), class, why) {
            return;
        }
        let Some(peer) = self.known(event.process, &to) else {
            return;
        };
        if peer.sockets.len() >= MOST_SOCKETS {
            peer.sockets.clear();
        }
        let before = peer.sockets.insert(write.inode, write.bytes).unwrap_or(0);
        // Another socket may have the number of one that was closed.
        peer.unwritten += write.bytes.checked_sub(before).unwrap_or(write.bytes);
        if !write.data.is_empty() {
            peer.digest = Some((Digest::of(&write.data), write.data.len() as u64));
        }
        let is_due = peer.written.elapsed() >= AGAIN;
        if is_new || is_due {
            let step = if is_new {
                OpaqueStep::Began
            } else {
                OpaqueStep::WentOn
            };
            self.write_down(event.process, &to, step);
        }
    }

    fn connected(
        &mut self,
        event: &ProbeEvent,
        to: String,
        protocol: u32,
        step: OpaqueStep,
        why: &'static str,
    ) {
        // Refusals are told apart from what is sent there after all.
        let key = match step {
            OpaqueStep::Refused => format!("{to} refused"),
            _ => to.clone(),
        };
        let is_due = self
            .known(event.process, &key)
            .is_none_or(|peer| peer.written.elapsed() >= AGAIN);
        let class = match protocol {
            17 => OpaqueClass::Udp,
            _ => OpaqueClass::Other,
        };
        if !is_due || !self.meet(event, key.clone(), class, why) {
            return;
        }
        if let Some(peer) = self.known(event.process, &key) {
            peer.written = Instant::now();
        }
        if let Some(known) = self.seen.get(&event.process).and_then(|p| p.get(&key)) {
            self.note(known, to, step);
        }
    }

    fn knows(&self, process: ProcessIdentity, to: &str) -> bool {
        self.seen
            .get(&process)
            .is_some_and(|peers| peers.contains_key(to))
    }

    fn known(&mut self, process: ProcessIdentity, to: &str) -> Option<&mut Peer> {
        self.seen.get_mut(&process)?.get_mut(to)
    }

    /// Remembers a peer. Gives false for a process of no agent.
    fn meet(
        &mut self,
        event: &ProbeEvent,
        to: String,
        class: OpaqueClass,
        why: &'static str,
    ) -> bool {
        let origin = event
            .agent
            .and_then(|life| self.daemon.origin(event.process, life));
        let Some(origin) = origin else {
            return false;
        };
        if self.seen.values().map(HashMap::len).sum::<usize>() >= MOST_PEERS {
            self.seen.clear();
        }
        let peer = Peer {
            origin,
            class,
            why,
            sockets: HashMap::new(),
            unwritten: 0,
            written: Instant::now(),
            digest: None,
        };
        self.seen.entry(event.process).or_default().insert(to, peer);
        true
    }

    fn write_down(&mut self, process: ProcessIdentity, to: &str, step: OpaqueStep) {
        if let Some(known) = self.seen.get(&process).and_then(|peers| peers.get(to)) {
            self.note(known, to.to_owned(), step);
        }
        if let Some(peer) = self.known(process, to) {
            peer.unwritten = 0;
            peer.written = Instant::now();
        }
    }

    fn note(&self, known: &Peer, peer: String, step: OpaqueStep) {
        // A refusal that ends with its process is nothing new.
        if step == OpaqueStep::Ended && peer.ends_with(" refused") {
            return;
        }
        let (digest, digested) = known.digest.unzip();
        self.daemon.pipeline.note_opaque(Opaque {
            origin: known.origin.clone(),
            class: known.class,
            peer,
            why: known.why.to_owned(),
            step,
            sent: known.unwritten,
            received: 0,
            digest,
            digested: digested.unwrap_or(0),
            at: now(),
        });
    }
}

/// What a `connect` that was not redirected came to; none when it says nothing new.
fn became(treatment: Treatment) -> Option<(OpaqueStep, &'static str)> {
    Some(match treatment {
        Treatment::Passed => (OpaqueStep::Began, "passed by the operator's list"),
        Treatment::NotTcp => (OpaqueStep::Began, "no TCP"),
        Treatment::PassedDaemonDown => (OpaqueStep::Began, "no daemon ran"),
        Treatment::RefusedQuic => (
            OpaqueStep::Refused,
            "QUIC, refused so that the client falls back to TCP",
        ),
        Treatment::RefusedDaemonDown => (OpaqueStep::Refused, "no daemon ran"),
        Treatment::RefusedNoRoom => (OpaqueStep::Refused, "too many connections are open"),
        Treatment::RefusedNoListener => (
            OpaqueStep::Refused,
            "no hook in its network namespace, or none for its address family",
        ),
        Treatment::RefusedListener => (OpaqueStep::Refused, "the hook itself is nobody's peer"),
    })
}
