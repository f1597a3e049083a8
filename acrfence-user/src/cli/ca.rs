//! `acrfence ca`.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Subcommand};

use super::Global;
use super::output::{json, line};
use crate::boundary::tls::{ca::Ca as Authority, trust};
use crate::control::{CaInfo, Client};

#[derive(Debug, Args)]
pub(super) struct Ca {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make the CA if there is none yet (the daemon does this at its first start). Needs no daemon.
    Init(State),
    /// Put the CA into the system's store, for agents that are attached to while they run.
    Install(State),
    /// Take the CA out of the system's store.
    Uninstall(State),
    /// Make a new CA in the place of the one there is, whose certificate is kept beside it. Takes effect
    /// when the daemon starts again; agents must be started again after that.
    Rotate(State),
    /// Show the CA, the merged bundle and the variables that make runtimes trust it.
    Bundle,
}

#[derive(Debug, Args)]
struct State {
    /// The daemon's state directory.
    #[arg(long, default_value = "/var/lib/acrfence", value_name = "DIR")]
    state: PathBuf,
}

pub(super) async fn run(client: &Client, global: &Global, args: Ca) -> anyhow::Result<()> {
    match args.command {
        Command::Init(State { state }) => {
            let ca = Authority::load_or_create(&state.join("ca"))?;
            line(&format!("The CA certificate is {}.", ca.path().display()))
        }
        Command::Install(State { state }) => {
            let ca = Authority::load(&state.join("ca")).context(
                "there is no CA to install; start the daemon once or run `acrfence ca init`",
            )?;
            let placed = trust::install(&ca, std::path::Path::new("/"))?;
            line(&format!(
                "The CA is in the system's store ({}). Programs that read it at their start trust it from their next start.",
                placed.display()
            ))
        }
        Command::Rotate(State { state }) => {
            let root = std::path::Path::new("/");
            let old = Authority::load(&state.join("ca"))?;
            let was_installed = trust::is_installed(&old, root);
            let ca = Authority::rotate(&state.join("ca"))?;
            line(&format!("There is a new CA: {}.", ca.path().display()))?;
            if was_installed {
                trust::install(&ca, root)?;
                line("It took the place of the old one in the system's store.")?;
            }
            line(
                "Start the daemon again, and then the agents: those that run trust only the old CA, and their connections fail from then on.",
            )
        }
        Command::Uninstall(_) => {
            let was_there = trust::uninstall(std::path::Path::new("/"))?;
            line(if was_there {
                "The CA is not in the system's store any more."
            } else {
                "The CA was not in the system's store."
            })
        }
        Command::Bundle => {
            let ca: CaInfo = client.get("/v1/ca").await?;
            if global.json {
                return json(&ca);
            }
            line(&format!("certificate  {}", ca.certificate))?;
            line(&format!("bundle       {}", ca.bundle))?;
            line(&format!("for Java     {}", ca.java))?;
            line(&format!("sha256       {}", ca.fingerprint))?;
            line("")?;
            ca.environment
                .iter()
                .try_for_each(|(name, value)| line(&format!("export {name}={value}")))
        }
    }
}
