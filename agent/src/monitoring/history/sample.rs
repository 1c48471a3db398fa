//! One sample of a task.

use std::time::Duration;

use crate::monitoring::history::series::{AbsenceReasons, TaskCountValues};

/// One sample of a task.
pub(crate) struct Sample {
    pub(crate) cgroup_id: u64,
    pub(crate) counts: TaskCountValues,
    /// When its first process began, since boot; `None` if that is not known, or the start is.
    pub(crate) began: Option<Duration>,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) absent: AbsenceReasons,
}
