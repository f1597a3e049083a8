//! `acrfence gate-warden`: started by the daemon, for nobody else.

use std::path::PathBuf;

use clap::Args;

use crate::boundary::process::gate::stand_watch;

/// Wait for the daemon to end, and leave nobody at the exec gate.
#[derive(Debug, Args)]
pub struct GateWarden {
    /// Where the daemon's hooks are pinned.
    #[arg(long, value_name = "PATH")]
    pins: PathBuf,
}

impl GateWarden {
    /// Watches until the daemon has ended.
    pub fn run(self) -> anyhow::Result<()> {
        stand_watch(&self.pins, std::io::stdin())?;
        Ok(())
    }
}
