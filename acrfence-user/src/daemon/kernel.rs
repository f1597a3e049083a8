//! What the daemon needs from the kernel side. The probe stands behind it; in tests a table does.

use std::net::SocketAddr;

use crate::control::{Drop, OpenConnection};
use crate::words::ProcessIdentity;

/// An agent's life, as the kernel side knows it: the position of the record that began it.
pub type LifeIndex = u32;

/// A redirected connection, found by the address it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// Where the process wanted to connect to.
    pub original: SocketAddr,
    /// The process.
    pub process: ProcessIdentity,
    /// The life it belongs to.
    pub life: LifeIndex,
}

/// What is known of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessFacts {
    /// Executable.
    pub exe: String,
    /// Argument vector.
    pub argv: Vec<String>,
    /// Working directory.
    pub cwd: String,
    /// Real user id.
    pub uid: u32,
    /// Allow-listed environment.
    pub environment: Vec<(String, String)>,
    /// Why any of this may be incomplete; empty normally.
    pub gaps: String,
}

/// Where a process belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership {
    /// To this life of an agent.
    Inside(LifeIndex),
    /// To none.
    Outside,
    /// There is no such process any more, or it cannot be told.
    Unknown,
}

/// A process that was put together from a saved one and belongs to no life yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoredProcess {
    /// Which.
    pub process: ProcessIdentity,
    /// The life that the saved one belonged to, where that can still be told.
    pub was: Option<LifeIndex>,
    /// Its pid in the innermost of its pid namespaces, as the image has it.
    pub pid: u32,
}

/// The kernel side.
pub trait Kernel: Send + Sync + 'static {
    /// The process with this pid, verified to be alive.
    fn identify(&self, pid: u32) -> anyhow::Result<ProcessIdentity>;

    /// Tracks the process and all its descendants from now on; returns how many there are.
    fn track(&self, process: ProcessIdentity, life: LifeIndex) -> anyhow::Result<usize>;

    /// Whether connections of this process can be redirected at all.
    fn covers(&self, pid: u32) -> bool;

    /// Stops what a life's processes start at the exec gate, from now on. What cannot be stopped because
    /// it is typed into an interactive shell runs, or is refused.
    fn gate(&self, life: LifeIndex, refuses_what_is_typed: bool) -> anyhow::Result<()>;

    /// Whether an exec that must not run and cannot be stopped is denied before it begins.
    fn denies_exec(&self) -> bool {
        false
    }

    /// Stops tracking a life's processes.
    fn untrack(&self, life: LifeIndex) -> anyhow::Result<()>;

    /// Where the process with this pid belongs now.
    fn membership(&self, pid: u32) -> Membership;

    /// How many processes of a life there are now.
    fn processes(&self, life: LifeIndex) -> usize;

    /// The connection whose client has this address; forgotten once claimed or closed.
    fn claim(&self, from: SocketAddr) -> Option<Claimed>;

    /// The same for a client inside another network namespace.
    fn claim_in(&self, netns: u64, from: SocketAddr) -> Option<Claimed> {
        let _ = (netns, from);
        None
    }

    /// What is known of a process, also shortly after it ended.
    fn facts(&self, process: ProcessIdentity) -> ProcessFacts;

    /// TCP connections that a life's processes have open without the hook.
    fn open_connections(&self, life: LifeIndex) -> anyhow::Result<Vec<OpenConnection>>;

    /// Closes such connections, so that they come back through the hook; returns them with `cut` set
    /// where that worked.
    fn cut(&self, life: LifeIndex) -> anyhow::Result<Vec<OpenConnection>>;

    /// Restored processes that belong to no life yet. What they send is dropped.
    fn restored(&self) -> anyhow::Result<Vec<RestoredProcess>>;

    /// Makes a restored process, and what it made since, this life's; returns how many there are.
    fn adopt(&self, process: ProcessIdentity, life: LifeIndex) -> anyhow::Result<usize>;

    /// Tracks a restored process no longer, nor what it made since: it was no agent's.
    fn let_go(&self, process: ProcessIdentity) -> anyhow::Result<()>;

    /// Lets a restored process run: it is stopped as it appears.
    fn go_on(&self, process: ProcessIdentity) -> anyhow::Result<()>;

    /// Processes of a life, each with its pid in the innermost of its pid namespaces.
    fn members(&self, life: LifeIndex) -> Vec<(ProcessIdentity, u32)>;

    /// Says that a process of a life is saved under this innermost pid.
    fn expect_restore(&self, pid: u32, start_ns: u64, life: LifeIndex) -> anyhow::Result<()>;

    /// Events lost so far, by kind and cause.
    fn drops(&self) -> Vec<Drop>;

    /// Shortcomings of this kernel that an operator must know, in sentences.
    fn problems(&self) -> Vec<String>;
}
