//! Normal forms of scalar values: what is the same however it is written.

pub(super) mod instant;
pub(super) mod number;
pub(super) mod spelling;
pub(super) mod unit;
