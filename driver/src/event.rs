//! Events that drivers report about their tasks besides state.

use std::collections::BTreeMap;
use std::time::SystemTime;

/// Something a driver wants the allocation's history to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskEvent {
    /// The task.
    pub task_id: String,
    /// Its allocation.
    pub alloc_id: String,
    /// Its name.
    pub task_name: String,
    /// When it happened.
    pub at: SystemTime,
    /// The description of the event.
    pub message: String,
    /// Details.
    pub annotations: BTreeMap<String, String>,
}
