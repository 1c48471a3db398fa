//! Conversion of databases that an older agent wrote. Each step converts one format into the next, in one transaction.
//!
//! The decoders of older records stay here for as long as their formats are read. `agent/testdata` has samples of each.

use redb::{Database, ReadableTable as _};
use serde::Deserialize;

use super::{LEFTOVERS, META, META_SCHEMA, ReadError, decoded};
use crate::storage::leftovers::Leftover;

/// The oldest format that is read.
pub(super) const OLDEST_FORMAT: u32 = 1;

/// A leftover of format 1, which has no time.
#[derive(Debug, Deserialize)]
pub(super) struct LeftoverV1 {
    driver: String,
    task_id: String,
    task: String,
    cgroup_id: u64,
    boot_id: String,
}

impl From<LeftoverV1> for Leftover {
    fn from(old: LeftoverV1) -> Self {
        let LeftoverV1 {
            driver,
            task_id,
            task,
            cgroup_id,
            boot_id,
        } = old;
        Self {
            driver,
            task_id,
            task,
            cgroup_id,
            boot_id,
            left_at: None,
        }
    }
}

/// Converts a database of format 1 to format 2. An older agent then refuses it with an error that names the format.
pub(super) fn from_1(database: &Database) -> Result<(), ReadError> {
    let transaction = database.begin_write()?;
    {
        let mut leftovers = transaction.open_table(LEFTOVERS)?;
        let mut rows = Vec::new();
        for row in leftovers.iter()? {
            let (key, value) = row?;
            let leftover = Leftover::from(decoded::<LeftoverV1>(value.value())?);
            rows.push((key.value().to_owned(), super::encoded(&leftover)?));
        }
        for (key, value) in &rows {
            leftovers.insert(key.as_slice(), value.as_slice())?;
        }
        let mut meta = transaction.open_table(META)?;
        meta.insert(META_SCHEMA, 2_u32.to_le_bytes().as_slice())?;
    }
    transaction.commit()?;
    tracing::info!("the agent's store was converted from format 1 to format 2");
    Ok(())
}
