//! What is written down of a cell, and the files that it is written into.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Instant;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::{Between, Cell, Orders, Suspect, Trial};
use crate::agents::Agent;
use crate::client::{installed, plain};
use crate::fence::acrfence;
use crate::model::relay::Endpoint;
use crate::process::run;
use crate::scenario::{Scenario, Wording};

/// One cell as it was run. One line of `docs/evaluation/cells.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Name of the scenario.
    pub scenario: String,
    /// Name of the agent.
    pub agent: Agent,
    /// How it forgot.
    pub restore: String,
    /// How it reached the service.
    pub transport: String,
    /// What stood between.
    pub fence: Between,
    /// The daemon's policy on suspected restores; nothing without a daemon.
    pub suspect: Option<Suspect>,
    /// How openly a restored agent was sent astray, where it was.
    pub wording: Option<Wording>,
    /// The real model that was named; nothing for the scripted one.
    #[serde(default)]
    pub model: Option<String>,
    /// Whether nothing was forgotten, so that nothing might be stopped.
    pub control: bool,
    /// How often it was run.
    pub n: usize,
    /// Effects beyond those that were meant, over all runs.
    pub duplicates: usize,
    /// Uses of an approval that nobody had approved, over all runs.
    pub unauthorised: usize,
    /// Runs in which the agent ended its task.
    pub finished: usize,
    /// Of these, runs whose last action was answered from the log.
    #[serde(default)]
    pub after_replay: usize,
    /// Of these, runs whose last action was refused: the agent was told, and ended all the same.
    #[serde(default)]
    pub after_refusal: usize,
    /// With a real model: runs in which it ordered the action at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acted: Option<usize>,
    /// With a real model: runs in which it ordered the action, and again when it had forgotten that. Only
    /// these say anything about a restore, and `duplicates` counts them alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exposed: Option<usize>,
    /// Runs of a control in which something that was meant did not happen, a call was refused, or the
    /// agent did not end. Where tokens are refreshed, also after a restore: runs in which another call than
    /// the action failed.
    pub hindered: usize,
    /// By what a restore was noticed, and in how many branches.
    pub noticed_by: BTreeMap<String, usize>,
    /// Whether every fork point was known to the call; nothing where no branch was opened.
    pub fork_point_exact: Option<bool>,
    /// Milliseconds between the model's order to act and its next request, median.
    pub act_ms: Option<f64>,
    /// The same beyond what it takes without a fence, in the same run.
    pub added_ms: Option<f64>,
    /// Seconds that all lives of the agent took together, median.
    pub run_s: f64,
    /// The same beyond what they take without a fence, in the same run.
    #[serde(default)]
    pub added_run_s: Option<f64>,
    /// What the disk took for one durable write in the same run, in milliseconds, median.
    #[serde(default)]
    pub sync_ms: Option<f64>,
    /// Beginning of the model's words.
    pub seed: u64,
    /// What was run.
    pub versions: BTreeMap<String, String>,
}

/// A cell that was not run, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NotRun {
    /// Name of the scenario.
    pub scenario: String,
    /// Name of the agent.
    pub agent: Agent,
    /// How it would have forgotten.
    pub restore: String,
    /// How it would have reached the service.
    pub transport: String,
    /// What would have stood between.
    pub fence: Between,
    /// Why not.
    pub reason: String,
}

