//! fence (to come)
