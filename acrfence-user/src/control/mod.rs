//! control (to come)
