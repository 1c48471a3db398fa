//! Roots of tasks whose drivers change into a root made of the host's files (`fs_isolation` chroot).
//!
//! ```text
//! <data>/roots/<allocation>/<task>   the task's own directory; on it, read-only, `chroot_env`'s paths, and `/alloc`
//! <data>/roots/<allocation>/alloc    a link to the directory that the group shares
//! ```
//!
//! No file is copied: a root is a mount of the task's directory with mounts on it. Unmounting it also unmounts the
//! others, even if the task renamed directories meanwhile. Roots are outside of allocations' directories, so that
//! deleting, measuring or sending those meets no mount. They are in the agent's mount namespace, which the plugins that
//! it starts share. None of these mounts belongs to a peer group of the host's, so changes to them stay local. A root
//! exists from before its task starts until the task has ended. A root that a crash left is removed before the next
//! start, with the allocation, or with `muster agent clean`.
//!
//! Absent: `/dev`, `/proc` and the job's mounts, which the driver makes, as under Nomad.

mod env;

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Component, Path, PathBuf};

use muster_driver::beneath::{self, Traversal};
use muster_driver::mount::{self, MountFlags};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags};

use crate::limits::ROOT_MOUNTS_MAX;
use crate::storage::allocdir::AllocDirs;

pub use env::{ChrootEnv, ChrootEnvError};

/// Programs that change their user and devices are refused on every mount that a task sees.
const RIGHTS: MountFlags = MountFlags::NO_SET_USER.and(MountFlags::NO_DEVICES);
/// The name of the group's shared directory, in a root and next to it.
const SHARED: &str = "alloc";

/// The reason why a task has no root.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RootError {
    /// `chroot_env` shows the data directory. Every task would see the files of every other task, and a root in it
    /// would contain all others.
    #[error(
        "`chroot_env` shows {} to tasks, which holds the agent's data directory {} or lies in it; name what is beside that",
        path.display(), data.display()
    )]
    HoldsData { path: PathBuf, data: PathBuf },
    /// Neither a directory nor a file.
    #[error("`chroot_env` names {}, which is neither a directory nor a file", path.display())]
    Kind { path: PathBuf },
    /// A task made another kind of file where the root needs a directory.
    #[error(
        "the task has put something of its own where its root needs {}: have it leave that place alone",
        place.display()
    )]
    Occupied { place: PathBuf },
    /// The driver does not see the mounts, so it would change into an empty directory.
    #[error(
        "the driver's process {pid} does not see what the agent mounts: an agent in another mount namespace started it. End it, so that this agent starts it, and give the agent's service no mounts of its own (`PrivateTmp=` and the like)"
    )]
    Unseen { pid: u32 },
    #[error("cannot {what} {}; see `fs.mount-max` and free space", path.display())]
    Kernel {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl RootError {
    /// Whether a retry cannot succeed.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Self::HoldsData { .. } | Self::Kind { .. } | Self::Occupied { .. } => true,
            Self::Unseen { .. } | Self::Kernel { .. } => false,
        }
    }
}

fn failed<E: Into<io::Error>>(what: &'static str, path: &Path) -> impl FnOnce(E) -> RootError {
    let path = path.to_owned();
    move |source| RootError::Kernel {
        what,
        path,
        source: source.into(),
    }
}

/// A root, as described to its driver.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Root {
    /// The path that replaces the allocation's directory.
    pub(crate) alloc_dir: PathBuf,
    pub(crate) task_dir: PathBuf,
    /// The entries of `chroot_env` that this machine does not have.
    pub(crate) absent: Vec<PathBuf>,
}

/// The parts that roots are made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RootSources<'a> {
    /// The host paths that are shown.
    pub(crate) env: &'a ChrootEnv,
    /// The agent's data directory.
    pub(crate) data: &'a Path,
    /// The process of the driver that will use the root, if the driver has one of its own.
    pub(crate) driver: Option<u32>,
}

