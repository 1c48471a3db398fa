//! Limits of tasks, and their reservations of the machine.
//!
//! | module | subject |
//! |---|---|
//! | [`cgroup`] | the agent's cgroups, their limits and counters |
//! | `cores` | reserved cores |
//! | `new_disks` | I/O limits for disks that appear later |
//! | `oom_score` | order in which the kernel kills for memory |
//! | `teardown` | end of all processes of a cgroup |
//! | `users` | users for tasks without a named user |

pub mod cgroup;
pub(crate) mod cores;
pub(crate) mod new_disks;
pub(crate) mod oom_score;
pub(crate) mod teardown;
pub(crate) mod users;

use std::sync::atomic::AtomicU64;

use cgroup::NodeTree;
use cores::Cores;
use users::WorkloadUsers;

/// Cgroups, cores and users of one node's tasks.
#[derive(Debug)]
pub(crate) struct ResourceContext {
    pub(crate) tree: NodeTree,
    /// The tasks that have reserved cores.
    pub(crate) cores: Cores,
    /// Users of tasks that name no user.
    pub(crate) users: WorkloadUsers,
    /// Whether a task whose memory or number of processes cannot be limited is refused.
    pub(crate) strict_limits: bool,
    /// Limits that differed from their task's and were set again.
    pub(crate) limits_repaired: AtomicU64,
}
