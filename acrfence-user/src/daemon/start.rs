//! Start and stop: the order in which the rooms are opened and closed.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use arc_swap::ArcSwap;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::callers::AgentCallers;
use super::kernel::Kernel;
use super::lives::NO_PROCESS_LEFT;
use super::pipeline::{Keys, Pipeline};
use super::service::Daemon;
use crate::analyzer::{Llm, LlmSettings};
use crate::boundary::process::gate::Ungated;
use crate::boundary::tls::{ca::Ca, private, trust};
use crate::boundary::{self, Boundary};
use crate::control::{self, CaInfo};
use crate::effect::{EffectLog, Store, StoreConfig};
use crate::policy::{AnalyzerKind, Config, DaemonDown};
use crate::probe::{self, Probe};
use crate::words::Digest;

/// Where a daemon has its things. All can be moved, so that several run side by side.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Configuration file.
    pub config: PathBuf,
    /// Whether it is an error when that file is missing.
    pub config_must_exist: bool,
    /// State: effect log, CA.
    pub state: PathBuf,
    /// Sockets, and the CA's public part.
    pub run_dir: PathBuf,
    /// Where programs and maps are pinned.
    pub pin_dir: PathBuf,
    /// The cgroup whose processes can be redirected; none for the root of the hierarchy.
    pub cgroup: Option<PathBuf>,
    /// Key of the effect log.
    pub key_file: PathBuf,
    /// Second record of the log's head.
    pub anchor: PathBuf,
    /// Port of the hook on the loopback addresses; 0 for any free one.
    pub port: u16,
}

/// Runs a daemon until it is told to stop (SIGTERM, SIGINT).
pub fn serve(settings: Settings) -> anyhow::Result<()> {
    if !nix::unistd::geteuid().is_root() {
        anyhow::bail!(
            "the daemon needs root (it loads programs into the kernel and reads other users' processes); start it with `systemctl start acrfence` or `sudo acrfence daemon`"
        );
    }
    let config = Config::load(&settings.config, settings.config_must_exist)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(run(settings, config))
}

async fn run(settings: Settings, config: Config) -> anyhow::Result<()> {
    let stop = CancellationToken::new();
    // Before anything else, so that no signal finds the default action half-way through a start.
    stop_on_signals(stop.clone())?;
    let store = Arc::new(open_log(&settings, &config)?);
    let ca = Arc::new(Ca::load_or_create(&settings.state.join("ca"))?);
    let ca_info = publish_ca(&ca, &settings.run_dir)?;
    let ca_pem = ca.pem().to_owned();
    let keys = Keys {
        credentials: store.secret("credentials"),
        values: store.secret("values"),
    };
    let log: Arc<dyn EffectLog> = store.clone();
    let llm = reader_of_prose(&config)?;
    let config = Arc::new(ArcSwap::from_pointee(config));
    let pipeline = Pipeline::start(log, config.clone(), keys, llm).await?;

    let callers = Arc::new(AgentCallers::default());
    let boundary = Boundary::bind(
        boundary_config(&settings, &config, ca)?,
        callers.clone(),
        Arc::new(pipeline.clone()),
    )
    .await?;
    let probe = Arc::new(attach_probe(
        &settings,
        &config.load(),
        &boundary.addresses()?,
    )?);
    let kernel: Arc<dyn Kernel> = probe.clone();
    let reread = {
        let (path, must_exist) = (settings.config.clone(), settings.config_must_exist);
        Box::new(move || Config::load(&path, must_exist).map_err(|e| e.to_string()))
    };
    let daemon = Arc::new(Daemon::new(
        pipeline,
        store.clone(),
        kernel,
        config,
        reread,
        ca_info,
    ));
    callers.serve(daemon.clone());
    daemon.end_what_ended("ended while no daemon ran").await?;
    daemon.expect_restores();

    let process_gate = super::gate::open(
        &daemon.config.load(),
        &settings.run_dir,
        &settings.pin_dir,
        &daemon.ca,
        &daemon.pipeline,
        &daemon,
        &probe,
    )?;
    daemon.gate_the_living().await;
    refresh_private_trust(&ca_pem, &probe)?;

    // Those that nobody was there to take in.
    daemon.adopt_restored().await;
    let watching = tokio::spawn(watch(daemon.clone(), probe.clone(), stop.clone()));
    let fitting = tokio::spawn(daemon.clone().keep_gates_fit(stop.clone()));
    let observing = tokio::spawn(super::observing::observe(
        daemon.clone(),
        probe.clone(),
        settings.run_dir.clone(),
        stop.clone(),
    ));
    let socket = settings.run_dir.join("control.sock");
    let control = control::serve(daemon.clone(), &socket, stop.clone().cancelled_owned()).await?;
    let control = tokio::spawn(control);
    let namespaces = super::namespaces::Namespaces::new(
        daemon.clone(),
        probe.clone(),
        boundary.handle(),
        stop.clone(),
    )
    .context("cannot tell in which network namespace this is")?;
    let namespaces = tokio::spawn(namespaces.watch());
    let redirected = tokio::spawn(boundary.run(stop.clone().cancelled_owned()));
    reload_on_hangup(daemon.clone(), stop.clone())?;

    tell_ready()?;
    store.read_ahead();
    stop.cancelled().await;
    tracing::info!("stopping");
    process_gate.close();
    for part in [
        redirected, control, watching, observing, fitting, namespaces,
    ] {
        if let Err(e) = part.await {
            tracing::error!("a part of the daemon ended badly: {e}");
        }
    }
    drop((daemon, callers));
    store.close();
    leave_kernel(&probe, &settings.pin_dir)
}

