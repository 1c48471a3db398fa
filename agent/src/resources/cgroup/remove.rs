//! Removing a group and all below it, however the task nested them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::resources::cgroup::file::CgroupFileError;
use crate::resources::cgroup::limits::{LOOK_PAUSE_MAX, LOOK_PAUSE_MIN, REMOVE_TRIES_MAX};
use crate::resources::cgroup::{kill, subgroups};

/// Why a group is still there.
#[derive(Debug, thiserror::Error)]
pub enum RemoveCgroupError {
    /// Processes are in it, or the kernel has not let go of them.
    #[error(
        "{dir} is busy with processes {pids:?}; kill the group first, or wait: those that remain are stuck in the kernel"
    )]
    Busy {
        dir: PathBuf,
        /// The processes in it or below.
        pids: Vec<u32>,
    },
    /// A file could not be read.
    #[error(transparent)]
    File(#[from] CgroupFileError),
    /// It could not be removed.
    #[error("remove {dir}")]
    Remove {
        dir: PathBuf,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
}

/// Removes `dir` and all below, deepest first; it being gone is success. Tries again for about a
/// second while the kernel says that it is busy.
pub(crate) async fn depth_first(dir: &Path) -> Result<(), RemoveCgroupError> {
    let mut pause = LOOK_PAUSE_MIN;
    for _try in 0..REMOVE_TRIES_MAX {
        match once(dir) {
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
        pause = (pause * 2).min(LOOK_PAUSE_MAX);
    }
    Err(RemoveCgroupError::Busy {
        dir: dir.into(),
        pids: kill::procs(dir)?,
    })
}

/// One pass of [`depth_first`].
pub(crate) fn once(dir: &Path) -> io::Result<()> {
    // Few tasks make groups of their own, and to list a group costs more than to remove it.
    match rmdir(dir) {
        Err(error) if is_busy(&error) => {}
        outcome => return outcome,
    }
    // Groups above their children, so the other way round.
    for nested in subgroups::descendants(dir)
        .map_err(io::Error::other)?
        .iter()
        .rev()
    {
        rmdir(nested)?;
    }
    rmdir(dir)
}

/// Removes an empty group; it being gone is success.
pub(crate) fn rmdir(dir: &Path) -> io::Result<()> {
    match fs::remove_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _gone => Ok(()),
    }
}

/// Whether trying again may help.
pub(crate) fn is_busy(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ResourceBusy | io::ErrorKind::DirectoryNotEmpty
    )
}