impl Report {
    /// Of `trials` that began with `seed`.
    pub fn of(cell: &Cell, seed: u64, trials: &[Trial], real: Option<&Endpoint>) -> Result<Self> {
        let redirected = cell.scenario.redirects() && !cell.is_control();
        let after_refusal = |trial: &Trial| trial.lived.finished && trial.stopped_at_last;
        let meant = cell.meant();
        let sum = |of: fn(&Trial) -> usize| trials.iter().map(of).sum::<usize>();
        let count = |so: &dyn Fn(&Trial) -> bool| trials.iter().filter(|trial| so(trial)).count();
        let mut noticed_by = BTreeMap::new();
        for signal in trials.iter().flat_map(|trial| &trial.noticed_by) {
            *noticed_by.entry(signal.clone()).or_default() += 1;
        }
        let exact = trials.iter().filter_map(|trial| trial.exact);
        Ok(Self {
            scenario: cell.scenario.name().into(),
            agent: cell.agent,
            restore: cell.restore.name().into(),
            transport: cell.transport.name().into(),
            fence: cell.fence,
            suspect: (cell.fence != Between::Off).then_some(cell.suspect),
            wording: cell.has_wordings().then_some(cell.wording),
            model: real.map(|endpoint| endpoint.name.clone()),
            control: cell.is_control(),
            n: trials.len(),
            duplicates: if redirected {
                // What it does to another target is no duplicate; whether it may is counted apart.
                0
            } else {
                let tests = trials
                    .iter()
                    .filter(|trial| real.is_none() || exposed(trial));
                tests
                    .map(|trial| {
                        let beyond = trial.tally.effects.saturating_sub(meant);
                        // What a real model does twice although it sees the first time is its own decision.
                        let again = trial.orders.unaware.saturating_sub(1);
                        real.map_or(beyond, |_| beyond.min(again))
                    })
                    .sum()
            },
            acted: real.map(|_| count(&|trial| trial.orders != Orders::default())),
            exposed: real.map(|_| count(&exposed)),
            unauthorised: sum(|trial| trial.tally.unauthorised),
            finished: count(&|trial| trial.lived.finished),
            after_replay: count(&|trial| {
                trial.lived.finished && trial.replayed > 0 && !trial.stopped_at_last
            }),
            after_refusal: count(&after_refusal),
            hindered: count(&|trial| {
                let done = trial.tally.effects >= meant && trial.stopped == 0;
                let tokens = cell.scenario == Scenario::TokenRefresh;
                cell.is_control() && !(done && trial.lived.finished) || tokens && trial.errors > 0
            }),
            noticed_by,
            fork_point_exact: exact.reduce(|all, one| all && one),
            act_ms: median(trials.iter().filter_map(|trial| trial.act_ms).collect()),
            added_ms: None,
            run_s: median(trials.iter().map(|trial| trial.lived.seconds).collect())
                .unwrap_or_default(),
            added_run_s: None,
            sync_ms: Some(sync_ms()?),
            seed,
            versions: versions(cell.agent, real)?,
        })
    }

    /// Says what the fence added, next to the same cell without one in the same run.
    pub fn compare(&mut self, without: &Self) {
        if let (Some(with), Some(without)) = (self.act_ms, without.act_ms) {
            self.added_ms = Some(tenths(with - without));
        }
        self.added_run_s = Some(tenths(self.run_s - without.run_s));
    }

    /// What a cell that was not run is told apart by.
    fn place(&self) -> (String, Agent, String, String, Between) {
        (
            self.scenario.clone(),
            self.agent,
            self.restore.clone(),
            self.transport.clone(),
            self.fence,
        )
    }

    /// What tells cells apart.
    fn key(&self) -> impl Ord + use<> {
        (
            self.scenario.clone(),
            self.agent,
            self.restore.clone(),
            self.transport.clone(),
            self.fence,
            self.suspect,
            self.wording.map(|wording| wording as u8),
            self.model.clone(),
        )
    }
}

/// Whether the model acted again where it had forgotten that it had.
fn exposed(trial: &Trial) -> bool {
    trial.orders.unaware > 1
}

/// Puts `new` into `file`, in place of what it says of the same cells.
pub fn write(file: &Path, new: &[Report]) -> Result<()> {
    // Two runs may write at the same time.
    let locked = fs::File::options()
        .create(true)
        .append(true)
        .open(file)
        .with_context(|| format!("opening {}", file.display()))?;
    locked.lock().context("waiting for another run to write")?;
    let mut all = BTreeMap::new();
    for report in read(file)?.into_iter().chain(new.iter().cloned()) {
        all.insert(report.key(), report);
    }
    let lines: Vec<String> = all
        .values()
        .map(|report| Ok(serde_json::to_string(report)? + "\n"))
        .collect::<Result<_>>()?;
    fs::write(file, lines.concat()).with_context(|| format!("writing {}", file.display()))
}

