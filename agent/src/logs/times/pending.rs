//! Records that are not in their file yet.
//!
//! A busy stream makes a record every tenth of a second. As a write of its own, each would cost a quarter of the
//! writes of its bytes. So some records wait here and are written together. Log readers run in the same process and
//! look here as well. A killed process loses the records, and readers then see the following bytes under the
//! previous time.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use muster_domain::number;

use super::Record;

/// The identity of a file, independent of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    pub(super) fn of(file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        })
    }
}

/// Records that follow those in a file.
#[derive(Clone, Debug, Default)]
pub(super) struct PendingTimes {
    /// The number of records in the file before the pending ones.
    pub(super) after: u64,
    pub(super) records: Vec<Record>,
}

/// The held records of all streams of this process.
static HELD: Mutex<BTreeMap<FileId, PendingTimes>> = Mutex::new(BTreeMap::new());

/// Appends `record` after `after` records of the file, and returns the number of held records. An existing record
/// at its place is replaced, together with all later ones.
pub(super) fn put(file: FileId, number: u64, after: u64, record: Record) -> usize {
    let mut all = locked();
    let held = all.entry(file).or_default();
    if held.records.is_empty() {
        held.after = after;
    }
    let place = number::index(number.saturating_sub(held.after));
    held.records.truncate(place);
    held.records.push(record);
    held.records.len()
}

/// Returns the held records of a file, for its writer to write. Readers see them until [`forget`].
pub(super) fn of(file: FileId) -> Option<PendingTimes> {
    locked().get(&file).cloned()
}

/// Removes the held records of a file: they are written, or may be lost.
pub(super) fn forget(file: FileId) {
    locked().remove(&file);
}

fn locked() -> MutexGuard<'static, BTreeMap<FileId, PendingTimes>> {
    // A panic elsewhere leaves the map whole: each change of it is one call.
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}
