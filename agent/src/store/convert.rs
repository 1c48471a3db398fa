//! Reads databases of earlier formats: each becomes one of this format when it is opened, all of it or nothing.
//!
//! | format | what it lacks |
//! |---|---|
//! | 1 | the boot of a leftover; the whole table, if its agent did not know of leftovers |

use std::cmp::Ordering;

use muster_wire::codec;
use redb::{Database, ReadableDatabase as _, ReadableTable as _};
use serde::Deserialize;

use super::{LEFTOVERS, META, META_SCHEMA, ReadError, SCHEMA, decoded};
use crate::gc::Leftover;

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
    {
        let mut table = transaction.open_table(LEFTOVERS)?;
        let mut leftovers = Vec::new();
        for row in table.iter()? {
            let (key, value) = row?;
            let leftover: LeftoverOf1 = decoded(value.value())?;
            leftovers.push((key.value().to_vec(), Leftover::from(leftover)));
        }
        for (key, leftover) in leftovers {
            let bytes = codec::encode(&leftover)
                .map_err(|error| ReadError::Unreadable(error.to_string()))?;
            table.insert(key.as_slice(), bytes.as_slice())?;
        }
        let mut meta = transaction.open_table(META)?;
        meta.insert(META_SCHEMA, SCHEMA.to_le_bytes().as_slice())?;
    }
    transaction.commit()?;
    tracing::info!(format = SCHEMA, "the agent's store was converted");
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
