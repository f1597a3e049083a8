//! cli (to come)

pub mod judge;
