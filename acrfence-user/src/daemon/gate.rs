//! The process boundary put together: the door for `acrfence mcp`, and the exec gate where policy
//! wants it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;

use super::pipeline::Pipeline;
use super::service::Daemon;
use crate::boundary::process::gate::{self, Door, Gatekeeper, Serving, Warden, Watched, serve};
use crate::cli::mcp::DOOR;
use crate::control::CaInfo;
use crate::policy::Config;
use crate::probe::Probe;

/// Shells start commands with pipes all the time; their children are no stdio servers.
const SHELLS: [&str; 6] = ["sh", "bash", "dash", "zsh", "fish", "ksh"];

/// What must live as long as the daemon takes processes over.
pub(super) struct ProcessGate {
    _door: Door,
    serving: Option<(Serving, Warden)>,
    probe: Arc<Probe>,
}

/// Opens the door, and the gate where policy wants it.
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
    let settings = gate::Settings {
        variables: ca.environment.clone(),
        files: vec![PathBuf::from(&ca.bundle), PathBuf::from(&ca.certificate)],
        program: std::env::current_exe().context("cannot tell where this program is")?,
        kept: config.probe.environment.clone(),
        record: config.boundary.record_bound.as_usize(),
        ..gate::Settings::default()
    };
    let commands: Vec<String> = settings.rules.programs().map(str::to_owned).collect();
    let arbiter = Arc::new(pipeline.clone());
    let keeper = Gatekeeper::new(arbiter, watched.clone(), settings);
    let keeper = Arc::new(keeper.context("cannot start the threads of the exec gate")?);
    let events = probe.events();
    tokio::spawn(async move { watched.run(events).await });

    let path = run_dir.join(DOOR);
    let door = Door::open(&path, &keeper);
    let door = door.with_context(|| format!("cannot open {} for stdio servers", path.display()))?;
    let serving = if config.gate.exec {
        probe.gate_commands(commands.iter().map(String::as_str))?;
        probe.gate_shells(SHELLS)?;
        let mut warden = std::process::Command::new("/proc/self/exe");
        warden.arg("gate-warden").arg("--pins").arg(pin_dir);
        let warden = Warden::start(warden).context("cannot start the warden of the exec gate")?;
        let serving = serve(probe.serve_gate()?, keeper.clone());
        keeper.take_over();
        let watching = keeper.clone();
        tokio::spawn(async move { watching.watch().await });
        Some((serving.context("cannot serve the exec gate")?, warden))
    } else {
        None
    };
    Ok(ProcessGate {
        _door: door,
        serving,
        probe: probe.clone(),
    })
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
