//! cli (to come)
