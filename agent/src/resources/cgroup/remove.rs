//! Removing a group and all groups below it, at any depth of nesting.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::resources::cgroup::file::CgroupFileError;
use crate::resources::cgroup::limits::{CHECK_PAUSE_MAX, CHECK_PAUSE_MIN, REMOVE_TRIES_MAX};
use crate::resources::cgroup::{kill, subgroups};

/// The reason why a group was not removed.
#[derive(Debug, thiserror::Error)]
pub enum RemoveCgroupError {
    /// Processes are in the group, or the kernel has not released them.
    #[error(
        "{dir} is busy with processes {pids:?}; kill the group first, or wait: those that remain are stuck in the kernel"
    )]
    Busy {
        dir: PathBuf,
        /// The processes in the group or below.
        pids: Vec<u32>,
    },
    /// A file could not be read.
    #[error(transparent)]
    File(#[from] CgroupFileError),
    /// The group could not be removed.
    #[error("remove {dir}")]
    Remove {
        dir: PathBuf,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
}

/// Removes `dir` and all groups below, deepest first. A missing group is success. Retries for about a second while the
/// kernel reports that a group is busy.
pub(crate) async fn depth_first(dir: &Path) -> Result<(), RemoveCgroupError> {
    let mut pause = CHECK_PAUSE_MIN;
    for _try in 0..REMOVE_TRIES_MAX {
        match try_remove(dir) {
            Ok(()) => return Ok(()),
            Err(error) if is_busy(&error) => {}
            Err(source) => {
                return Err(RemoveCgroupError::Remove {
                    dir: dir.into(),
                    source,
                });
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(CHECK_PAUSE_MAX);
    }
    Err(RemoveCgroupError::Busy {
        dir: dir.into(),
        pids: kill::procs(dir)?,
    })
}

/// One pass of [`depth_first`].
pub(crate) fn try_remove(dir: &Path) -> io::Result<()> {
    // Few tasks create groups of their own, and listing a group costs more than removing it.
    match rmdir(dir) {
        Err(error) if is_busy(&error) => {}
        outcome => return outcome,
    }
    // The list has parents before children, so it is processed in reverse.
    for nested in subgroups::descendants(dir)
        .map_err(io::Error::other)?
        .iter()
        .rev()
    {
        rmdir(nested)?;
    }
    rmdir(dir)
}

/// Removes an empty group. A missing group is success.
pub(crate) fn rmdir(dir: &Path) -> io::Result<()> {
    match fs::remove_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _gone => Ok(()),
    }
}

/// Whether a retry may help.
pub(crate) fn is_busy(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ResourceBusy | io::ErrorKind::DirectoryNotEmpty
    )
}
