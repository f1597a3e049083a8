//! The exec gate: what the kernel is told to stop, and what it tells of what it stopped.

use crate::{EventHeader, from_number, no_padding, plain};

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
    /// Not a reason, but said beside them of an agent: a command that a shell with job control starts as
    /// a job, which cannot be stopped, is refused.
    pub const REFUSE_JOBS: u32 = 8;
}

/// How the gate works. One entry.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GateConfig {
    /// Whether a daemon serves the gate; without one nothing is stopped.
    pub served: u32,
    /// Whether a process of interest runs, unfenced, while no daemon serves (0: it is refused).
    pub open_when_down: u32,
    /// Whether a process of interest that cannot be stopped is refused (0: it runs).
    pub refuse_ungated: u32,
    /// Must be zero.
    pub zero: u32,
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

/// A word that a command line of some programs must have to be gated.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CommandWord {
    /// The word, kept as a program's name is.
    pub word: ProgramName,
    /// Of which programs: the value of their names.
    pub group: u32,
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
    /// A [`GateCause`] when it was refused, else zero.
    pub cause: u32,
}

/// A process of interest that was refused. Nobody can look at it any more, so its command line
/// comes along.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GateRefusal {
    /// The process.
    pub event: GateEvent,
    /// Its first words, each filled up with zeros; a longer one is cut.
    pub words: [[u8; GateRefusal::LONGEST]; GateRefusal::MOST],
    /// How many words there are, at most [`Self::MOST`] and one.
    pub count: u32,
    /// Must be zero.
    pub zero: u32,
}

impl GateRefusal {
    /// Words that are kept.
    pub const MOST: usize = 8;
    /// Bytes that are kept of each, with a zero at the end.
    pub const LONGEST: usize = 64;
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
    /// It was killed before its first instruction: it may not run, and cannot be stopped.
    Refused = 6,
    /// Its exec was denied: the same, seen by LSM before the program that it ran was gone.
    Denied = 7,
}

/// Why a process of interest was refused without anybody being asked.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GateCause {
    /// No daemon serves the gate.
    Unserved = 1,
    /// Somebody traces it.
    Traced = 2,
    /// A shell with job control started it, and its agent's commands must not run unseen now.
    Job = 3,
}

from_number! {
    GateCause { Unserved, Traced, Job }
    GateOutcome { Stopped, Traced, Killed, Passed, JobControl, Refused, Denied }
}

no_padding!(
    GateConfig = 16,
    ProgramName = 32,
    CommandWord = 36,
    GateEntry = 32,
    GateEvent = 56,
    GateRefusal = 56 + 8 * 64 + 8,
);
plain!(
    GateConfig,
    ProgramName,
    CommandWord,
    GateEntry,
    GateEvent,
    GateRefusal,
);
