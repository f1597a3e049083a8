//! The process boundary put together: the door for `acrfence mcp`, and the exec gate where policy
//! wants it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use anyhow::Context as _;

use super::kernel::LifeIndex;
use super::pipeline::Pipeline;
use super::service::Daemon;
use crate::boundary::process::commands::Rules;
use crate::boundary::process::gate::{self, Door, Gatekeeper, Serving, Warden, Watched, serve};
use crate::cli::mcp::DOOR;
use crate::control::{CaInfo, GateCounts};
use crate::policy::Config;
use crate::probe::{Probe, may_trace};

/// Shells start commands with pipes all the time; their children are no stdio servers.
const SHELLS: [&str; 12] = [
    "sh", "bash", "dash", "ash", "busybox", "zsh", "fish", "ksh", "mksh", "csh", "tcsh", "nu",
];

/// What must live as long as the daemon takes processes over.
pub(super) struct ProcessGate {
    _door: Door,
    serving: Option<(Serving, Warden)>,
    probe: Arc<Probe>,
}

/// What of the exec gate there is, as the daemon tells it.
#[derive(Default)]
pub(super) struct Gate(OnceLock<Result<Arc<Gatekeeper>, String>>);

impl Gate {
    /// Processes at the gate, by what was done with them; none when there is no gate.
    pub(super) fn counts(&self, denies: bool) -> Option<GateCounts> {
        let counts = self.0.get()?.as_ref().ok()?.counts();
        let named = |counts: BTreeMap<&'static str, u64>| {
            counts
                .into_iter()
                .map(|(what, count)| (what.to_owned(), count))
                .collect()
        };
        Some(GateCounts {
            gated: named(counts.gated),
            ungated: named(counts.ungated),
            denies,
        })
    }

    /// Why there is none, if there is none.
    fn missing(&self) -> Option<&str> {
        match self.0.get() {
            Some(Ok(_)) => None,
            Some(Err(why)) => Some(why),
            None => Some("the daemon is starting"),
        }
    }
}

impl Daemon {
    /// Lets the exec gate cover a life. Gives what a person must know when it does not.
    pub(super) fn cover(&self, life: LifeIndex) -> Option<String> {
        let why = match self.gate.missing() {
            Some(why) => why.to_owned(),
            None => {
                let told = self
                    .typed
                    .cover(life, |refuses| self.kernel.gate(life, refuses));
                format!("{:#}", told.err()?)
            }
        };
        Some(format!(
            "Stdio servers and commands of this agent are not fenced: {why}."
        ))
    }

    /// Shortcomings that an operator must know, in sentences.
    pub(super) fn problems(&self) -> Vec<String> {
        let gate = self.gate.missing().map(|why| {
            format!(
                "stdio servers and commands are not fenced: {why}; `acrfence mcp wrap` fences servers one by one"
            )
        });
        let mut all = self.kernel.problems();
        all.extend(gate);
        all.extend(self.pipeline.notices().problems());
        all
    }
}

/// Opens the door, and the gate unless policy or the kernel does not want it. An agent whose stdio
/// servers cannot be fenced is still better off with all the rest: then it is said, and not claimed.
pub(super) fn open(
    config: &Config,
    run_dir: &Path,
    pin_dir: &Path,
    ca: &CaInfo,
    pipeline: &Pipeline,
    daemon: &Arc<Daemon>,
    probe: &Arc<Probe>,
) -> anyhow::Result<ProcessGate> {
    let known = Arc::downgrade(daemon);
    let agent_of: gate::AgentOf = Arc::new(move |index| known.upgrade()?.agent_of(index));
    let watched = Arc::new(Watched::new(probe.clone(), agent_of));
    let tree = probe.clone();
    pipeline.sees_processes(Arc::new(move |process| tree.parent_of(process)));
    let settings = gate::Settings {
        rules: config.commands(),
        variables: ca.environment.clone(),
        files: vec![PathBuf::from(&ca.bundle), PathBuf::from(&ca.certificate)],
        program: std::env::current_exe().context("cannot tell where this program is")?,
        kept: config.probe.environment.clone(),
        record: config.boundary.record_bound.as_usize(),
        ungated: config.gate.ungated,
        ..gate::Settings::default()
    };
    let rules = settings.rules.clone();
    let arbiter = Arc::new(pipeline.clone());
    let keeper = Gatekeeper::new(arbiter, watched.clone(), settings);
    let keeper = Arc::new(keeper.context("cannot start the threads of the exec gate")?);
    let events = probe.events();
    tokio::spawn(async move { watched.run(events).await });

    let path = run_dir.join(DOOR);
    let door = Door::open(&path, &keeper);
    let door = door.with_context(|| format!("cannot open {} for stdio servers", path.display()))?;
    let served = if config.gate.exec {
        serve_gate(pin_dir, probe, &keeper, &rules).map_err(|e| format!("{e:#}"))
    } else {
        Err("policy has the exec gate off (`[gate] exec = false`)".to_owned())
    };
    let (serving, told) = match served {
        Ok(serving) => (Some(serving), Ok(keeper)),
        Err(why) => {
            tracing::warn!("stdio servers and commands are not fenced: {why}");
            (None, Err(why))
        }
    };
    // It is opened once.
    let _ = daemon.gate.0.set(told);
    Ok(ProcessGate {
        _door: door,
        serving,
        probe: probe.clone(),
    })
}

fn serve_gate(
    pin_dir: &Path,
    probe: &Arc<Probe>,
    keeper: &Arc<Gatekeeper>,
    rules: &Rules,
) -> anyhow::Result<(Serving, Warden)> {
    may_trace().map_err(anyhow::Error::msg)?;
    probe.gate_commands(rules.telltales())?;
    probe.gate_shells(SHELLS)?;
    let mut warden = std::process::Command::new("/proc/self/exe");
    warden.arg("gate-warden").arg("--pins").arg(pin_dir);
    let warden = Warden::start(warden).context("cannot start the warden of the exec gate")?;
    let serving = serve(probe.serve_gate()?, keeper.clone());
    let serving = match serving {
        Ok(serving) => serving,
        Err(e) => {
            // Nobody may be stopped whom nobody lets go.
            probe.leave_gate()?;
            return Err(e).context("cannot serve the exec gate");
        }
    };
    keeper.take_over();
    let watching = keeper.clone();
    tokio::spawn(async move { watching.watch().await });
    Ok((serving, warden))
}

impl ProcessGate {
    /// Stops taking processes over. Nobody is left standing at the gate.
    pub(super) fn close(self) {
        let Some((serving, warden)) = self.serving else {
            return;
        };
        if let Err(e) = self.probe.leave_gate() {
            tracing::error!("the exec gate cannot be left: {e}");
        }
        drop(serving);
        warden.dismiss();
    }
}
