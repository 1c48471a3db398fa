//! The nouns of Muster, shared by every other crate.
//!
//! | module | noun |
//! |---|---|
//! | [`account`] | users and groups of a machine |
//! | [`id`] | ids, log index, timestamp |
//! | [`job`] | job specification, versions, task groups, tasks |
//! | [`resources`] | what a task asks for and a node offers |
//! | [`node`] | a machine: fingerprint and status |
//! | [`alloc`] | an allocation: a task group placed on a node |
//! | [`clock_jump`] | jumps of a wall clock, by the times that a caller reads |
//! | [`deployment`] | the replacement of a job's older version by a newer one |
//! | [`error_chain`] | texts of errors with their causes |
//! | [`eval`] | an evaluation: a request to reconsider a job |
//! | [`one_off`] | work that runs at most once, and whose result reaches the client |
//! | [`plan`] | what a scheduler wants to change |
//! | [`scheduling`] | settings of the scheduler |
//! | [`mod@text_enum`] | names of enum values |
//! | [`number`], [`saturating`] | conversions of numbers |
//! | [`pattern`] | regular expressions as Go reads them |
//! | [`fault`] | a fault in an input, with its path |
//! | [`limits`] | bounds on everything a user can send |
//!
//! Deliberately absent: I/O, clocks, random numbers, async, threads.

#![forbid(unsafe_code)]

pub mod account;
pub mod alloc;
pub mod clock_jump;
pub mod deployment;
pub mod error_chain;
pub mod eval;
pub mod fault;
#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
pub mod id;
pub mod job;
pub mod limits;
mod namespace;
pub mod node;
pub mod number;
pub mod one_off;
pub mod pack;
pub mod pattern;
pub mod plan;
pub mod region;
pub mod resources;
pub mod saturating;
pub mod scheduling;
pub mod text_enum;
pub mod version;
