//! Resources of tasks that drivers and the kernel did not release.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use muster_domain::id::{AllocId, Timestamp};
use serde::{Deserialize, Serialize};

/// The unreleased resources of one start of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Leftover {
    pub(crate) driver: String,
    /// The driver's name for the start.
    pub(crate) task_id: String,
    pub(crate) task: String,
    /// The id of the start's cgroup in the v2 hierarchy.
    pub(crate) cgroup_id: u64,
    /// The boot of the start. After another boot the id may belong to another task. Empty if the agent that left it did
    /// not record the boot.
    pub(crate) boot_id: String,
    /// Time at which it was left; `None` if the agent that left it did not record that.
    pub(crate) left_at: Option<Timestamp>,
}

/// Leftovers of all allocations, which are also in the store.
#[derive(Debug, Default)]
pub(crate) struct Leftovers {
    known: Mutex<BTreeMap<AllocId, BTreeMap<String, Leftover>>>,
}

impl Leftovers {
    /// Begins with the leftovers of an earlier agent.
    pub(crate) fn new(known: BTreeMap<AllocId, BTreeMap<String, Leftover>>) -> Self {
        Self {
            known: Mutex::new(known),
        }
    }

    /// Whether the allocation has leftovers.
    pub(crate) fn has(&self, alloc_id: AllocId) -> bool {
        self.locked().contains_key(&alloc_id)
    }

    /// The leftovers of the allocation.
    pub(crate) fn of(&self, alloc_id: AllocId) -> Vec<Leftover> {
        let known = self.locked();
        let leftovers = known.get(&alloc_id).into_iter().flatten();
        leftovers.map(|(_, leftover)| leftover.clone()).collect()
    }

    pub(crate) fn insert(&self, alloc_id: AllocId, leftover: Leftover) {
        let mut known = self.locked();
        let leftovers = known.entry(alloc_id).or_default();
        leftovers.insert(leftover.task_id.clone(), leftover);
    }

    pub(crate) fn remove(&self, alloc_id: AllocId, task_id: &str) {
        let mut known = self.locked();
        if let Some(leftovers) = known.get_mut(&alloc_id) {
            leftovers.remove(task_id);
            if leftovers.is_empty() {
                known.remove(&alloc_id);
            }
        }
    }

    pub(crate) fn locked(&self) -> MutexGuard<'_, BTreeMap<AllocId, BTreeMap<String, Leftover>>> {
        // A panic elsewhere leaves the map valid, because each change of it is one call.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
