//! The `muster` command line: client commands, and the entry points of the long-running processes.
//!
//! | module | what |
//! |---|---|
//! | [`client`], [`names`], [`output`], [`exit`] | what every client command shares |
//! | [`job`], [`deployment`], [`alloc`], [`node`], [`eval`], [`events`], [`task`], [`top`], [`system`], [`operator`] | a file per command family |
//! | [`serve`] | the composition root: server, agent, dev, driver |
//! | [`doctor`] | what this machine can do, and the fix for what it cannot |
//!
//! Job files are read by the crate `jobspec`. Client commands use `wire` and it only; [`serve`], [`doctor`] and the offline parts of [`operator`] are the only modules
//! that see more.

#![forbid(unsafe_code)]

pub mod alloc;
pub mod args;
pub mod client;
pub mod deployment;
pub mod doctor;
pub mod eval;
pub mod events;
pub mod exit;
pub mod job;
pub mod logs;
pub mod names;
pub mod net;
pub mod node;
pub mod operator;
pub mod output;
mod reason;
pub mod serve;
pub mod system;
pub mod task;
pub mod top;
pub mod usage;
pub mod why;
