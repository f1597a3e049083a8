//! probe (to come)
