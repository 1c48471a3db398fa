//! Tasks that run on another system: their handles go to other agents, and come from them.
//!
//! A handle is given away without the parts that differ from node to node. The agent that takes the task over puts its
//! own parts there, so the driver knows the task by a name of the new allocation.

use std::time::Duration;

use muster_domain::error_chain::chain;
use muster_domain::limits::REMOTE_HANDLE_BYTES_MAX;
use muster_driver::{
    DETACH_SIGNAL, RecoverTaskError, Retry, StartedTask, TaskConfig, TaskError, TaskHandle,
};

use super::streams::remove_fifos;
use crate::context::AgentContext;
use crate::resources::teardown::kill;
use crate::tasks::drivers::DriverSlot;
use crate::tasks::live::LiveTask;
use crate::tasks::task::cleanup::{forget_counters, remove_cgroup};
use crate::tasks::task::driver_calls::{decoded, ready};
use crate::tasks::task::start_failure::{StartFailure, StartRetry};
use crate::tasks::task_ref::TaskRef;

/// Returns the handle of a remote task that other agents may use, if it is small enough, and a note for the
/// operator. Tasks of other drivers have none.
pub(super) async fn handle(
    slot: &DriverSlot,
    handle: &TaskHandle,
) -> (Option<Vec<u8>>, Option<String>) {
    let facts = match slot.facts().await {
        Ok(facts) if !facts.capabilities.remote_tasks => return (None, None),
        Ok(facts) => facts,
        Err(error) => {
            let note = format!(
                "the driver does not say whether it runs tasks elsewhere: {}",
                chain(&error)
            );
            return (None, Some(note));
        }
    };
    tracing::debug!(driver = handle.driver, capabilities = ?facts.capabilities, "a task runs elsewhere");
    let given = TaskHandle {
        config: TaskConfig::default(),
        ..handle.clone()
    };
    match given.encode() {
        Ok(bytes) if bytes.len() <= REMOTE_HANDLE_BYTES_MAX => (Some(bytes), None),
        Ok(bytes) => (None, Some(too_large(bytes.len()))),
        Err(error) => (None, Some(error.to_string())),
    }
}

fn too_large(bytes: usize) -> String {
    format!(
        "the driver's handle of the task has {bytes} bytes, more than {REMOTE_HANDLE_BYTES_MAX}: no other node can take the task over"
    )
}

/// Whether the driver reports that its tasks run elsewhere.
pub(super) async fn is_remote(slot: &DriverSlot) -> bool {
    let facts = slot.facts().await;
    facts.is_ok_and(|facts| facts.capabilities.remote_tasks)
}

/// Makes the driver take over the task that `handle` finds, under the name in `config`.
pub(super) async fn take_over(
    slot: &DriverSlot,
    mut config: TaskConfig,
    handle: &[u8],
) -> Result<StartedTask, StartFailure> {
    ready(slot).await?;
    config.config = decoded(slot, &config).await?;
    let given = TaskHandle::decode(handle)
        .map_err(|error| StartFailure::fatal(not_taken(&chain(&error))))?;
    let handle = TaskHandle { config, ..given };
    match slot.driver.recover_task(handle.clone()).await {
        Ok(()) => Ok(StartedTask {
            handle,
            network: None,
        }),
        Err(error) => Err(refused(&error)),
    }
}

/// Converts the error. Only a task that is gone may be started anew.
fn refused(error: &RecoverTaskError) -> StartFailure {
    let next = match error {
        RecoverTaskError::Gone { .. } => StartRetry::StartAnew,
        RecoverTaskError::HandleVersion { .. } | RecoverTaskError::InvalidHandle { .. } => {
            StartRetry::GiveUp
        }
        RecoverTaskError::Driver(error) => match error.retry() {
            Retry::Later => StartRetry::Retry,
            Retry::Never | Retry::ElsewhereNow => StartRetry::GiveUp,
        },
    };
    let reason = match next {
        StartRetry::StartAnew => chain(error),
        StartRetry::Retry | StartRetry::GiveUp => not_taken(&chain(error)),
    };
    StartFailure { reason, next }
}

pub(super) fn not_taken(reason: &str) -> String {
    format!("the task runs elsewhere and cannot be taken over: {reason}")
}