/// The analyzer LLM that the operator wants, if any. Nothing is contacted yet.
fn reader_of_prose(config: &Config) -> anyhow::Result<Option<Llm>> {
    let wanted = &config.analyzer;
    if wanted.kind == AnalyzerKind::None {
        return Ok(None);
    }
    let settings = LlmSettings {
        url: wanted.url.clone(),
        model: wanted.model.clone(),
        timeout: wanted.timeout.0,
        ..LlmSettings::default()
    };
    Llm::new(settings)
        .map(Some)
        .map_err(anyhow::Error::msg)
        .context("`analyzer.url` cannot be used")
}

fn open_log(settings: &Settings, config: &Config) -> anyhow::Result<Store> {
    private_dir(&settings.state)?;
    for file in [&settings.key_file, &settings.anchor] {
        if let Some(dir) = file.parent() {
            private_dir(dir)?;
        }
    }
    let mut wanted = StoreConfig::new(
        settings.state.join("log"),
        &settings.key_file,
        &settings.anchor,
    );
    wanted.segment_size = config.log.segment_size.0;
    wanted.body_inline_max = config.log.inline_body.as_usize();
    wanted.index_cache = config.log.index_cache.0;
    let mut last = std::time::Instant::now();
    let mut progress = |p: crate::effect::Progress| {
        if last.elapsed() > std::time::Duration::from_secs(2) {
            last = std::time::Instant::now();
            tracing::info!(
                "effect log, {:?}: {} of {} records",
                p.phase,
                p.done,
                p.total
            );
        }
    };
    let (store, report) = Store::open(&wanted, &mut progress)?;
    if let Some(torn) = &report.torn {
        tracing::warn!(
            "a write that a crash had torn was cut off ({torn:?}); nobody was ever answered for it"
        );
    }
    if let Some(why) = &report.index_rebuilt {
        tracing::warn!("the index was built anew from the journal: {why}");
    }
    if report.unsettled > 0 {
        tracing::warn!(
            "{} effects were running when the last daemon ended: they are in doubt",
            report.unsettled
        );
    }
    Ok(store)
}

/// Makes a directory that only root can look into, where it is missing.
fn private_dir(dir: &Path) -> anyhow::Result<()> {
    if dir.as_os_str().is_empty() || dir.is_dir() {
        return Ok(());
    }
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .with_context(|| format!("cannot make the directory {}", dir.display()))
}

/// Puts what every user may read of the CA into the run directory.
fn publish_ca(ca: &Ca, run_dir: &Path) -> anyhow::Result<CaInfo> {
    let failed = || format!("cannot prepare the run directory {}", run_dir.display());
    std::fs::create_dir_all(run_dir).with_context(failed)?;
    std::fs::set_permissions(run_dir, std::fs::Permissions::from_mode(0o755))
        .with_context(failed)?;
    let certificate = run_dir.join("ca.pem");
    let bundle = run_dir.join("bundle.pem");
    std::fs::write(&certificate, ca.pem()).with_context(failed)?;
    std::fs::set_permissions(&certificate, std::fs::Permissions::from_mode(0o644))
        .with_context(failed)?;
    let java = run_dir.join("bundle.jks");
    trust::write_bundle(ca, &bundle, &java)?;
    Ok(CaInfo {
        certificate: certificate.display().to_string(),
        bundle: bundle.display().to_string(),
        java: java.display().to_string(),
        fingerprint: Digest::of(ca.der()).to_string(),
        environment: trust::environment(&bundle, &certificate),
    })
}

