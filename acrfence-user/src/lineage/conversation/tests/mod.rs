//! Whole conversations in the wire formats of real clients, without any of them.

mod again;
mod agent;
mod formats;
mod hostile;
mod ordinary;
mod outcomes;
mod placing;
mod properties;
mod restores;
mod wire;
mod world;
