//! The exec gate: what the kernel is told to stop, and what it tells of what it stopped.

use crate::{EventHeader, no_padding, plain};

/// Why a process is of interest at exec: bits.
pub struct GateWhy;

impl GateWhy {
    /// Its input and output are pipes or unix sockets that its parent made for it.
    pub const STDIO: u32 = 1;
    /// The program is one that policy names.
    pub const COMMAND: u32 = 2;
    /// Its environment lacks the marker.
    pub const ENVIRONMENT: u32 = 4;
    /// All of them.
    pub const ALL: u32 = 7;
}

/// How the gate works. One entry.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GateConfig {
    /// Whether a daemon serves the gate; without one nothing is stopped.
    pub served: u32,
    /// Whether a process of interest runs, unfenced, while no daemon serves (0: it is killed).
    pub open_when_down: u32,
}

/// The name of a program, without its directory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ProgramName {
    /// UTF-8, filled up with zeros. Longer names are not known.
    pub bytes: [u8; 32],
}

impl ProgramName {
    /// The name as the programs keep it; none when it is too long.
    pub fn new(name: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        if name.len() >= bytes.len() {
            return None;
        }
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Some(Self { bytes })
    }
}

/// Where a process is. The key is its tgid.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GateEntry {
    /// Start time of the process.
    pub start_ns: u64,
    /// When it was stopped (nanoseconds since boot).
    pub at_ns: u64,
    /// Its agent.
    pub agent: u32,
    /// [`GateWhy`] bits it was stopped for.
    pub why: u32,
    /// [`GateWhy`] bits for which it is not stopped again.
    pub done: u32,
    /// Whether it stands at the gate.
    pub at_gate: u32,
}

/// A process of interest.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GateEvent {
    /// The process.
    pub header: EventHeader,
    /// Start time of its parent.
    pub parent_start_ns: u64,
    /// Its parent.
    pub parent: u32,
    /// [`GateWhy`] bits.
    pub why: u32,
    /// A [`GateOutcome`].
    pub outcome: u32,
    /// Must be zero.
    pub zero: u32,
}

/// What became of a process of interest.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GateOutcome {
    /// It stands at the gate.
    Stopped = 1,
    /// It runs: somebody traces it.
    Traced = 2,
    /// It was killed: no daemon serves the gate.
    Killed = 3,
    /// It runs: no daemon serves the gate, and policy says `open`.
    Passed = 4,
    /// It runs: an interactive shell started it as a job and would take it for stopped by a person.
    JobControl = 5,
}

impl GateOutcome {
    /// The value with this number, if there is one.
    pub fn from_number(number: u32) -> Option<Self> {
        [
            Self::Stopped,
            Self::Traced,
            Self::Killed,
            Self::Passed,
            Self::JobControl,
        ]
        .into_iter()
        .find(|outcome| *outcome as u32 == number)
    }
}

no_padding!(
    GateConfig = 8,
    ProgramName = 32,
    GateEntry = 32,
    GateEvent = 56,
);
plain!(GateConfig, ProgramName, GateEntry, GateEvent);
