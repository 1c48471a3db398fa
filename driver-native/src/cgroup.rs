//! A task's cgroup as its driver uses it: to start, kill and measure the task.
//!
//! The agent creates, limits and removes the cgroup. A foreign host sets no limits; for it, `named` takes the cgroup
//! that the host names. This file contains names of files in a cgroup, and no path of a cgroup. A cgroup that the
//! agent removed counts as empty.

pub(crate) mod named;

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use muster_driver::CgroupPlacement;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::{debug, warn};

use crate::limits;
use crate::process;
use crate::spawn::move_to_high_fd;

/// A cgroup that the task cannot be put into.
#[derive(Debug, Error)]
#[error("open the task's cgroup {}; the agent makes it, in the v2 hierarchy, before the task", path.display())]
pub(crate) struct OpenCgroupError {
    path: PathBuf,
    #[source]
    pub(crate) source: io::Error,
}

/// The v2 cgroup of a task.
#[derive(Debug)]
pub(crate) struct TaskCgroup {
    path: Box<Path>,
    /// The inode of the directory. A later cgroup at the same path has another inode and is not the task's.
    inode: u64,
    /// The open directory. After the start, only tasks with a permit in `permit` keep it open.
    dir: Option<OwnedFd>,
    permit: Option<OwnedSemaphorePermit>,
}

/// A cgroup's directory.
#[derive(Debug)]
pub(crate) enum CgroupDir<'a> {
    Held(BorrowedFd<'a>),
    Opened(OwnedFd),
}

impl AsFd for CgroupDir<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Held(dir) => *dir,
            Self::Opened(dir) => dir.as_fd(),
        }
    }
}

impl TaskCgroup {
    pub(crate) fn open(path: &Path) -> Result<Self, OpenCgroupError> {
        let (dir, inode) = open_dir(path).map_err(|source| OpenCgroupError {
            path: path.to_owned(),
            source,
        })?;
        // Without `cgroup.kill`, the driver could not kill processes that a task leaves running. Such a cgroup is
        // refused.
        open_in(dir.as_fd(), "cgroup.kill", OFlags::WRONLY).map_err(|source| OpenCgroupError {
            path: path.join("cgroup.kill"),
            source,
        })?;
        Ok(Self {
            path: path.into(),
            inode,
            dir: Some(move_to_high_fd(dir)),
            permit: None,
        })
    }

    /// Notes that the task runs. From now on the directory stays open only if a permit is free, so that a driver can
    /// have more tasks than files.
    pub(crate) fn close_dir_without_permit(&mut self, permits: &Arc<Semaphore>) {
        self.permit = Arc::clone(permits).try_acquire_owned().ok();
        if self.permit.is_none() {
            self.dir = None;
        }
    }