/// Adds `new` to the cells in `directory` that were not run, without those that were run since.
pub fn write_not_run(directory: &Path, new: Vec<NotRun>) -> Result<()> {
    let file = directory.join("not-run.jsonl");
    let run: Vec<Report> = read(&directory.join("cells.jsonl"))?;
    let run: BTreeSet<_> = run.iter().map(Report::place).collect();
    let mut all = BTreeMap::new();
    for cell in read::<NotRun>(&file)?.into_iter().chain(new) {
        let place = (
            cell.scenario.clone(),
            cell.agent,
            cell.restore.clone(),
            cell.transport.clone(),
            cell.fence,
        );
        if !run.contains(&place) {
            all.insert(place, cell);
        }
    }
    let lines: Vec<String> = all
        .values()
        .map(|cell| Ok(serde_json::to_string(cell)? + "\n"))
        .collect::<Result<_>>()?;
    fs::create_dir_all(directory)?;
    fs::write(&file, lines.concat()).with_context(|| format!("writing {}", file.display()))
}

/// Cells in `file`, if it is there.
pub fn read<T: for<'a> Deserialize<'a>>(file: &Path) -> Result<Vec<T>> {
    if !file.exists() {
        return Ok(Vec::new());
    }
    let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    text.lines()
        .map(|line| serde_json::from_str(line).with_context(|| format!("it says: {line}")))
        .collect()
}

/// What a durable write of two KiB takes where daemons keep their logs.
fn sync_ms() -> Result<f64> {
    let mut file = tempfile::tempfile().context("making a file to measure the disk with")?;
    let mut times = Vec::new();
    for _ in 0..20 {
        let began = Instant::now();
        file.write_all(&[7; 2048])?;
        file.sync_data()?;
        times.push(began.elapsed().as_secs_f64() * 1000.0);
    }
    times.sort_by(f64::total_cmp);
    Ok((times[times.len() / 2] * 100.0).round() / 100.0)
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let value = *values.get(middle)?;
    Some(tenths(if values.len().is_multiple_of(2) {
        f64::midpoint(values[middle - 1], value)
    } else {
        value
    }))
}

fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

fn versions(agent: Agent, real: Option<&Endpoint>) -> Result<BTreeMap<String, String>> {
    let fence = run("acrfence", plain(acrfence()?).arg("--version"))?.stdout;
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let mut versions = BTreeMap::from([
        (
            "acrfence".into(),
            fence.replace("acrfence", "").trim().into(),
        ),
        ("kernel".into(), kernel.trim().into()),
        (agent.name().into(), agent.version(&installed()?)?),
    ]);
    versions.extend(commit().map(|commit| ("commit".into(), commit)));
    versions.extend(real.map(|endpoint| ("model".into(), endpoint.name.clone())));
    Ok(versions)
}

/// The last commit that changed the daemon, as it was when the first cell was reported, if it is known.
fn commit() -> Option<String> {
    static COMMIT: OnceLock<Option<String>> = OnceLock::new();
    COMMIT.get_or_init(last_commit).clone()
}

fn last_commit() -> Option<String> {
    let mut git = plain("git");
    git.args(["-C", env!("CARGO_MANIFEST_DIR"), "log", "-1", "--format=%h"]);
    git.args([
        "--abbrev=10",
        "--",
        "../acrfence-user/src",
        "../acrfence-common",
        "../acrfence-ebpf",
    ]);
    let ended = run("git", &mut git).ok()?;
    ended.ok().then(|| ended.stdout.trim().to_owned())
}
