//! How the gate works, and what it counts.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::boundary::process::commands::Rules;
use crate::boundary::process::stdio;

/// How the gate works.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which commands are gated.
    pub rules: Rules,
    /// Variables for programs whose environment lacks the marker. Those that a program has stay.
    pub variables: Vec<(String, String)>,
    /// Files that a program must see for the variables to make sense.
    pub files: Vec<PathBuf>,
    /// This program: started as `acrfence mcp`, it hands its pipes over by itself.
    pub program: PathBuf,
    /// Variables of a command that are part of what it means; `LC_*` stands for all that start so.
    pub kept: Vec<String>,
    /// What becomes of a process of interest that cannot be gated.
    pub ungated: Ungated,
    /// How long a process may stand at the gate without being decided about.
    pub bound: Duration,
    /// Bounds of the relays.
    pub stdio: stdio::Limits,
    /// How much of a command's output is kept.
    pub record: usize,
    /// Threads that work on processes.
    pub hands: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            rules: Rules::shipped(),
            variables: Vec::new(),
            files: Vec::new(),
            program: PathBuf::from("/proc/self/exe"),
            kept: Vec::new(),
            ungated: Ungated::default(),
            bound: Duration::from_secs(2),
            stdio: stdio::Limits::default(),
            record: 1 << 20,
            hands: 4,
        }
    }
}

/// What becomes of a process of interest that cannot be gated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ungated {
    /// It runs and counts as not fenced.
    #[default]
    LetRun,
    /// It is killed.
    Refuse,
}

/// How many processes were gated for what, and how many could not be and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// By what was done: `command`, `stdio`, `environment`, `nothing`.
    pub gated: BTreeMap<&'static str, u64>,
    /// By why it could not be.
    pub ungated: BTreeMap<&'static str, u64>,
}
