//! The daemon: puts the rooms together and gives time, randomness and order to the pure ones.

mod access;
mod admit;
mod again;
mod api_errors;
mod attempts;
mod callers;
mod descriptors;
mod desks;
mod dumpers;
mod effects;
mod evidence;
mod follow;
mod gate;
mod holds;
mod in_doubt;
mod inform;
mod kernel;
mod lives;
mod namespaces;
mod nesting;
mod news;
mod notices;
mod observations;
mod observing;
mod opaque;
mod people;
mod pipeline;
mod probe_kernel;
mod provenance;
mod ran;
mod report;
mod restores;
mod service;
mod start;
mod stores;
mod talks;
mod ticket;
mod tools;
mod typed;
mod upkeep;
mod verdicts;
mod waiting;

pub use holds::Hold;
pub use kernel::{Claimed, Kernel, LifeIndex, Membership, ProcessFacts, RestoredProcess};
pub use notices::{Notices, OpaqueCount, TroubleNotice};
pub use pipeline::{Keys, Pipeline, PipelineError};
pub use service::Daemon;
pub use start::{Settings, serve};

use crate::words::Timestamp;

/// The time of now.
pub(crate) fn now() -> Timestamp {
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Timestamp(since_1970.map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
}
