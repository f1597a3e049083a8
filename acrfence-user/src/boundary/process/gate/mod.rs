//! What becomes of a process that the kernel stopped between its exec and its first instruction.
//!
//! - A command that policy names is decided, and then run and recorded, or answered.
//! - A program whose input and output are pipes that its parent made for it gets ours in their
//!   place: what turns out to be JSON-RPC is fenced.
//! - A program whose environment lacks the marker gets the CA's variables.
//! - Everything else runs at once.
//!
//! Nobody stays: whoever stands at the gate longer than a bound without being decided about is let
//! run or killed, as policy says; and should the daemon die, a [`Warden`] sees to it.

mod door;
mod hands;
mod keeper;
mod relaying;
mod serving;
mod settings;
mod subject;
mod terminal;
mod troubles;
mod warden;
mod watched;

pub use door::Door;
pub use keeper::{Gatekeeper, Processes};
pub use serving::{Serving, serve};
pub use settings::{Counts, Settings, Ungated};

pub use warden::{Warden, stand_watch};
pub use watched::{AgentOf, Watched};

pub(crate) use keeper::Keeper;
pub(crate) use subject::{Subject, quoted};
