//! Runs cells of the evaluation and writes one JSON object a cell; makes tables of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use acrfence_tests::agents::{Agent, Restore};
use acrfence_tests::evaluation::report::{self, NotRun, Report};
use acrfence_tests::evaluation::table::tables;
use acrfence_tests::evaluation::{Between, Cell, Suspect, Trial};
use acrfence_tests::model::relay::{Api, Endpoint};
use acrfence_tests::scenario::{Scenario, Wording};
use acrfence_tests::testbed::Transport;
use anyhow::{Context as _, Result, ensure};
use clap::{Parser, ValueEnum};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

/// Runs real agents through their restores, with and without the fence, and counts what the services
/// did. Agents are installed by `cargo xtask environment --agents all`.
#[derive(Parser)]
struct Arguments {
    /// Only these scenarios, by their names in the reports.
    #[arg(long, value_delimiter = ',')]
    scenario: Vec<String>,
    /// Only these agents.
    #[arg(long, value_delimiter = ',', value_enum)]
    agent: Vec<Agent>,
    /// Only these restores.
    #[arg(long, value_delimiter = ',', value_enum)]
    restore: Vec<Restore>,
    /// Only these ways to the service.
    #[arg(long, value_delimiter = ',', value_enum)]
    transport: Vec<Transport>,
    /// What stands between agent and service.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Between::Off, Between::On])]
    fence: Vec<Between>,
    /// What the daemon does with equal calls where a restore is only suspected.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Suspect::Hold])]
    suspect: Vec<Suspect>,
    /// How openly a restored agent is sent on or astray; `explicit` for the abuse of approvals and
    /// `minimal` ("continue") otherwise unless something is named.
    #[arg(long, value_delimiter = ',', value_enum)]
    wording: Vec<Wording>,
    /// How often each cell is run.
    #[arg(short, long, default_value_t = 10)]
    n: u64,
    /// Where the words of the model begin; each run of a cell begins one further.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Use this model instead of the scripted one: where it is served, as the part before `/v1/…` or
    /// `/api/…`. Only agents that speak its API are run.
    #[arg(long, value_name = "URL", requires = "model_name")]
    model_url: Option<String>,
    /// The name that the model is asked for by.
    #[arg(long, value_name = "NAME", requires = "model_url")]
    model_name: Option<String>,
    /// The API that the model is served by.
    #[arg(long, value_enum, default_value_t = Api::Openai)]
    model_api: Api,
    /// The environment variable that has the key of the model's server, if it wants one. The key itself
    /// is never printed, written down or given to an agent.
    #[arg(long, value_name = "VARIABLE", requires = "model_url")]
    model_key_env: Option<String>,
    /// Directory of `cells.jsonl` and `not-run.jsonl`; cells that are there are replaced.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Write the tables into this page, between its two marks, and run nothing.
    #[arg(long, requires = "out")]
    tables: Option<PathBuf>,
    /// Show what the model was asked and what the daemon said.
    #[arg(long)]
    show: bool,
}

/// Whether to stop after the run that is under way, which takes down what it set up.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Makes interrupts set [`INTERRUPTED`] instead of ending the process where it is.
fn mind_interrupts() -> Result<Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("starting a thread that watches for interrupts")?;
    for kind in [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
    ] {
        let mut signals = runtime
            .block_on(async { signal(kind) })
            .context("watching for interrupts")?;
        runtime.spawn(async move {
            while signals.recv().await.is_some() {
                INTERRUPTED.store(true, Ordering::Relaxed);
            }
        });
    }
    Ok(runtime)
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match (&arguments.tables, &arguments.out) {
        (Some(page), Some(cells)) => write_tables(page, cells),
        _ => run(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e:#}");
            ExitCode::FAILURE
        }
    }
}

impl Arguments {
    /// The real model that is named.
    fn endpoint(&self) -> Result<Option<Endpoint>> {
        let (Some(url), Some(name)) = (&self.model_url, &self.model_name) else {
            return Ok(None);
        };
        let key = self.model_key_env.as_ref().map(|variable| {
            std::env::var(variable).with_context(|| format!("{variable} holds no key"))
        });
        Ok(Some(Endpoint {
            url: url.clone(),
            name: name.clone(),
            api: self.model_api,
            key: key.transpose()?,
        }))
    }

    /// The cells that are wanted, those that differ in the fence alone next to each other and without
    /// a fence first.
    fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for scenario in Scenario::all() {
            for &agent in Agent::value_variants() {
                for &restore in agent.restores() {
                    for &transport in agent.transports() {
                        for (fence, suspect, wording) in self.ways(scenario) {
                            cells.push(Cell {
                                scenario,
                                agent,
                                restore,
                                transport,
                                fence,
                                suspect,
                                wording,
                            });
                        }
                    }
                }
            }
        }
        cells.retain(|cell: &Cell| {
            // Where nothing can be worded there is one way.
            let worded = match cell.has_wordings() {
                true => among(&self.wording, &cell.wording),
                false => cell.wording == cell.scenario.usual_wording(),
            };
            worded &&
            // What is about a life without a restore has no other cells.
            (!cell.scenario.is_control() && !cell.scenario.times_out()
                || cell.restore == Restore::None)
                && (self.model_url.is_none() || cell.agent.speaks() == Some(self.model_api))
                && among(&self.scenario, &cell.scenario.name().to_owned())
                && among(&self.agent, &cell.agent)
                && among(&self.restore, &cell.restore)
                && among(&self.transport, &cell.transport)
        });
        cells
    }

    fn ways(&self, scenario: Scenario) -> Vec<(Between, Suspect, Wording)> {
        let mut fences = self.fence.clone();
        fences.sort();
        let usual = [scenario.usual_wording()];
        let mut wordings = self.wording.clone();
        if wordings.is_empty() || !scenario.has_wordings() {
            wordings = usual.into();
        }
        if !wordings.contains(&usual[0]) {
            // For cells of the scenario that have no other.
            wordings.push(usual[0]);
        }
        let mut ways = Vec::new();
        for wording in wordings {
            for &fence in &fences {
                let policies = match fence {
                    Between::Off => &[Suspect::Hold][..],
                    _ => &self.suspect,
                };
                ways.extend(policies.iter().map(|&policy| (fence, policy, wording)));
            }
        }
        ways
    }
}

