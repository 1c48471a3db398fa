//! Requests to the driver of a task, and values that pass between it and the agent.

use std::sync::Arc;
use std::time::Duration;

use muster_domain::error_chain::chain;
use muster_driver::{FsIsolation, TaskConfig, TaskHandle};

use crate::limits::DRIVER_START_DEADLINE;
use crate::storage::allocdir::DataDir;
use crate::tasks::drivers::{DriverFacts, DriverSlot, TaskConfigError, native, unsupported_reason};
use crate::tasks::task::start_failure::StartFailure;
use crate::tasks::task_ref::TaskRef;

/// Returns the capabilities of the driver, once it answers.
pub(crate) async fn driver_facts(slot: &DriverSlot) -> Result<Arc<DriverFacts>, StartFailure> {
    ready(slot).await?;
    let facts = slot.facts().await;
    facts.map_err(|error| StartFailure::retryable(chain(&error)))
}

/// Waits until the driver answers.
pub(crate) async fn ready(slot: &DriverSlot) -> Result<(), StartFailure> {
    let ready = tokio::time::timeout(DRIVER_START_DEADLINE, slot.ready()).await;
    ready.map_err(|_elapsed| {
        StartFailure::retryable(format!(
            "the driver did not answer within {DRIVER_START_DEADLINE:?}; see `muster doctor`"
        ))
    })
}

/// The `config` block of a task, checked against its driver's schema.
pub(crate) async fn decoded(
    slot: &DriverSlot,
    config: &TaskConfig,
) -> Result<serde_json::Value, StartFailure> {
    let decoded = slot.task_config(&config.config).await;
    decoded.map_err(|error| match error {
        TaskConfigError::Wrong(_) => StartFailure::fatal(error),
        TaskConfigError::Driver(_) => StartFailure::retryable(chain(&error)),
    })
}

/// Returns how the task's driver isolates file systems. The native driver receives the host's paths, and maps them
/// according to the isolation level of the task. A driver whose tasks cannot run here has no isolation.
pub(crate) async fn fs_isolation(
    slot: &DriverSlot,
    task: &TaskRef,
) -> Result<FsIsolation, StartFailure> {
    if task.task().driver == native::NAME {
        return Ok(FsIsolation::None);
    }
    let facts = driver_facts(slot).await?;
    match unsupported_reason(&task.task().driver, &facts.capabilities) {
        Some(reason) => Err(StartFailure::fatal(reason)),
        None => Ok(facts.capabilities.fs_isolation),
    }
}

/// Whether the task finds its directories by the host's paths. For the native driver, the task's `config` decides.
pub(crate) fn sees_host(
    task: &TaskRef,
    isolation: FsIsolation,
    config: &serde_json::Value,
) -> bool {
    if task.task().driver == native::NAME {
        return config.get("isolation").is_some_and(|level| level == "raw");
    }
    isolation == FsIsolation::None
}

/// Grants users the passage to the task's directories.
pub(crate) async fn allow_traversal(data: &DataDir, task: &TaskRef) -> Result<(), StartFailure> {
    let (data, alloc_id) = (data.clone(), task.alloc_id());
    let opened = tokio::task::spawn_blocking(move || data.allow_traversal(alloc_id)).await;
    let opened = opened.map_err(StartFailure::retryable)?;
    opened.map_err(|error| StartFailure::retryable(chain(&error)))
}

/// Returns the driver's id of a start, which is the same for every caller.
pub(crate) fn task_id(task: &TaskRef, attempt: u32) -> String {
    format!("{}/{}/{attempt:08x}", task.alloc_id(), task.name())
}

/// Encodes a handle for the store.
pub(crate) fn encoded(handle: &TaskHandle) -> Vec<u8> {
    // The reader refuses an empty handle, and then lists the driver's tasks.
    handle.encode().unwrap_or_default()
}

/// Pause before a driver is asked again.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(50);
