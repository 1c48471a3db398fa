//! Directories of the agent and of allocations.
//!
//! ```text
//! <data>/alloc/<allocation>/alloc/{data,tmp}         shared by the group's tasks
//! <data>/alloc/<allocation>/<task>/{local,secrets,tmp}   a task's own
//! <data>/alloc/<allocation>/tmp/{incoming,arrived}   data from another node, on their way
//! <data>/logs/<allocation>/<task>.stdout.N           the task's output
//! <data>/logs/<allocation>/fifos/<task>.stdout       the FIFO that the task writes to
//! <data>/logs/<allocation>/names/hosts               the names that the task reads, with a network of its own
//! <data>/roots/<allocation>/<task>                   a root of host directories, for drivers that need one (`roots`)
//! <data>/trash/…                                     destroyed directories that are being deleted
//! ```
//!
//! Logs and FIFOs are outside of all directories that a task can write to. A task that could replace its FIFO or log by
//! a link would make the agent write or show files of others. Only root can enter these directories. A task has its
//! FIFO open and needs no path.
//!
//! No other user of the machine can reach files that tasks write. Otherwise a program that a task marks set-user-id
//! would run as the task's user. The directories above are therefore open to root alone. A task that sees the host's
//! files has to pass through them ([`DataDir::allow_traversal`]). The node trusts the driver of such a task with more
//! than that.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use muster_domain::account::{ACCOUNT_ID_MAX, Account};
use muster_domain::id::AllocId;
use muster_domain::job::Task;
use muster_driver::beneath::{self, Traversal};
use rustix::fs::{Gid, IFlags, Mode, OFlags, Uid};
use rustix::io::Errno;

use crate::logs::FifoOwner;
use crate::resources::users::WorkloadUsers;
use crate::storage::roots;
use crate::storage::trash::Trash;

/// The reason why a directory could not be made or removed.
#[derive(Debug, thiserror::Error)]
#[error("{action} {}; check free space and the owner of the data directory", path.display())]
pub(crate) struct DirError {
    action: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl DirError {
    /// The error for a panic of the thread that works on the directory.
    pub(crate) fn panicked(panic: &tokio::task::JoinError) -> Self {
        Self {
            action: "work in",
            path: PathBuf::from("the data directory"),
            source: io::Error::other(panic.to_string()),
        }
    }
}

/// A user that does not exist on this machine.
#[derive(Debug, thiserror::Error)]
#[error("unknown user `{name}` on this node; create it, or name another in the task's `user`")]
pub(crate) struct UnknownUserError {
    name: String,
}

/// Returns the user called or numbered `name`; `None` without a name, which means the driver's default.
pub(crate) fn owner_named(name: &str) -> Result<Option<FifoOwner>, UnknownUserError> {
    if name.is_empty() {
        return Ok(None);
    }
    let unknown = || UnknownUserError {
        name: name.to_owned(),
    };
    let (found, number) = match Account::parse(name).map_err(|_malformed| unknown())? {
        Account::Id(uid) => (nix::unistd::User::from_uid(uid.into()), Some(uid)),
        Account::Name(name) => (nix::unistd::User::from_name(name), None),
    };
    let owner = match (found.ok().flatten(), number) {
        (Some(user), _) => FifoOwner {
            uid: user.uid.as_raw(),
            gid: user.gid.as_raw(),
        },
        (None, Some(uid)) => FifoOwner { uid, gid: uid },
        (None, None) => return Err(unknown()),
    };
    if owner.uid.max(owner.gid) > ACCOUNT_ID_MAX {
        return Err(unknown());
    }
    Ok(Some(owner))
}

/// The owner of a task's files: the user that the task names, or the user that the agent assigned to it.
pub(crate) fn owner_of(
    users: &WorkloadUsers,
    alloc_id: AllocId,
    task: &Task,
) -> Result<Option<FifoOwner>, UnknownUserError> {
    if let Some(number) = users.of(alloc_id, &task.name) {
        return Ok(Some(crate::resources::users::owner(number)));
    }
    owner_named(&task.user)
}

/// The mode of a directory that only root may enter.
const PRIVATE: u32 = 0o700;
/// The mode of a directory that other users may pass through, but not list.
const PASSABLE: u32 = 0o701;

/// The paths of one agent's files.
#[derive(Clone, Debug)]
pub(crate) struct DataDir {
    root: PathBuf,
}

/// The paths of one allocation's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AllocDirs {
    /// The directories that tasks see, shared and own.
    pub(crate) alloc: PathBuf,
    pub(crate) logs: PathBuf,
    pub(crate) fifos: PathBuf,
}

