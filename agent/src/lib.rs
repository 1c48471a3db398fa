//! The agent: runs the allocations of one node.
//!
//! | module | what |
//! |---|---|
//! | [`node`] | composition root and the node's loop; [`node::Agent`] |
//! | `alloc`, `task` | carry out what `agent-core` decides about an allocation and its tasks |
//! | `control` | the session with a server, and its questions |
//! | `store`, `contact` | what survives the agent |
//! | `drivers` | task drivers, one of them in a process of its own |
//! | [`cgroup`], [`bpf`] | limits, counters, the exit ledger |
//! | [`ring`], [`logs`] | output of tasks: FIFOs into rotated files, and reading those |
//! | `fingerprint`, `stats`, [`doctor`] | what the machine has, uses, and lacks |
//! | `allocdir`, `payload`, `task_env` | directories, dispatched file and environment of tasks |
//! | `roots` | roots made of the host's directories, for drivers that change into one |
//! | `disk` | ephemeral disks: limited by the file system, or measured |
//! | `cores`, `volumes` | cores of a task's own, and host volumes of the node in tasks |
//! | `migrate` | an allocation's data, to and from other nodes |
//! | `gc`, [`trash`], [`clean`] | removal of what has finished, and of everything |
//! | `verdicts` | what network policies refused, for whoever asks |
//! | `sys` | system calls without a safe wrapper |
//! | `limits` | bounds |
//!
//! Decisions are in `agent-core`; this crate does I/O.

mod alloc;
mod allocdir;
pub mod bpf;
mod bridge;
pub mod cgroup;
pub mod clean;
mod clock;
mod cni;
mod conditions;
mod contact;
mod context;
mod control;
mod cores;
pub mod disk;
pub mod doctor;
mod drivers;
mod fingerprint;
#[cfg(feature = "fixture")]
pub mod fixture;
mod gc;
mod history;
mod limits;
pub mod logs;
mod migrate;
mod new_disks;
pub mod node;
mod oom_score;
mod payload;
mod pressure;
mod process;
mod reports;
pub mod ring;
mod roots;
mod start_health;
mod stats;
mod store;
mod sys;
mod task;
mod task_env;
pub mod trash;
mod users;
mod verdicts;
mod volumes;

pub use bridge::{BridgeError, DEFAULT_SUBNET, parse_subnet};
pub use cni::CniSettings;
pub use disk::DiskEnforcement;
pub use drivers::native::DriverConfigError;
pub use drivers::networks::DriverNetworkError;
pub use drivers::plugin::{PluginError, PluginSettings};
pub use gc::GcOutcome;
pub use muster_agent_core::gc::{GcConfig, GcLimits, GcReason, GcState, KeptReason};
pub use muster_domain::region;
pub use roots::{ChrootEnv, ChrootEnvError};
pub use store::{LockDataDirError, OpenStoreError};
pub use users::{UserRange, UserRangeError};
