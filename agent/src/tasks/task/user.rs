//! The user of a task that names none, where its driver runs tasks as users that no database knows.

use muster_domain::error_chain::chain;
use muster_driver::{TaskConfig, TaskHandle};

use crate::resources::users;
use crate::resources::users::WorkloadUsers;
use crate::storage::StorageContext;
use crate::storage::store::{Store, TaskRecord, Write};
use crate::tasks::drivers::{DriverSlot, native};
use crate::tasks::task::driver_calls::driver_facts;
use crate::tasks::task::start_failure::StartFailure;
use crate::tasks::task_ref::TaskRef;

/// Gives the task a user and directories that belong to it, and passes the user to its driver.
pub(super) async fn assign(
    storage: &StorageContext,
    users: &WorkloadUsers,
    task: &TaskRef,
    slot: &DriverSlot,
    config: &mut TaskConfig,
) -> Result<(), StartFailure> {
    let is_native = task.task().driver == native::NAME;
    if !task.task().user.is_empty() || is_native {
        return Ok(());
    }
    if !driver_facts(slot)
        .await?
        .capabilities
        .dynamic_workload_users
    {
        return Ok(());
    }
    let alloc_id = task.alloc_id();
    let number = users.take(alloc_id, task.name());
    let number = number.map_err(StartFailure::retryable)?;
    let write = Write::Users(alloc_id, users.of_alloc(alloc_id));
    // The store's thread reports the error to the operator. A running task is recovered with its user all the same.
    drop(storage.store.write(vec![write]).await);

    let data = storage.data.clone();
    let owned = [(task.name().to_owned(), Some(users::owner(number)))];
    let made = tokio::task::spawn_blocking(move || data.make_alloc(alloc_id, &owned)).await;
    let made = made.map_err(StartFailure::retryable)?;
    made.map_err(|error| StartFailure::retryable(chain(&error)))?;
    config.user = users::name_of(number);
    Ok(())
}

/// Marks the user of a running task as taken, whatever the store contains.
pub(super) async fn claim(
    store: &Store,
    users: &WorkloadUsers,
    task: &TaskRef,
    record: &TaskRecord,
) {
    if !task.task().user.is_empty() || record.driver == native::NAME {
        return;
    }
    // The code that needs the handle reports an unreadable one.
    let Ok(handle) = TaskHandle::decode(&record.handle) else {
        return;
    };
    if let Some(number) = users::number_in(&handle.config.user) {
        let alloc_id = task.alloc_id();
        if users.claim(alloc_id, task.name(), number) {
            let write = Write::Users(alloc_id, users.of_alloc(alloc_id));
            drop(store.write(vec![write]).await);
        }
    }
}
