//! Removal of the remains of an ended task.

use crate::bpf::Bpf;
use crate::context::AgentContext;
use crate::resources::cgroup::TaskCgroup;
use crate::resources::teardown::kill;
use crate::session::clock::now;
use crate::storage::gc;
use crate::storage::leftovers::Leftover;
use crate::storage::store::TaskRecord;
use crate::tasks::drivers::{DriverSlot, native};
use crate::tasks::task::root;
use crate::tasks::task::streams::remove_fifos;
use crate::tasks::task_ref::TaskRef;
use muster_domain::error_chain::chain;

/// Removes the remains of a start that is known to have ended.
pub(crate) async fn clean_up_ended(
    context: &AgentContext,
    task: &TaskRef,
    slot: &DriverSlot,
    record: &TaskRecord,
) {
    let alloc = task.alloc_id().to_string();
    let cgroup = TaskCgroup::open(&context.resources.tree, &alloc, task.name())
        .ok()
        .filter(|cgroup| cgroup.id() == record.cgroup_id);
    if let Some(cgroup) = &cgroup {
        kill(cgroup).await;
    }
    clean_up(context, task, slot, record, cgroup.as_ref()).await;
}

/// Removes a cgroup without any other record.
pub(crate) async fn clean_up_stray(bpf: Option<&Bpf>, cgroup: &TaskCgroup) {
    kill(cgroup).await;
    forget_counters(bpf, cgroup.id());
    remove_cgroup(cgroup).await;
}

pub(crate) fn forget_counters(bpf: Option<&Bpf>, cgroup_id: u64) {
    if let Some(bpf) = bpf
        && let Err(error) = bpf.forget(cgroup_id)
    {
        tracing::warn!(%error, "counters of a task that ended are left");
    }
}

pub(crate) async fn remove_cgroup(cgroup: &TaskCgroup) {
    if let Err(error) = cgroup.remove().await {
        tracing::warn!(
            error = chain(&error),
            "the cgroup of a task that ended is left"
        );
    }
}

pub(crate) async fn clean_up(
    context: &AgentContext,
    task: &TaskRef,
    slot: &DriverSlot,
    record: &TaskRecord,
    cgroup: Option<&TaskCgroup>,
) {
    let leftover = Leftover {
        driver: record.driver.clone(),
        task_id: record.task_id.clone(),
        task: task.name().to_owned(),
        cgroup_id: record.cgroup_id,
        boot_id: record.boot_id.clone(),
        left_at: Some(now()),
    };
    let destroyed = gc::destroy_task(slot, &leftover.driver, &leftover.task_id).await;
    if destroyed.is_ok() && record.driver != native::NAME {
        root::remove(&context.storage.data, task).await;
    }
    task.release_cores(&context.resources);
    remove_fifos(&context.storage.data.alloc(task.alloc_id()), task.name());
    let released = gc::release_kernel(context, &leftover, cgroup).await;
    if let Err(error) = destroyed.and(released) {
        gc::keep(&context.storage, task.alloc_id(), leftover, &error).await;
    }
}