/// Agents that run with `--private-trust` have copies of the CA, which may be older than it is.
fn refresh_private_trust(ca: &str, probe: &Probe) -> anyhow::Result<()> {
    let processes = probe.tracked()?.into_keys().map(|process| process.tgid);
    let (written, problems) = private::refresh(ca, processes);
    if written > 0 {
        tracing::info!("{written} bundles of agents with a private trust hold this CA");
    }
    for problem in problems {
        tracing::warn!(
            "a bundle of an agent with a private trust cannot be brought up to date: {problem}"
        );
    }
    Ok(())
}

fn boundary_config(
    settings: &Settings,
    shared: &Arc<ArcSwap<Config>>,
    ca: Arc<Ca>,
) -> anyhow::Result<boundary::Config> {
    let config = shared.load();
    let listen = [
        SocketAddr::from((Ipv4Addr::LOCALHOST, settings.port)),
        SocketAddr::from((Ipv6Addr::LOCALHOST, settings.port)),
    ];
    // A machine without IPv6 has no ::1; what tracked processes connect to there is refused.
    let listen = listen
        .into_iter()
        .filter(|a| a.is_ipv4() || Path::new("/proc/net/if_inet6").exists())
        .collect();
    let mut wanted = boundary::Config::new(listen, ca);
    for path in &config.upstream.extra_roots {
        let more = trust::read_roots(path).with_context(|| {
            format!(
                "`upstream.extra_roots` names {}, which cannot be used",
                path.display()
            )
        })?;
        wanted.roots.extend(more);
    }
    let spool = settings.state.join("spool");
    private_dir(&spool)?;
    wanted.spool = spool;
    let policy = shared.clone();
    wanted.pass_through = Arc::new(move |host| policy.load().passes_through(host));
    wanted.limits.record = config.boundary.record_bound.as_usize();
    wanted.limits.body = config.boundary.request_limit.0;
    wanted.limits.server_first = config.boundary.sniff_timeout.0;
    wanted.limits.connections_per_agent = config.boundary.connection_limit;
    super::descriptors::fit(&mut wanted.limits, super::descriptors::raise());
    wanted.limits.connect = config.upstream.connect_timeout.0;
    wanted.limits.response_head = config.upstream.response_timeout.0;
    Ok(wanted)
}

fn attach_probe(
    settings: &Settings,
    config: &Config,
    hook: &[SocketAddr],
) -> anyhow::Result<Probe> {
    let port = |v4| hook.iter().find(|a| a.is_ipv4() == v4).map(|a| a.port());
    let probe = Probe::attach(probe::Settings {
        pin_directory: settings.pin_dir.clone(),
        cgroup: settings.cgroup.clone(),
        listeners: probe::Listeners {
            v4: port(true),
            v6: port(false),
        },
        env_allow: config.probe.environment.clone(),
        daemon_down: match config.probe.daemon_down {
            DaemonDown::Closed => probe::DaemonDown::Closed,
            DaemonDown::Open => probe::DaemonDown::Open,
        },
        refuse_ungated: config.gate.ungated == Ungated::Refuse,
        ..probe::Settings::default()
    })?;
    Ok(probe)
}

/// How often restored processes are looked for that nobody told of.
const LOOK_FOR_RESTORED: std::time::Duration = std::time::Duration::from_secs(10);

/// Ends of processes within this time are looked at together.
const ENDS_TOGETHER: std::time::Duration = std::time::Duration::from_millis(20);

