//! Tasks and directories that are on the machine.

use muster_domain::id::AllocId;

use crate::resources::cgroup::{NodeTree, TaskName};
use crate::storage::allocdir::DataDir;

/// Tasks and directories on the machine. An allocation that begins after the look is not in it. A caller that removes
/// what belongs to none must therefore ask for the known allocations after the look, not before.
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

    /// Keeps the parts that belong to no allocation, or to one of which `stray` holds.
    pub(crate) fn retain(&mut self, stray: impl Fn(AllocId) -> bool) {
        self.tasks
            .retain(|name| name.alloc.parse().map_or(true, &stray));
        self.allocs.retain(|alloc_id| stray(*alloc_id));
    }
}
