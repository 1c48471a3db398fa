//! The task-driver interface, the plugin protocol, a mock driver and the conformance suite.
//!
//! - [`TaskDriver`] is what the agent calls; it is object safe, so that the agent holds drivers as
//!   `Arc<dyn TaskDriver>` whether they run in its process or in another.
//! - `task`, `capabilities`, `schema`, `stats`, `event`, `exec`, `network` are the data of its calls.
//! - `error` is how each call fails, and whether trying again can help.
//! - [`HostInfo`] is what a host tells drivers of itself.
//! - [`plugin`] speaks Nomad's driver plugin protocol over a unix socket: [`plugin::Client`] is a
//!   driver that lives in another process, [`plugin::serve`] offers one to another process.
//! - [`mount`] restricts mounts that tasks see; it is the one room for `unsafe` here.
//! - [`beneath`] opens what tasks could have put something else in the place of, for the agent and for drivers.
//! - [`mock`] is a driver whose tasks are timers; `conformance` (feature `fixture`) is the set of
//!   tests that every driver passes, `go` builds a driver and a host that are not ours, and `fixture` counts tests that
//!   cannot run.
//!
//! Absent on purpose: restart policy, log collection and limits. They are the agent's.

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
