//! The root of a task whose driver changes into one. It is made before the start, and removed after the end.

use std::sync::Arc;

use muster_domain::error_chain::chain;
use muster_driver::TaskConfig;

use crate::storage::StorageContext;
use crate::storage::allocdir::DataDir;
use crate::storage::roots::{self, RootSources};
use crate::tasks::drivers::DriverSlot;
use crate::tasks::task::start_failure::StartFailure;
use crate::tasks::task_ref::TaskRef;

/// Makes the root and passes it to the driver in place of the task's directory. Returns a note for the operator.
pub(super) async fn make(
    storage: &StorageContext,
    task: &TaskRef,
    slot: &DriverSlot,
    config: &mut TaskConfig,
) -> Result<Option<String>, StartFailure> {
    let env = Arc::clone(&storage.chroot_env);
    let (data, alloc_id) = (storage.data.clone(), task.alloc_id());
    let (name, is_configured) = (task.name().to_owned(), env.is_configured());
    let driver = slot.process();
    let made = tokio::task::spawn_blocking(move || {
        let (roots, dirs) = (data.roots_of(alloc_id), data.alloc(alloc_id));
        let means = RootSources {
            env: &env,
            data: data.root(),
            driver,
        };
        roots::build(means, &roots, &dirs, &name)
    });
    let made = made.await.map_err(StartFailure::retryable)?;
    let root = made.map_err(|error| {
        let reason = format!("the task has no root directory: {}", chain(&error));
        if error.is_final() {
            StartFailure::fatal(reason)
        } else {
            StartFailure::retryable(reason)
        }
    })?;
    config.alloc_dir = root.alloc_dir;
    config.task_dir = root.task_dir;
    let absent: Vec<String> = root
        .absent
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    let is_reported = is_configured && !absent.is_empty();
    Ok(is_reported.then(|| {
        let absent = absent.join(", ");
        format!("`chroot_env` names what this node does not have: {absent}")
    }))
}

/// Removes the root, if the task has one.
pub(super) async fn remove(data: &DataDir, task: &TaskRef) {
    let root = data.roots_of(task.alloc_id()).join(task.name());
    let removed = tokio::task::spawn_blocking(move || roots::remove(&root)).await;
    let failed = match removed {
        Ok(Ok(())) => return,
        Ok(Err(error)) => chain(&error),
        Err(panic) => panic.to_string(),
    };
    tracing::warn!(
        alloc_id = %task.alloc_id(), task = task.name(), error = failed,
        "the root of a task that does not run is left; it is taken away with the allocation"
    );
}