impl AllocDirs {
    /// The directory shared by the group: `NOMAD_ALLOC_DIR`.
    pub(crate) fn shared(&self) -> PathBuf {
        self.alloc.join("alloc")
    }

    /// The directory of files with names for the tasks, if the allocation has a network of its own.
    pub(crate) fn names(&self) -> PathBuf {
        self.logs.join("names")
    }

    /// A task's own directory, its working directory.
    pub(crate) fn task(&self, task: &str) -> PathBuf {
        self.alloc.join(task)
    }
}

impl DataDir {
    /// Creates the paths below `root`. They are absolute, because tasks run in other directories.
    pub(crate) fn new(root: &Path) -> io::Result<Self> {
        Ok(Self {
            root: std::path::absolute(root)?,
        })
    }

    /// The data directory itself.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The parent directory of all allocations' directories.
    pub(crate) fn allocs(&self) -> PathBuf {
        self.root.join("alloc")
    }

    /// The parent directory of the mounted roots of tasks.
    pub(crate) fn roots(&self) -> PathBuf {
        self.root.join("roots")
    }

    /// The directory of the mounted roots of one allocation's tasks.
    pub(crate) fn roots_of(&self, alloc_id: AllocId) -> PathBuf {
        self.roots().join(alloc_id.to_string())
    }

    /// The directory of destroyed directories that wait for their deletion.
    pub(crate) fn trash(&self) -> PathBuf {
        self.root.join("trash")
    }

    /// Sockets, logs and records of driver processes.
    pub(crate) fn drivers(&self) -> PathBuf {
        self.root.join("drivers")
    }

    /// The file with the record of the node's cgroup tree.
    pub(crate) fn tree_record(&self) -> PathBuf {
        self.root.join("cgroup-tree.json")
    }

    /// The paths of one allocation's files.
    pub(crate) fn alloc(&self, alloc_id: AllocId) -> AllocDirs {
        let logs = self.root.join("logs").join(alloc_id.to_string());
        AllocDirs {
            alloc: self.allocs().join(alloc_id.to_string()),
            fifos: logs.join("fifos"),
            logs,
        }
    }

    /// Makes the agent's own directories.
    pub(crate) fn prepare(&self) -> Result<(), DirError> {
        for dir in [self.allocs(), self.root.join("logs")] {
            make_private(&dir)?;
            spread(&dir);
        }
        make(&self.trash(), PRIVATE, None)?;
        make(&self.drivers(), PRIVATE, None)?;
        Ok(())
    }

    /// Makes the directory that contains all others of an allocation, and returns its path.
    pub(crate) fn make_alloc_root(&self, alloc_id: AllocId) -> Result<PathBuf, DirError> {
        let AllocDirs { alloc, .. } = self.alloc(alloc_id);
        make_private(&alloc)?;
        Ok(alloc)
    }

    /// Lets a task's user pass through to the allocation's directories, if the task sees the host's files and is not
    /// root.
    pub(crate) fn allow_traversal(&self, alloc_id: AllocId) -> Result<(), DirError> {
        let AllocDirs { alloc, .. } = self.alloc(alloc_id);
        // The operator may have replaced the directory by a link.
        let opened = fs::set_permissions(&self.root, fs::Permissions::from_mode(PASSABLE));
        opened.map_err(|source| DirError {
            action: "open to other users",
            path: self.root.clone(),
            source,
        })?;
        for dir in [self.allocs(), alloc] {
            make(&dir, PASSABLE, None)?;
        }
        Ok(())
    }