/// Makes the driver detach the task, and removes the task's remains on this node. It never ends the task. A detach
/// that the driver fails to carry out is not repeated, because a driver that does not answer manages nothing.
/// Returns a note for the operator.
pub(super) async fn detach(context: &AgentContext, task: &TaskRef, live: &LiveTask) -> String {
    let (driver, id) = (&live.slot.driver, &live.record.task_id);
    let asked = driver.stop_task(id, Duration::ZERO, DETACH_SIGNAL).await;
    let note = match asked {
        // A new life of the driver, into which the task is not recovered, does not manage it.
        Ok(()) | Err(TaskError::NotFound { .. } | TaskError::NotRunning { .. }) => String::new(),
        Err(error) => format!("the driver did not take DETACH: {}", chain(&error)),
    };
    // The call is for drivers that remember detached tasks. Without `force`, it does not end the task.
    match driver.destroy_task(id, false).await {
        Ok(()) | Err(TaskError::NotFound { .. }) => {}
        Err(error) => {
            tracing::warn!(task_id = id, %error, "a driver remembers a task that it left");
        }
    }
    remove_remains(context, task, live).await;
    note
}

/// Removes the remains of a task on this node; the task itself runs on.
pub(super) async fn remove_remains(context: &AgentContext, task: &TaskRef, live: &LiveTask) {
    if let Some(cgroup) = &live.cgroup {
        kill(cgroup).await;
    }
    let left = live.streams.close(&context.ring).await;
    if left > 0 {
        let task_id = &live.record.task_id;
        tracing::warn!(task_id, left, "output of a task that was left is lost");
    }
    task.release_cores(&context.resources);
    remove_fifos(&context.storage.data.alloc(task.alloc_id()), task.name());
    forget_counters(context.bpf(), live.record.cgroup_id);
    if let Some(cgroup) = &live.cgroup {
        remove_cgroup(cgroup).await;
    }
}

/// Ends a task of an unknown allocation. A task that runs elsewhere may belong to another allocation, so it is only
/// detached.
pub(crate) async fn end_unknown(slot: &DriverSlot, task_id: &str) {
    let asked = if is_remote(slot).await {
        let driver = &slot.driver;
        driver
            .stop_task(task_id, Duration::ZERO, DETACH_SIGNAL)
            .await
    } else {
        slot.driver.destroy_task(task_id, true).await
    };
    if let Err(error) = asked {
        tracing::warn!(task_id, %error, "a task that belongs to no allocation could not be stopped by its driver");
    }
}

#[cfg(test)]
mod tests {
    use muster_driver::DriverError;
    use muster_driver::mock::{MockDriver, MockHost};

    use super::*;

    #[test]
    fn only_a_gone_task_is_started_anew() {
        let gone = RecoverTaskError::Gone {
            task_id: "a".to_owned(),
            reason: "no process".to_owned(),
        };
        let version = RecoverTaskError::HandleVersion {
            found: 3,
            supported: 1,
        };
        let invalid = RecoverTaskError::InvalidHandle {
            reason: "short".to_owned(),
        };
        let unavailable = RecoverTaskError::Driver(DriverError::Unavailable {
            reason: "gone".to_owned(),
        });
        let failed = RecoverTaskError::Driver(DriverError::unsupported("RecoverTask"));
        for (error, next) in [
            (gone, StartRetry::StartAnew),
            (version, StartRetry::GiveUp),
            (invalid, StartRetry::GiveUp),
            (unavailable, StartRetry::Retry),
            (failed, StartRetry::GiveUp),
        ] {
            let failure = refused(&error);

            assert_eq!(failure.next, next, "{error}");
            assert!(failure.reason.contains(&error.to_string()), "{failure:?}");
        }
    }

    #[tokio::test]
    async fn only_small_remote_task_handles_are_published() {
        let host = MockHost::new();
        let remote = || MockDriver::remote(host.clone());
        let small = TaskHandle {
            driver_state: vec![1; 8],
            ..TaskHandle::default()
        };
        let large = TaskHandle {
            driver_state: vec![1; REMOTE_HANDLE_BYTES_MAX + 1],
            ..TaskHandle::default()
        };
        for (driver, of, is_given, is_noted) in [
            (remote(), &small, true, false),
            (remote(), &large, false, true),
            (MockDriver::new(), &small, false, false),
        ] {
            let slot = DriverSlot::in_process(std::sync::Arc::new(driver));

            let (given, note) = handle(&slot, of).await;

            assert_eq!((given.is_some(), note.is_some()), (is_given, is_noted));
        }
    }
}
