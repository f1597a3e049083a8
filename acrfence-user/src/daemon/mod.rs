//! daemon (to come)
