//! Passes the messages of drivers about their tasks to the history of the allocation.

use std::sync::Arc;

use futures::StreamExt as _;
use muster_agent_core::task::TaskInput;
use muster_driver::TaskEvent;
use tokio_util::sync::CancellationToken;

use super::{DriverSlot, wait};
use crate::context::AgentContext;
use crate::limits::{DRIVER_PAUSE_MAX, DRIVER_PAUSE_MIN};
use crate::tasks::live::LiveTasks;

/// Follows the events of one driver until the agent stops.
pub(crate) async fn follow_events(
    name: String,
    slot: DriverSlot,
    context: Arc<AgentContext>,
    stop: CancellationToken,
) {
    let mut pause = DRIVER_PAUSE_MIN;
    while !stop.is_cancelled() {
        let opened = stop.run_until_cancelled(async {
            slot.ready().await;
            slot.driver.task_events().await
        });
        match opened.await {
            Some(Ok(mut events)) => {
                while let Some(Some(event)) = stop.run_until_cancelled(events.next()).await {
                    pause = DRIVER_PAUSE_MIN;
                    deliver(&name, event, &context.tasks.live).await;
                }
            }
            Some(Err(error)) => {
                tracing::debug!(driver = name, %error, "a driver sends no events");
            }
            None => return,
        }
        wait(pause, &stop).await;
        pause = (pause * 2).min(DRIVER_PAUSE_MAX);
    }
}

/// Delivers an event to the runner of its task. An event of an earlier start, or of a foreign task, is dropped.
async fn deliver(driver: &str, event: TaskEvent, tasks: &LiveTasks) {
    let TaskEvent {
        task_id,
        alloc_id,
        task_name,
        at: _,
        mut message,
        annotations,
    } = event;
    let runner = alloc_id
        .parse()
        .ok()
        .and_then(|alloc_id| tasks.runner(alloc_id, &task_name, &task_id));
    let Some(runner) = runner else {
        tracing::debug!(
            driver,
            task_id,
            message,
            "an event of a driver is about no task that runs"
        );
        return;
    };
    for (name, value) in annotations {
        message = format!("{message} {name}={value}");
    }
    runner.send(TaskInput::Message { message }).await;
}
