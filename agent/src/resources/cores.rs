//! Cores that tasks have for themselves, and keeping all others off them.
//!
//! While any task has cores of its own, those that have none run on what is left; when nothing is left,
//! anywhere. A task that starts meanwhile is born there, one that runs is moved.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use muster_domain::alloc::DesiredAlloc;

use crate::resources::cgroup::{NodeTree, TaskName};

type CoresByTask = BTreeMap<TaskName, Vec<u16>>;

/// Which task has which cores.
#[derive(Debug, Default)]
pub(crate) struct Cores {
    held: RwLock<CoresByTask>,
}

impl Cores {
    /// An allocation that an earlier agent ran: those of its tasks that have groups have their cores still.
    /// To be called for all before anything else happens to any.
    pub(crate) fn adopt(&self, tree: &NodeTree, desired: &DesiredAlloc) {
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
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
                held.insert(name, cores.ids.clone());
            }
        }
    }

    /// `task` has the cores `ids` from now on.
    pub(crate) fn hold(&self, tree: &NodeTree, task: &TaskName, ids: &[u16]) {
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        let is_new = held.insert(task.clone(), ids.to_vec()).as_deref() != Some(ids);
        if is_new {
            share(tree, &held);
            // One that runs already, and of which nothing was known, was taken for one of the others.
            tree.share_cores(|other| other == task, ids);
        }
    }

    /// `task` has no cores of its own any more. Repeating it changes nothing.
    pub(crate) fn release(&self, tree: &NodeTree, task: &TaskName) {
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        if held.remove(task).is_some() {
            share(tree, &held);
        }
    }

    /// Has `make` make the groups of a task that has no cores of its own, with the cores it may run on;
    /// none means any. Nobody takes cores meanwhile.
    pub(crate) fn shared<T>(&self, tree: &NodeTree, make: impl FnOnce(Vec<u16>) -> T) -> T {
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner);
        let shared = if held.is_empty() {
            Vec::new()
        } else {
            left(&held, &tree.core_ids())
        };
        make(shared)
    }
}

fn share(tree: &NodeTree, held: &CoresByTask) {
    tree.share_cores(
        |task| !held.contains_key(task),
        &left(held, &tree.core_ids()),
    );
}

/// Returns the cores of `all` that nobody holds, or all of them if each is held.
fn left(held: &CoresByTask, all: &[u16]) -> Vec<u16> {
    let free = |core: &&u16| !held.values().any(|ids| ids.contains(core));
    let free: Vec<u16> = all.iter().filter(free).copied().collect();
    if free.is_empty() { all.to_vec() } else { free }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left_of(held: &[&[u16]]) -> Vec<u16> {
        let held = held.iter().enumerate().map(|(at, ids)| {
            let task = format!("t{at}");
            let alloc = "a".to_owned();
            (TaskName { alloc, task }, ids.to_vec())
        });
        left(&held.collect(), &[0, 1, 2, 3])
    }

    #[test]
    fn others_run_on_the_remaining_cores() {
        assert_eq!(left_of(&[]), [0, 1, 2, 3]);
        assert_eq!(left_of(&[&[1], &[3]]), [0, 2]);
    }

    #[test]
    fn others_run_anywhere_when_nothing_is_left() {
        assert_eq!(left_of(&[&[0, 1], &[2, 3]]), [0, 1, 2, 3]);
    }
}