    /// Makes the directories of an allocation. `tasks` has the names and owners of the tasks. A repeated call changes
    /// nothing.
    pub(crate) fn make_alloc(
        &self,
        alloc_id: AllocId,
        tasks: &[(String, Option<FifoOwner>)],
    ) -> Result<(), DirError> {
        let dirs = self.alloc(alloc_id);
        let root = make_private(&dirs.alloc)?;
        // Tasks of one group may run as different users, and use each other's files, as in Nomad.
        let shared = root.make("alloc", 0o777, None)?;
        for name in ["data", "logs", "tmp"] {
            shared.make(name, 0o777, None)?;
        }
        for (task, owner) in tasks {
            let dir = root.make(task, 0o755, *owner)?;
            for (name, mode) in [("local", 0o755), ("secrets", 0o700), ("tmp", 0o1777)] {
                dir.make(name, mode, *owner)?;
            }
        }
        make(&dirs.logs, PRIVATE, None)?.make("fifos", PRIVATE, None)?;
        Ok(())
    }

    /// Moves the data of `previous` to `heir`, whose directories exist. The data are the content of the shared `data`,
    /// and of the `local` directories of tasks that both have. Content that was moved before stays. `carry` is called
    /// with each directory before its move, and with its destination. Returns whether a directory was moved.
    pub(crate) fn inherit(
        &self,
        previous: AllocId,
        heir: AllocId,
        tasks: &[(String, Option<FifoOwner>)],
        carry: impl Fn(OwnedFd, &Path) -> io::Result<()>,
    ) -> Result<bool, DirError> {
        let (from, to) = (self.alloc(previous).alloc, self.alloc(heir).alloc);
        let own = tasks.iter().map(|(task, _)| Path::new(task).join("local"));
        let mut moved = false;
        for place in std::iter::once(PathBuf::from("alloc/data")).chain(own) {
            let (from, place) = (from.join(&place), to.join(&place));
            let done = move_dir(&from, &place, |dir| carry(dir, &to));
            moved |= done.map_err(|source| DirError {
                action: "take over",
                path: from,
                source,
            })?;
        }
        Ok(moved)
    }

    /// Moves all directories of an allocation to the trash: one rename for its directories, one for its logs. Roots
    /// that show them are removed first.
    pub(crate) fn discard_alloc(&self, trash: &Trash, alloc_id: AllocId) -> Result<(), DirError> {
        let roots = self.roots_of(alloc_id);
        roots::remove_all(&roots).map_err(|error| DirError {
            action: "take away the roots in",
            path: roots,
            source: io::Error::other(error),
        })?;
        let dirs = self.alloc(alloc_id);
        for (path, word) in [(dirs.alloc, "alloc"), (dirs.logs, "logs")] {
            let name = format!("{alloc_id}.{word}");
            let moved = trash.discard(&path, &name);
            moved.map_err(|source| DirError {
                action: "discard",
                path,
                source,
            })?;
        }
        Ok(())
    }

    /// Allocations that have directories, including those without a record.
    pub(crate) fn found_allocs(&self) -> Vec<AllocId> {
        let entries = fs::read_dir(self.allocs());
        entries
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .collect()
    }
}

/// Moves the directory `from` to its place `to` in the same allocation. Does nothing if `to` has content or `from` is
/// missing. Returns whether it was moved.
pub(crate) fn move_within_alloc(from: &Path, to: &Path) -> Result<bool, DirError> {
    move_dir(from, to, |_same_project| Ok(())).map_err(|source| DirError {
        action: "move in",
        path: from.to_owned(),
        source,
    })
}

/// Moves the directory `from` to the path `to`, which exists and is empty, or has content from an earlier move. Does
/// nothing if `from` is not a directory, because a task may have replaced it. No process writes to it any more.
fn move_dir(
    from: &Path,
    to: &Path,
    charge: impl FnOnce(OwnedFd) -> io::Result<()>,
) -> io::Result<bool> {
    let dir = match beneath::open_top(from, OFlags::RDONLY) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(false),
        dir => dir?,
    };
    if fs::read_dir(to)?.next().is_some() {
        return Ok(false);
    }
    charge(dir)?;
    rustix::fs::rename(from, to)?;
    Ok(true)
}

