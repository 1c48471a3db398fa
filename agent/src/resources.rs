//! Limits of tasks, and what they reserve of the machine.
//!
//! | module | subject |
//! |---|---|
//! | [`cgroup`] | the agent's cgroups, their limits and counters |
//! | `cores` | reserved cores |
//! | `new_disks` | I/O limits for disks that appear later |
//! | `oom_score` | order in which the kernel kills for memory |
//! | `users` | users for tasks that name none |

pub mod cgroup;
pub(crate) mod cores;
pub(crate) mod new_disks;
pub(crate) mod oom_score;
pub(crate) mod users;
