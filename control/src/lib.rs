//! The control plane's shell: what of a server touches disk, network and clock.
//!
//! | module | what |
//! |---|---|
//! | [`server`] | puts a server together and takes it apart |
//! | [`handle`] | the handle its parts share: read, propose, ask a node |
//! | `raft` | the replicated log, its storage and snapshots |
//! | `leader` | duties of the leader: scheduling, heartbeats, garbage |
//! | [`agents`] | QUIC sessions of nodes |
//! | [`http`] | the HTTP API |
//! | `bbs` | Diego's own wire for one-off tasks, where it is asked for |
//! | `one_off` | what every way to one-off tasks shares |
//! | `events` | what the last entries changed, for the event stream |
//! | `listen` | takes QUIC connections and tells agents from servers |
//! | [`peers`] | other servers: connections to them, requests among them, joining |
//! | `published` | the newest state, for readers |
//! | `comparison` | whether all servers have the same state |
//! | `restore` | a saved snapshot on its way back |
//! | [`snapshot`] | saved snapshots: save, restore, inspect |
//! | `data_dir` | who may use the data directory |
//! | [`limits`] | bounds |
//!
//! Deliberately absent: decisions. What a command changes, where an instance goes, when a node is down:
//! all that is pure and lies in `control-core`.

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
