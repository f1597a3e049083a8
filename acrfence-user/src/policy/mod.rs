//! policy (to come)
