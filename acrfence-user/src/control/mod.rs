//! The control API: HTTP/JSON over a unix socket, versioned under `/v1`.

mod api;
mod client;
mod peer;
mod server;

pub use api::*;
pub use client::{Client, ClientError};
pub use peer::Peer;
pub use server::{ServeError, serve};
