//! Limits the disks that come while tasks run.
//!
//! A task's rates are written for each disk that is there when they are set (`cgroup/io.rs`). Every
//! [`DISKS_LOOK_INTERVAL`] the file of each task that has rates is compared with the disks that are there: so a disk is
//! found that came while a task was being started, too. The task gets an event. What cannot be set is tried again.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_agent_core::task::TaskInput;
use muster_domain::error_chain::chain;
use muster_domain::id::AllocId;
use tokio_util::sync::CancellationToken;

use crate::context::AgentContext;
use crate::limits::DISKS_LOOK_INTERVAL;
use crate::resources::cgroup::disks;
use crate::tasks::live::LiveTasks;

/// A task, with what was last said of it that could not be done.
type LastFailures = BTreeMap<(AllocId, String), String>;

/// Looks until the agent stops.
pub(crate) async fn follow(context: Arc<AgentContext>, stop: CancellationToken) {
    let mut looks = tokio::time::interval(DISKS_LOOK_INTERVAL);
    let mut failures = LastFailures::new();
    loop {
        tokio::select! {
            _ = looks.tick() => failures = reconcile(&context.tasks.live, &failures).await,
            () = stop.cancelled() => return,
        }
    }
}

/// Limits every task's new disks, and returns what failed; what failed like `before` is not said again.
async fn reconcile(tasks: &LiveTasks, before: &LastFailures) -> LastFailures {
    let disks = disks();
    let mut failures = LastFailures::new();
    for (alloc_id, task, live) in tasks.of(None) {
        let Some(cgroup) = &live.cgroup else {
            continue;
        };
        let message = match cgroup.limit_new_disks(&disks) {
            Ok(new) if new.is_empty() => continue,
            Ok(new) => format!("limits of disks hold for {}, too", new.join(", ")),
            // It ends.
            Err(_) if !cgroup.dir().exists() => continue,
            Err(error) => {
                let error = chain(&error);
                let message =
                    format!("a disk that came is not limited, which is tried again: {error}");
                let key = (alloc_id, task.clone());
                let is_known = before.get(&key) == Some(&message);
                failures.insert(key, message.clone());
                if is_known {
                    continue;
                }
                message
            }
        };
        tracing::info!(%alloc_id, task, message, "disks came");
        if let Some(inputs) = tasks.runner(alloc_id, &task, &live.record.task_id) {
            inputs.send(TaskInput::Message { message }).await;
        }
    }
    failures
}
