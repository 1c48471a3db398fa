//! One task of an allocation, identified by its position in the group.

use std::sync::Arc;

use muster_domain::alloc::DesiredAlloc;
use muster_domain::id::AllocId;
use muster_domain::job::{Task, TaskGroup};
use muster_domain::resources::HeldCores;
use muster_domain::saturating;

use crate::resources::ResourceContext;
use crate::resources::cgroup::TaskName;

/// The place of a task in its allocation.
#[derive(Clone, Debug)]
pub(crate) struct TaskRef {
    pub(crate) desired: Arc<DesiredAlloc>,
    /// Position of the task in the group.
    pub(crate) at: usize,
}

impl TaskRef {
    /// The id of the allocation.
    pub(crate) fn alloc_id(&self) -> AllocId {
        self.desired.alloc_id
    }

    /// The group of the task.
    pub(crate) fn group(&self) -> &TaskGroup {
        self.desired
            .group()
            .expect("a runner exists only for a group that is there")
    }

    /// The task in the job.
    pub(crate) fn task(&self) -> &Task {
        &self.group().tasks[self.at]
    }

    /// The name of the task.
    pub(crate) fn name(&self) -> &str {
        &self.task().name
    }

    /// Cores that the task has for itself.
    pub(crate) fn cores(&self) -> Option<&HeldCores> {
        let mut held = self.desired.holding.cores.iter();
        held.find(|cores| usize::from(cores.task_at) == self.at)
    }

    /// Takes the task's own cores, if it has any.
    pub(crate) fn hold_cores(&self, resources: &ResourceContext) {
        if let Some(held) = self.cores() {
            let ResourceContext { cores, tree, .. } = resources;
            cores.hold(tree, &self.cgroup_name(), &held.ids);
        }
    }

    /// Releases the task's own cores for all tasks.
    pub(crate) fn release_cores(&self, resources: &ResourceContext) {
        if self.cores().is_some() {
            let ResourceContext { cores, tree, .. } = resources;
            cores.release(tree, &self.cgroup_name());
        }
    }

    fn cgroup_name(&self) -> TaskName {
        TaskName {
            alloc: self.alloc_id().to_string(),
            task: self.name().to_owned(),
        }
    }

    /// The task's share of CPU: the requested MHz, or the MHz of its cores.
    pub(crate) fn cpu_mhz(&self) -> u32 {
        let asked = self.task().resources.cpu.0;
        self.cores()
            .map_or(asked, |cores| saturating::to_u32(cores.mhz))
    }
}
