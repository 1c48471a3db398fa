//! Cores that are reserved for single tasks, and keeping all other tasks off them.
//!
//! While any task has reserved cores, tasks without reserved cores run on the remaining cores. If no core remains, they
//! run on all cores. A task that starts meanwhile starts there, and a running task is moved.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use muster_domain::alloc::DesiredAlloc;

use crate::resources::cgroup::{NodeTree, TaskName};

type CoresByTask = BTreeMap<TaskName, Vec<u16>>;

/// The cores that each task holds.
#[derive(Debug, Default)]
pub(crate) struct Cores {
    reserved: RwLock<CoresByTask>,
}

impl Cores {
    /// Adopts an allocation that an earlier agent ran. Its tasks that have groups still hold their cores. The caller
    /// adopts all allocations before any other call.
    pub(crate) fn adopt(&self, tree: &NodeTree, desired: &DesiredAlloc) {
        let mut reserved = self
            .reserved
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        for cores in &desired.holding.cores {
            let group = desired.group();
            let Some(task) = group.and_then(|group| group.tasks.get(usize::from(cores.task_at)))
            else {
                continue;
            };
            let name = TaskName {
                alloc: desired.alloc_id.to_string(),
                task: task.name.clone(),
            };
            if tree.has(&name) {
                reserved.insert(name, cores.ids.clone());
            }
        }
    }

    /// Gives `task` the cores `ids`.
    pub(crate) fn hold(&self, tree: &NodeTree, task: &TaskName, ids: &[u16]) {
        let mut reserved = self
            .reserved
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let is_new = reserved.insert(task.clone(), ids.to_vec()).as_deref() != Some(ids);
        if is_new {
            share(tree, &reserved);
            // If the task runs already and was unknown, `share` moved it to the shared cores.
            tree.share_cores(|other| other == task, ids);
        }
    }

    /// Releases the reserved cores of `task`. A repeated call changes nothing.
    pub(crate) fn release(&self, tree: &NodeTree, task: &TaskName) {
        let mut reserved = self
            .reserved
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if reserved.remove(task).is_some() {
            share(tree, &reserved);
        }
    }

    /// Calls `make` to create the groups of a task without reserved cores. `make` gets the cores that the task may run
    /// on; an empty list means any. No task can reserve cores meanwhile.
    pub(crate) fn shared<T>(&self, tree: &NodeTree, make: impl FnOnce(Vec<u16>) -> T) -> T {
        let reserved = self.reserved.read().unwrap_or_else(PoisonError::into_inner);
        let shared = if reserved.is_empty() {
            Vec::new()
        } else {
            unreserved_cores(&reserved, &tree.core_ids())
        };
        make(shared)
    }
}

fn share(tree: &NodeTree, reserved: &CoresByTask) {
    tree.share_cores(
        |task| !reserved.contains_key(task),
        &unreserved_cores(reserved, &tree.core_ids()),
    );
}

/// Returns the cores of `all` that no task holds, or all of them if every core is reserved.
fn unreserved_cores(reserved: &CoresByTask, all: &[u16]) -> Vec<u16> {
    let free = |core: &&u16| !reserved.values().any(|ids| ids.contains(core));
    let free: Vec<u16> = all.iter().filter(free).copied().collect();
    if free.is_empty() { all.to_vec() } else { free }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unreserved(reserved: &[&[u16]]) -> Vec<u16> {
        let reserved = reserved.iter().enumerate().map(|(at, ids)| {
            let task = format!("t{at}");
            let alloc = "a".to_owned();
            (TaskName { alloc, task }, ids.to_vec())
        });
        unreserved_cores(&reserved.collect(), &[0, 1, 2, 3])
    }

    #[test]
    fn others_run_on_the_remaining_cores() {
        assert_eq!(unreserved(&[]), [0, 1, 2, 3]);
        assert_eq!(unreserved(&[&[1], &[3]]), [0, 2]);
    }

    #[test]
    fn others_run_anywhere_when_nothing_is_left() {
        assert_eq!(unreserved(&[&[0, 1], &[2, 3]]), [0, 1, 2, 3]);
    }
}
