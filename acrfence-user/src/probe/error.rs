//! Why the probe could not do something.

use std::io;
use std::path::PathBuf;

/// Every message says what to do next.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// Not root.
    #[error("the kernel hooks need root; start the daemon with `sudo`, or as a system service")]
    NotRoot,
    /// The kernel has no type information.
    #[error(
        "this kernel has no type information ({0}); a kernel built with CONFIG_DEBUG_INFO_BTF is needed, as Debian, Fedora and Ubuntu ship it"
    )]
    NoBtf(String),
    /// The kernel keeps things elsewhere than the programs expect.
    #[error(
        "this kernel's structures are not as ACRFence knows them ({0}); nothing was loaded: use a release of ACRFence that knows this kernel, and report it with the output of `acrfence doctor`"
    )]
    UnknownLayout(String),
    /// No cgroup2 hierarchy is mounted.
    #[error(
        "no cgroup2 hierarchy is mounted; mount one with `mount -t cgroup2 none /sys/fs/cgroup/unified`, or boot with the unified hierarchy"
    )]
    NoCgroup2,
    /// The pin directory is not in a bpffs.
    #[error(
        "{0} is not in a bpffs, so the hooks would not outlive the daemon; choose a directory below /sys/fs/bpf"
    )]
    NoBpffs(PathBuf),
    /// The kernel refused a hook that cannot be done without.
    #[error(
        "this kernel refuses the hook `{hook}`: {why}; run `acrfence doctor` to see what it allows"
    )]
    Refused {
        /// Which.
        hook: String,
        /// What the kernel said.
        why: String,
    },
    /// The programs in this binary cannot be read.
    #[error("the kernel programs in this binary cannot be loaded: {0}")]
    Object(String),
    /// Another daemon has these hooks.
    #[error(
        "another ACRFence daemon holds the hooks in {0}; stop it first, or give this one another pin directory"
    )]
    Busy(PathBuf),
    /// Hooks of an incompatible version are in place.
    #[error(
        "the hooks in {directory} belong to another version of ACRFence (ABI {found}, this is {ABI}); stop its agents and remove the hooks with that version before starting this one",
        ABI = acrfence_common::ABI
    )]
    OtherVersion {
        /// The pin directory.
        directory: PathBuf,
        /// Their ABI number; 0 when it cannot be told.
        found: u32,
    },
    /// There is no such process.
    #[error("there is no process {0}; it may have ended, `ps -e` lists those that run")]
    NoSuchProcess(u32),
    /// The pid is a thread's.
    #[error("{tid} is a thread of process {tgid}; attach to {tgid}")]
    Thread {
        /// The thread.
        tid: u32,
        /// Its process.
        tgid: u32,
    },
    /// The process belongs to the kernel.
    #[error("process {0} is a thread of the kernel's own and cannot be an agent")]
    KernelThread(u32),
    /// The whole machine would be tracked.
    #[error(
        "process 1 is the ancestor of the whole machine and cannot be an agent; attach to the agent's own process"
    )]
    Init,
    /// The process is the daemon.
    #[error("process {0} is the ACRFence daemon itself and cannot be an agent")]
    Exempt(u32),
    /// The process belongs to an agent.
    #[error("process {pid} already belongs to an agent{named}; detach that agent first, or attach to a process outside it", named = named(.label))]
    AlreadyTracked {
        /// The process.
        pid: u32,
        /// The agent's index.
        agent: u32,
        /// The agent's name, where it is known.
        label: Option<String>,
    },
    /// The agent index is out of range.
    #[error("{0} is no agent index: the largest is {max}", max = acrfence_common::MAX_AGENT)]
    AgentIndex(u32),
    /// A map is full.
    #[error(
        "there is no room for more {0} in the kernel's tables; detach agents that are not needed"
    )]
    NoRoom(&'static str),
    /// The operating system said no.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// What it said.
        source: io::Error,
    },
}

fn named(label: &Option<String>) -> String {
    label
        .as_ref()
        .map(|name| format!(" (`{name}`)"))
        .unwrap_or_default()
}
