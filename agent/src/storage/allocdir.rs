//! Directories of the agent and of allocations.
//!
//! ```text
//! <data>/alloc/<allocation>/alloc/{data,tmp}         shared by the group's tasks
//! <data>/alloc/<allocation>/<task>/{local,secrets,tmp}   a task's own
//! <data>/alloc/<allocation>/tmp/{incoming,arrived}   data that come from another node, on their way
//! <data>/logs/<allocation>/<task>.stdout.N           what it wrote
//! <data>/logs/<allocation>/fifos/<task>.stdout       what it writes to
//! <data>/logs/<allocation>/names/hosts               what it reads of names, with a network of its own
//! <data>/roots/<allocation>/<task>                   a root of host directories, for drivers that need one (`roots`)
//! <data>/trash/…                                     destroyed, being deleted
//! ```
//!
//! Logs and FIFOs lie outside everything a task can write: a task that could replace its FIFO by a
//! link, or its log by one, would make the agent write or show files that are not the task's. Only
//! root can enter them; a task has its FIFO open and needs no path.
//!
//! No other user of the machine reaches what tasks write. A program that a task marks set-user-id would run as the
//! task's user. The directories above are therefore open to root alone. A task that sees the host's files has to pass
//! ([`DataDir::let_users_pass`]); its driver's node trusts it with more than that.

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

/// Why a directory could not be made or removed.
#[derive(Debug, thiserror::Error)]
#[error("{action} {}; check free space and the owner of the data directory", path.display())]
pub(crate) struct DirError {
    action: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl DirError {
    /// The thread that was to do it panicked.
    pub(crate) fn panicked(panic: &tokio::task::JoinError) -> Self {
        Self {
            action: "work in",
            path: PathBuf::from("the data directory"),
            source: io::Error::other(panic.to_string()),
        }
    }
}

/// A user that does not exist here.
#[derive(Debug, thiserror::Error)]
#[error("unknown user `{name}` on this node; create it, or name another in the task's `user`")]
pub(crate) struct UnknownUserError {
    name: String,
}

/// The user called or numbered `name`; `None` for no name, which is the driver's default.
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

/// The owner of a task's files: the user that the task names, or the one that it was given.
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

/// Only root may enter.
const PRIVATE: u32 = 0o700;
/// Other users may pass through, but not look around.
const PASSABLE: u32 = 0o701;

/// Where everything of one agent lies.
#[derive(Clone, Debug)]
pub(crate) struct DataDir {
    root: PathBuf,
}

/// Where one allocation lies.
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

    /// Files that tell its tasks of names, if it has a network of its own.
    pub(crate) fn names(&self) -> PathBuf {
        self.logs.join("names")
    }

    /// A task's own directory, its working directory.
    pub(crate) fn task(&self, task: &str) -> PathBuf {
        self.alloc.join(task)
    }
}

impl DataDir {
    /// Below `root`, which is made absolute: tasks run elsewhere.
    pub(crate) fn new(root: &Path) -> io::Result<Self> {
        Ok(Self {
            root: std::path::absolute(root)?,
        })
    }

    /// The data directory itself.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Where allocations lie.
    pub(crate) fn allocs(&self) -> PathBuf {
        self.root.join("alloc")
    }

    /// Where roots of tasks are mounted.
    pub(crate) fn roots(&self) -> PathBuf {
        self.root.join("roots")
    }

    /// Where those of one allocation are.
    pub(crate) fn roots_of(&self, alloc_id: AllocId) -> PathBuf {
        self.roots().join(alloc_id.to_string())
    }

    /// Where destroyed directories wait for their deletion.
    pub(crate) fn trash(&self) -> PathBuf {
        self.root.join("trash")
    }

    /// Sockets, logs and records of driver processes.
    pub(crate) fn drivers(&self) -> PathBuf {
        self.root.join("drivers")
    }

    /// Where the node's cgroup tree is.
    pub(crate) fn tree_record(&self) -> PathBuf {
        self.root.join("cgroup-tree.json")
    }

    /// Where one allocation lies.
    pub(crate) fn alloc(&self, alloc_id: AllocId) -> AllocDirs {
        let logs = self.root.join("logs").join(alloc_id.to_string());
        AllocDirs {
            alloc: self.allocs().join(alloc_id.to_string()),
            fifos: logs.join("fifos"),
            logs,
        }
    }

    /// Makes what the agent itself needs.
    pub(crate) fn prepare(&self) -> Result<(), DirError> {
        for dir in [self.allocs(), self.root.join("logs")] {
            make_private(&dir)?;
            spread(&dir);
        }
        make(&self.trash(), PRIVATE, None)?;
        make(&self.drivers(), PRIVATE, None)?;
        Ok(())
    }

