//! What the kernel programs and user space say to each other.
//!
//! Every type has a fixed layout without padding, so that its bytes are the same on both sides,
//! hold nothing uninitialised, and can be hashed as a map key. Addresses are 16 bytes: IPv6, or
//! IPv4 mapped into it (`::ffff:a.b.c.d`). Ports are in host order.
#![no_std]

mod event;
mod gate;
mod layout;
mod table;

pub use event::{
    ConnectEvent, EventHeader, EventKind, ExecEvent, ExecFlags, ExecHead, ExitEvent, ForkEvent,
    LargeExec, PATH_NAME, PATH_ROOM, RestoreEvent, SmallExec, WAKE_EVERY_NS, WriteEvent,
};
pub use gate::{
    CommandWord, GateCause, GateConfig, GateEntry, GateEvent, GateOutcome, GateRefusal, GateWhy,
    ProgramName,
};
pub use layout::Layout;
pub use table::{
    AgentLabel, Captures, Channel, Claim, ClientKey, Config, Counters, DropKey, DropReason,
    Endpoint, Listener, Parentage, Primitive, Restorable, SnapshotRow, SocketRecord, Sort, Tracked,
    Traffic, TrafficKey, Treatment,
};

/// Changes whenever the layout or meaning of anything here changes; programs and maps that are
/// pinned with another number are not taken over.
pub const ABI: u32 = 5;

/// Agent index of a process that is exempt: the daemon itself. Never fenced, never inherited.
pub const EXEMPT: u32 = u32::MAX;

/// Agent index in events about processes that belong to no agent.
pub const NO_AGENT: u32 = u32::MAX - 1;

/// Agent index of a process that was just put together from a saved one of an agent (CRIU) and whose
/// new life the daemon has not begun yet. Tracked: its connections are redirected, and the daemon drops
/// them as long as nobody knows whose they are.
pub const RESTORED: u32 = u32::MAX - 2;

/// The largest index an agent can have.
pub const MAX_AGENT: u32 = u32::MAX - 3;

/// Checks that a type has exactly the size of its fields (no padding) and fits 8-byte alignment.
macro_rules! no_padding {
    ($($name:ident = $size:expr),* $(,)?) => {
        $(const _: () = assert!(core::mem::size_of::<$name>() == $size && core::mem::align_of::<$name>() <= 8);)*
    };
}
pub(crate) use no_padding;

/// Lets aya read and write a type as bytes.
macro_rules! plain {
    ($($name:ty),* $(,)?) => {
        $(
            // SAFETY: `repr(C)`, made of integers only, and without padding (`no_padding!`).
            #[cfg(feature = "user")]
            unsafe impl aya::Pod for $name {}
        )*
    };
}
pub(crate) use plain;

/// Reads an enumeration back from its number.
macro_rules! from_number {
    ($($name:ident { $($variant:ident),* $(,)? })*) => {
        $(impl $name {
            /// The value with this number, if there is one.
            pub fn from_number(number: u32) -> Option<Self> {
                $(if number == Self::$variant as u32 { return Some(Self::$variant); })*
                None
            }
        })*
    };
}
pub(crate) use from_number;
