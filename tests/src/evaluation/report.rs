//! What is written down of a cell, and the files that it is written into.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::{Between, Cell, Suspect, Trial};
use crate::agents::Agent;
use crate::client::{installed, plain};
use crate::fence::acrfence;
use crate::process::run;
use crate::scenario::Wording;

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
    /// Runs of a control in which something that was meant did not happen, or the agent did not end.
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
    pub fn of(cell: &Cell, seed: u64, trials: &[Trial]) -> Result<Self> {
        let redirected = cell.scenario.redirects() && !cell.is_control();
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
            wording: redirected.then_some(cell.wording),
            control: cell.is_control(),
            n: trials.len(),
            duplicates: if redirected {
                // What it does to another target is no duplicate; whether it may is counted apart.
                0
            } else {
                trials
                    .iter()
                    .map(|trial| trial.tally.effects.saturating_sub(meant))
                    .sum()
            },
            unauthorised: sum(|trial| trial.tally.unauthorised),
            finished: count(&|trial| trial.lived.finished),
            hindered: count(&|trial| {
                cell.is_control() && (trial.tally.effects < meant || !trial.lived.finished)
            }),
            noticed_by,
            fork_point_exact: exact.reduce(|all, one| all && one),
            act_ms: median(trials.iter().filter_map(|trial| trial.act_ms).collect()),
            added_ms: None,
            run_s: median(trials.iter().map(|trial| trial.lived.seconds).collect())
                .unwrap_or_default(),
            seed,
            versions: versions(cell.agent)?,
        })
    }

    /// Says what the fence added, next to the same cell without one in the same run.
    pub fn compare(&mut self, without: &Self) {
        if let (Some(with), Some(without)) = (self.act_ms, without.act_ms) {
            self.added_ms = Some(tenths(with - without));
        }
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
        )
    }
}

/// Puts `new` into `file`, in place of what it says of the same cells.
pub fn write(file: &Path, new: &[Report]) -> Result<()> {
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

fn versions(agent: Agent) -> Result<BTreeMap<String, String>> {
    let fence = run("acrfence", plain(acrfence()?).arg("--version"))?.stdout;
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    Ok(BTreeMap::from([
        (
            "acrfence".into(),
            fence.replace("acrfence", "").trim().into(),
        ),
        ("kernel".into(), kernel.trim().into()),
        (agent.name().into(), agent.version(&installed()?)?),
    ]))
}