    /// Makes the directory that holds all others of an allocation, and says where it is.
    pub(crate) fn make_alloc_root(&self, alloc_id: AllocId) -> Result<PathBuf, DirError> {
        let AllocDirs { alloc, .. } = self.alloc(alloc_id);
        make_private(&alloc)?;
        Ok(alloc)
    }

    /// Opens the way to an allocation's directories for a task that sees the host's files and is not root.
    pub(crate) fn let_users_pass(&self, alloc_id: AllocId) -> Result<(), DirError> {
        let AllocDirs { alloc, .. } = self.alloc(alloc_id);
        // The operator may have laid a link in its place.
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

    /// Makes the directories of an allocation whose tasks are called and owned as `tasks` says.
    /// Making them twice changes nothing.
    pub(crate) fn make_alloc(
        &self,
        alloc_id: AllocId,
        tasks: &[(String, Option<FifoOwner>)],
    ) -> Result<(), DirError> {
        let dirs = self.alloc(alloc_id);
        let root = make_private(&dirs.alloc)?;
        // Tasks of one group may run as different users, and take what others have left, as in Nomad.
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

    /// Moves what `previous` kept to `heir`, whose directories are there. That is the content of the shared `data`, and
    /// of the `local` directories of tasks that both have. Content that was moved before stays. `carry` is called with
    /// each directory before its move, and with its destination. Returns whether anything was moved.
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
            let done = take_over(&from, &place, |dir| carry(dir, &to));
            moved |= done.map_err(|source| DirError {
                action: "take over",
                path: from,
                source,
            })?;
        }
        Ok(moved)
    }

    /// Moves everything of an allocation to the trash: one rename for its directories, one for its logs. Roots that
    /// show them are taken away first.
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

    /// Allocations that have directories, whether anybody knows of them or not.
    pub(crate) fn found_allocs(&self) -> Vec<AllocId> {
        let entries = fs::read_dir(self.allocs());
        entries
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .collect()
    }
}

/// Moves the directory `from` to its place `to` in the same allocation, unless something is there or nothing came.
/// Returns whether it was moved.
pub(crate) fn move_in(from: &Path, to: &Path) -> Result<bool, DirError> {
    take_over(from, to, |_same_project| Ok(())).map_err(|source| DirError {
        action: "move in",
        path: from.to_owned(),
        source,
    })
}

/// Moves the directory `from` to the place of `to`, which is there and empty, or has come over before. Nothing is moved
/// if there is no directory at `from`: a task may have put something else there. Nobody writes to it any more.
fn take_over(
    from: &Path,
    to: &Path,
    carry: impl FnOnce(OwnedFd) -> io::Result<()>,
) -> io::Result<bool> {
    let dir = match beneath::open_top(from, OFlags::RDONLY) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(false),
        dir => dir?,
    };
    if fs::read_dir(to)?.next().is_some() {
        return Ok(false);
    }
    carry(dir)?;
    rustix::fs::rename(from, to)?;
    Ok(true)
}

/// Asks the file system to lay directories in `dir` apart from each other, as ext4 does with the top ones: beside each
/// other, each new file is searched for among all that were deleted there in the last seconds, which costs more than
/// starting a task where many come and go. A file system that knows no such thing has no need of it.
pub(crate) fn spread(dir: &Path) {
    if let Ok(fd) = beneath::open_top(dir, OFlags::RDONLY)
        && let Ok(flags) = rustix::fs::ioctl_getflags(&fd)
        && !flags.contains(IFlags::TOPDIR)
    {
        let _not_known = rustix::fs::ioctl_setflags(&fd, flags | IFlags::TOPDIR);
    }
}

/// A directory that is open: those in it are made by name, whatever a task puts in its place meanwhile.
struct OpenDir {
    fd: OwnedFd,
    path: PathBuf,
}

impl OpenDir {
    /// Makes a directory in this one, as [`make`] does.
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

/// Makes a directory with this mode, or takes the one that is there. Nothing is done through a path
/// once it is open: a task may put a link in the place of a directory that it owns.
fn make(path: &Path, mode: u32, owner: Option<FifoOwner>) -> Result<OpenDir, DirError> {
    make_at(None, path, path.to_owned(), mode, owner)
}

/// [`make`], of a directory that only root may enter. One that users may pass already stays so: a task may need it.
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
            // After the owner: a change of owner takes special bits away.
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

    /// A program that a task marks set-user-id would run as the task's user.
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

        data.let_users_pass(alloc_id).unwrap();
        data.prepare().unwrap();
        data.make_alloc(alloc_id, &[("web".into(), None)]).unwrap();

        for dir in [data.root(), &data.allocs(), &dirs.alloc] {
            assert_eq!(mode(dir), 0o701, "{}", dir.display());
        }
        let other = AllocId::at(LogIndex(2), 0);
        data.make_alloc(other, &[]).unwrap();
        assert_eq!(mode(&data.alloc(other).alloc), 0o700);
    }

    /// Directories that a task can write hold neither its log nor its FIFO.
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
