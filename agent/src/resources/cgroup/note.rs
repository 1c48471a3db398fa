//! The note that the agent writes on a task's group: its record of the start.
//!
//! An extended attribute of the group's directory in the v2 hierarchy lives as long as the group, and at most until the
//! next boot. No task can read or write it, because `trusted.` belongs to root in the initial user namespace. If the
//! store is lost, the agent recovers the task from the note, even if the driver died as well.

use std::io;
use std::path::Path;

use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;

use crate::limits::TASK_NOTE_BYTES_MAX;

const NAME: &str = "trusted.muster.task";

/// Writes `note` on the group at `dir`, replacing an older one.
pub(crate) fn write(dir: &Path, note: &[u8]) -> io::Result<()> {
    if note.len() > TASK_NOTE_BYTES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("{} bytes, {TASK_NOTE_BYTES_MAX} fit", note.len()),
        ));
    }
    Ok(setxattr(dir, NAME, note, XattrFlags::empty())?)
}

/// The note on the group at `dir`; `None` if there is none, or no group.
pub(crate) fn read(dir: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut note = vec![0; TASK_NOTE_BYTES_MAX];
    match getxattr(dir, NAME, note.as_mut_slice()) {
        Ok(len) => {
            note.truncate(len);
            Ok(Some(note))
        }
        Err(Errno::NODATA | Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
