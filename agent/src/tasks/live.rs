//! Tasks that have a process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use muster_domain::id::AllocId;

use crate::tasks::task::{LiveTask, TaskInputSender};

/// Tasks that have a process, by allocation and name.
#[derive(Debug, Default)]
pub(crate) struct LiveTasks {
    tasks: Mutex<BTreeMap<(AllocId, String), LiveTaskEntry>>,
}

/// A task that has a process, and the way to its runner.
type LiveTaskEntry = (Arc<LiveTask>, TaskInputSender);

impl LiveTasks {
    /// A process runs.
    pub(crate) fn insert(
        &self,
        alloc_id: AllocId,
        task: &str,
        live: Arc<LiveTask>,
        runner: TaskInputSender,
    ) {
        self.locked()
            .insert((alloc_id, task.to_owned()), (live, runner));
    }

    /// It ended.
    pub(crate) fn remove(&self, alloc_id: AllocId, task: &str) {
        self.locked().remove(&(alloc_id, task.to_owned()));
    }

    /// The process of a task.
    pub(crate) fn get(&self, alloc_id: AllocId, task: &str) -> Option<Arc<LiveTask>> {
        let tasks = self.locked();
        let (live, _runner) = tasks.get(&(alloc_id, task.to_owned()))?;
        Some(Arc::clone(live))
    }

    /// The runner of the start `task_id` of a task, if that is the one that runs.
    pub(crate) fn runner(
        &self,
        alloc_id: AllocId,
        task: &str,
        task_id: &str,
    ) -> Option<TaskInputSender> {
        let tasks = self.locked();
        let (live, runner) = tasks.get(&(alloc_id, task.to_owned()))?;
        (live.record.task_id == task_id).then(|| runner.clone())
    }

    /// All of them, or those of one allocation.
    pub(crate) fn of(&self, alloc_id: Option<AllocId>) -> Vec<(AllocId, String, Arc<LiveTask>)> {
        self.locked()
            .iter()
            .filter(|((id, _), _)| alloc_id.is_none_or(|wanted| wanted == *id))
            .map(|((id, name), (live, _runner))| (*id, name.clone(), Arc::clone(live)))
            .collect()
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, BTreeMap<(AllocId, String), LiveTaskEntry>> {
        // A panic elsewhere leaves the map whole: each change of it is one call.
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
