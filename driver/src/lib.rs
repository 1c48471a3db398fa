//! The task-driver interface, the plugin protocol, a mock driver and the conformance suite.
//!
//! - [`TaskDriver`] is the interface that the agent calls. It is object safe: the agent holds drivers as
//!   `Arc<dyn TaskDriver>`, whether they run in its own process or in another.
//! - `task`, `capabilities`, `schema`, `stats`, `event`, `exec`, `network` contain the data of its calls.
//! - `error` contains the failures of the calls, and whether another attempt can help.
//! - [`HostInfo`] contains the facts about a host that it sends to its drivers.
//! - [`plugin`] implements Nomad's driver plugin protocol over a unix socket. [`plugin::Client`] represents a driver
//!   in another process; [`plugin::serve`] offers a driver to another process.
//! - [`mount`] restricts mounts that tasks see. It is the only module with `unsafe` code in this crate.
//! - [`beneath`] opens paths that tasks could have replaced, for the agent and for drivers.
//! - [`mock`] is a driver whose tasks are timers. `conformance` (feature `fixture`) is the set of tests that every
//!   driver passes. `go` builds a driver and a host in Go. `fixture` counts tests that cannot run.
//!
//! Absent on purpose: restart policy, log collection and limits. They belong to the agent.

pub mod beneath;
pub mod limits;
pub mod mount;

mod capabilities;
mod error;
mod event;
mod exec;
mod host;
mod network;
mod schema;
mod stats;
mod task;
mod task_driver;

pub mod mock;
pub mod plugin;

#[cfg(any(test, feature = "fixture"))]
pub mod conformance;
#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
#[cfg(any(test, feature = "fixture"))]
pub mod go;

pub use crate::capabilities::{
    Attribute, Capabilities, Fingerprint, FsIsolation, Health, MountConfigs, PluginInfo,
};
pub use crate::error::{
    DriverError, RecoverTaskError, Retry, StartTaskError, TASK_NOT_FOUND, TaskError,
};
pub use crate::event::TaskEvent;
pub use crate::exec::{ExecInput, ExecOutput, ExecRequest, ExecResult, TerminalSize};
pub use crate::host::{Core, HostInfo, Topology};
pub use crate::network::{
    CreatedNetwork, NetworkIsolation, NetworkMode, NetworkOverride, TaskReach,
};
pub use crate::schema::{ConfigFault, Schema, SchemaError, Spec, without_nulls};
pub use crate::stats::{CpuField, CpuUsage, MemoryField, MemoryUsage, TaskStats, TaskUsage};
pub use crate::task::{
    ActionsEnd, CgroupPlacement, Device, Dns, ExitResult, HandleDecodeError, LinuxResources, Mount,
    PortMapping, StartedTask, TaskConfig, TaskHandle, TaskResources, TaskState, TaskStatus,
    WithoutHost,
};
pub use crate::task_driver::{
    DETACH_SIGNAL, ExecInputStream, ExecOutputStream, FingerprintStream, TaskDriver,
    TaskEventStream, TaskStatsStream,
};
