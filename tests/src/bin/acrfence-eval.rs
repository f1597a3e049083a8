//! Runs cells of the evaluation and writes one JSON object a cell.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use acrfence_tests::agents::{Agent, Restore};
use acrfence_tests::evaluation::{Between, Cell, Suspect};
use acrfence_tests::scenario::{Scenario, Wording};
use acrfence_tests::testbed::Transport;
use anyhow::{Result, anyhow};
use clap::{Parser, ValueEnum as _};

/// Runs every agent through its restores, with and without the fence, and counts.
#[derive(Parser)]
struct Arguments {
    /// Only these scenarios, by the names in the reports; all by default.
    #[arg(long, value_delimiter = ',')]
    scenario: Vec<String>,
    /// Only these agents.
    #[arg(long, value_delimiter = ',', value_enum)]
    agent: Vec<Agent>,
    /// Only these restores.
    #[arg(long, value_delimiter = ',', value_enum)]
    restore: Vec<Restore>,
    /// Only these transports.
    #[arg(long, value_delimiter = ',', value_enum)]
    transport: Vec<Transport>,
    /// What stands between agent and service.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Between::Off, Between::On])]
    fence: Vec<Between>,
    /// What a daemon does with equal calls where a restore is only suspected.
    #[arg(long, value_enum, default_value = "hold")]
    suspect: Suspect,
    /// How openly a restored agent is sent astray.
    #[arg(long, value_enum, default_value = "explicit")]
    wording: Wording,
    /// How often each cell is run.
    #[arg(short, long, default_value_t = 10)]
    n: u64,
    /// Where the words of the model begin.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Append the cells to this file.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Show what the model was asked and what the daemon said.
    #[arg(long)]
    show: bool,
}

impl Arguments {
    fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for scenario in Scenario::all() {
            for &agent in Agent::value_variants() {
                for &restore in agent.restores() {
                    for &transport in agent.transports() {
                        for &fence in &self.fence {
                            cells.push(Cell {
                                scenario,
                                agent,
                                restore,
                                transport,
                                fence,
                                suspect: self.suspect,
                                wording: self.wording,
                            });
                        }
                    }
                }
            }
        }
        cells.retain(|cell| {
            among(&self.scenario, &cell.scenario.name().to_owned())
                && among(&self.agent, &cell.agent)
                && among(&self.restore, &cell.restore)
                && among(&self.transport, &cell.transport)
        });
        cells
    }
}

fn among<T: PartialEq>(wanted: &[T], one: &T) -> bool {
    wanted.is_empty() || wanted.contains(one)
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let mut out = arguments
        .out
        .as_ref()
        .map(|path| OpenOptions::new().create(true).append(true).open(path))
        .transpose()?;
    for cell in arguments.cells() {
        let mut trials = Vec::new();
        let mut failed = None;
        for n in 0..arguments.n {
            match cell.trial(arguments.seed + n) {
                Ok(trial) => trials.push(trial),
                Err(e) => {
                    failed = Some(e);
                    break;
                }
            }
        }
        for trial in &trials {
            eprintln!(
                "{} {} {} {} {:?}: {:?} finished={} {:.1}s {:?} {:?}",
                cell.scenario.name(), cell.agent.name(), cell.restore.name(), cell.transport.name(), cell.fence,
                trial.tally, trial.lived.finished, trial.lived.seconds, trial.noticed_by, trial.exact
            );
            if arguments.show {
                for seen in &trial.model {
                    eprintln!("--- {}\n{}{}\n→ {:?}", seen.path, seen.headers, seen.body, seen.reply);
                }
                for life in &trial.lived.lives {
                    eprintln!("=== {:?} {:?}\n{}\n{}", life.code, life.signal, life.stdout, life.stderr);
                }
                eprintln!("{}", trial.said);
            }
        }
        if let Some(e) = failed {
            eprintln!("{} {} {} {}: {e:#}", cell.scenario.name(), cell.agent.name(), cell.restore.name(), cell.transport.name());
        }
        let _ = &mut out;
        let _ = |w: &mut std::fs::File| w.write_all(b"").map_err(|e| anyhow!(e));
    }
    Ok(())
}
