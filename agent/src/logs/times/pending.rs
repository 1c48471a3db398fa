//! Records that are not in their file yet.
//!
//! A busy stream has a record every tenth of a second, and each as a write of its own would cost a quarter of what its
//! bytes do. So some wait here and are written together. Who reads logs is in the same process and looks here as well;
//! a process that is killed loses them, and the bytes since then are told under the time before.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use muster_domain::number;

use super::Record;

/// A file, whatever its name.
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
    /// How many there are in the file before them.
    pub(super) after: u64,
    pub(super) records: Vec<Record>,
}

/// Of all streams of this process that have some.
static HELD: Mutex<BTreeMap<FileId, PendingTimes>> = Mutex::new(BTreeMap::new());

/// Has `record` follow `after` records of the file, and says how many are held then. One that
/// stands in its place is replaced, with those behind it.
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

/// Returns the times held of a file, for its writer to write. Readers are told them until [`forget`].
pub(super) fn of(file: FileId) -> Option<PendingTimes> {
    locked().get(&file).cloned()
}

/// All of it is written, or is to be lost.
pub(super) fn forget(file: FileId) {
    locked().remove(&file);
}

fn locked() -> MutexGuard<'static, BTreeMap<FileId, PendingTimes>> {
    // A panic elsewhere leaves the map whole: each change of it is one call.
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}
