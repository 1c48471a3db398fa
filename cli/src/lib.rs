//! The `muster` command line: client commands, and the entry points of the long-running processes.
//!
//! | module | what |
//! |---|---|
//! | [`jobspec`] | job files to the API's JSON |
//! | [`client`], [`names`], [`output`], [`exit`] | what every client command shares |
//! | [`job`], [`alloc`], [`node`], [`eval`], [`top`], [`system`] | a file per command family |
//! | [`serve`] | the composition root: server, agent, dev, driver |
//! | [`doctor`] | what this machine can do, and the fix for what it cannot |
//!
//! Client commands use `wire` only; [`serve`] and [`doctor`] are the only modules that see the shells.

#![forbid(unsafe_code)]

pub mod alloc;
pub mod args;
pub mod client;
pub mod doctor;
pub mod eval;
pub mod exit;
pub mod job;
pub mod jobspec;
pub mod names;
pub mod node;
pub mod output;
pub mod serve;
pub mod system;
pub mod top;
pub mod usage;