/// Makes the root of `task` below `roots`, and replaces an existing one.
pub(crate) fn build(
    sources: RootSources<'_>,
    roots: &Path,
    dirs: &AllocDirs,
    task: &str,
) -> Result<Root, RootError> {
    let root = Root {
        alloc_dir: roots.to_owned(),
        task_dir: roots.join(task),
        absent: Vec::new(),
    };
    remove(&root.task_dir)?;
    make_dirs(&root, &dirs.shared())?;
    let made = mount_all(sources, dirs, task, root).and_then(|root| {
        sources
            .driver
            .map_or(Ok(()), |pid| check_mounts_visible(pid, &root.task_dir))?;
        Ok(root)
    });
    made.inspect_err(|_error| {
        // A remaining mount is removed before the next start.
        drop(remove(&roots.join(task)));
    })
}

/// Checks that the process `pid` finds the agent's mounts at `root`. If the process ended meanwhile, the start itself
/// reports that.
fn check_mounts_visible(pid: u32, root: &Path) -> Result<(), RootError> {
    let its = PathBuf::from(format!("/proc/{pid}/root"));
    if !its.exists() {
        return Ok(());
    }
    let its = its.join(root.strip_prefix("/").unwrap_or(root));
    let identity = |path: &Path| {
        let meta = fs::metadata(path).ok()?;
        Some((meta.dev(), meta.ino()))
    };
    if identity(&its) == identity(root) {
        Ok(())
    } else {
        Err(RootError::Unseen { pid })
    }
}

fn make_dirs(root: &Root, shared: &Path) -> Result<(), RootError> {
    let dir = &root.task_dir;
    let mut builder = fs::DirBuilder::new();
    let made = builder.recursive(true).mode(0o711).create(dir);
    made.map_err(failed("make the directory", dir))?;
    let link = root.alloc_dir.join(SHARED);
    match std::os::unix::fs::symlink(shared, &link) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(failed("make the link", &link)(error))
        }
        _there => Ok(()),
    }
}

fn mount_all(
    sources: RootSources<'_>,
    dirs: &AllocDirs,
    task: &str,
    mut root: Root,
) -> Result<Root, RootError> {
    let RootSources { env, data, .. } = sources;
    let own = dirs.task(task);
    let base = copied(&open_dir(&own)?, &own, RIGHTS, false)?;
    let at = open_dir(&root.task_dir)?;
    attach(base.as_fd(), at.as_fd()).map_err(failed("mount at", &root.task_dir))?;

    let shared = dirs.shared();
    let tree = copied(&open_dir(&shared)?, &shared, RIGHTS, false)?;
    attach_in_root(tree.as_fd(), base.as_fd(), Path::new(SHARED), true)?;
    let data = fs::canonicalize(data).map_err(failed("find", data))?;
    for (place, path) in env.entries() {
        let Some((source, is_dir)) = source(path, &data)? else {
            root.absent.push(path.to_owned());
            continue;
        };
        let tree = copied(&source, path, RIGHTS.and(MountFlags::READ_ONLY), true)?;
        attach_in_root(tree.as_fd(), base.as_fd(), place, is_dir)?;
    }
    Ok(root)
}

/// Opens the host's entry at `path`, and returns whether it is a directory; `None` if there is no entry.
fn source(path: &Path, data: &Path) -> Result<Option<(OwnedFd, bool)>, RootError> {
    let source = match rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        opened => opened.map_err(failed("open", path))?,
    };
    let real = fs::canonicalize(path).map_err(failed("find", path))?;
    if data.starts_with(&real) || real.starts_with(data) {
        return Err(RootError::HoldsData {
            path: path.to_owned(),
            data: data.to_owned(),
        });
    }
    let stat = rustix::fs::fstat(&source).map_err(failed("look at", path))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Ok(Some((source, true))),
        FileType::RegularFile => Ok(Some((source, false))),
        _ => Err(RootError::Kind {
            path: path.to_owned(),
        }),
    }
}

fn open_dir(path: &Path) -> Result<OwnedFd, RootError> {
    beneath::open_top(path, OFlags::PATH).map_err(failed("open", path))
}

