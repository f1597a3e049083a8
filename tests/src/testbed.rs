//! The service that a scenario needs, reachable in every way that agents reach services.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::approval::{Approval, Deed, Done};
use crate::authority::Authority;
use crate::bank::{Bank, Booking, Options};
use crate::cloud::{Cloud, Machine};
use crate::ledger::Ledger;
use crate::pace::Gate;
use crate::scenario::{Kind, Scenario, Tally};

/// How an agent reaches the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Transport {
    /// A function of the agent's program posts JSON over HTTPS.
    Rest,
    /// MCP over streamable HTTP, over HTTPS.
    McpHttp,
    /// MCP over standard input and output of a server that the agent starts.
    McpStdio,
    /// A command that posts JSON over HTTPS.
    Shell,
}

impl Transport {
    /// Its name in reports and on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rest => "rest",
            Self::McpHttp => "mcp_http",
            Self::McpStdio => "mcp_stdio",
            Self::Shell => "shell",
        }
    }
}

/// What is on the account, as in the paper.
const BALANCE: u64 = 2000;

/// How late an answer is that comes too late.
const SLOW: Duration = Duration::from_secs(6);
const SLOWER: Duration = Duration::from_secs(10);

/// A running service, and the certificate authority that vouches for it.
pub struct Testbed {
    scenario: Scenario,
    transport: Transport,
    service: Deployed,
    authority: Authority,
    books: TempDir,
    crashes: u32,
}

enum Deployed {
    Bank(Bank),
    Cloud(Cloud),
    Approval(Approval),
}

impl Testbed {
    /// Starts what `scenario` needs for agents that reach it by `transport`.
    pub fn start(scenario: Scenario, transport: Transport) -> Result<Self> {
        let authority = Authority::new()?;
        let service = match scenario.kind() {
            Kind::Bank => {
                let options = Options {
                    balance: Some(BALANCE),
                    slow_at_first: match scenario {
                        Scenario::TimedOut => Some(SLOW),
                        Scenario::TimedOutTwice => Some(SLOWER),
                        _ => None,
                    },
                    tokens: scenario == Scenario::TokenRefresh,
                    asks: scenario == Scenario::Confirmed,
                    ..Options::default()
                };
                Deployed::Bank(Bank::start_with(&authority, options)?)
            }
            Kind::Cloud => Deployed::Cloud(Cloud::start(&authority)?),
            Kind::Approval => {
                Deployed::Approval(Approval::start_with(&authority, 0, scenario.mode())?)
            }
        };
        let books = tempfile::Builder::new()
            .prefix("acrfence-books-")
            .tempdir()
            .context("making a directory for a service's books")?;
        Ok(Self {
            scenario,
            transport,
            service,
            authority,
            books,
            crashes: 0,
        })
    }

    /// Makes its stdio servers kill their agent after each of the first `crashes` actions.
    pub fn crashing(self, crashes: u32) -> Self {
        Self { crashes, ..self }
    }

    /// Who vouches for the service.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// How it is reached.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// URL of `path` at the service.
    pub fn url(&self, path: &str) -> String {
        match &self.service {
            Deployed::Bank(bank) => bank.url(path),
            Deployed::Cloud(cloud) => cloud.url(path),
            Deployed::Approval(approval) => approval.url(path),
        }
    }

    /// What the first access token is got with, where the service wants any.
    pub fn refresh_token(&self) -> Option<String> {
        match &self.service {
            Deployed::Bank(bank) => bank.refresh_token(),
            Deployed::Cloud(_) | Deployed::Approval(_) => None,
        }
    }

    /// How often the service gave out an access token, and how often it refused to.
    pub fn refreshes(&self) -> (usize, usize) {
        match &self.service {
            Deployed::Bank(bank) => bank.refreshes(),
            Deployed::Cloud(_) | Deployed::Approval(_) => (0, 0),
        }
    }

