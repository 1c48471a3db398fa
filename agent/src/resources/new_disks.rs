//! Limits the disks that appear while tasks run.
//!
//! A task's rates are written for each disk that exists when they are set (`cgroup/io.rs`). Every
//! [`DISKS_LOOK_INTERVAL`] the rates of each task that has some are compared with the existing disks. So a disk that
//! appears while a task is being started is found, too. The task gets an event. A rate that cannot be set is tried
//! again.

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

/// The last reported failure of each task.
type LastFailures = BTreeMap<(AllocId, String), String>;

/// Checks the disks until the agent stops.
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

/// Limits every task's new disks, and returns the failures. A failure that equals the one in `before` is not reported
/// again.
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
            // The task is ending.
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
