//! The pure control plane: state, commands, scheduler, broker, leader duties.
//!
//! | module | content |
//! |---|---|
//! | [`state`] | the tables with their indexes, O(1) snapshots, the invariants as code |
//! | [`fsm`] | commands: the only writer of [`state::State`] |
//! | [`snapshot`] | a state as a stream of versioned records, and back |
//! | [`scheduler`] | a snapshot and an evaluation in, a plan out |
//! | [`broker`], [`blocked`] | the order of evaluations; the evaluations that wait for room |
//! | [`applier`] | plans checked and merged into one command |
//! | [`migrate`] | the data that an allocation gets from another node |
//! | [`dry_run`] | the effects of registering a job |
//! | [`heartbeat`], [`gc`], [`watch`], [`periodic`], [`converge`] | leader duties |
//! | [`limits`] | bounds, each with its reason |
//!
//! Deliberately absent: I/O, clocks, random numbers, async, threads, hash maps with random order. Time
//! is an argument; ids are derived from the log index. The shell is `control`.

#![forbid(unsafe_code)]
#![warn(clippy::wildcard_enum_match_arm)]

pub mod applier;
pub mod blocked;
pub mod broker;
#[cfg(test)]
mod chance;
pub mod converge;
pub mod dry_run;
#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
pub mod fsm;
pub mod gc;
pub mod heartbeat;
pub mod limits;
pub mod migrate;
pub mod periodic;
pub mod scheduler;
pub mod snapshot;
pub mod state;
pub mod watch;
