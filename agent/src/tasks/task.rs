//! One attempt of a task, from its cgroup to the removal of its remains.
//!
//! [`begin`](begin::begin) prepares the start of a process and has the driver start it.
//! [`recover`](recover::recover) finds a process that an earlier agent started. [`end`](end::end) waits for its
//! end, determines the outcome, and cleans up. The order matters: information is recorded before the step that
//! could lose it. `agent-core` decides when a task is started, stopped or restarted.

mod begin;
mod cleanup;
mod driver_calls;
mod end;
mod network_policy;
mod one_off;
mod record;
mod recover;
mod remote;
mod resources;
mod root;
mod start_failure;
pub(crate) mod streams;
mod user;
mod waiting;

use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use muster_agent_core::task::TaskInput;
use tokio_util::sync::CancellationToken;

use crate::context::AgentContext;
use crate::storage::store::TaskRecord;
use crate::tasks::drivers::{native, usage};
use crate::tasks::live::{LiveTask, TaskInputSender};
use crate::tasks::missing_record::MissingRecordMeaning;
use crate::tasks::task::start_failure::{StartFailure, StartRetry};
use crate::tasks::task_ref::TaskRef;

pub(crate) use cleanup::clean_up_stray;
pub(crate) use network_policy::{attach_live_policy, attach_recorded_policy};
pub(crate) use recover::reapply_limits;
pub(crate) use remote::end_unknown;
pub(crate) use streams::{read_uncollected_reason, stream_name};

/// Starts a task, or takes over the task of the handle `take`. Then waits for its end and cleans up after it.
pub(crate) async fn run(
    context: Arc<AgentContext>,
    task: TaskRef,
    attempt: u32,
    take: Option<Vec<u8>>,
    stopped: CancellationToken,
    inputs: TaskInputSender,
) {
    let beginning = async {
        // The start itself reports a missing driver.
        let slot = context.tasks.drivers.named(&task.task().driver);
        let _room = match slot {
            Some(slot) => slot.acquire_start().await,
            None => None,
        };
        begin::begin(&context, &task, attempt, take, &stopped).await
    };
    let begun = {
        // The future is boxed and dropped once the task runs. A start's memory would otherwise be most of the
        // memory of a task.
        let beginning = Box::pin(beginning);
        let reported = Box::pin(waiting::report(&context.session, &task, &inputs));
        tokio::select! {
            biased;
            begun = beginning => begun,
            never = reported => match never {},
        }
    };
    match begun {
        Ok((live, note)) => {
            context.monitoring.start_health.handle_started();
            let live = Arc::new(live);
            context.tasks.live.insert(
                task.alloc_id(),
                task.name(),
                Arc::clone(&live),
                inputs.clone(),
            );
            if let Some(handle) = live.elsewhere.clone() {
                inputs.send(TaskInput::RunsElsewhere { handle }).await;
            }
            if let Some(network) = live.usage.network() {
                let network = Box::new(network);
                inputs.send(TaskInput::Reached { network }).await;
            }
            inputs.send(TaskInput::Started { note }).await;
            supervise(
                &context,
                &task,
                &live,
                end::StartKnowledge::ToRunnerAndDriver,
                &inputs,
            )
            .await;
        }
        Err(failure) => {
            let StartFailure { reason, next } = failure;
            if next == StartRetry::Retry {
                let job = &task.desired.job.spec.id;
                let health = &context.monitoring.start_health;
                health.handle_failed(job, &reason, Instant::now());
            }
            tracing::warn!(alloc_id = %task.alloc_id(), task = task.name(), reason, "a task cannot be started");
            inputs
                .send(match next {
                    StartRetry::Retry | StartRetry::GiveUp => TaskInput::StartFailed {
                        reason,
                        retryable: next == StartRetry::Retry,
                    },
                    StartRetry::StartAnew => TaskInput::NothingToTake { reason },
                })
                .await;
        }
    }
}

/// Waits for the end of a task and cleans up after it. Meanwhile its driver reports its usage, if the agent cannot
/// measure it.
async fn supervise(
    context: &AgentContext,
    task: &TaskRef,
    live: &LiveTask,
    known: end::StartKnowledge,
    inputs: &TaskInputSender,
) {
    let mut ending = pin!(end::end(context, task, live, known, inputs));
    if live.record.driver == native::NAME {
        return ending.await;
    }
    // The future is boxed, because most tasks do not need it.
    let followed = Box::pin(usage::follow(live, inputs));
    tokio::select! {
        biased;
        () = &mut ending => {}
        never = followed => match never {}
    }
}

/// Finds a task that an earlier agent started, perhaps on another system, waits for its end and cleans up after it.
pub(crate) async fn find(
    context: Arc<AgentContext>,
    task: TaskRef,
    attempt: u32,
    record: Option<TaskRecord>,
    (unrecorded, elsewhere): (MissingRecordMeaning, bool),
    inputs: TaskInputSender,
) {
    let found = recover::recover(&context, &task, attempt, record, unrecorded, elsewhere);
    match Box::pin(found).await {
        recover::RecoveredTask::Nothing(input) => {
            task.release_cores(&context.resources);
            inputs.send(input).await;
        }
        recover::RecoveredTask::Live(live, messages) => {
            let live = Arc::new(*live);
            context.tasks.live.insert(
                task.alloc_id(),
                task.name(),
                Arc::clone(&live),
                inputs.clone(),
            );
            let runs = live
                .cgroup
                .as_ref()
                .is_some_and(|cgroup| cgroup.is_populated().unwrap_or(false));
            let known = if runs {
                // A process exists, whatever the state of its driver.
                inputs.send(TaskInput::Recovered).await;
                let repaired =
                    recover::repair_limits(&context.resources, &context.session, &task, &live);
                for message in messages.into_iter().chain(repaired) {
                    inputs.send(TaskInput::Message { message }).await;
                }
                end::StartKnowledge::ToRunner
            } else {
                end::StartKnowledge::No(messages)
            };
            supervise(&context, &task, &live, known, &inputs).await;
        }
    }
}