    /// Returns the directory, for `clone3` and for access to its files.
    ///
    /// # Errors
    ///
    /// The cgroup was removed.
    pub(crate) fn dir(&self) -> io::Result<CgroupDir<'_>> {
        if let Some(dir) = &self.dir {
            return Ok(CgroupDir::Held(dir.as_fd()));
        }
        match open_dir(&self.path)? {
            (dir, inode) if inode == self.inode => Ok(CgroupDir::Opened(dir)),
            _another => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn open_in(&self, name: &str, access: OFlags) -> io::Result<File> {
        open_in(self.dir()?.as_fd(), name, access)
    }

    /// Creates a cgroup below this one, without limits of its own.
    fn make(&self, name: &str) -> io::Result<Self> {
        rustix::fs::mkdirat(self.dir()?, name, Mode::from_raw_mode(0o755))?;
        Self::open(&self.path.join(name)).map_err(|error| error.source)
    }

    /// Opens the file through which a process moves itself into this cgroup.
    pub(crate) fn open_procs(&self) -> io::Result<OwnedFd> {
        Ok(self.open_in("cgroup.procs", OFlags::WRONLY)?.into())
    }

    /// Kills every process in the cgroup and below it, also frozen and stopped processes and processes in other
    /// sessions.
    pub(crate) fn kill(&self) -> io::Result<()> {
        let killed = self
            .open_in("cgroup.kill", OFlags::WRONLY)
            .and_then(|mut file| file.write_all(b"1"));
        match killed {
            Err(error) if is_removed(&error) => Ok(()),
            killed => killed,
        }
    }

    /// Returns whether a process is in the cgroup or below it. Zombies do not count.
    pub(crate) fn is_populated(&self) -> io::Result<bool> {
        match self.read("cgroup.events") {
            Ok(text) => Ok(field(&text, "populated") != Some(0)),
            Err(error) if is_removed(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the number of the task's processes that the kernel killed for lack of memory. Returns zero if the
    /// memory controller is in another hierarchy, or if the cgroup was removed; then the agent has the number.
    pub(crate) fn oom_kills(&self) -> u64 {
        let text = self.read("memory.events").unwrap_or_default();
        field(&text, "oom_kill").unwrap_or(0)
    }

    /// Reads a small file of the cgroup.
    pub(crate) fn read(&self, name: &str) -> io::Result<String> {
        let mut text = String::with_capacity(limits::KERNEL_FILE_BYTES);
        self.open_in(name, OFlags::RDONLY)?
            .take(limits::KERNEL_FILE_BYTES_MAX)
            .read_to_string(&mut text)?;
        Ok(text)
    }
}

/// A cgroup below the task's cgroup, for an action. The driver may have to kill the action with all its processes
/// while the task continues. The cgroup has neither limits nor counters of its own: those of the task apply.
#[derive(Debug)]
pub(crate) struct ActionCgroup {
    cgroup: TaskCgroup,
    keeps_processes: bool,
}

impl ActionCgroup {
    /// Creates a cgroup in the cgroup of `task`, with a unique name.
    pub(crate) fn make(task: &TaskCgroup, name: &str) -> io::Result<Self> {
        Ok(Self {
            cgroup: task.make(name)?,
            keeps_processes: false,
        })
    }

    /// Returns the cgroup, for the start of the action.
    pub(crate) fn cgroup(&self) -> &TaskCgroup {
        &self.cgroup
    }

    /// Keeps the processes of an action that ended by itself.
    pub(crate) fn keep_processes(mut self) {
        self.keeps_processes = true;
    }

    /// Kills all processes of the action.
    pub(crate) fn kill(&self) {
        if let Err(error) = self.cgroup.kill() {
            warn!(dir = %self.cgroup.path.display(), %error, "cannot kill what an action left running");
        }
    }

    /// Kills all processes of the action and waits until they are gone. Processes that are stuck in the kernel are
    /// left until the end of the task.
    pub(crate) async fn kill_and_wait(self) {
        self.kill();
        let empty = async {
            let mut pause = Duration::from_millis(1);
            while self.cgroup.is_populated().unwrap_or(false) {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(limits::EMPTY_POLL_MAX);
            }
        };
        if tokio::time::timeout(limits::ACTION_EXIT_DEADLINE, empty)
            .await
            .is_err()
        {
            warn!(dir = %self.cgroup.path.display(), "what an action left running does not die");
        }
    }
}

impl Drop for ActionCgroup {
    fn drop(&mut self) {
        if !self.keeps_processes {
            self.kill();
        }
        // The agent removes a cgroup that is not empty together with the task's cgroup.
        let removed = rustix::fs::unlinkat(CWD, &*self.cgroup.path, AtFlags::REMOVEDIR);
        if let Err(error) = removed {
            debug!(dir = %self.cgroup.path.display(), %error, "the cgroup of an action is left");
        }
    }
}

/// Maps directories to their names in the v2 hierarchy. The mapping is derived from the first task that was started in
/// a cgroup.
#[derive(Debug, Default)]
pub(crate) struct Hierarchy {
    /// A directory, and its path in the hierarchy.
    mapping: OnceLock<(PathBuf, PathBuf)>,
}

impl Hierarchy {
    /// Returns the path of `dir` in the hierarchy. The process `pid` was started in `dir`.
    pub(crate) fn name_of(&self, dir: &Path, pid: i32) -> io::Result<String> {
        if let Some((mount, name)) = self.mapping.get()
            && let Ok(below) = dir.strip_prefix(mount)
            && let Some(name) = name.join(below).to_str()
        {
            return Ok(name.to_owned());
        }
        let name = process::cgroup(pid)?;
        if let Some(mapping) = strip_common_end(dir, Path::new(&name)) {
            // Another thread may have stored the same value.
            let _known = self.mapping.set(mapping);
        }
        Ok(name)
    }
}

/// Strips the common end from a directory and its name, and returns the rest of both.
fn strip_common_end(dir: &Path, name: &Path) -> Option<(PathBuf, PathBuf)> {
    let pairs = dir.components().rev().zip(name.components().rev());
    let is_same = |(ours, theirs): &(Component<'_>, Component<'_>)| {
        ours == theirs && matches!(ours, Component::Normal(_))
    };
    let count = pairs.take_while(is_same).count();
    let of = |path: &Path| path.ancestors().nth(count).map(Path::to_owned);
    (count > 0).then(|| Some((of(dir)?, of(name)?)))?
}

/// Opens the files through which a task joins its cgroups in v1 hierarchies.
pub(crate) fn open_joins(placement: &CgroupPlacement) -> Result<Vec<OwnedFd>, OpenCgroupError> {
    placement
        .joins
        .iter()
        .map(|path| {
            let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(|source| OpenCgroupError {
                path: path.clone(),
                source: source.into(),
            })
        })
        .collect()
}

/// Returns the number after `name` in a file of `name number` lines.
pub(crate) fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(' ')?;
        (key == name).then(|| value.parse().ok())?
    })
}

/// Opens a cgroup's directory and returns its inode number.
fn open_dir(path: &Path) -> io::Result<(OwnedFd, u64)> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
    let inode = rustix::fs::fstat(&dir)?.st_ino;
    Ok((dir, inode))
}

