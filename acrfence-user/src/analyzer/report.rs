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
    by_model: Vec<Duration>,
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
        self.time(took);
        if judgement.stage == Stage::Llm {
            self.by_model.push(took);
        }
        let why = judgement
            .fields
            .iter()
            .map(|f| format!("{} ({}): {}", f.path, f.class, f.reason))
            .collect::<Vec<_>>()
            .join("; ");
        self.count(pair, judgement.verdict, &why);
    }

    /// Counts how long a verdict took.
    pub fn time(&mut self, took: Duration) {
        self.times.push(took);
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

    /// What the columns of [`Report::line`] are.
    pub const LINE_HEADING: &str =
        "replays recognised   diverge stopped   credential refused   held   unsafe   method";

    /// Everything in one line.
    pub fn line(&self) -> String {
        let held: usize = ALL.iter().map(|v| self.cell(*v, PairVerdict::Hold)).sum();
        let right = |verdict| format!("{} of {}", self.cell(verdict, verdict), self.total(verdict));
        format!(
            "{:>18}{:>18}{:>21}{:>7}{:>9}   {}",
            right(PairVerdict::Replay),
            right(PairVerdict::Diverge),
            right(PairVerdict::Credential),
            held,
            self.unsafe_verdicts.len(),
            self.name
        )
    }

    /// The confusion matrix with its rates, and every unsafe verdict.
    pub fn summary(&self) -> String {
        let mut out = String::new();
        // Writing to a text cannot fail.
        let _ = self
            .write_summary(&mut out)
            .and_then(|()| self.write_unsafe(&mut out));
        out
    }

    fn write_unsafe(&self, f: &mut impl fmt::Write) -> fmt::Result {
        writeln!(f, "-- unsafe verdicts: {}", self.unsafe_verdicts.len())?;
        for line in &self.unsafe_verdicts {
            writeln!(f, "{line}")?;
        }
        Ok(())
    }

    fn write_summary(&self, f: &mut impl fmt::Write) -> fmt::Result {
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
            self.by_model.len(),
            self.unlabelled
        )?;
        write_times(f, "", &self.times)?;
        write_times(f, " that the model settled", &self.by_model)?;
        Ok(())
    }
}

/// Of a sorted list of durations, the one that so many percent do not exceed.
fn at(times: &[Duration], percent: usize) -> Duration {
    let mut times = times.to_vec();
    times.sort_unstable();
    let last = times.len().saturating_sub(1);
    times.get(last * percent / 100).copied().unwrap_or_default()
}

fn write_times(f: &mut impl fmt::Write, what: &str, times: &[Duration]) -> fmt::Result {
    if times.is_empty() {
        return Ok(());
    }
    writeln!(
        f,
        "time per pair{what}: median {:.1?}, 95th percentile {:.1?}, longest {:.1?}",
        at(times, 50),
        at(times, 95),
        at(times, 100)
    )
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
        self.write_summary(f)?;
        for (what, table) in [("transport", &self.transports), ("tag", &self.tags)] {
            writeln!(f, "-- by {what}: right of all, unsafe")?;
            for (key, [all, right, is_unsafe]) in table {
                writeln!(f, "{key:<32}{right:>5} of {all:<5}{is_unsafe:>5}")?;
            }
        }
        self.write_unsafe(f)?;
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