/// Asks the file system to place the directories in `dir` apart from each other, as ext4 does with top directories. If
/// they are close together, each new file is searched for among all files that were deleted there in the last seconds.
/// With many short tasks that costs more than starting a task. File systems without this flag do not need it.
pub(crate) fn spread(dir: &Path) {
    if let Ok(fd) = beneath::open_top(dir, OFlags::RDONLY)
        && let Ok(flags) = rustix::fs::ioctl_getflags(&fd)
        && !flags.contains(IFlags::TOPDIR)
    {
        let _not_known = rustix::fs::ioctl_setflags(&fd, flags | IFlags::TOPDIR);
    }
}

/// An open directory. Directories in it are made by name, so a task cannot redirect them by replacing a path.
struct OpenDir {
    fd: OwnedFd,
    path: PathBuf,
}

impl OpenDir {
    /// Makes a directory in this one, like [`make`].
    fn make(&self, name: &str, mode: u32, owner: Option<FifoOwner>) -> Result<Self, DirError> {
        make_at(
            Some(self.fd.as_fd()),
            Path::new(name),
            self.path.join(name),
            mode,
            owner,
        )
    }
}

/// Makes a directory with this mode, or adopts an existing one. No later step uses the path, because a task may put a
/// link in the place of a directory that it owns.
fn make(path: &Path, mode: u32, owner: Option<FifoOwner>) -> Result<OpenDir, DirError> {
    make_at(None, path, path.to_owned(), mode, owner)
}

/// Like [`make`], for a directory that only root may enter. A directory that users may already pass through stays so,
/// because a task may need it.
fn make_private(path: &Path) -> Result<OpenDir, DirError> {
    let is_passable = fs::symlink_metadata(path)
        .is_ok_and(|meta| meta.is_dir() && meta.permissions().mode() & 0o777 == PASSABLE);
    make(path, if is_passable { PASSABLE } else { PRIVATE }, None)
}

/// Runs [`make`] for `name` in the directory `at`, if there is one; `path` is for error messages.
fn make_at(
    at: Option<BorrowedFd<'_>>,
    name: &Path,
    path: PathBuf,
    mode: u32,
    owner: Option<FifoOwner>,
) -> Result<OpenDir, DirError> {
    let attempt = || {
        let is_new = match rustix::fs::mkdirat(at.unwrap_or(rustix::fs::CWD), name, Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(Errno::NOENT) => {
                fs::DirBuilder::new()
                    .recursive(true)
                    .mode(0o700)
                    .create(&path)?;
                true
            }
            Err(errno) => return Err(errno.into()),
        };
        let fd = match at {
            Some(at) => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY;
                beneath::open(at, name, flags, Traversal::Mounts)?
            }
            None => beneath::open_top(name, OFlags::RDONLY)?,
        };
        if let Some(FifoOwner { uid, gid }) = owner {
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            rustix::fs::fchown(&fd, Some(uid), Some(gid))?;
        }
        let mode = Mode::from_raw_mode(mode);
        if !is_new || owner.is_some() || mode != Mode::RWXU {
            // The mode is set after the owner, because a change of owner clears special bits.
            rustix::fs::fchmod(&fd, mode)?;
        }
        Ok(fd)
    };
    match attempt() {
        Ok(fd) => Ok(OpenDir { fd, path }),
        Err(source) => Err(DirError {
            action: "make directory",
            path,
            source,
        }),
    }
}

#[cfg(test)]
mod tests {
    use muster_domain::id::LogIndex;

    use super::*;

