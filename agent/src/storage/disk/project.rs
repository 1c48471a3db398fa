//! Project quota: a directory gets a project, and the file system refuses writes beyond the project's limits
//! (`EDQUOT`).
//!
//! All state is in the file system: the project of a directory, its limits and its charges. So the agent stores
//! nothing, and a restart changes nothing. A project is free if it has no charges and no limit. A directory in the
//! trash keeps its project.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Mutex;

use muster_driver::beneath;
use rustix::fs::OFlags;

use super::limits::{PROJECT_TRIES_MAX, PROJECTS};
use super::{DiskAmount, DiskLimit, carry};
use crate::sys;

/// The reason why the file system of `dir` has no project quota; `None` if it has.
pub(crate) fn unsupported(dir: &Path) -> Option<String> {
    let limited = open(dir).and_then(|dir| sys::projects_are_limited(dir.as_fd()));
    match limited {
        Ok(true) => None,
        Ok(false) => Some(format!(
            "the file system of {} holds no project to a limit; mount it with the option prjquota",
            dir.display()
        )),
        Err(error) => Some(format!(
            "the file system of {} has no project quota ({error}); use xfs, or ext4 made with `mkfs.ext4 -O quota,project`, mounted with the option prjquota, on Linux 5.14 or newer",
            dir.display()
        )),
    }
}

/// Only one project is chosen at a time.
#[derive(Debug, Default)]
pub(crate) struct Projects {
    choice_lock: Mutex<()>,
}

impl Projects {
    /// Limits the content of `dir`. A directory gets a project only while it is empty, because existing files would
    /// belong to none. Returns whether it is limited.
    pub(crate) fn limit(&self, dir: &Path, limit: DiskLimit) -> io::Result<bool> {
        let dir = open(dir)?;
        let dir = dir.as_fd();
        if let Some(project) = own_project(dir)? {
            set(dir, project, limit)?;
            return Ok(true);
        }
        if !is_empty(dir)? {
            return Ok(false);
        }
        let _alone = self.choice_lock.lock();
        let project = free(dir)?;
        // The limit is set first, because a project with a limit is not free for another agent.
        set(dir, project, limit)?;
        sys::set_project(dir, project)?;
        Ok(true)
    }
}

/// Returns the amount charged for `dir` and its limit; `None` if it has no project of the agent.
pub(crate) fn usage(dir: &Path) -> io::Result<Option<(DiskAmount, DiskLimit)>> {
    of(dir)?.map(|project| quota(dir, project)).transpose()
}

/// The project of `dir`, if it belongs to an ephemeral disk.
pub(crate) fn of(dir: &Path) -> io::Result<Option<u32>> {
    own_project(open(dir)?.as_fd())
}

/// Charges the directory `tree` and all its content to the project of `dir`; does nothing if `dir` has no project.
pub(crate) fn charge_tree(tree: OwnedFd, dir: &Path) -> io::Result<()> {
    match own_project(open(dir)?.as_fd())? {
        Some(project) => carry::assign_to_project(tree, project),
        None => Ok(()),
    }
}

/// Returns the amount that the file system of `dir` charges to a project, and its limit.
pub(crate) fn quota(dir: &Path, project: u32) -> io::Result<(DiskAmount, DiskLimit)> {
    let sys::ProjectQuota {
        bytes_max,
        bytes,
        inodes_max,
        inodes,
    } = sys::project_quota(open(dir)?.as_fd(), project)?;
    let limit = DiskLimit {
        bytes: bytes_max,
        inodes: inodes_max,
    };
    Ok((DiskAmount { bytes, inodes }, limit))
}

/// Removes the limit of `dir`, because the directory will be removed. Its content stays charged until it is deleted.
pub(crate) fn release(dir: &Path) -> io::Result<()> {
    let dir = match open(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        dir => dir?,
    };
    match own_project(dir.as_fd())? {
        Some(project) => sys::limit_project(dir.as_fd(), project, 0, 0),
        None => Ok(()),
    }
}

fn open(dir: &Path) -> io::Result<OwnedFd> {
    Ok(beneath::open_top(dir, OFlags::RDONLY)?)
}

fn set(dir: BorrowedFd<'_>, project: u32, limit: DiskLimit) -> io::Result<()> {
    let known = sys::project_quota(dir, project)?;
    if (known.bytes_max, known.inodes_max) == (limit.bytes, limit.inodes) {
        return Ok(());
    }
    sys::limit_project(dir, project, limit.bytes, limit.inodes)
}

/// The project of a directory, if it is in the agent's range and inherited.
fn own_project(dir: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    let (project, inherited) = sys::project(dir)?;
    Ok((inherited && PROJECTS.contains(&project)).then_some(project))
}

fn is_empty(dir: BorrowedFd<'_>) -> io::Result<bool> {
    for entry in rustix::fs::Dir::read_from(dir)? {
        let entry = entry?;
        if ![c".", c".."].contains(&entry.file_name()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns an unused project. The start of the search differs between directories.
fn free(dir: BorrowedFd<'_>) -> io::Result<u32> {
    let count = PROJECTS.end - PROJECTS.start;
    let inode = rustix::fs::fstat(dir)?.st_ino;
    let first = u32::try_from(inode % u64::from(count)).expect("the range is 32 bits");
    for step in 0..PROJECT_TRIES_MAX {
        let project = PROJECTS.start + (first + step) % count;
        let known = sys::project_quota(dir, project)?;
        if known == sys::ProjectQuota::default() {
            return Ok(project);
        }
    }
    Err(io::Error::other(format!(
        "{PROJECT_TRIES_MAX} projects in a row are in use; see `repquota -P`"
    )))
}
