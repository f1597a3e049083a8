//! The probe: hooks in the kernel that know which process belongs to which agent, send its TCP
//! connections to the daemon, and report what it starts and writes (DESIGN.md §4).
//!
//! [`Probe`] is the door. Only this room knows about eBPF; what comes out of it are plain types.
//!
//! What the hooks promise:
//!
//! - A child belongs to its parent's agent before it runs its first instruction, also when the
//!   parent is gone by then. Threads belong to their process. Identity is (tgid, start time).
//! - A TCP connection of a tracked process reaches the daemon or fails. [`Probe::claim`] tells
//!   whose it is and where it was meant to go. While no daemon lives, it fails with `EPERM`
//!   ([`DaemonDown::Closed`]).
//! - Datagrams to port 443 (QUIC) are refused.
//! - Per kind, `seen == submitted + aggregated + dropped` ([`Probe::accounts`]).
//!
//! What they do not see: `io_uring` writes, shared memory, sockets that were connected before the
//! attach ([`Probe::open_connections`]) or handed over by a process outside the tree, SCTP and
//! other transports (reported as [`What::Connected`]), and connections of sockets that were made
//! outside the cgroup the hooks are attached to.

mod account;
mod attach;
mod btf;
mod claim;
mod connections;
mod doctor;
mod error;
mod event;
mod gate;
mod hooks;
mod kernel_log;
mod layout;
mod maps;
mod mounts;
mod netns;
pub(crate) mod proc;
mod restored;
mod stream;
mod sys;
mod table;
mod track;
mod walk;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use acrfence_common::Listener;
pub use acrfence_common::{
    Captures, Channel, DropReason, GateCause, GateOutcome, GateWhy, Primitive, Sort, Treatment,
};
use aya::Ebpf;
use parking_lot::Mutex;
use tokio::sync::broadcast;

pub use account::{Account, Loss, Total, channel_name};
pub use claim::Claimed;
pub use connections::OpenConnection;
pub use doctor::{Check, Report, State, doctor, may_trace};
pub use error::ProbeError;
pub use event::{Execution, ProbeEvent, What, Write};
pub use gate::{Abandoned, GateQueue, Gated, NamedProgram, Refusal, Standing};
pub use restored::Restored;
pub use stream::{Events, Received};
pub use table::Process;
pub use track::Membership;

use event::Decoder;
use maps::Maps;
use stream::Drain;
use table::ProcessTable;

/// How the probe is set up.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where hooks and maps are pinned; below a bpffs. One daemon each.
    pub pin_directory: PathBuf,
    /// The cgroup2 directory whose processes the network hooks cover; none for the root of the
    /// hierarchy, that is, the whole machine.
    pub cgroup: Option<PathBuf>,
    /// Where redirected connections of this network namespace go.
    pub listeners: Listeners,
    /// Names of environment variables that are kept; `LC_*` stands for all that start with `LC_`.
    pub env_allow: Vec<String>,
    /// The process whose connections are never redirected and whose end means that the daemon is
    /// down; none for the calling process.
    pub daemon: Option<u32>,
    /// What becomes of tracked connections while no daemon lives.
    pub daemon_down: DaemonDown,
    /// Whether a process that should be stopped at exec and cannot be is refused; otherwise it runs.
    pub refuse_ungated: bool,
    /// Which writes are looked at ([`Captures`]); 0 leaves the hooks out altogether. Every write of
    /// a tracked process adds to the totals of its channel (about a microsecond each); the first
    /// on a channel, and then one every `resample`, is reported with its first bytes. Ordinary
    /// pipes are chatty, so that each write is *not* reported.
    pub captures: u32,
    /// A channel that was reported is reported again after this time.
    pub resample: Duration,
    /// Size of the ring buffer; rounded up to a power of two of pages. Hooks that are taken over
    /// keep theirs.
    pub ring_bytes: u32,
    /// Redirected connections there can be at one time; more are refused. Hooks that are taken over
    /// keep theirs.
    pub most_connections: u32,
    /// How much the kernel programs log through aya-log: 1 errors to 5 everything.
    pub kernel_log_level: u8,
}

/// Ports on the loopback addresses where the daemon listens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listeners {
    /// Port on 127.0.0.1; without one, IPv4 connections of tracked processes are refused.
    pub v4: Option<u16>,
    /// Port on ::1; without one, IPv6 connections of tracked processes are refused.
    pub v6: Option<u16>,
}

