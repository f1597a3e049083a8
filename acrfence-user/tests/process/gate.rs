//! A gate of its own for each test: hooks on a cgroup, a gatekeeper, and an agent in it.

use std::path::PathBuf;
use std::sync::Arc;

use acrfence_user::boundary::process::gate::{
    Gatekeeper, Serving, Settings, Ungated, Watched, serve,
};
use acrfence_user::probe::{DaemonDown, GateWhy, Probe};

use crate::fence::{Place, Puppet};
use crate::judge::{Court, Judge};

pub struct Gate {
    pub judge: Arc<Judge>,
    pub keeper: Arc<Gatekeeper>,
    pub probe: Arc<Probe>,
    serving: Option<Serving>,
    runtime: Option<tokio::runtime::Runtime>,
    place: Option<Place>,
    pub folder: tempfile::TempDir,
}

impl Gate {
    /// A gate whose commands are `pay` and `list`.
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn with(tweak: impl FnOnce(&mut Settings)) -> Self {
        Self::at(Place::new(), DaemonDown::Closed, tweak)
    }

    pub fn at(place: Place, down: DaemonDown, tweak: impl FnOnce(&mut Settings)) -> Self {
        // As the daemon does: each relay takes a few descriptors.
        let (_, most) =
            nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
        nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, most, most)
            .unwrap();
        let mut probe_settings = place.settings();
        probe_settings.captures = 0;
        probe_settings.daemon_down = down;
        let folder = tempfile::tempdir().unwrap();
        let mut settings = settings_in(folder.path());
        tweak(&mut settings);
        probe_settings.refuse_ungated = settings.ungated == Ungated::Refuse;
        let probe = Arc::new(Probe::attach(probe_settings).unwrap_or_else(|e| panic!("{e}")));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let judge = Arc::new(Judge::default());
        let guard = runtime.enter();
        let agent_of = Arc::new(|_| Some(("agent".parse().unwrap(), 1)));
        let watched = Arc::new(Watched::new(probe.clone(), agent_of));
        let rules = settings.rules.clone();
        let keeper = Arc::new(
            Gatekeeper::new(Arc::new(Court(judge.clone())), watched.clone(), settings).unwrap(),
        );
        drop(guard);
        let events = probe.events();
        runtime.spawn(async move { watched.run(events).await });
        let running = probe.clone();
        runtime.spawn(async move { running.run().await });
        let watching = keeper.clone();
        runtime.spawn(async move { watching.watch().await });
        probe.gate_commands(rules.telltales()).unwrap();
        probe
            .gate_shells(["sh", "bash", "dash", "zsh", "fish", "ksh"])
            .unwrap();
        let queue = probe.serve_gate().unwrap_or_else(|e| panic!("{e}"));
        let serving = serve(queue, keeper.clone()).unwrap();
        Self {
            judge,
            keeper,
            probe,
            serving: Some(serving),
            runtime: Some(runtime),
            place: Some(place),
            folder,
        }
    }

    /// A Python process that is agent 1, gated for everything.
    pub fn agent(&self) -> Puppet {
        self.agent_for(GateWhy::ALL)
    }

    pub fn agent_for(&self, why: u32) -> Puppet {
        let mut puppet = Puppet::new(&self.place.as_ref().unwrap().cgroup);
        self.probe.track(puppet.pid(), 1).unwrap();
        self.probe.gate_agent(1, why).unwrap();
        puppet.ok("globals().update(subprocess=__import__('subprocess'), threading=__import__('threading'), signal=__import__('signal'), time=__import__('time')) or 1");
        puppet
    }

    /// A program in the test's folder.
    pub fn program(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&path, mode).unwrap();
        path
    }

    /// Ends every process in the group.
    pub fn end_all(&self) {
        self.place.as_ref().unwrap().kill();
    }

    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.as_ref().unwrap().block_on(future)
    }

    pub fn gated(&self, what: &str) -> u64 {
        self.keeper.counts().gated.get(what).copied().unwrap_or(0)
    }

    pub fn ungated(&self) -> std::collections::BTreeMap<&'static str, u64> {
        self.keeper.counts().ungated
    }
}

/// How the gate works in tests.
fn settings_in(folder: &std::path::Path) -> Settings {
    let bundle = folder.join("bundle.pem");
    std::fs::write(&bundle, "certificates").unwrap();
    Settings {
        rules: acrfence_user::boundary::process::commands::Rules::from_toml(
            "[[command]]\nprogram = ['pay']\nstdin = true\n[[command]]\nprogram = ['git']\nsubcommand = ['push']",
        )
        .unwrap(),
        variables: vec![("SSL_CERT_FILE".to_owned(), bundle.display().to_string())],
        files: vec![bundle],
        kept: vec!["PAY_*".to_owned()],
        program: PathBuf::from(env!("CARGO_BIN_EXE_acrfence")),
        ..Settings::default()
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        if let Some(place) = &self.place {
            place.kill();
        }
        self.serving = None;
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(std::time::Duration::from_secs(5));
        }
    }
}
