//! Runs a task as a Linux process.
//!
//! - [`NativeDriver`] is the driver; [`serve()`] offers it on a socket, as a process that outlives
//!   its agent (`muster driver native`).
//! - `config` reads a task's block, `command` turns it into everything a process start needs,
//!   `spawn` starts the process without fork, `task` follows it to its end, `process` tells it from
//!   any other, `cgroup` reaches all of it, `paths` opens what a task could have tampered with.
//!
//! A task is named by its pidfd, its start time and its cgroup, never by its pid alone. The driver
//! starts no thread of its own for a task (`starters` are a few that start one after the other) and, but for the reaper of `init` and the porter, no process of its own for a task: one epoll waits
//! for all of them.
//!
//! - `actions` carries out a tree of actions in place of a program, in processes beside a reaper; `transfer` fetches
//!   and sends files for it from the host's side, `porter` is what reads and writes them on the task's.
//! - `isolation` decides how much a task is kept from its node and writes the calls that do it,
//!   `policy` is what the node allows, `node` what it can, `init` the reaper for tasks that ask for one.
//!
//! - `absence` ends tasks that may not run for ever without an agent, when none is there to do it.
//!
//! - `names` is a task's own `resolv.conf`, where its host says what stands in it.
//!
//! Cgroups and limits are the agent's; a host of another make names a group, and leaves the limits to the driver. So is the network: the driver puts a task into a namespace that
//! somebody made, or into an empty one.

pub mod limits;

mod actions;
mod cgroup;
mod command;
mod config;
mod driver;
mod exec;
mod field;
mod init;
mod isolation;
mod kill_on_drop;
mod names;
mod node;
mod paths;
mod policy;
mod process;
mod serve;
mod signal;
mod spawn;
mod spawn_pool;
mod stats;
mod task;
mod transfer;
mod transfer_helper;
mod user;
mod watchdog;

pub use crate::config::NAME;
pub use crate::driver::NativeDriver;
pub use crate::serve::{ServeError, serve, serve_plugin};
