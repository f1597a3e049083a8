//! HTTP on both legs.

pub(super) mod agent;
pub(super) mod body;
pub(super) mod budget;
pub(super) mod encoding;
pub(super) mod exchange;
pub(super) mod headers;
pub mod heads;
pub(super) mod inflow;
pub(super) mod outlet;
pub(super) mod relay;
pub(super) mod replay;
pub(super) mod spool;
pub(super) mod switch;
pub(super) mod tunnel;
pub(super) mod upstream;

pub use encoding::decoded_body;
