//! Runs a task as a Linux process.
//!
//! - [`NativeDriver`] is the driver. [`serve()`] offers it on a socket, as a process that outlives its agent
//!   (`muster driver native`).
//! - `config` reads a task's block, `command` turns the block into everything that a process start needs. `spawn`
//!   starts the process without fork, `task` follows it to its end, `process` identifies it. `cgroup` reaches all
//!   processes of the task, `paths` opens files that a task could have tampered with.
//!
//! A task is identified by its pidfd, its start time and its cgroup, never by its pid alone. The driver starts no
//! thread for a task; `spawn_pool` has a few threads that start tasks one after the other. Except for the reaper of
//! `init` and the porter, the driver starts no process of its own for a task. One epoll waits for all tasks.
//!
//! - `actions` carries out a tree of actions in place of a program, in processes next to a reaper. `transfer`
//!   downloads and uploads files for the tree on the host's side. `transfer_helper` is the driver's side of the
//!   porter, which reads and writes the files inside the task.
//! - `isolation` decides how far a task is isolated from its node and writes the calls for that. `policy` is the
//!   node's policy, `node` the features of the machine, `init` the reaper for tasks that ask for one.
//! - `watchdog` stops tasks that must not run forever without an agent while no agent is connected.
//!
//! - `names` writes a task's own `resolv.conf`, if its host sets the name resolution.
//!
//! The agent manages cgroups and limits. A foreign host names a cgroup and leaves the limits to the driver. The agent
//! also manages the network: the driver puts a task into an existing network namespace, or into an empty one.

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
