//! cli (to come)

pub mod mcp;
pub mod warden;