fn open_in(dir: BorrowedFd<'_>, name: &str, access: OFlags) -> io::Result<File> {
    let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(dir, name, flags, Mode::empty())?.into())
}

/// Returns whether the error means that the cgroup was removed while its directory was held open.
fn is_removed(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_is_found_by_its_whole_name() {
        let text = "oom 7\noom_kill 2\noom_group_kill 1\n";

        assert_eq!(field(text, "oom_kill"), Some(2));
        assert_eq!(field(text, "oom_k"), None);
    }

    #[test]
    fn cgroup_name_is_derived_from_sibling() {
        let path = |path: &str| PathBuf::from(path);
        let mapping = strip_common_end(
            Path::new("/v2/unified/muster/one/task"),
            Path::new("/muster/one/task"),
        );
        assert_eq!(mapping, Some((path("/v2/unified"), path("/"))));
        // The driver's own root may be deeper than the mount, or the other way round.
        let mapping = strip_common_end(
            Path::new("/v2/tasks/one"),
            Path::new("/host/muster/tasks/one"),
        );
        assert_eq!(mapping, Some((path("/v2"), path("/host/muster"))));
        // The process moved itself before the driver read its cgroup: the driver learns no mapping.
        let mapping = strip_common_end(Path::new("/v2/one"), Path::new("/one/inner"));
        assert_eq!(mapping, None);

        let hierarchy = Hierarchy {
            mapping: OnceLock::from((path("/v2/unified"), path("/"))),
        };
        let dir = Path::new("/v2/unified/muster/other/task");
        // This pid does not exist, so the name comes from the stored mapping.
        let name = hierarchy.name_of(dir, i32::MAX).unwrap();
        assert_eq!(name, "/muster/other/task");
        assert!(
            hierarchy
                .name_of(Path::new("/elsewhere"), i32::MAX)
                .is_err()
        );
    }

    #[test]
    fn missing_cgroup_names_the_path() {
        let error = TaskCgroup::open(Path::new("/no/such/cgroup")).unwrap_err();

        assert!(error.to_string().contains("/no/such/cgroup"), "{error}");
    }
}
