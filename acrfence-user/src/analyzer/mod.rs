//! analyzer (to come)
