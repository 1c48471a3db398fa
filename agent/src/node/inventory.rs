//! Tasks and directories that are on the machine.

use muster_domain::id::AllocId;

use crate::resources::cgroup::{NodeTree, TaskName};
use crate::storage::allocdir::DataDir;

/// Tasks and directories on the machine. An allocation that begins after the scan is not in it. A caller that
/// removes unowned entries must therefore ask for the known allocations after the scan, not before.
#[derive(Debug)]
pub(crate) struct NodeInventory {
    pub(crate) tasks: Vec<TaskName>,
    pub(crate) allocs: Vec<AllocId>,
}

impl NodeInventory {
    pub(crate) fn scan(tree: &NodeTree, data: &DataDir) -> Self {
        Self {
            tasks: tree.tasks().unwrap_or_default(),
            allocs: data.found_allocs(),
        }
    }

    /// Keeps entries that belong to no allocation, or to one for which `stray` returns true.
    pub(crate) fn retain(&mut self, stray: impl Fn(AllocId) -> bool) {
        self.tasks
            .retain(|name| name.alloc.parse().map_or(true, &stray));
        self.allocs.retain(|alloc_id| stray(*alloc_id));
    }
}
