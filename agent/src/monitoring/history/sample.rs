//! A sample of a task.

use std::time::Duration;

use crate::monitoring::history::series::{AbsenceReasons, TaskCountValues};

/// The values of a task at one step.
pub(crate) struct Sample {
    pub(crate) cgroup_id: u64,
    pub(crate) counts: TaskCountValues,
    /// The start time of its first process, since boot. `None` if it is unknown, or if this start was sampled
    /// before.
    pub(crate) began: Option<Duration>,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) absent: AbsenceReasons,
}