    /// The command that serves the same over standard input and output: program and arguments.
    pub fn stdio_server(&self) -> Result<Vec<OsString>> {
        let mode = clap::ValueEnum::to_possible_value(&self.scenario.mode());
        let mode = mode.context("a mode has a name")?.get_name().to_owned();
        Ok(vec![
            beside("acrfence-stdio-service")?.into(),
            self.scenario.kind().name().into(),
            "--books".into(),
            self.books.path().into(),
            "--mode".into(),
            mode.into(),
            "--crashes".into(),
            self.crashes.to_string().into(),
        ])
    }

    /// What the books say.
    pub fn tally(&self) -> Result<Tally> {
        let stdio = self.transport == Transport::McpStdio;
        let file = |name: &str| self.books.path().join(name);
        Ok(match &self.service {
            Deployed::Bank(bank) => {
                let bookings = if stdio {
                    Ledger::<Booking>::in_file(file("bank.jsonl")).entries()?
                } else {
                    bank.ledger()
                };
                let astray = bookings.iter().filter(|one| one.order.to != "alice");
                Tally {
                    effects: bookings.len(),
                    unauthorised: match self.scenario {
                        Scenario::Redirected => astray.count(),
                        _ => 0,
                    },
                }
            }
            Deployed::Cloud(cloud) => effects(if stdio {
                Ledger::<Machine>::in_file(file("cloud.jsonl"))
                    .entries()?
                    .len()
            } else {
                cloud.machines()?.len()
            }),
            Deployed::Approval(approval) => approvals(&if stdio {
                Ledger::<Done>::in_file(file("approval.jsonl")).entries()?
            } else {
                approval.done()
            }),
        })
    }

    /// From now on the service does its work and keeps its answers back.
    pub fn hold(&self) -> Result<Hold<'_>> {
        if self.transport == Transport::McpStdio {
            let gate = Gate::close(self.books.path())?;
            return Ok(Hold {
                testbed: self,
                gate: Some(gate),
            });
        }
        match &self.service {
            Deployed::Bank(bank) => bank.hold_answers(),
            Deployed::Cloud(cloud) => cloud.pace().hold(),
            Deployed::Approval(approval) => approval.pace().hold(),
        }
        Ok(Hold {
            testbed: self,
            gate: None,
        })
    }
}

/// Answers that are kept back until this is dropped.
pub struct Hold<'a> {
    testbed: &'a Testbed,
    gate: Option<Gate>,
}

impl Hold<'_> {
    /// Waits until the service did its work once.
    pub fn wait(&mut self, limit: Duration) -> Result<()> {
        if let Some(gate) = &mut self.gate {
            return gate.wait(limit);
        }
        match &self.testbed.service {
            Deployed::Bank(bank) => bank.wait_for_orders(1),
            Deployed::Cloud(cloud) => cloud.pace().wait_for(1, limit),
            Deployed::Approval(approval) => approval.pace().wait_for(1, limit),
        }
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        if self.gate.is_some() {
            return;
        }
        match &self.testbed.service {
            Deployed::Bank(bank) => bank.release_answers(),
            Deployed::Cloud(cloud) => cloud.pace().release(),
            Deployed::Approval(approval) => approval.pace().release(),
        }
    }
}

fn effects(effects: usize) -> Tally {
    Tally {
        effects,
        unauthorised: 0,
    }
}

fn approvals(done: &[Done]) -> Tally {
    let meant = |done: &Done| match &done.deed {
        Deed::Deletion { customer_id } => *customer_id == done.issued_for,
        Deed::Payment { vendor, .. } => *vendor == done.issued_for,
    };
    let unauthorised = done.iter().enumerate().filter(|(n, one)| {
        let earlier = &done[..*n];
        !meant(one) || earlier.iter().any(|other| other.token_id == one.token_id)
    });
    Tally {
        effects: done.len(),
        unauthorised: unauthorised.count(),
    }
}

/// A program of this package that was built beside this one.
fn beside(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("finding this program's own file")?;
    own.ancestors()
        .skip(1)
        .take(2)
        .map(|dir: &Path| dir.join(name))
        .find(|file| file.is_file())
        .with_context(|| format!("there is no `{name}` beside {}", own.display()))
}
