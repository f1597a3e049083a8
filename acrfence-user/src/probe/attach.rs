//! Puts the hooks in place, or takes over those that a daemon before us left.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use acrfence_common::{ABI, Captures, EXEMPT, Tracked};
use parking_lot::Mutex;
use tokio::sync::broadcast;

use super::event::Decoder;
use super::maps::Maps;
use super::stream::Drain;
use super::{DaemonDown, Probe, ProbeError, Settings, hooks, mounts, sys, walk};
use crate::words::ProcessIdentity;

impl Probe {
    /// Attaches every hook. Processes that hooks in the same pin directory were tracking for a
    /// daemon that is gone stay tracked ([`Self::tracked`]).
    pub fn attach(settings: Settings) -> Result<Self, ProbeError> {
        if !nix::unistd::geteuid().is_root() {
            return Err(ProbeError::NotRoot);
        }
        let cgroup = match &settings.cgroup {
            Some(path) => path.clone(),
            None => mounts::cgroup2().ok_or(ProbeError::NoCgroup2)?,
        };
        let system = |what: &'static str| {
            move |source| ProbeError::System {
                what: what.into(),
                source,
            }
        };
        let cgroup_id = std::fs::metadata(&cgroup)
            .map_err(|source| ProbeError::System {
                what: format!("cannot open the cgroup {}", cgroup.display()),
                source,
            })?
            .ino();
        mounts::ensure_tracefs()?;
        mounts::ensure_pin_directory(&settings.pin_directory)?;
        let lock = sys::try_lock(&settings.pin_directory)
            .map_err(system("cannot lock the pin directory"))?
            .ok_or_else(|| ProbeError::Busy(settings.pin_directory.clone()))?;
        let netns = sys::netns_cookie().map_err(system("cannot tell the network namespace"))?;

        let pins = settings.pin_directory.clone();
        let is_first = !pins.join("CONFIG").exists();
        let attached = Self::attach_at(settings, &cgroup, cgroup_id, netns, lock);
        if attached.is_err() && is_first {
            // Nobody is tracked yet, so there is no fence to keep closed.
            hooks::remove(&pins)?;
        }
        attached
    }

    fn attach_at(
        settings: Settings,
        cgroup: &Path,
        cgroup_id: u64,
        netns: u64,
        lock: sys::Lock,
    ) -> Result<Self, ProbeError> {
        let pins = settings.pin_directory.clone();
        let mut ebpf = hooks::load(&settings, Some(&pins))?;
        let logger = super::kernel_log::start(&mut ebpf);
        let (maps, ring) = Maps::take(&mut ebpf)?;
        let before = maps.config()?;

        // Everything the hooks look up is in place before the first of them runs.
        maps.configure(|config| {
            config.abi = ABI;
            config.daemon_alive = 0;
            config.walking = 0;
            config.open_when_down = u32::from(settings.daemon_down == DaemonDown::Open);
            config.captures = settings.captures & Captures::ALL;
            config.resample_ns = u64::try_from(settings.resample.as_nanos()).unwrap_or(u64::MAX);
            config.daemon_netns = netns;
            config.cgroup = cgroup_id;
        })?;
        maps.configure_gate(settings.gate(false))?;
        maps.parents.clear()?;
        maps.listeners.clear()?;
        // Connections to a daemon that is gone are not ours to accept.
        maps.clients.clear()?;
        let same_cgroup = before.cgroup == cgroup_id;
        let refused = hooks::attach(&mut ebpf, &settings, &pins, cgroup, same_cgroup)?;

        let denies_exec = hooks::kernel_btf()
            .map_err(|error| error.to_string())
            .and_then(|btf| hooks::second_line(&mut ebpf, &btf, Some(&pins), || maps.exec_seen()));
        if let Err(why) = &denies_exec {
            tracing::info!(
                why,
                "an exec that must not run is killed as it begins: this kernel lets nobody deny it"
            );
        }

        let (feed, _) = broadcast::channel(EVENTS_HELD);
        let probe = Self {
            decoder: Decoder {
                env_allow: settings.env_allow.clone(),
            },
            drain: Drain::new(ring, logger),
            ebpf: Mutex::new(ebpf),
            table: Mutex::default(),
            feed,
            walking: Mutex::default(),
            past_traffic: Mutex::default(),
            denies_exec,
            maps,
            refused,
            netns,
            _lock: lock,
            settings,
        };
        probe.set_listeners(netns, probe.settings.listeners)?;
        probe.exempt()?;
        probe.sweep()?;
        probe.drain();
        Ok(probe)
    }

    /// Marks the daemon: not fenced, and its end is noticed.
    fn exempt(&self) -> Result<(), ProbeError> {
        for (tgid, tracked) in self.maps.tracked.entries()? {
            if tracked.agent == EXEMPT {
                self.maps.tracked.remove(&tgid)?;
            }
        }
        let pid = self.settings.daemon.unwrap_or_else(std::process::id);
        let daemon = self
            .snapshot()?
            .into_iter()
            .find(|row| row.tgid == pid)
            .ok_or(ProbeError::NoSuchProcess(pid))?;
        let entry = Tracked {
            start_ns: daemon.start_ns,
            agent: EXEMPT,
            parent: 0,
        };
        self.maps.tracked.set(&pid, &entry)?;
        self.maps.configure(|config| {
            config.daemon_tgid = pid;
            config.daemon_start_ns = daemon.start_ns;
            config.daemon_alive = 1;
        })
    }

    /// Every process there is.
    pub(super) fn snapshot(&self) -> Result<Vec<acrfence_common::SnapshotRow>, ProbeError> {
        let bytes = hooks::snapshot(&mut self.ebpf.lock())?;
        Ok(walk::rows(&bytes))
    }

    /// The daemon, as the kernel knows it.
    pub fn daemon(&self) -> Result<ProcessIdentity, ProbeError> {
        let config = self.maps.config()?;
        Ok(ProcessIdentity {
            tgid: config.daemon_tgid,
            start_ns: config.daemon_start_ns,
        })
    }
}

/// Events a receiver may be behind before it misses some.
const EVENTS_HELD: usize = 16 << 10;

/// A probe is shared between threads.
const _: fn(Probe) -> Arc<dyn Send + Sync> = |probe| Arc::new(probe);