/// Returns a detached mount of `source`, without propagation from or to the original. With `whole` it includes all
/// mounts in `source`.
fn copied(
    source: &OwnedFd,
    path: &Path,
    rights: MountFlags,
    whole: bool,
) -> Result<OwnedFd, RootError> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    if whole {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    let tree = rustix::mount::open_tree(source, "", flags).map_err(failed("bind", path))?;
    // The mount is restricted before it is attached. An unmount in a mount that still has peers would also apply to the
    // peers.
    mount::restrict(tree.as_fd(), rights, whole).map_err(failed("restrict", path))?;
    Ok(tree)
}

/// Attaches `tree` at `place` in the root `base`.
fn attach_in_root(
    tree: BorrowedFd<'_>,
    base: BorrowedFd<'_>,
    place: &Path,
    is_dir: bool,
) -> Result<(), RootError> {
    let mount_point = open_mount_point(base, place, is_dir).map_err(|errno| match errno {
        Errno::LOOP | Errno::NOTDIR | Errno::XDEV | Errno::ISDIR => RootError::Occupied {
            place: place.to_owned(),
        },
        errno => failed("make the place", place)(errno),
    })?;
    attach(tree, mount_point.as_fd()).map_err(|errno| match errno {
        // A file would be mounted on a directory, or a directory on a file.
        Errno::NOTDIR => RootError::Occupied {
            place: place.to_owned(),
        },
        errno => failed("mount at", place)(errno),
    })
}

fn attach(tree: BorrowedFd<'_>, at: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(tree, "", at, "", flags)
}

/// Opens the place to mount on, and makes it if it is missing. No step follows a link or crosses a mount.
fn open_mount_point(base: BorrowedFd<'_>, place: &Path, is_dir: bool) -> Result<OwnedFd, Errno> {
    let mut at: Option<OwnedFd> = None;
    let mut parts = place.components().peekable();
    while let Some(Component::Normal(part)) = parts.next() {
        let parent = at.as_ref().map_or(base, |dir| dir.as_fd());
        let part = Path::new(part);
        let opened = if is_dir || parts.peek().is_some() {
            dir_point(parent, part)?
        } else {
            file_point(parent, part)?
        };
        at = Some(opened);
    }
    at.ok_or(Errno::INVAL)
}

fn dir_point(parent: BorrowedFd<'_>, name: &Path) -> Result<OwnedFd, Errno> {
    let mode = Mode::from_raw_mode(0o755);
    let is_new = match rustix::fs::mkdirat(parent, name, mode) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(errno) => return Err(errno),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let dir = beneath::open(parent, name, flags, Traversal::Dirs)?;
    if is_new {
        // The mode must let a task pass, independent of the agent's umask.
        rustix::fs::fchmod(&dir, mode)?;
    }
    Ok(dir)
}

fn file_point(parent: BorrowedFd<'_>, name: &Path) -> Result<OwnedFd, Errno> {
    let (flags, mode) = (OFlags::WRONLY | OFlags::EXCL, Mode::from_raw_mode(0o644));
    match beneath::create(parent, name, flags, mode, Traversal::Dirs) {
        Err(Errno::EXIST) => beneath::open(parent, name, OFlags::PATH, Traversal::Dirs),
        made => made,
    }
}

/// Removes a task's root, if there is one. No file below it is deleted.
pub(crate) fn remove(root: &Path) -> Result<(), RootError> {
    for _mount in 0..ROOT_MOUNTS_MAX {
        match rustix::mount::unmount(root, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            // No mount is there, or the path does not exist.
            Err(Errno::INVAL | Errno::NOENT) => break,
            Err(errno) => return Err(failed("unmount", root)(errno)),
        }
    }
    ignore_missing(fs::remove_dir(root)).map_err(failed("remove the directory", root))
}

/// Removes all roots of an allocation from `roots`.
pub(crate) fn remove_all(roots: &Path) -> Result<(), RootError> {
    let entries = match fs::read_dir(roots) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(failed("read", roots))?,
    };
    for entry in entries {
        let entry = entry.map_err(failed("read", roots))?;
        let path = entry.path();
        if entry.file_name() == SHARED {
            ignore_missing(fs::remove_file(&path)).map_err(failed("remove the link", &path))?;
        } else {
            remove(&path)?;
        }
    }
    ignore_missing(fs::remove_dir(roots)).map_err(failed("remove the directory", roots))
}

fn ignore_missing(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests;
