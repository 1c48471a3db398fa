//! Reasons for which a start waits, in the history of its task.
//!
//! A driver may hang, or its process may be stopped. A start then waits for up to a quarter of an hour
//! (`muster_driver::limits::START_DEADLINE`), and its task is pending all the while.

use std::convert::Infallible;

use muster_agent_core::task::TaskInput;

use crate::limits::{START_REPORT_DELAY, START_SLOW};
use crate::session::SessionContext;
use crate::tasks::live::TaskInputSender;
use crate::tasks::task_ref::TaskRef;

/// Reports once if the driver is unhealthy, and once if the start is slow. Never returns.
pub(super) async fn report(
    session: &SessionContext,
    task: &TaskRef,
    inputs: &TaskInputSender,
) -> Infallible {
    // Most starts take milliseconds, and a driver that has just been started is not yet healthy.
    tokio::time::sleep(START_REPORT_DELAY).await;
    let driver = &task.task().driver;
    let mut spec = session.spec.clone();
    let slow = async {
        tokio::time::sleep(START_SLOW).await;
        let message = format!("the driver `{driver}` has not started the task for {START_SLOW:?}");
        inputs.send(TaskInput::Message { message }).await;
        std::future::pending::<Infallible>().await
    };
    let unhealthy_driver = async {
        let reason = loop {
            let unhealthy = spec.borrow_and_update().drivers.get(driver).cloned();
            match unhealthy.filter(|driver| !driver.healthy) {
                Some(unhealthy) => break unhealthy.description,
                // A closed channel means that the agent stops.
                None if spec.changed().await.is_err() => std::future::pending().await,
                None => {}
            }
        };
        let message = format!("the start waits for the driver `{driver}`: {reason}");
        inputs.send(TaskInput::Message { message }).await;
        std::future::pending::<Infallible>().await
    };
    tokio::select! {
        never = slow => never,
        never = unhealthy_driver => never,
    }
}
