//! Records of the ring buffer.

use crate::{no_padding, plain};

/// Which record follows. The first four bytes of every record.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// [`ForkEvent`]
    Fork = 1,
    /// [`SmallExec`]
    SmallExec = 2,
    /// [`LargeExec`]
    LargeExec = 3,
    /// [`ExitEvent`]
    Exit = 4,
    /// [`ConnectEvent`]
    Connect = 5,
    /// [`WriteEvent`]
    Write = 6,
    /// [`RestoreEvent`]
    Restore = 7,
    /// [`crate::GateEvent`], in a ring buffer of its own.
    Gate = 8,
}

/// Starts every record.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventHeader {
    /// An [`EventKind`].
    pub kind: u32,
    /// The agent, or [`crate::NO_AGENT`].
    pub agent: u32,
    /// The process the record is about.
    pub tgid: u32,
    /// The thread that did it.
    pub tid: u32,
    /// Start time of the process.
    pub start_ns: u64,
    /// When it happened (nanoseconds since boot).
    pub at_ns: u64,
}

/// A tracked process had a child; the header names the child.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ForkEvent {
    /// The child.
    pub header: EventHeader,
    /// Start time of the parent.
    pub parent_start_ns: u64,
    /// The parent.
    pub parent: u32,
    /// Must be zero.
    pub zero: u32,
}

/// Births, program starts and ends that nobody waits for wake the reader no more often than this (in
/// nanoseconds), so that many short programs do not pay for a wake-up each. The reader comes back by
/// itself for longer than this after the last report, so that none is left lying.
pub const WAKE_EVERY_NS: u64 = 20_000_000;

/// The last thread of a tracked process ended.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ExitEvent {
    /// The process.
    pub header: EventHeader,
    /// As `wait` reports it.
    pub status: i32,
    /// Must be zero.
    pub zero: u32,
}

/// What every exec record says besides its texts.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ExecHead {
    /// The process.
    pub header: EventHeader,
    /// Id of its cgroup.
    pub cgroup: u64,
    /// Its real user id.
    pub uid: u32,
    /// Its real group id.
    pub gid: u32,
    /// Length of its argument area.
    pub args_len: u32,
    /// Length of its environment area.
    pub env_len: u32,
    /// Bytes of `args` that are filled.
    pub args_kept: u32,
    /// Bytes of `env` that are filled.
    pub env_kept: u32,
    /// Bytes of `filename` that are filled.
    pub filename_kept: u32,
    /// [`ExecFlags`] bits.
    pub flags: u32,
    /// Inode number of its network namespace; 0 when it could not be read.
    pub netns: u32,
    /// Bytes of `cwd` that are filled.
    pub cwd_kept: u32,
    /// Bytes of `exe` that are filled.
    pub exe_kept: u32,
    /// Must be zero.
    pub zero: u32,
}

/// Room for a path.
pub const PATH_ROOM: usize = 1024;
/// Room for one name of a path and its closing zero byte.
pub const PATH_NAME: usize = 256;

/// Bits of [`ExecHead::flags`].
pub struct ExecFlags;

impl ExecFlags {
    /// The argument area could not be read.
    pub const ARGS_UNREADABLE: u32 = 1;
    /// The environment area could not be read.
    pub const ENV_UNREADABLE: u32 = 2;
    /// The working directory could not be written down.
    pub const CWD_UNREADABLE: u32 = 4;
    /// The working directory was removed.
    pub const CWD_GONE: u32 = 8;
    /// The path of the executable could not be written down.
    pub const EXE_UNREADABLE: u32 = 16;
    /// The executable was removed.
    pub const EXE_GONE: u32 = 32;
}

/// A tracked process started a program.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ExecEvent<const ARGS: usize, const ENV: usize> {
    /// The process.
    pub head: ExecHead,
    /// The name it was started by.
    pub filename: [u8; 256],
    /// Names of its working directory's path, the last one first, each ended by a zero byte.
    pub cwd: [u8; PATH_ROOM],
    /// The same of its executable.
    pub exe: [u8; PATH_ROOM],
    /// Arguments, each ended by a zero byte.
    pub args: [u8; ARGS],
    /// Environment, each variable ended by a zero byte. User space keeps what is allow-listed.
    pub env: [u8; ENV],
}

/// For the many short command lines.
pub type SmallExec = ExecEvent<1024, 4096>;
/// For the rest.
pub type LargeExec = ExecEvent<8192, 32768>;

/// A tracked process connected (or sent a datagram to a named destination) and was not redirected.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectEvent {
    /// The process.
    pub header: EventHeader,
    /// Where to.
    pub peer: crate::Endpoint,
    /// A [`crate::Treatment`].
    pub treatment: u32,
    /// `IPPROTO_…`
    pub protocol: u32,
    /// Must be zero.
    pub zero: u32,
}

/// A tracked process wrote to a pipe, a unix socket or an internet socket that is not redirected.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct WriteEvent {
    /// The process.
    pub header: EventHeader,
    /// Inode number of the pipe or socket.
    pub inode: u64,
    /// Bytes of this call, as asked for.
    pub length: u64,
    /// Calls on this channel so far, this one included.
    pub calls: u64,
    /// Bytes on this channel so far, this call included.
    pub bytes: u64,
    /// The descriptor.
    pub fd: i32,
    /// A [`crate::Channel`].
    pub channel: u32,
    /// The other end of an internet socket; zero when there is none or it is not known.
    pub peer: crate::Endpoint,
    /// Bytes of `path` that are filled.
    pub path_kept: u32,
    /// Bytes of `data` that are filled.
    pub data_kept: u32,
    /// Must be zero.
    pub zero: u32,
    /// Name of the other end of a unix socket (a leading zero byte: abstract).
    pub path: [u8; 128],
    /// First bytes of the call.
    pub data: [u8; 256],
}

/// A restore primitive was used, by a tracked process or not.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RestoreEvent {
    /// The process; the agent is [`crate::NO_AGENT`] when it is not tracked.
    pub header: EventHeader,
    /// The pid asked for, the `PR_SET_MM_…` field, the repair mode, the agent that was, or the pid that
    /// is seized.
    pub argument: u64,
    /// A [`crate::Primitive`].
    pub primitive: u32,
    /// Must be zero.
    pub zero: u32,
}

no_padding!(
    EventHeader = 32,
    ForkEvent = 48,
    ExitEvent = 40,
    ExecHead = 88,
    SmallExec = 88 + 256 + 2 * 1024 + 1024 + 4096,
    LargeExec = 88 + 256 + 2 * 1024 + 8192 + 32768,
    ConnectEvent = 64,
    WriteEvent = 72 + 20 + 12 + 128 + 256,
    RestoreEvent = 48,
);
plain!(
    EventHeader,
    ForkEvent,
    ExitEvent,
    ExecHead,
    SmallExec,
    LargeExec,
    ConnectEvent,
    WriteEvent,
    RestoreEvent
);
