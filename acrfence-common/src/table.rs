//! Keys and values of the maps.

use crate::{from_number, no_padding, plain};

/// Which agent a process belongs to. The key is its tgid.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tracked {
    /// `task->start_boottime` of the group leader: together with the tgid, the process identity.
    pub start_ns: u64,
    /// The agent, or [`crate::EXEMPT`], or [`crate::RESTORED`].
    pub agent: u32,
    /// Tgid of the process it was inherited from; 0 when it was not inherited.
    pub parent: u32,
}

/// A process that a restore would bring back under the same pid. The key is its tgid in the innermost
/// of its pid namespaces, which is what an image of it holds.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restorable {
    /// Start time of the process that was: one that has it is no restored one.
    pub start_ns: u64,
    /// The agent it belonged to.
    pub agent: u32,
    /// Must be zero.
    pub zero: u32,
}

/// Whose child a process was when that parent ended, noted while user space walks an existing tree.
/// The key is the child's tgid.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parentage {
    /// The child's start time.
    pub start_ns: u64,
    /// The parent's start time.
    pub parent_start_ns: u64,
    /// The parent's tgid.
    pub parent: u32,
    /// Must be zero.
    pub zero: u32,
}

/// What the operator wants, as far as the kernel needs to know. One entry.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// [`crate::ABI`] of whoever wrote this.
    pub abi: u32,
    /// Whether the daemon is alive. Set when it attaches; cleared by its exit.
    pub daemon_alive: u32,
    /// Whether tracked connections pass, unfenced, while the daemon is dead (0: they are refused).
    pub open_when_down: u32,
    /// Whether parents that end are noted because user space walks a tree.
    pub walking: u32,
    /// [`Captures`] bits: what writes are looked at.
    pub captures: u32,
    /// Number of entries in the pass-through map; 0 saves the look-ups.
    pub passes: u32,
    /// The daemon's tgid.
    pub daemon_tgid: u32,
    /// Must be zero.
    pub zero: u32,
    /// The daemon's start time.
    pub daemon_start_ns: u64,
    /// Id of the cgroup that the network hooks are attached to.
    pub cgroup: u64,
    /// Network namespace (cookie) of the daemon.
    pub daemon_netns: u64,
    /// A write on a channel that was seen before is sampled again after this time.
    pub resample_ns: u64,
}

/// Bits of [`Config::captures`].
pub struct Captures;

impl Captures {
    /// Writes to pipes and FIFOs.
    pub const PIPE: u32 = 1;
    /// Writes to unix sockets and socketpairs.
    pub const UNIX: u32 = 2;
    /// Writes to TCP, UDP and other internet sockets that are not redirected.
    pub const INET: u32 = 4;
    /// All of them.
    pub const ALL: u32 = 7;
}

/// Where redirected connections of one network namespace go. The key is its cookie.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listener {
    /// Port on 127.0.0.1; 0 when there is none.
    pub v4_port: u16,
    /// Port on ::1; 0 when there is none.
    pub v6_port: u16,
}

/// An address and port.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// IPv6, or IPv4 mapped into it.
    pub addr: [u8; 16],
    /// In host order; in the pass-through map 0 stands for any.
    pub port: u16,
    /// Must be zero.
    pub zero: u16,
}

/// What is known of a redirected socket. The key is its cookie.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketRecord {
    /// Start time of the process that called `connect`.
    pub start_ns: u64,
    /// Its network namespace.
    pub netns: u64,
    /// Its tgid.
    pub tgid: u32,
    /// Its agent.
    pub agent: u32,
    /// Where it wanted to connect to.
    pub original: Endpoint,
    /// The socket's own address; all zero until it is known (the SYN is about to leave).
    pub local: Endpoint,
    /// Whether it was redirected to 127.0.0.1 (4) or ::1 (6).
    pub family: u32,
    /// Must be zero.
    pub zero: u32,
}

/// How the daemon finds the record of a connection it accepted.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ClientKey {
    /// Network namespace cookie of the client.
    pub netns: u64,
    /// The client's own address.
    pub local: Endpoint,
    /// Must be zero.
    pub zero: u32,
}

/// The answer for a [`ClientKey`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Cookie of the client's socket.
    pub cookie: u64,
    /// Start time of the process that called `connect`.
    pub start_ns: u64,
    /// Its tgid.
    pub tgid: u32,
    /// Its agent.
    pub agent: u32,
    /// Where it wanted to connect to.
    pub original: Endpoint,
    /// Whether the daemon has asked.
    pub claimed: u32,
    /// When the client had closed its end (nanoseconds since boot); 0 while it is open.
    pub closed_ns: u64,
}

/// A channel that a process writes to, for accounting.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TrafficKey {
    /// Inode number of the pipe or socket; differs from any other that is open.
    pub inode: u64,
    /// The writing process.
    pub tgid: u32,
    /// A [`Channel`].
    pub channel: u32,
}

/// What went through a channel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes that were asked to be written; a short write counts in full.
    pub bytes: u64,
    /// Calls.
    pub calls: u64,
    /// When the first bytes of a call were last kept (nanoseconds since boot).
    pub sampled_ns: u64,
    /// Start time of the process.
    pub start_ns: u64,
    /// Its agent.
    pub agent: u32,
    /// The descriptor of the last call.
    pub fd: i32,
}