fn among<T: PartialEq>(wanted: &[T], one: &T) -> bool {
    wanted.is_empty() || wanted.contains(one)
}

fn run(arguments: &Arguments) -> Result<()> {
    let _watching = mind_interrupts()?;
    let real = arguments.endpoint()?;
    let cells = arguments.cells();
    ensure!(!cells.is_empty(), "there is no such cell");
    let mut not_run = Vec::new();
    let mut without: Option<(Cell, Report)> = None;
    for cell in cells {
        let reason = match cell.lacks() {
            Some(reason) => reason.to_owned(),
            None => match trials(&cell, arguments, real.as_ref()) {
                Ok(trials) => {
                    let mut report = Report::of(&cell, arguments.seed, &trials, real.as_ref())?;
                    if let Some((other, without)) = &without
                        && differs_in_fence_alone(other, &cell)
                    {
                        report.compare(without);
                    }
                    println!("{}", serde_json::to_string(&report)?);
                    if let Some(out) = &arguments.out {
                        fs::create_dir_all(out)?;
                        report::write(&out.join("cells.jsonl"), std::slice::from_ref(&report))?;
                    }
                    if cell.fence == Between::Off {
                        without = Some((cell, report));
                    }
                    continue;
                }
                Err(e) if INTERRUPTED.load(Ordering::Relaxed) => return Err(e),
                Err(e) => format!("{e:#}"),
            },
        };
        eprintln!("{}: not run: {reason}", name(&cell));
        not_run.push(NotRun {
            scenario: cell.scenario.name().into(),
            agent: cell.agent,
            restore: cell.restore.name().into(),
            transport: cell.transport.name().into(),
            fence: cell.fence,
            reason,
        });
    }
    match &arguments.out {
        Some(out) => report::write_not_run(out, not_run),
        None => Ok(()),
    }
}

fn differs_in_fence_alone(one: &Cell, other: &Cell) -> bool {
    let base = Cell {
        fence: one.fence,
        suspect: one.suspect,
        ..*other
    };
    *one == base
}

fn trials(cell: &Cell, arguments: &Arguments, real: Option<&Endpoint>) -> Result<Vec<Trial>> {
    // Why it is not there is the reason, whatever else would go wrong.
    cell.agent.home()?;
    (0..arguments.n)
        .map(|n| {
            ensure!(
                !INTERRUPTED.load(Ordering::Relaxed),
                "interrupted; everything was taken down"
            );
            let trial = cell.trial_with(arguments.seed + n, real)?;
            let ordered = match real {
                Some(_) => format!(
                    "the model ordered it {} times unaware and {} times aware, ",
                    trial.orders.unaware, trial.orders.aware
                ),
                None => String::new(),
            };
            eprintln!(
                "{}: {ordered}{} effects, {} unauthorised, {} in {:.1} s; noticed: {}",
                name(cell),
                trial.tally.effects,
                trial.tally.unauthorised,
                if trial.lived.finished {
                    "finished"
                } else {
                    "NOT FINISHED"
                },
                trial.lived.seconds,
                trial.noticed_by.join("; "),
            );
            if arguments.show {
                show(&trial);
            }
            Ok(trial)
        })
        .collect()
}

fn name(cell: &Cell) -> String {
    let fence = match cell.fence {
        Between::Off => "off".to_owned(),
        other => format!("{other:?}/{:?}", cell.suspect).to_lowercase(),
    };
    format!(
        "{} {} {} {} {fence}",
        cell.scenario.name(),
        cell.agent.name(),
        cell.restore.name(),
        cell.transport.name(),
    )
}

fn show(trial: &Trial) {
    for seen in &trial.model {
        eprintln!("--- {}\n{}{}", seen.path, seen.headers, seen.body);
        eprintln!("--> {:?}", seen.replies);
    }
    for life in &trial.lived.lives {
        eprintln!(
            "=== {:?} {:?}\n{}\n{}",
            life.code, life.signal, life.stdout, life.stderr
        );
    }
    eprintln!("{}", trial.said);
}

const BEGIN: &str = "<!-- tables: begin -->";
const END: &str = "<!-- tables: end -->";

fn write_tables(page: &Path, cells: &Path) -> Result<()> {
    let text = fs::read_to_string(page).with_context(|| format!("reading {}", page.display()))?;
    let marks = || Some((text.split_once(BEGIN)?.0, text.split_once(END)?.1));
    let (before, after) =
        marks().with_context(|| format!("{} has no {BEGIN} and {END}", page.display()))?;
    let cells: (Vec<Report>, Vec<NotRun>) = (
        report::read(&cells.join("cells.jsonl"))?,
        report::read(&cells.join("not-run.jsonl"))?,
    );
    let tables = tables(&cells.0, &cells.1);
    fs::write(page, format!("{before}{BEGIN}\n\n{tables}\n{END}{after}"))
        .with_context(|| format!("writing {}", page.display()))
}
