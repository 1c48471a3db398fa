//! One task of an allocation, by its position in the group.

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
    /// Its position in the group.
    pub(crate) at: usize,
}

impl TaskRef {
    /// The allocation.
    pub(crate) fn alloc_id(&self) -> AllocId {
        self.desired.alloc_id
    }

    /// Its group.
    pub(crate) fn group(&self) -> &TaskGroup {
        self.desired
            .group()
            .expect("a runner exists only for a group that is there")
    }

    /// Its description.
    pub(crate) fn task(&self) -> &Task {
        &self.group().tasks[self.at]
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.task().name
    }

    /// Cores that it has for itself.
    pub(crate) fn cores(&self) -> Option<&HeldCores> {
        let mut held = self.desired.holding.cores.iter();
        held.find(|cores| usize::from(cores.task_at) == self.at)
    }

    /// Takes its cores, if it has any.
    pub(crate) fn hold_cores(&self, resources: &ResourceContext) {
        if let Some(held) = self.cores() {
            let ResourceContext { cores, tree, .. } = resources;
            cores.hold(tree, &self.cgroup_name(), &held.ids);
        }
    }

    /// Gives its cores to everybody.
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

    /// Its share of CPU: what it asks for, or what its cores are worth.
    pub(crate) fn cpu_mhz(&self) -> u32 {
        let asked = self.task().resources.cpu.0;
        self.cores()
            .map_or(asked, |cores| saturating::to_u32(cores.mhz))
    }
}