/// Ends lives when the kernel says that processes ended, and begins them when it says that processes
/// were restored.
async fn watch(daemon: Arc<Daemon>, probe: Arc<Probe>, stop: CancellationToken) {
    let mut events = probe.events();
    let draining = {
        let (probe, stop) = (probe.clone(), stop.clone());
        tokio::spawn(async move {
            tokio::select! {
                done = probe.run() => if let Err(e) = done {
                    tracing::error!("the kernel's reports cannot be read any more: {e}");
                },
                () = stop.cancelled() => {}
            }
        })
    };
    let mut look = tokio::time::interval(LOOK_FOR_RESTORED);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // Processes ended, and whether they were the last of their agent is looked at then: it means to go
    // through all that belong to anybody.
    let mut ends: Option<tokio::time::Instant> = None;
    loop {
        let received = tokio::select! {
            received = events.next_ones() => received,
            () = until(ends) => {
                ends = None;
                end_what_ended(&daemon).await;
                continue;
            }
            // Should the kernel's report of one have been lost.
            _ = look.tick() => {
                daemon.adopt_restored().await;
                continue;
            }
            () = stop.cancelled() => break,
        };
        let Some(received) = received else { break };
        let soon = || tokio::time::Instant::now() + ENDS_TOGETHER;
        for one in received {
            match one {
                probe::Received::Event(event) => match event.what {
                    probe::What::Restoring {
                        primitive,
                        argument,
                    } => {
                        // What ended before somebody was restored must not seem to run on.
                        if ends.take().is_some() {
                            end_what_ended(&daemon).await;
                        }
                        daemon.restoring(&event, primitive, argument).await;
                    }
                    probe::What::Exited { .. } => {
                        ends.get_or_insert_with(soon);
                    }
                    _ => {}
                },
                probe::Received::Missed(count) => {
                    daemon.restores_missed(count).await;
                    ends.get_or_insert_with(soon);
                }
            }
        }
    }
    if ends.is_some() {
        end_what_ended(&daemon).await;
    }
    if let Err(e) = draining.await {
        tracing::error!("the reader of the kernel's reports ended badly: {e}");
    }
}

async fn until(when: Option<tokio::time::Instant>) {
    match when {
        Some(when) => tokio::time::sleep_until(when).await,
        None => std::future::pending().await,
    }
}

async fn end_what_ended(daemon: &Daemon) {
    if let Err(e) = daemon.end_what_ended(NO_PROCESS_LEFT).await {
        tracing::error!("it could not be written down that an agent ended: {e}");
    }
}

/// Takes the hooks out of the kernel, unless agents still run: then they stay, and the agents'
/// connections fail or pass as the policy `daemon_down` says, until a daemon takes over.
fn leave_kernel(probe: &Probe, pin_dir: &Path) -> anyhow::Result<()> {
    let tracked = probe.tracked()?.len();
    if tracked > 0 {
        tracing::warn!(
            "{tracked} processes of agents go on without a daemon; the hooks stay in the kernel, and the next daemon takes over"
        );
        return Ok(());
    }
    Ok(Probe::remove_pins(pin_dir)?)
}

fn stop_on_signals(stop: CancellationToken) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stop.cancel();
    });
    Ok(())
}

fn reload_on_hangup(daemon: Arc<Daemon>, stop: CancellationToken) -> anyhow::Result<()> {
    let mut hangup = signal(SignalKind::hangup()).context("cannot wait for SIGHUP")?;
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = hangup.recv() => match daemon.reread() {
                    Ok(()) => tracing::info!("the configuration was read again"),
                    Err(e) => tracing::error!("{e}"),
                },
                () = stop.cancelled() => return,
            }
        }
    });
    Ok(())
}

/// Tells whoever started the daemon that it takes commands: a line on standard output, and systemd's
/// notification where there is one.
fn tell_ready() -> anyhow::Result<()> {
    use std::io::Write as _;
    let mut out = std::io::stdout();
    writeln!(out, "ready")
        .and_then(|()| out.flush())
        .context("cannot write to standard output")?;
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else {
        return Ok(());
    };
    let notify = std::os::unix::net::UnixDatagram::unbound().context("cannot tell systemd")?;
    let name = socket.to_string_lossy().into_owned();
    let sent = match name.strip_prefix('@') {
        Some(hidden) => {
            use std::os::linux::net::SocketAddrExt as _;
            let address = std::os::unix::net::SocketAddr::from_abstract_name(hidden)
                .context("cannot tell systemd")?;
            notify.send_to_addr(b"READY=1", &address)
        }
        None => notify.send_to(b"READY=1", &name),
    };
    sent.map(drop)
        .context("cannot tell systemd that the daemon is ready")
}
