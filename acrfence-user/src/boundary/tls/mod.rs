//! TLS on both legs: the local CA and its leaves, the handshake with the agent, and the verified
//! handshake with the upstream.

pub mod ca;
pub mod java;
pub mod private;
pub mod trust;

pub(super) mod accept;
pub(super) mod connect;