    fn made() -> (tempfile::TempDir, DataDir, AllocId) {
        let temp = tempfile::tempdir().unwrap();
        let data = DataDir::new(temp.path()).unwrap();
        let alloc_id = AllocId::at(LogIndex(1), 0);
        data.prepare().unwrap();
        data.make_alloc(alloc_id, &[("web".into(), None)]).unwrap();
        (temp, data, alloc_id)
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn directories_are_as_documented() {
        let (_temp, data, alloc_id) = made();
        let dirs = data.alloc(alloc_id);

        for path in [
            "alloc/data",
            "alloc/tmp",
            "web/local",
            "web/secrets",
            "web/tmp",
        ] {
            assert!(dirs.alloc.join(path).is_dir(), "{path}");
        }
        assert_eq!(mode(&dirs.alloc.join("web/secrets")), 0o700);
        assert_eq!(mode(&dirs.shared().join("data")), 0o777);
        assert_eq!(mode(&dirs.logs), 0o700);
    }

    /// Otherwise a program that a task marks set-user-id would run as the task's user.
    #[test]
    fn other_users_do_not_reach_task_files() {
        let (_temp, data, alloc_id) = made();
        let dirs = data.alloc(alloc_id);
        fs::set_permissions(&dirs.alloc, fs::Permissions::from_mode(0o711)).unwrap();

        data.make_alloc(alloc_id, &[("web".into(), None)]).unwrap();

        assert_eq!(mode(&data.allocs()), 0o700);
        assert_eq!(mode(&dirs.alloc), 0o700, "an earlier version made it");
    }

    #[test]
    fn users_that_see_the_host_may_pass() {
        let (_temp, data, alloc_id) = made();
        let dirs = data.alloc(alloc_id);

        data.allow_traversal(alloc_id).unwrap();
        data.prepare().unwrap();
        data.make_alloc(alloc_id, &[("web".into(), None)]).unwrap();

        for dir in [data.root(), &data.allocs(), &dirs.alloc] {
            assert_eq!(mode(dir), 0o701, "{}", dir.display());
        }
        let other = AllocId::at(LogIndex(2), 0);
        data.make_alloc(other, &[]).unwrap();
        assert_eq!(mode(&data.alloc(other).alloc), 0o700);
    }

    /// Directories that a task can write to contain neither its log nor its FIFO.
    #[test]
    fn logs_are_out_of_a_tasks_reach() {
        let (_temp, data, alloc_id) = made();
        let dirs = data.alloc(alloc_id);

        assert!(!dirs.logs.starts_with(&dirs.alloc) && !dirs.fifos.starts_with(&dirs.alloc));
    }

    #[test]
    fn making_twice_changes_nothing() {
        let (_temp, data, alloc_id) = made();
        fs::write(data.alloc(alloc_id).task("web").join("local/kept"), "x").unwrap();

        data.make_alloc(alloc_id, &[("web".into(), None)]).unwrap();

        assert!(data.alloc(alloc_id).task("web").join("local/kept").exists());
    }

    #[test]
    fn symlink_in_place_of_directory_is_refused() {
        let (_temp, data, alloc_id) = made();
        let local = data.alloc(alloc_id).task("web").join("local");
        fs::remove_dir(&local).unwrap();
        std::os::unix::fs::symlink("/etc", &local).unwrap();

        assert!(data.make_alloc(alloc_id, &[("web".into(), None)]).is_err());
    }

    #[test]
    fn discarding_leaves_only_trash() {
        let (_temp, data, alloc_id) = made();

        let mut trash = Trash::with_threads(&data.trash(), 1).unwrap();
        trash.stop();
        data.discard_alloc(&trash, alloc_id).unwrap();
        data.discard_alloc(&trash, alloc_id).unwrap();

        assert!(data.found_allocs().is_empty());
        assert!(!data.alloc(alloc_id).logs.exists());
        assert_eq!(fs::read_dir(data.trash()).unwrap().count(), 2);
    }

    #[test]
    fn users_are_found_by_name_and_number() {
        assert_eq!(owner_named("").unwrap(), None);
        assert_eq!(
            owner_named("root").unwrap(),
            Some(FifoOwner { uid: 0, gid: 0 })
        );
        assert_eq!(
            owner_named("0").unwrap(),
            Some(FifoOwner { uid: 0, gid: 0 })
        );
        assert!(owner_named("no such user").is_err());
        for number in ["4294967295", "-1", "4294967296"] {
            assert!(owner_named(number).is_err(), "{number}");
        }
    }
}
