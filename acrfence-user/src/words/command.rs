//! A program that ran and is no effect: an observation, never a candidate.

use serde::{Deserialize, Serialize};

use super::{Origin, ProcessIdentity, Timestamp};

/// A program that an agent started and that no rule of the exec gate names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ran {
    /// The process, with the program's file, its arguments and its working directory.
    pub origin: Origin,
    /// The process that made it; none when that is not known.
    #[serde(default)]
    pub parent: Option<ProcessIdentity>,
    /// When it was started.
    pub began: Timestamp,
    /// How it ended.
    pub end: RanEnd,
    /// When that was seen.
    pub at: Timestamp,
}

/// What became of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RanEnd {
    /// Its process ended.
    Exited(ExitStatus),
    /// Its process went on as another program.
    Replaced,
    /// It ran on when the daemon stopped looking.
    Running,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitStatus {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// It was gone when it was looked for.
    Unknown,
}

impl ExitStatus {
    /// Reads what `wait` reports.
    pub fn from_wait(status: i32) -> Self {
        match status & 0x7f {
            0 => Self::Code(status >> 8 & 0xff),
            signal => Self::Signal(signal),
        }
    }
}
