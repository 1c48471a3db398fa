//! A task's cgroup, as far as its driver uses it: to be born in, to be killed by, to be measured.
//!
//! The agent makes the cgroup, limits it and removes it. A host of another make limits nothing: for it, `named` takes
//! the group that the host names. This file knows names of files in it and nothing of where it lies. A cgroup that the
//! agent removed is an empty one.

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
use crate::spawn::held;

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
    /// The directory's number, which no other cgroup ever has: one that was made at the same path is not the task's.
    inode: u64,
    /// Open, for as many tasks as have a place.
    dir: Option<OwnedFd>,
    place: Option<OwnedSemaphorePermit>,
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
        // Without it, what a task leaves running cannot be reached: such a cgroup is refused.
        open_in(dir.as_fd(), "cgroup.kill", OFlags::WRONLY).map_err(|source| OpenCgroupError {
            path: path.join("cgroup.kill"),
            source,
        })?;
        Ok(Self {
            path: path.into(),
            inode,
            dir: Some(held(dir)),
            place: None,
        })
    }

    /// The task runs: from now on the directory is open only if there is a place, so that a driver can have more tasks
    /// than files.
    pub(crate) fn settle(&mut self, places: &Arc<Semaphore>) {
        self.place = Arc::clone(places).try_acquire_owned().ok();
        if self.place.is_none() {
            self.dir = None;
        }
    }

    /// For `clone3`, and for what is in it.
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

    /// Makes a cgroup in it, without limits of its own.
    fn make(&self, name: &str) -> io::Result<Self> {
        rustix::fs::mkdirat(self.dir()?, name, Mode::from_raw_mode(0o755))?;
        Self::open(&self.path.join(name)).map_err(|error| error.source)
    }

    /// The file through which a process moves itself here.
    pub(crate) fn procs(&self) -> io::Result<OwnedFd> {
        Ok(self.open_in("cgroup.procs", OFlags::WRONLY)?.into())
    }

    /// Kills every process in the cgroup and below it: frozen, stopped or in sessions of their own.
    pub(crate) fn kill(&self) -> io::Result<()> {
        let killed = self
            .open_in("cgroup.kill", OFlags::WRONLY)
            .and_then(|mut file| file.write_all(b"1"));
        match killed {
            Err(error) if removed(&error) => Ok(()),
            killed => killed,
        }
    }

    /// Whether a process is in the cgroup or below it. Zombies do not count.
    pub(crate) fn populated(&self) -> io::Result<bool> {
        match self.read("cgroup.events") {
            Ok(text) => Ok(field(&text, "populated") != Some(0)),
            Err(error) if removed(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Processes of the task that the kernel killed for want of memory. Zero where the memory
    /// controller is elsewhere, and when the cgroup was removed: then the agent knows.
    pub(crate) fn oom_kills(&self) -> u64 {
        let text = self.read("memory.events").unwrap_or_default();
        field(&text, "oom_kill").unwrap_or(0)
    }

    /// A small file of the cgroup.
    pub(crate) fn read(&self, name: &str) -> io::Result<String> {
        let mut text = String::with_capacity(limits::KERNEL_FILE_BYTES);
        self.open_in(name, OFlags::RDONLY)?
            .take(limits::KERNEL_FILE_BYTES_MAX)
            .read_to_string(&mut text)?;
        Ok(text)
    }
}

/// A cgroup in a task's, for an action that must be killed with all it started while the task goes on. It has neither
/// limits nor counters of its own: those of the task hold and count for it.
#[derive(Debug)]
pub(crate) struct ActionCgroup {
    cgroup: TaskCgroup,
    is_kept: bool,
}

impl ActionCgroup {
    /// In the cgroup of `task`, with a name that is nobody else's.
    pub(crate) fn make(task: &TaskCgroup, name: &str) -> io::Result<Self> {
        Ok(Self {
            cgroup: task.make(name)?,
            is_kept: false,
        })
    }

    /// For the start of the action.
    pub(crate) fn cgroup(&self) -> &TaskCgroup {
        &self.cgroup
    }

    /// The action ended by itself: what it left running goes on.
    pub(crate) fn keep(mut self) {
        self.is_kept = true;
    }

    /// Kills all of the action.
    pub(crate) fn kill(&self) {
        if let Err(error) = self.cgroup.kill() {
            warn!(dir = %self.cgroup.path.display(), %error, "cannot kill what an action left running");
        }
    }

    /// Kills all of it and waits until it is gone; what is stuck in the kernel is left to the end of the task.
    pub(crate) async fn end(self) {
        self.kill();
        let empty = async {
            let mut pause = Duration::from_millis(1);
            while self.cgroup.populated().unwrap_or(false) {
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
        if !self.is_kept {
            self.kill();
        }
        // A cgroup that is not empty goes with the task's cgroup, which its maker removes.
        let removed = rustix::fs::unlinkat(CWD, &*self.cgroup.path, AtFlags::REMOVEDIR);
        if let Err(error) = removed {
            debug!(dir = %self.cgroup.path.display(), %error, "the cgroup of an action is left");
        }
    }
}

/// The names of directories of the v2 hierarchy in it: learned from the first task that was born in one.
#[derive(Debug, Default)]
pub(crate) struct Hierarchy {
    /// A directory, and its name in the hierarchy.
    known: OnceLock<(PathBuf, PathBuf)>,
}

impl Hierarchy {
    /// The name in the hierarchy of `dir`, which process `pid` was born in.
    pub(crate) fn name_of(&self, dir: &Path, pid: i32) -> io::Result<String> {
        if let Some((mount, name)) = self.known.get()
            && let Ok(below) = dir.strip_prefix(mount)
            && let Some(name) = name.join(below).to_str()
        {
            return Ok(name.to_owned());
        }
        let name = process::cgroup(pid)?;
        if let Some(learned) = common(dir, Path::new(&name)) {
            // Another thread may have learned the same.
            let _known = self.known.set(learned);
        }
        Ok(name)
    }
}

/// Strips the common end from a directory and its name, and returns the rest of both.
fn common(dir: &Path, name: &Path) -> Option<(PathBuf, PathBuf)> {
    let pairs = dir.components().rev().zip(name.components().rev());
    let is_same = |(ours, theirs): &(Component<'_>, Component<'_>)| {
        ours == theirs && matches!(ours, Component::Normal(_))
    };
    let count = pairs.take_while(is_same).count();
    let of = |path: &Path| path.ancestors().nth(count).map(Path::to_owned);
    (count > 0).then(|| Some((of(dir)?, of(name)?)))?
}

/// The files of v1 hierarchies through which a task joins its cgroups there.
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

/// The number after `name` in a file of `name number` lines.
pub(crate) fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(' ')?;
        (key == name).then(|| value.parse().ok())?
    })
}

/// A cgroup's directory and its number.
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

/// The kernel answers so for a cgroup that was removed while it was held open.
fn removed(error: &io::Error) -> bool {
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
        let learned = common(
            Path::new("/v2/unified/muster/one/task"),
            Path::new("/muster/one/task"),
        );
        assert_eq!(learned, Some((path("/v2/unified"), path("/"))));
        // The driver's own root may lie deeper than the mount, or the other way round.
        let learned = common(
            Path::new("/v2/tasks/one"),
            Path::new("/host/muster/tasks/one"),
        );
        assert_eq!(learned, Some((path("/v2"), path("/host/muster"))));
        // It moved itself before anybody looked: nothing is learned.
        let learned = common(Path::new("/v2/one"), Path::new("/one/inner"));
        assert_eq!(learned, None);

        let hierarchy = Hierarchy {
            known: OnceLock::from((path("/v2/unified"), path("/"))),
        };
        let dir = Path::new("/v2/unified/muster/other/task");
        // Of a pid that is nobody's nothing could be read.
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
