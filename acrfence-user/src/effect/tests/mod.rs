//! What the store promises, against a model and against a hostile disk.

mod answers;
mod damage;
mod gc;
mod power;
mod room;
mod upkeep;
