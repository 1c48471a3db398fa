//! Events that drivers report about their tasks, in addition to state.

use std::collections::BTreeMap;
use std::time::SystemTime;

/// An event that a driver adds to the history of the allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskEvent {
    pub task_id: String,
    pub alloc_id: String,
    pub task_name: String,
    pub at: SystemTime,
    /// The description of the event.
    pub message: String,
    pub annotations: BTreeMap<String, String>,
}
