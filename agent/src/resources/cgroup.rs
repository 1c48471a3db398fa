//! cgroups: their mounts on this host, the node's own tree, and one group for each task.
//!
//! ```text
//! <agent's own cgroup>/muster-<8 hex>/<allocation>/<task>    in the v2 hierarchy: identity, kill, freeze
//! <agent's own cgroup>/muster-<8 hex>/<allocation>/<task>    the same path in each v1 hierarchy used
//! <agent's own cgroup>/muster-<8 hex>/drivers                driver processes
//! <agent's own cgroup>/agent                                 the agent, where v2 wants it in a leaf
//! ```
//!
//! A controller is bound either to v1 or to v2, and its limits are set there. `cpu`, `cpuset`, `io`, `memory` and
//! `pids` each have a module that handles both versions. Each limit is read back after it was set. A limit that does
//! not hold is an error. A limit whose controller is unavailable is listed in [`TaskCgroup::unenforced`]. Values are
//! written through cgroups-rs one by one, never through its `apply`, which swallows errors. This module is the only one
//! that handles paths of the cgroup file system. It touches nothing outside the tree that it made, except the agent's
//! own leaf.

mod controller;
mod cpu;
mod cpuset;
mod file;
mod freeze;
mod hierarchies;
mod io;
mod kill;
mod limits;
mod memory;
mod note;
mod oom;
mod open_files;
mod pids;
mod pressure;
mod remove;
mod reserve;
mod resources;
mod stats;
mod stray;
mod subgroups;
mod task;
mod tree;
mod walked;

pub use controller::Controller;
pub(crate) use cpu::PERIOD_US;
pub(crate) use cpuset::list as core_list;
pub use file::CgroupFileError;
pub use hierarchies::{CgroupMode, ControllerMode, Hierarchies, ProbeCgroupError};
pub use io::disks;
pub use kill::KillError;
pub use oom::OomCount;
pub(crate) use pressure::PressureResource;
pub use remove::RemoveCgroupError;
pub use resources::{ApplyLimitError, CorrectedLimit, Limits, Unenforced};
pub use stats::{CpuStats, MemoryStats, Pressure, PressureStats, StallStats, TaskStats};
pub(crate) use stray::StrayGroup;
pub use task::{CreateTaskCgroupError, FreezeError, TaskCgroup};
pub use tree::{NodeTree, NodeTreeError, NodeTreeRecord, TaskName};
pub use walked::CgroupRows;

#[cfg(test)]
mod tests;
