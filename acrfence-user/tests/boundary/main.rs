//! The boundary between real clients and real upstreams on loopback: no kernel programs, no root.
#![allow(missing_docs)]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod fence;
mod hook;
mod site;

mod http1;
mod http2;
mod http2_torture;
mod mcp;
mod mcp_streams;
mod opaque;
mod outcome;
mod tls;
