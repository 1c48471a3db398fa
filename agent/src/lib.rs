//! The agent: runs the allocations of one node.
//!
//! | module | subject |
//! |---|---|
//! | [`node`] | composition root and the node's loop; [`node::Agent`] |
//! | `context` | the parts that all allocations of the node share |
//! | `tasks` | allocations, tasks and task drivers |
//! | `session` | the session with a server |
//! | [`storage`] | directories, disks, records and their removal |
//! | `network` | networks of allocations, and refused packets |
//! | [`resources`] | cgroups, cores and users |
//! | [`monitoring`] | measurements of the machine and its tasks |
//! | [`bpf`] | eBPF programs: counters, network policy, exit ledger |
//! | [`ring`], [`logs`] | output of tasks: from FIFOs into rotated files, and reading those |
//! | [`clean`] | removal of everything that an agent made |
//! | `sys` | system calls without a safe wrapper |
//! | `limits` | bounds |
//!
//! Decisions are in `agent-core`; this crate does I/O.

pub mod bpf;
pub mod clean;
mod context;
#[cfg(feature = "fixture")]
pub mod fixture;
mod limits;
pub mod logs;
pub mod monitoring;
mod network;
pub mod node;
pub mod resources;
pub mod ring;
mod session;
pub mod storage;
mod sys;
mod tasks;

pub use muster_agent_core::gc::{GcConfig, GcLimits, GcReason, GcState, KeptReason};
pub use muster_domain::region;
pub use network::bridge::error::BridgeError;
pub use network::bridge::{DEFAULT_SUBNET, parse_subnet};
pub use network::cni::CniSettings;
pub use resources::users::{UserRange, UserRangeError};
pub use storage::disk::DiskEnforcement;
pub use storage::gc_outcome::GcOutcome;
pub use storage::roots::{ChrootEnv, ChrootEnvError};
pub use storage::store::{LockDataDirError, OpenStoreError};
pub use tasks::drivers::native::DriverConfigError;
pub use tasks::drivers::network_error::DriverNetworkError;
pub use tasks::drivers::plugin::{PluginError, PluginSettings};