/// A row of the process snapshot.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotRow {
    /// Start time since boot.
    pub start_ns: u64,
    /// Thread group id.
    pub tgid: u32,
    /// Thread group id of the parent.
    pub parent: u32,
    /// `task->flags` (`PF_KTHREAD`, `PF_EXITING`).
    pub flags: u32,
    /// Must be zero.
    pub zero: u32,
}

/// Name of an agent index, kept with the hooks so that the next daemon knows whose processes
/// it finds.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentLabel {
    /// UTF-8, filled up with zeros.
    pub name: [u8; 64],
}

/// Accounts of one [`Sort`]. `seen == submitted + aggregated + dropped[..]`, always.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Times a hook had something to report.
    pub seen: u64,
    /// Reports that reached the ring buffer or the map.
    pub submitted: u64,
    /// Writes that only count in [`Traffic`], by design.
    pub aggregated: u64,
    /// Reports that were lost, by [`DropReason`].
    pub dropped: [u64; DropReason::COUNT],
}

/// Drops of one agent.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DropKey {
    /// The agent.
    pub agent: u32,
    /// A [`Sort`].
    pub sort: u16,
    /// A [`DropReason`].
    pub reason: u16,
}

/// What is accounted for separately.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sort {
    /// Births.
    Fork = 0,
    /// Program starts.
    Exec = 1,
    /// Deaths.
    Exit = 2,
    /// `connect` calls, and datagrams to a named destination, that were not redirected.
    Connect = 3,
    /// Connections that were redirected.
    Redirect = 4,
    /// Redirected connections whose own address was noted for the daemon.
    Establish = 5,
    /// Writes on pipes, unix sockets and internet sockets.
    Write = 6,
    /// Use of the kernel's restore primitives.
    Restore = 7,
    /// Processes of interest to the exec gate.
    Gate = 8,
}

impl Sort {
    /// How many there are.
    pub const COUNT: usize = 9;
    /// All of them.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Fork,
        Self::Exec,
        Self::Exit,
        Self::Connect,
        Self::Redirect,
        Self::Establish,
        Self::Write,
        Self::Restore,
        Self::Gate,
    ];
}

/// Why a report was lost.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DropReason {
    /// The ring buffer had no room: user space is too slow.
    RingFull = 0,
    /// A map had no room.
    MapFull = 1,
    /// Memory that should be readable was not.
    Unreadable = 2,
}

impl DropReason {
    /// How many there are.
    pub const COUNT: usize = 3;
    /// All of them.
    pub const ALL: [Self; Self::COUNT] = [Self::RingFull, Self::MapFull, Self::Unreadable];
}

/// What a process writes to.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Channel {
    /// A pipe or FIFO.
    Pipe = 1,
    /// A unix socket or socketpair.
    Unix = 2,
    /// A TCP connection that is not redirected.
    Tcp = 3,
    /// UDP.
    Udp = 4,
    /// Another internet protocol (SCTP, raw, …).
    Inet = 5,
}

/// What became of a `connect`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Treatment {
    /// Let through: the operator's pass-through list names it.
    Passed = 1,
    /// Let through: not TCP.
    NotTcp = 2,
    /// Let through: the daemon is down and policy says `open`.
    PassedDaemonDown = 3,
    /// Refused: UDP port 443 (QUIC), so that the client falls back to TCP.
    RefusedQuic = 4,
    /// Refused: the daemon is down and policy says `closed`.
    RefusedDaemonDown = 5,
    /// Refused: the original destination could not be stored.
    RefusedNoRoom = 6,
    /// Refused: there is no listener in this network namespace.
    RefusedNoListener = 7,
    /// Refused: a connection to the listener itself, which belongs to redirected ones.
    RefusedListener = 8,
}

/// A restore primitive of the kernel.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Primitive {
    /// `clone3` with `set_tid`.
    SetTid = 1,
    /// A write to `/proc/sys/kernel/ns_last_pid`.
    LastPid = 2,
    /// `prctl(PR_SET_MM)`.
    SetMm = 3,
    /// `setsockopt(TCP_REPAIR)`.
    TcpRepair = 4,
    /// `prctl(PR_SET_MM, PR_SET_MM_MAP)` by a process that has the pid of one that was an agent's: it is
    /// restored, and tracked as [`crate::RESTORED`] from here on. The argument is the agent it was.
    Restored = 5,
    /// `ptrace(PTRACE_SEIZE)` of a tracked process, whose pid is the argument: a dump begins so.
    Seize = 6,
}

no_padding!(
    Tracked = 16,
    Restorable = 16,
    Parentage = 24,
    Config = 64,
    Listener = 4,
    Endpoint = 20,
    SocketRecord = 72,
    ClientKey = 32,
    Claim = 56,
    TrafficKey = 16,
    Traffic = 40,
    SnapshotRow = 24,
    AgentLabel = 64,
    Counters = 24 + 8 * DropReason::COUNT,
    DropKey = 8,
);
plain!(
    Tracked,
    Restorable,
    Parentage,
    Config,
    Listener,
    Endpoint,
    SocketRecord,
    ClientKey,
    Claim,
    TrafficKey,
    Traffic,
    SnapshotRow,
    AgentLabel,
    Counters,
    DropKey
);

from_number! {
    Channel { Pipe, Unix, Tcp, Udp, Inet }
    Treatment { Passed, NotTcp, PassedDaemonDown, RefusedQuic, RefusedDaemonDown, RefusedNoRoom, RefusedNoListener, RefusedListener }
    Primitive { SetTid, LastPid, SetMm, TcpRepair, Restored, Seize }
}
