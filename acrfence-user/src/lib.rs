//! ACRFence keeps a restored agent from doing twice what it already did outside.
//!
//! The folders are the rooms of the way of the data (`docs/architecture.md`):
//! [`probe`] and [`boundary`] produce facts, [`lineage`] places them, [`fence`] decides,
//! [`effect`] makes the decision durable, and [`boundary`] carries it out. [`words`] holds the
//! types that all rooms speak in, [`policy`] what the operator wants, [`daemon`] puts the rooms
//! together, [`control`] and [`cli`] are how a person asks. [`hints`] are what agents keep about themselves.

pub mod analyzer;
pub mod boundary;
pub mod cli;
pub mod control;
pub mod daemon;
pub mod effect;
pub mod fence;
pub mod hints;
pub mod lineage;
mod netns;
pub mod policy;
pub mod probe;
pub mod words;
