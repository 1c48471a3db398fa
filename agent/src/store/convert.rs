//! Reads databases of earlier formats: each becomes one of this format when it is opened, all of it or nothing.
//!
//! | format | what it lacks |
//! |---|---|
//! | 1 | the boot of a leftover; the whole table, if its agent did not know of leftovers |
//! | 2 | the ends of one-off tasks, in the records of tasks and in snapshots |
//! | 3 | the network policies of jobs, in desired allocations |
//! | 4 | their rates |
//! | 5 | the rates of tasks' logs, and what becomes of more |
//! | 6 | what eBPF programs counted of one-off tasks that ended |
//! | 7 | hard limits of CPU and limits of disks, in desired allocations |
//! | 8 | networks of their drivers', in tasks' states |
//! | 9 | ports of tasks, host names, modes of mounts and what jobs are answered as, in desired allocations |

mod desired;
mod end;

use std::cmp::Ordering;

use muster_agent_core::alloc::AllocSnapshot;
use muster_domain::alloc::DesiredAlloc;
use muster_wire::codec;
use redb::{Database, ReadableDatabase as _, ReadableTable as _, Table};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{
    DESIRED, LEFTOVERS, META, META_SCHEMA, ReadError, SCHEMA, SNAPSHOTS, TASKS, TaskRecord, decoded,
};
use crate::gc::Leftover;

pub(super) use desired::{
    DesiredAllocOf3, DesiredAllocOf4, DesiredAllocOf5, DesiredAllocOf7, DesiredAllocOf9,
};
pub(super) use end::{
    AllocSnapshotOf2, AllocSnapshotOf6, AllocSnapshotOf8, TaskRecordOf2, TaskRecordOf6,
};

/// A leftover in format 1.
#[derive(Debug, Deserialize)]
pub(super) struct LeftoverOf1 {
    driver: String,
    task_id: String,
    task: String,
    cgroup_id: u64,
}

impl From<LeftoverOf1> for Leftover {
    fn from(leftover: LeftoverOf1) -> Self {
        let LeftoverOf1 {
            driver,
            task_id,
            task,
            cgroup_id,
        } = leftover;
        Self {
            driver,
            task_id,
            task,
            cgroup_id,
            boot_id: String::new(),
        }
    }
}

/// Converts a database of an earlier format; refuses one of a later.
pub(super) fn to_this_format(database: &Database) -> Result<(), ReadError> {
    let found = format(database)?;
    match found.cmp(&SCHEMA) {
        Ordering::Less => {}
        Ordering::Equal => return Ok(()),
        Ordering::Greater => return Err(ReadError::Newer(found)),
    }
    let transaction = database.begin_write()?;
    if found < 2 {
        convert_rows::<LeftoverOf1, Leftover>(transaction.open_table(LEFTOVERS)?)?;
    }
    let tasks = transaction.open_table(TASKS)?;
    let snapshots = transaction.open_table(SNAPSHOTS)?;
    if found < 3 {
        convert_rows::<TaskRecordOf2, TaskRecord>(tasks)?;
        convert_rows::<AllocSnapshotOf2, AllocSnapshot>(snapshots)?;
    } else if found < 7 {
        convert_rows::<TaskRecordOf6, TaskRecord>(tasks)?;
        convert_rows::<AllocSnapshotOf6, AllocSnapshot>(snapshots)?;
    } else if found < 9 {
        drop(tasks);
        convert_rows::<AllocSnapshotOf8, AllocSnapshot>(snapshots)?;
    } else {
        drop((tasks, snapshots));
    }
    let desired = transaction.open_table(DESIRED)?;
    match found {
        8.. => convert_rows::<DesiredAllocOf9, DesiredAlloc>(desired)?,
        ..4 => convert_rows::<DesiredAllocOf3, DesiredAlloc>(desired)?,
        4 => convert_rows::<DesiredAllocOf4, DesiredAlloc>(desired)?,
        5 => convert_rows::<DesiredAllocOf5, DesiredAlloc>(desired)?,
        _ => convert_rows::<DesiredAllocOf7, DesiredAlloc>(desired)?,
    }
    transaction
        .open_table(META)?
        .insert(META_SCHEMA, SCHEMA.to_le_bytes().as_slice())?;
    transaction.commit()?;
    tracing::info!(format = SCHEMA, "the agent's store was converted");
    Ok(())
}

fn convert_rows<Old, New>(mut table: Table<'_, &[u8], &[u8]>) -> Result<(), ReadError>
where
    Old: DeserializeOwned + Into<New>,
    New: Serialize,
{
    let mut rows = Vec::new();
    for row in table.iter()? {
        let (key, value) = row?;
        let old: Old = decoded(value.value())?;
        rows.push((key.value().to_vec(), old.into()));
    }
    for (key, new) in rows {
        let new: New = new;
        let bytes =
            codec::encode(&new).map_err(|error| ReadError::Unreadable(error.to_string()))?;
        table.insert(key.as_slice(), bytes.as_slice())?;
    }
    Ok(())
}

fn format(database: &Database) -> Result<u32, ReadError> {
    let meta = database.begin_read()?.open_table(META)?;
    let bytes = meta.get(META_SCHEMA)?.map(|bytes| bytes.value().to_vec());
    bytes
        .and_then(|bytes| <[u8; 4]>::try_from(bytes).ok())
        .map(u32::from_le_bytes)
        .ok_or_else(|| ReadError::Unreadable("it has no format number".into()))
}
