//! A seeded cluster on virtual time.
//!
//! The control plane's own pieces (`fsm`, broker, scheduler, applier, heartbeats, garbage collection)
//! with one server whose leadership is lost and won, and agents that are a simple model: they start,
//! finish and fail allocations, fall silent, come back, reboot, and repeat themselves. Messages are
//! late; reports come twice. After every entry all invariants are checked and a second replica must be
//! equal. At the end faults stop, and everything must come to rest where it should.
//!
//! | module | what |
//! |---|---|
//! | [`dice`] | all that is random, from one seed |
//! | [`agent`] | the model of an agent |
//! | [`server`] | the leader: proposals, effects, workers, duties |
//! | [`world`] | time, messages, faults, users |
//! | [`rest`] | what must be so when all is quiet |
//!
//! The same seed gives the same trace, byte for byte.

#![forbid(unsafe_code)]

pub mod agent;
pub mod dice;
pub mod limits;
pub mod rest;
pub mod server;
pub mod world;

pub use world::{Report, SimConfig, run};

#[cfg(test)]
mod tests;