/// What becomes of connections of tracked processes while no daemon lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DaemonDown {
    /// They are refused.
    #[default]
    Closed,
    /// They pass, unfenced.
    Open,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            pin_directory: Path::new(mounts::BPFFS).join("acrfence"),
            cgroup: None,
            listeners: Listeners::default(),
            env_allow: vec![],
            daemon: None,
            daemon_down: DaemonDown::default(),
            refuse_ungated: false,
            captures: Captures::ALL,
            resample: Duration::from_secs(1),
            ring_bytes: 8 << 20,
            most_connections: 65536,
            kernel_log_level: 3,
        }
    }
}

/// The hooks in the kernel, attached. All methods may be called from any thread.
///
/// Dropping it leaves the hooks in place, with no daemon alive: connections of tracked processes
/// then fail or pass as [`DaemonDown`] says. [`Self::release`] takes everything out.
pub struct Probe {
    settings: Settings,
    maps: Maps,
    ebpf: Mutex<Ebpf>,
    drain: Drain,
    table: Mutex<ProcessTable>,
    decoder: Decoder,
    feed: broadcast::Sender<Arc<ProbeEvent>>,
    /// One walk at a time: the kernel has one list of parents.
    walking: Mutex<()>,
    past_traffic: Mutex<HashMap<(u32, u32), account::Total>>,
    refused: Vec<(&'static str, String)>,
    /// Or why it does not.
    denies_exec: Result<(), String>,
    netns: u64,
    _lock: sys::Lock,
}

impl Probe {
    /// Whether the network hooks see connections of this process: not when they are attached below
    /// the root of the hierarchy and it lives elsewhere. True when that cannot be told and the hooks
    /// cover everything.
    pub fn covers(&self, pid: u32) -> bool {
        let Some(covered) = &self.settings.cgroup else {
            return true;
        };
        let Some(root) = mounts::cgroup2() else {
            return false;
        };
        let Ok(path) = proc::ProcDir::open(pid).and_then(|dir| dir.cgroup()) else {
            return false;
        };
        root.join(path.trim_start_matches('/')).starts_with(covered)
    }

    /// Says where redirected connections of a network namespace go; `None` for both refuses them.
    pub fn set_listeners(&self, netns: u64, listeners: Listeners) -> Result<(), ProbeError> {
        let value = Listener {
            v4_port: listeners.v4.unwrap_or(0),
            v6_port: listeners.v6.unwrap_or(0),
        };
        self.maps.listeners.set(&netns, &value)
    }

    /// The network namespace of this process, as [`Self::set_listeners`] wants it.
    pub fn netns(&self) -> u64 {
        self.netns
    }

    /// Replaces the destinations that are not redirected. The port 0 stands for any port, the
    /// address `::` or `0.0.0.0` for any address.
    pub fn set_passes(&self, passes: &[SocketAddr]) -> Result<(), ProbeError> {
        let wanted: std::collections::HashSet<_> = passes
            .iter()
            .map(|pass| {
                let mut entry = event::endpoint(*pass);
                if pass.ip().is_unspecified() {
                    entry.addr = [0; 16];
                }
                entry
            })
            .collect();
        for old in self.maps.passes.entries()?.into_keys() {
            if !wanted.contains(&old) {
                self.maps.passes.remove(&old)?;
            }
        }
        for entry in &wanted {
            self.maps.passes.set(entry, &1)?;
        }
        let count = u32::try_from(wanted.len()).unwrap_or(u32::MAX);
        self.maps.configure(|config| config.passes = count)
    }

    /// Changes which writes are looked at, without attaching anew. Hooks that were left out at the
    /// attach (`captures` was 0) stay out.
    pub fn set_captures(&self, captures: u32) -> Result<(), ProbeError> {
        self.maps
            .configure(|config| config.captures = captures & Captures::ALL)
    }

    /// Hooks this kernel refuses although ACRFence can do without, with the reason.
    pub fn refused_hooks(&self) -> &[(&'static str, String)] {
        &self.refused
    }

    /// What happens from now on. Each receiver gets everything; one that is too slow gets
    /// told how much it missed.
    pub fn events(&self) -> Events {
        Events::new(self.feed.subscribe())
    }

    /// Takes every hook and map out of the kernel. Connections that are redirected already stay
    /// with the daemon.
    pub fn release(self) -> Result<(), ProbeError> {
        hooks::remove(&self.settings.pin_directory)
    }

    /// Takes out of the kernel what a daemon that is gone left in a pin directory.
    pub fn remove_pins(pin_directory: &Path) -> Result<(), ProbeError> {
        hooks::remove(pin_directory)
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        // Fails only when the map is gone, and then so are the hooks.
        let _ = self.maps.configure(|config| config.daemon_alive = 0);
        let _ = self.maps.configure_gate(self.settings.gate(false));
    }
}
