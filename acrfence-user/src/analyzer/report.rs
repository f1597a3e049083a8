//! What a run over a corpus shows: confusion matrix, per tag, per transport, every unsafe verdict.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::judge::{Judgement, Stage};
use super::pairs::{Pair, PairVerdict};

/// Counts over a corpus.
#[derive(Debug, Default)]
pub struct Report {
    name: String,
    matrix: BTreeMap<(PairVerdict, PairVerdict), usize>,
    tags: BTreeMap<String, [usize; 3]>,
    transports: BTreeMap<String, [usize; 3]>,
    unsafe_verdicts: Vec<String>,
    missed: Vec<String>,
    by_model: usize,
    unlabelled: usize,
    times: Vec<Duration>,
}

impl Report {
    /// An empty report with a heading.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ..Self::default()
        }
    }

    /// Counts one verdict and how long it took.
    pub fn add(&mut self, pair: &Pair, judgement: &Judgement, took: Duration) {
        self.times.push(took);
        self.by_model += usize::from(judgement.stage == Stage::Llm);
        let why = judgement
            .fields
            .iter()
            .map(|f| format!("{} ({}): {}", f.path, f.class, f.reason))
            .collect::<Vec<_>>()
            .join("; ");
        self.count(pair, judgement.verdict, &why);
    }

    /// Counts one verdict without its reasons.
    pub fn count(&mut self, pair: &Pair, verdict: PairVerdict, why: &str) {
        let Some(expected) = pair.expected else {
            self.unlabelled += 1;
            return;
        };
        *self.matrix.entry((expected, verdict)).or_default() += 1;
        let is_unsafe = is_unsafe(expected, verdict);
        let right = expected == verdict;
        for (table, key) in pair
            .tags
            .iter()
            .map(|t| (true, t))
            .chain(std::iter::once((false, &pair.transport)))
        {
            let table = if table {
                &mut self.tags
            } else {
                &mut self.transports
            };
            let row = table.entry(key.clone()).or_default();
            row[0] += 1;
            row[1] += usize::from(right);
            row[2] += usize::from(is_unsafe);
        }
        if is_unsafe {
            self.unsafe_verdicts.push(format!(
                "{}: {} but {}; {why}",
                pair.id,
                expected.as_str(),
                verdict.as_str()
            ));
        } else if !right {
            self.missed.push(format!(
                "{}: {} but {}; {why}",
                pair.id,
                expected.as_str(),
                verdict.as_str()
            ));
        }
    }

    /// How many pairs that deserve `expected` got `verdict`.
    pub fn cell(&self, expected: PairVerdict, verdict: PairVerdict) -> usize {
        self.matrix
            .get(&(expected, verdict))
            .copied()
            .unwrap_or_default()
    }

    /// How many pairs deserve `expected`.
    pub fn total(&self, expected: PairVerdict) -> usize {
        ALL.iter().map(|v| self.cell(expected, *v)).sum()
    }

    /// Verdicts that would hide a wanted action.
    pub fn unsafe_verdicts(&self) -> &[String] {
        &self.unsafe_verdicts
    }

    /// Verdicts that are not the expected ones, but safe.
    pub fn missed(&self) -> &[String] {
        &self.missed
    }

    fn at(&self, percent: usize) -> Duration {
        let mut times = self.times.clone();
        times.sort_unstable();
        let last = times.len().saturating_sub(1);
        times.get(last * percent / 100).copied().unwrap_or_default()
    }
}

/// Whether a verdict answers a call from the record although it means something else.
pub fn is_unsafe(expected: PairVerdict, verdict: PairVerdict) -> bool {
    verdict == PairVerdict::Replay && expected != PairVerdict::Replay
}

const ALL: [PairVerdict; 4] = [
    PairVerdict::Replay,
    PairVerdict::Diverge,
    PairVerdict::Credential,
    PairVerdict::Hold,
];

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "== {}", self.name)?;
        writeln!(
            f,
            "{:<12}{:>8}{:>8}{:>12}{:>8}",
            "expected", "replay", "diverge", "credential", "hold"
        )?;
        for expected in [
            PairVerdict::Replay,
            PairVerdict::Diverge,
            PairVerdict::Credential,
        ] {
            writeln!(
                f,
                "{:<12}{:>8}{:>8}{:>12}{:>8}",
                expected.as_str(),
                self.cell(expected, PairVerdict::Replay),
                self.cell(expected, PairVerdict::Diverge),
                self.cell(expected, PairVerdict::Credential),
                self.cell(expected, PairVerdict::Hold)
            )?;
        }
        let share = |verdict| {
            let total = self.total(verdict);
            let right = self.cell(verdict, verdict);
            if total == 0 {
                100.0
            } else {
                right as f64 * 100.0 / total as f64
            }
        };
        writeln!(
            f,
            "replays recognised {:.1} %, credentials recognised {:.1} %, unsafe {}, settled by the model {}, unlabelled {}",
            share(PairVerdict::Replay),
            share(PairVerdict::Credential),
            self.unsafe_verdicts.len(),
            self.by_model,
            self.unlabelled
        )?;
        if !self.times.is_empty() {
            writeln!(
                f,
                "time per pair: median {:?}, 95th percentile {:?}, longest {:?}",
                self.at(50),
                self.at(95),
                self.at(100)
            )?;
        }
        for (what, table) in [("transport", &self.transports), ("tag", &self.tags)] {
            writeln!(f, "-- by {what}: right of all, unsafe")?;
            for (key, [all, right, is_unsafe]) in table {
                writeln!(f, "{key:<32}{right:>5} of {all:<5}{is_unsafe:>5}")?;
            }
        }
        writeln!(f, "-- unsafe verdicts: {}", self.unsafe_verdicts.len())?;
        for line in &self.unsafe_verdicts {
            writeln!(f, "{line}")?;
        }
        writeln!(
            f,
            "-- other verdicts than expected, but safe: {}",
            self.missed.len()
        )?;
        for line in &self.missed {
            writeln!(f, "{line}")?;
        }
        Ok(())
    }
}
