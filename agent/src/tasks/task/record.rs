//! Records of tasks, in the store and on their cgroups.

use muster_wire::codec;

use crate::resources::cgroup::TaskCgroup;
use crate::storage::store::{Store, TaskRecord, Write};
use crate::tasks::task_ref::TaskRef;

/// Writes the record on the cgroup too, where it survives a loss of the store or the driver.
pub(crate) fn note_record(cgroup: &TaskCgroup, record: &TaskRecord) {
    let noted = codec::encode(record)
        .map_err(std::io::Error::other)
        .and_then(|note| cgroup.set_note(&note));
    if let Err(error) = noted {
        tracing::warn!(task_id = record.task_id, %error,
            "the record of a task could not be written on its cgroup: it is in the store alone");
    }
}

pub(crate) async fn store_record(store: &Store, task: &TaskRef, record: &TaskRecord) {
    let write = Write::Task(
        task.alloc_id(),
        task.name().to_owned(),
        Box::new(record.clone()),
    );
    // The store's thread reports the error to the operator. The task goes on, and the next agent finds it by its
    // cgroup.
    drop(store.write(vec![write]).await);
}
