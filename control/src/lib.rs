//! The control plane's shell: all parts of a server that touch disk, network and clock.
//!
//! | module | contents |
//! |---|---|
//! | [`server`] | puts a server together and takes it apart |
//! | [`handle`] | the handle that the server's parts share: read, propose, ask a node |
//! | `raft` | the replicated log, its storage and snapshots |
//! | `leader` | duties of the leader: scheduling, heartbeats, garbage |
//! | [`agents`] | QUIC sessions of nodes |
//! | [`http`] | the HTTP API |
//! | `bbs` | Diego's own wire protocol for one-off tasks, if configured |
//! | `one_off` | functions for one-off tasks that all APIs share |
//! | `events` | the changes of the last entries, for the event stream |
//! | `listen` | accepts QUIC connections and distinguishes agents from servers |
//! | [`peers`] | other servers: connections to them, requests among them, joining |
//! | `published` | the newest state, for readers |
//! | `consistency_check` | whether all servers have the same state |
//! | `restore` | the restore of a saved snapshot |
//! | [`snapshot`] | saved snapshots: save, restore, inspect |
//! | `data_dir` | the lock and identity of the data directory |
//! | [`limits`] | bounds |
//!
//! Deliberately absent: decisions. `control-core` is pure code and decides the effect of a command, the place of
//! an instance and when a node is down.

#![forbid(unsafe_code)]

pub mod agents;
mod backoff;
mod bbs;
mod callback;
mod clock;
mod consistency_check;
mod data_dir;
mod events;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod garbage;
pub mod handle;
pub mod http;
mod leader;
pub mod limits;
mod listen;
mod niceness;
mod one_off;
pub mod peers;
mod published;
mod raft;
mod restore;
pub mod server;
pub mod snapshot;
mod state_rules;

pub use consistency_check::DivergedError;
pub use data_dir::OpenDataDirError;
use muster_domain::error_chain::chain;
pub use raft::{ChangeServersError, OpenLogError, ReadSnapshotError, StartRaftError};
