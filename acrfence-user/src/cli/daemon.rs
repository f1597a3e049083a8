//! `acrfence daemon`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::Global;
use crate::daemon::{Settings, serve};

#[derive(Debug, Args)]
pub(super) struct Run {
    /// Configuration file; the one at the default place may be missing.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// State directory: effect log, CA.
    #[arg(long, default_value = "/var/lib/acrfence", value_name = "DIR")]
    state: PathBuf,
    /// Where programs and maps are pinned, below a bpf file system.
    #[arg(long, default_value = "/sys/fs/bpf/acrfence", value_name = "DIR")]
    pin_dir: PathBuf,
    /// The cgroup whose processes can be redirected; the root of the cgroup2 hierarchy when absent.
    #[arg(long, value_name = "DIR")]
    cgroup: Option<PathBuf>,
    /// The key of the effect log, outside the state directory; made when it is missing. The systemd
    /// credential `acrfence-log` is taken where there is one.
    #[arg(long, default_value_os_t = crate::effect::usual_key_file(), value_name = "FILE")]
    key_file: PathBuf,
    /// Second record of the log's head, outside the state directory.
    #[arg(
        long,
        default_value = "/var/lib/acrfence-anchor/anchor",
        value_name = "FILE"
    )]
    anchor: PathBuf,
    /// Port of the hook on the loopback addresses; any free one when absent.
    #[arg(long, default_value_t = 0, value_name = "PORT")]
    port: u16,
    /// What to log: error, warn, info, debug, trace, or a filter as in RUST_LOG.
    #[arg(
        long,
        env = "ACRFENCE_LOG",
        default_value = "info",
        value_name = "FILTER"
    )]
    log: String,
}

pub(super) fn run(global: &Global, args: Run) -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_new(&args.log);
    let filter = match filter {
        Ok(filter) => filter,
        Err(e) => {
            eprintln!("acrfence: --log `{}` does not read: {e}", args.log);
            return ExitCode::from(2);
        }
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let settings = Settings {
        config_must_exist: args.config.is_some(),
        config: args
            .config
            .unwrap_or_else(|| "/etc/acrfence/config.toml".into()),
        state: args.state,
        run_dir: global.run_dir.clone(),
        pin_dir: args.pin_dir,
        cgroup: args.cgroup,
        key_file: args.key_file,
        anchor: args.anchor,
        port: args.port,
    };
    match serve(settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("acrfence: {e:#}");
            ExitCode::FAILURE
        }
    }
}
