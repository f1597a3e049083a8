//! Why a process could not be worked on.

use nix::errno::Errno;

/// Why a process could not be worked on at the gate. It is then as it was: still stopped.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum GateError {
    /// Somebody else is its tracer.
    #[error(
        "process {pid} cannot be gated: process {tracer} traces it; end the debugger, or wrap the program with `acrfence mcp -- …`"
    )]
    Traced {
        /// The process.
        pid: i32,
        /// Its tracer.
        tracer: i32,
    },
    /// The kernel does not let us.
    #[error(
        "process {pid} cannot be gated: the kernel refuses ptrace ({why}); run the daemon with CAP_SYS_PTRACE in the initial user namespace"
    )]
    Refused {
        /// The process.
        pid: i32,
        /// The error.
        why: Errno,
    },
    /// It has a seccomp filter that cannot be put to sleep.
    #[error(
        "process {pid} cannot be gated: it has a seccomp filter and the kernel does not let the daemon suspend it; run the daemon with CAP_SYS_ADMIN and without a filter of its own"
    )]
    Seccomp {
        /// The process.
        pid: i32,
    },
    /// A program for another architecture or mode.
    #[error("process {pid} cannot be gated: it runs a program of another architecture")]
    OtherArchitecture {
        /// The process.
        pid: i32,
    },
    /// It has executed instructions of its program already.
    #[error(
        "process {pid} cannot be gated: it is past its first instruction, and may have kept what would be changed"
    )]
    PastGate {
        /// The process.
        pid: i32,
    },
    /// It ended.
    #[error("process {pid} ended at the gate")]
    Gone {
        /// The process.
        pid: i32,
    },
    /// Something did not work in it; nothing was changed.
    #[error("process {pid} cannot be gated: {what} failed in it ({why})")]
    Failed {
        /// The process.
        pid: i32,
        /// What was tried.
        what: &'static str,
        /// The error.
        why: Errno,
    },
    /// Its arguments and environment fill the stack.
    #[error("process {pid} gets no more environment: its arguments leave no room on the stack")]
    NoRoom {
        /// The process.
        pid: i32,
    },
}

impl GateError {
    /// The reason in a word, for counters.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Traced { .. } => "traced",
            Self::Refused { .. } => "refused",
            Self::Seccomp { .. } => "seccomp",
            Self::OtherArchitecture { .. } => "other_architecture",
            Self::PastGate { .. } => "past_gate",
            Self::Gone { .. } => "gone",
            Self::Failed { .. } => "failed",
            Self::NoRoom { .. } => "no_room",
        }
    }
}
