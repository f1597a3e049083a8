//! cli (to come)

pub mod mcp;
