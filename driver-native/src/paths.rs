//! Opens every path that a task, or a user of its directories, could have tampered with. [`beneath`] implements
//! lookups that stay beneath a directory.
//!
//! Output FIFOs are opened without following a link in their last part, and their type is checked before use. A
//! working directory is resolved beneath the task's directory, so that a link cannot lead out of it. The same holds
//! for a task's own directories, for a job's mounts and for every path in a root that a job names. They are opened
//! beneath an open directory, with no link in the path. An opened file is used by its descriptor, never by its path
//! again.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use muster_driver::beneath::{self, Traversal};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use thiserror::Error;

use crate::policy::{Policy, is_plain_absolute};

/// The search path for programs when the task's environment has no `PATH`.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const NULL_DEVICE: &str = "/dev/null";
/// The name of a task's working directory in errors.
pub(crate) const WORK_DIR: &str = "working directory";

/// A path that cannot be used.
#[derive(Debug, Error)]
pub(crate) enum PathError {
    /// The path cannot be opened.
    #[error("open {what} {}", path.display())]
    Open {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The path is not a FIFO.
    #[error(
        "open {what} {}: it is {found}, not a FIFO; nothing was written to it", path.display()
    )]
    NoFifo {
        what: &'static str,
        path: PathBuf,
        found: &'static str,
    },
    /// The node does not allow jobs to see the path.
    #[error(
        "`{field}`: {} is not allowed on this node; name a path below the task's directory, or let the operator add it to allow_paths of the native driver's configuration", path.display()
    )]
    NotAllowed { field: String, path: PathBuf },
    /// The node allows jobs to read the path, but not to write to it.
    #[error(
        "`{field}`: {} may be mounted read-only on this node; leave `readonly = false` out", path.display()
    )]
    NotWritable { field: String, path: PathBuf },
    /// The node does not allow tasks to download the path.
    #[error(
        "{} is not among the files of this node that tasks may download; the operator may allow that: allow_downloads of the native driver's configuration", path.display()
    )]
    NoDownload { path: PathBuf },
    /// The node does not allow tasks to upload files to the path.
    #[error(
        "{} is not among the directories of this node that tasks may upload files into; the operator may allow that: allow_uploads of the native driver's configuration", path.display()
    )]
    NoUpload { path: PathBuf },
    /// The job names a path below the task's directory, and the task has no directory.
    #[error("`{field}`: {} is a relative path, and the task has no directory", path.display())]
    NoTaskDir { field: String, path: PathBuf },
    /// A path of the job cannot be opened.
    #[error("`{field}`: open {}", path.display())]
    Source {
        field: String,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A path of the job has the wrong file type.
    #[error("`{field}`: {} is {found}, not a file or directory", path.display())]
    SourceKind {
        field: String,
        path: PathBuf,
        found: &'static str,
    },
    /// The path has the wrong file type.
    #[error("open {what} {}: it is {found}, not a file or directory", path.display())]
    Kind {
        what: &'static str,
        path: PathBuf,
        found: &'static str,
    },
    #[error(
        "command {command:?} not found: looked in {searched}; install it on the node or give its path"
    )]
    NoCommand { command: String, searched: String },
}

/// Opens a file for a task's output, readable and writable, so that a reader that goes away never ends the task. An
/// empty path and `/dev/null` mean the null device.
pub(crate) fn open_output(what: &'static str, path: &Path) -> Result<OwnedFd, PathError> {
    if path.as_os_str().is_empty() || path == Path::new(NULL_DEVICE) {
        return open_null();
    }
    let failed = |source: rustix::io::Errno| PathError::Open {
        what,
        path: path.to_owned(),
        source: source.into(),
    };
    // The open must not block. A FIFO would wait for a reader, and a file of another type could wait for a device.
    let flags =
        OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(failed)?;
    let stat = rustix::fs::fstat(&file).map_err(failed)?;
    let found = FileType::from_raw_mode(stat.st_mode);
    if found != FileType::Fifo {
        return Err(PathError::NoFifo {
            what,
            path: path.to_owned(),
            found: describe(found),
        });
    }
    // The task writes as to any pipe: it blocks while the pipe is full.
    rustix::fs::fcntl_setfl(&file, OFlags::RDWR).map_err(failed)?;
    Ok(file)
}

/// Opens the null device for reading and writing.
pub(crate) fn open_null() -> Result<OwnedFd, PathError> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY;
    rustix::fs::openat(CWD, NULL_DEVICE, flags, Mode::empty()).map_err(|source| PathError::Open {
        what: "null device",
        path: NULL_DEVICE.into(),
        source: source.into(),
    })
}

/// Opens a task's working directory. A relative `work_dir` is beneath `task_dir`, even if links are in the path; an
/// absolute one is taken as it is. Without a `task_dir` the working directory is the root directory.
pub(crate) fn open_work_dir(task_dir: &Path, work_dir: Option<&str>) -> Result<OwnedFd, PathError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = |path: &Path| {
        rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(|source| PathError::Open {
            what: WORK_DIR,
            path: path.to_owned(),
            source: source.into(),
        })
    };
    let root = if task_dir.as_os_str().is_empty() {
        Path::new("/")
    } else {
        task_dir
    };
    match work_dir.map(Path::new) {
        None => open(root),
        Some(path) if path.is_absolute() => open(path),
        Some(path) => {
            let base = open(root)?;
            beneath::open(&base, path, flags, Traversal::Links).map_err(|source| PathError::Open {
                what: WORK_DIR,
                path: root.join(path),
                source: source.into(),
            })
        }
    }
}

/// The uid and gid of a directory's owner.
pub(crate) type Owner = (u32, u32);

/// A file or directory of the host that a job names.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) file: OwnedFd,
    pub(crate) is_dir: bool,
    pub(crate) writable: bool,
}

/// Opens a directory that belongs to the agent.
pub(crate) fn open_dir(what: &'static str, path: &Path) -> Result<OwnedFd, PathError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(|source| PathError::Open {
        what,
        path: path.to_owned(),
        source: source.into(),
    })
}

/// Opens the directory `name` in `base`. Creates it if it is missing and gives it to `owner`. The owner of `base` may
/// have put a link there, which is refused.
pub(crate) fn open_own_dir(
    base: &OwnedFd,
    name: &str,
    mode: u32,
    owner: Option<Owner>,
) -> Result<OwnedFd, PathError> {
    let attempt = || {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = || beneath::open(base, name, flags, Traversal::Mounts);
        // The agent has created most of these directories.
        let (dir, made) = match open() {
            Err(rustix::io::Errno::NOENT) => match rustix::fs::mkdirat(base, name, Mode::RWXU) {
                Ok(()) => (open()?, true),
                Err(rustix::io::Errno::EXIST) => (open()?, false),
                Err(source) => return Err(source),
            },
            found => (found?, false),
        };
        let stat = rustix::fs::fstat(&dir)?;
        if let Some((uid, gid)) = owner.filter(|owner| *owner != (stat.st_uid, stat.st_gid)) {
            change_owner(&dir, (uid, gid))?;
        }
        if made {
            rustix::fs::fchmod(&dir, Mode::from_raw_mode(mode))?;
        }
        Ok(dir)
    };
    attempt().map_err(|source: rustix::io::Errno| PathError::Open {
        what: "the task's directory",
        path: name.into(),
        source: source.into(),
    })
}

/// Opens a file of the driver for writing, in a directory that a task may write to. The file keeps its content until
/// the driver writes.
pub(crate) fn create_own_file(dir: &Path, name: &str) -> Result<File, PathError> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NONBLOCK;
    open_file(dir, Path::new(name), flags, Traversal::Mounts)
}

/// Creates a file of the driver in a directory that a task may write to, in place of any existing file. Every user may
/// read the file, so it can be mounted into a task.
pub(crate) fn create_public_file(
    dir: &Path,
    name: &str,
    content: &[u8],
) -> Result<Source, PathError> {
    let attempt = || -> io::Result<OwnedFd> {
        let base = beneath::open_top(dir, OFlags::PATH)?;
        match rustix::fs::unlinkat(&base, name, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::WRONLY | OFlags::EXCL;
        let mode = Mode::RUSR | Mode::WUSR;
        let mut file = File::from(beneath::create(&base, name, flags, mode, Traversal::Dirs)?);
        file.write_all(content)?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644))?;
        Ok(file.into())
    };
    let file = attempt().map_err(|source| PathError::Open {
        what: "a file of the driver's in the task's directory,",
        path: dir.join(name),
        source,
    })?;
    Ok(Source {
        file,
        is_dir: false,
        writable: false,
    })
}

/// Reads the first bytes of a file of the node that no task can change.
pub(crate) fn read_host_file(path: &str, bytes_max: u64) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?
        .take(bytes_max)
        .read_to_string(&mut text)?;
    Ok(text)
}

/// Opens a file of the driver for reading, in a directory that a task may write to.
pub(crate) fn open_own_file(dir: &Path, name: &str) -> Result<File, PathError> {
    open_file(
        dir,
        Path::new(name),
        OFlags::RDONLY | OFlags::NONBLOCK,
        Traversal::Mounts,
    )
}

/// Opens a file that a task wrote for reading. The lookup stays beneath `dir`, wherever links in the path point.
pub(crate) fn open_beneath(dir: &Path, path: &Path) -> Result<File, PathError> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    open_file(dir, path, flags, Traversal::Links)
}

/// Opens regular files only. A file of another type may be endless, or have an effect when it is opened.
fn open_file(
    dir: &Path,
    path: &Path,
    flags: OFlags,
    through: Traversal,
) -> Result<File, PathError> {
    let what = "file of the task";
    let failed = |source: rustix::io::Errno| PathError::Open {
        what,
        path: path.to_owned(),
        source: source.into(),
    };
    let base = open_dir("the task's directory", dir)?;
    let flags = flags | OFlags::NOCTTY;
    let file = if flags.contains(OFlags::CREATE) {
        beneath::create(&base, path, flags, Mode::RUSR | Mode::WUSR, through)
    } else {
        beneath::open(&base, path, flags, through)
    };
    let file = file.map_err(failed)?;
    let stat = rustix::fs::fstat(&file).map_err(failed)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(file.into()),
        other => Err(PathError::Kind {
            what,
            path: path.to_owned(),
            found: describe(other),
        }),
    }
}

fn change_owner(file: &OwnedFd, (uid, gid): Owner) -> rustix::io::Result<()> {
    let (uid, gid) = (
        rustix::fs::Uid::from_raw(uid),
        rustix::fs::Gid::from_raw(gid),
    );
    rustix::fs::fchown(file, Some(uid), Some(gid))
}

/// Gives an open directory to another owner.
pub(crate) fn chown_dir(dir: &OwnedFd, owner: Owner) -> Result<(), PathError> {
    change_owner(dir, owner).map_err(|source| PathError::Open {
        what: "the task's directory",
        path: PathBuf::new(),
        source: source.into(),
    })
}

/// Gives a task's output to its user, so that the task can open it by its name in /proc, which `/dev/stdout` points
/// to.
pub(crate) fn chown_output(file: &OwnedFd, owner: Owner) -> Result<(), PathError> {
    let attempt = || {
        let stat = rustix::fs::fstat(file)?;
        // All users can open the null device.
        if FileType::from_raw_mode(stat.st_mode) == FileType::Fifo
            && owner != (stat.st_uid, stat.st_gid)
        {
            change_owner(file, owner)?;
        }
        Ok(())
    };
    attempt().map_err(|source: rustix::io::Errno| PathError::Open {
        what: "output of the task",
        path: PathBuf::new(),
        source: source.into(),
    })
}

/// Gives a task's terminal to its user, who may then open it by its name. The group of the terminal stays `tty`.
pub(crate) fn chown_terminal(file: &OwnedFd, uid: u32) -> Result<(), PathError> {
    let uid = rustix::fs::Uid::from_raw(uid);
    rustix::fs::fchown(file, Some(uid), None).map_err(|source| PathError::Open {
        what: "terminal of the task",
        path: PathBuf::new(),
        source: source.into(),
    })
}

/// `f_type` of a devpts file system (statfs(2)).
const DEVPTS_MAGIC: i64 = 0x1cd1;
/// The path of the terminal multiplexer in the task's root.
const MULTIPLEXER: &str = "dev/pts/ptmx";

/// Opens the terminal multiplexer of the process `pid`: a task's terminals are in its own `/dev/pts`. The caller must
/// ensure that the process did not end in the meantime.
///
/// The file type is checked before the open, because opening another device may have an effect.
pub(crate) fn open_multiplexer(pid: i32) -> Result<OwnedFd, PathError> {
    let path = PathBuf::from(format!("/proc/{pid}/root"));
    let failed = |source: rustix::io::Errno| PathError::Open {
        what: "the task's /dev/pts/ptmx",
        path: path.clone(),
        source: source.into(),
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::openat(CWD, &path, flags, Mode::empty()).map_err(failed)?;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let found = beneath::open(&root, MULTIPLEXER, flags, Traversal::Mounts).map_err(failed)?;
    let stat = rustix::fs::fstat(&found).map_err(failed)?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    let system = rustix::fs::fstatfs(&found).map_err(failed)?;
    if kind != FileType::CharacterDevice || system.f_type != DEVPTS_MAGIC {
        return Err(PathError::Kind {
            what: "the task's /dev/pts/ptmx",
            path,
            found: describe(kind),
        });
    }
    let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&found));
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, own.as_str(), flags, Mode::empty()).map_err(failed)
}

/// Opens the path that a job names as `field`: below the task's directory, or where the node allows it.
pub(crate) fn open_source(
    field: &str,
    path: &str,
    task_dir: Option<&Path>,
    policy: &Policy,
) -> Result<Source, PathError> {
    let path = Path::new(path);
    let (base, rest, writable) = if path.is_absolute() {
        let (allowed, rest) =
            policy
                .find_allowed_path(path)
                .ok_or_else(|| PathError::NotAllowed {
                    field: field.to_owned(),
                    path: path.to_owned(),
                })?;
        (allowed.path.as_path(), rest, allowed.writable)
    } else {
        let task_dir = task_dir.ok_or_else(|| PathError::NoTaskDir {
            field: field.to_owned(),
            path: path.to_owned(),
        })?;
        (task_dir, path, true)
    };
    let failed = |source: rustix::io::Errno| PathError::Source {
        field: field.to_owned(),
        path: path.to_owned(),
        source: source.into(),
    };
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let base = rustix::fs::openat(CWD, base, flags, Mode::empty()).map_err(failed)?;
    let file = if rest == Path::new("") {
        base
    } else {
        beneath::open(&base, rest, flags, Traversal::Mounts).map_err(failed)?
    };
    let stat = rustix::fs::fstat(&file).map_err(failed)?;
    let is_dir = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => true,
        FileType::RegularFile => false,
        other => {
            return Err(PathError::SourceKind {
                field: field.to_owned(),
                path: path.to_owned(),
                found: describe(other),
            });
        }
    };
    Ok(Source {
        file,
        is_dir,
        writable,
    })
}

/// Opens a file of the host that a task wants to download. The file must be beneath an allowed download directory,
/// with no link in the path. The driver reads the file with its own rights, so every task can read an allowed file.
pub(crate) fn open_download(path: &str, policy: &Policy) -> Result<File, PathError> {
    let path = Path::new(path);
    let refused = || PathError::NoDownload {
        path: path.to_owned(),
    };
    if !is_plain_absolute(path) {
        return Err(refused());
    }
    let mut places = policy.allow_downloads.iter();
    let place = places.find(|place| {
        path.strip_prefix(place)
            .is_ok_and(|rest| rest != Path::new(""))
    });
    let place = place.ok_or_else(refused)?;
    let rest = path.strip_prefix(place).unwrap_or(path);
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    open_file(place, rest, flags, Traversal::Mounts)
}

/// A file for a directory of the host that gets its name when it is completely written. An incomplete file is removed.
#[derive(Debug)]
pub(crate) struct NewFile {
    dir: OwnedFd,
    /// The name until the file is complete.
    temporary: String,
    name: OsString,
    path: PathBuf,
    is_persisted: bool,
}

/// Creates a file of the host that a task wants to upload. Its directory must exist beneath an allowed upload
/// directory, with no link in the path.
pub(crate) fn create_upload(path: &str, policy: &Policy) -> Result<(NewFile, File), PathError> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let path = Path::new(path);
    let refused = || PathError::NoUpload {
        path: path.to_owned(),
    };
    if !is_plain_absolute(path) {
        return Err(refused());
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(refused());
    };
    let mut places = policy.allow_uploads.iter();
    let found = places.find_map(|place| Some((place, parent.strip_prefix(place).ok()?)));
    let (place, rest) = found.ok_or_else(refused)?;
    let failed = |source: rustix::io::Errno| PathError::Open {
        what: "a file to upload into",
        path: path.to_owned(),
        source: source.into(),
    };
    let mut dir = open_dir("a directory that tasks may upload into", place)?;
    if rest != Path::new("") {
        let walk = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        dir = beneath::open(&dir, rest, walk, Traversal::Mounts).map_err(failed)?;
    }
    let ordinal = NEXT.fetch_add(1, Ordering::Relaxed);
    let temporary = format!(".upload-{}-{ordinal}", std::process::id());
    let (flags, mode) = (OFlags::WRONLY | OFlags::EXCL, Mode::from_raw_mode(0o644));
    let file = beneath::create(&dir, &temporary, flags, mode, Traversal::Mounts).map_err(failed)?;
    let new = NewFile {
        dir,
        temporary,
        name: name.to_owned(),
        path: path.to_owned(),
        is_persisted: false,
    };
    // The driver's umask must not restrict the mode.
    rustix::fs::fchmod(&file, mode).map_err(failed)?;
    Ok((new, file.into()))
}

impl NewFile {
    /// Gives the file its name and replaces an existing file with that name.
    pub(crate) fn persist(mut self) -> Result<(), PathError> {
        rustix::fs::renameat(&self.dir, &self.temporary, &self.dir, &self.name).map_err(
            |source| PathError::Open {
                what: "a file to upload into",
                path: self.path.clone(),
                source: source.into(),
            },
        )?;
        self.is_persisted = true;
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if self.is_persisted {
            return;
        }
        if let Err(error) = rustix::fs::unlinkat(&self.dir, &self.temporary, AtFlags::empty()) {
            let (name, path) = (&self.temporary, self.path.display());
            tracing::warn!(%error, name, %path, "what there is of an upload is left beside its place");
        }
    }
}

/// Creates a file of the driver without a name, readable and writable, on the file system of `dir`.
pub(crate) fn create_unnamed_file(dir: &Path) -> io::Result<File> {
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    match rustix::fs::openat(CWD, dir, flags, mode) {
        Ok(file) => Ok(file.into()),
        // Some file systems do not support files without a name.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::ISDIR) => {
            create_unlinked_file(dir, mode)
        }
        Err(error) => Err(error.into()),
    }
}

/// Creates a file and removes its name immediately.
fn create_unlinked_file(dir: &Path, mode: Mode) -> io::Result<File> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let ordinal = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = dir.join(format!(".transfer-{}-{ordinal}", std::process::id()));
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(CWD, &path, flags, mode)?;
    rustix::fs::unlinkat(CWD, &path, AtFlags::empty())?;
    Ok(file.into())
}

/// Opens a mount that the host requests for a task. The host is trusted; the content at the end of the path is not.
pub(crate) fn open_host_mount(path: &str) -> Result<Source, PathError> {
    let path = Path::new(path);
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let what = "a mount of the host";
    let file =
        rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(|source| PathError::Open {
            what,
            path: path.to_owned(),
            source: source.into(),
        })?;
    check_file_type(file, what, path).map(|(file, is_dir)| Source {
        file,
        is_dir,
        writable: true,
    })
}

/// Accepts files and directories only: through a device or a socket of the host, a task could leave its isolation.
fn check_file_type(
    file: OwnedFd,
    what: &'static str,
    path: &Path,
) -> Result<(OwnedFd, bool), PathError> {
    let stat = rustix::fs::fstat(&file).map_err(|source| PathError::Open {
        what,
        path: path.to_owned(),
        source: source.into(),
    })?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Ok((file, true)),
        FileType::RegularFile => Ok((file, false)),
        other => Err(PathError::Kind {
            what,
            path: path.to_owned(),
            found: describe(other),
        }),
    }
}

/// Creates the directory or file at `path` in `root`, which a job named, unless it exists. A link in the path is
/// refused, because it could lead out of the root.
pub(crate) fn create_mount_point(
    root: &OwnedFd,
    path: &str,
    is_dir: bool,
) -> Result<(), PathError> {
    let failed = |source: rustix::io::Errno| PathError::Open {
        what: "the place to mount on in the task's root",
        path: path.into(),
        source: source.into(),
    };
    let walk = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut dir = rustix::io::dup(root).map_err(failed)?;
    let mut parts = Path::new(path)
        .strip_prefix("/")
        .unwrap_or(Path::new(path))
        .iter()
        .peekable();
    while let Some(part) = parts.next() {
        let mode = Mode::from_raw_mode(0o755);
        if parts.peek().is_none() && !is_dir {
            // The open creates the file. An existing entry may have any type; the mount fails if the type does not
            // fit.
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
            beneath::create(&dir, part, flags, mode, Traversal::Mounts).map_err(failed)?;
            return Ok(());
        }
        match rustix::fs::mkdirat(&dir, part, mode) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(source) => return Err(failed(source)),
        }
        dir = beneath::open(&dir, part, walk, Traversal::Mounts).map_err(failed)?;
    }
    Ok(())
}

/// Returns the possible paths of a contained task's program in search order, as the task sees them.
pub(crate) fn candidate_paths(command: &str, path_variable: Option<&str>) -> Vec<PathBuf> {
    let named = Path::new(command);
    if named.is_absolute() {
        return vec![named.to_owned()];
    }
    if command.contains('/') {
        return vec![Path::new("/local").join(named), Path::new("/").join(named)];
    }
    search_dirs(path_variable)
        .into_iter()
        .map(|place| place.join(named))
        .collect()
}

fn search_dirs(path_variable: Option<&str>) -> Vec<PathBuf> {
    let path_variable = path_variable.unwrap_or(DEFAULT_PATH);
    let places = path_variable
        .split(':')
        .filter(|place| place.starts_with('/'));
    std::iter::once("/local")
        .chain(places)
        .map(PathBuf::from)
        .collect()
}

/// Returns the error for a contained task whose program does not exist.
pub(crate) fn not_found(command: &str, path_variable: Option<&str>) -> PathError {
    let places = search_dirs(path_variable);
    PathError::NoCommand {
        command: command.to_owned(),
        searched: places
            .iter()
            .map(|place| place.display().to_string())
            .collect::<Vec<_>>()
            .join(", "),
    }
}

/// Returns the path of the program that `command` names. The program is run by its path with the task's user, so the
/// lookup grants no rights.
pub(crate) fn find_command(
    command: &str,
    task_dir: &Path,
    path_variable: Option<&str>,
) -> Result<PathBuf, PathError> {
    let named = Path::new(command);
    if named.is_absolute() {
        return Ok(named.to_owned());
    }
    if command.contains('/') {
        return Ok(task_dir.join(named));
    }
    let path_variable = path_variable.unwrap_or(DEFAULT_PATH);
    let mut places: Vec<PathBuf> = Vec::new();
    if !task_dir.as_os_str().is_empty() {
        places.extend([task_dir.join("local"), task_dir.to_owned()]);
    }
    // An empty part of PATH means the current directory, which would be the driver's.
    places.extend(
        path_variable
            .split(':')
            .filter(|place| place.starts_with('/'))
            .map(PathBuf::from),
    );
    places
        .iter()
        .map(|place| place.join(named))
        .find(|path| is_executable(path))
        .ok_or_else(|| PathError::NoCommand {
            command: command.to_owned(),
            searched: places
                .iter()
                .map(|place| place.display().to_string())
                .collect::<Vec<_>>()
                .join(", "),
        })
}

fn is_executable(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

fn describe(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "a regular file",
        FileType::Directory => "a directory",
        FileType::Symlink => "a symbolic link",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::CharacterDevice => "a character device",
        FileType::BlockDevice => "a block device",
        FileType::Unknown => "of an unknown kind",
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::os::unix::fs::symlink;

    use super::*;

    fn fifo(dir: &Path) -> PathBuf {
        let path = dir.join("out.fifo");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        path
    }

    #[test]
    fn fifo_opens_without_a_reader() {
        let dir = tempfile::tempdir().unwrap();
        let path = fifo(dir.path());

        let file = open_output("stdout", &path).unwrap();

        let flags = rustix::fs::fcntl_getfl(&file).unwrap();
        assert!(flags.contains(OFlags::RDWR));
        assert!(!flags.contains(OFlags::NONBLOCK));
    }

    #[test]
    fn link_to_a_fifo_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        symlink(fifo(dir.path()), &link).unwrap();

        let error = open_output("stdout", &link).unwrap_err();

        let source = error.source().unwrap().to_string();
        assert!(source.contains("symbolic links"), "{source}");
    }

    #[test]
    fn file_in_place_of_a_fifo_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.fifo");
        std::fs::write(&path, "keep").unwrap();

        let error = open_output("stdout", &path).unwrap_err();

        assert!(error.to_string().contains("a regular file"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"keep");
    }

    #[test]
    fn work_dir_stays_beneath_the_task() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        symlink("/etc", dir.path().join("out")).unwrap();

        assert!(open_work_dir(dir.path(), Some("sub")).is_ok());
        for escape in ["out", "..", "sub/../../.."] {
            let opened = open_work_dir(dir.path(), Some(escape));
            assert!(matches!(opened, Err(PathError::Open { .. })), "{escape}");
        }
    }

    #[test]
    fn command_is_searched_in_task_before_path() {
        let dir = tempfile::tempdir().unwrap();
        let local = dir.path().join("local");
        std::fs::create_dir(&local).unwrap();
        let own = local.join("sh");
        std::fs::write(&own, "").unwrap();
        std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o755)).unwrap();

        let found = find_command("sh", dir.path(), Some("/bin"));
        let elsewhere = find_command("sh", Path::new(""), Some("/bin:relative:"));

        assert_eq!(found.unwrap(), own);
        assert_eq!(elsewhere.unwrap(), Path::new("/bin/sh"));
    }

    #[test]
    fn missing_command_error_lists_searched_dirs() {
        let error = find_command("no-such", Path::new("/t"), Some("/bin:/usr/bin")).unwrap_err();

        assert_eq!(
            error.to_string(),
            "command \"no-such\" not found: looked in /t/local, /t, /bin, /usr/bin; \
             install it on the node or give its path"
        );
    }

    fn policy(allowed: &[String]) -> Policy {
        Policy::read(serde_json::json!({"allow_paths": allowed})).unwrap()
    }

    #[test]
    fn sources_are_the_tasks_or_allowed() {
        let task = tempfile::tempdir().unwrap();
        let host = tempfile::tempdir().unwrap();
        std::fs::create_dir(task.path().join("local")).unwrap();
        let host_path = host.path().to_str().unwrap().to_owned();
        let open = |path: &str, allowed: &[String]| {
            open_source(
                "config.mount[0].source",
                path,
                Some(task.path()),
                &policy(allowed),
            )
        };

        assert!(open("local", &[]).unwrap().writable);
        let error = open(&host_path, &[]).unwrap_err();
        assert!(matches!(error, PathError::NotAllowed { .. }), "{error}");
        let read_only = std::slice::from_ref(&host_path);
        assert!(!open(&host_path, read_only).unwrap().writable);
        assert!(
            open(&host_path, &[format!("{host_path}:rw")])
                .unwrap()
                .writable
        );
    }

    #[test]
    fn links_in_sources_are_refused() {
        let task = tempfile::tempdir().unwrap();
        let host = tempfile::tempdir().unwrap();
        symlink("/etc", task.path().join("etc")).unwrap();
        symlink("/etc", host.path().join("etc")).unwrap();
        let host_path = host.path().to_str().unwrap().to_owned();
        let allowed = policy(std::slice::from_ref(&host_path));

        for path in ["etc", "etc/ssl", "../x", &format!("{host_path}/etc")] {
            let opened = open_source("config.mount[0].source", path, Some(task.path()), &allowed);
            assert!(opened.is_err(), "{path}");
        }
    }

    #[test]
    fn sockets_and_devices_are_no_sources() {
        let task = tempfile::tempdir().unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(task.path().join("s")).unwrap();
        fifo(task.path());

        for path in ["s", "out.fifo"] {
            let error = open_source(
                "config.mount[0].source",
                path,
                Some(task.path()),
                &policy(&[]),
            )
            .unwrap_err();
            assert!(matches!(error, PathError::SourceKind { .. }), "{error}");
        }
    }

    /// A root whose author knew that the driver mounts on `/proc` and `/dev`.
    #[test]
    fn places_in_a_hostile_root_stay_in_it() {
        let root = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        symlink(outside.path(), root.path().join("dev")).unwrap();
        symlink(outside.path(), root.path().join("data")).unwrap();
        let open = open_dir("root", root.path()).unwrap();

        assert!(create_mount_point(&open, "/dev", true).is_err());
        assert!(create_mount_point(&open, "/data/x", true).is_err());
        assert!(create_mount_point(&open, "/data", false).is_err());
        create_mount_point(&open, "/a/b/c", true).unwrap();
        create_mount_point(&open, "/a/file", false).unwrap();

        assert!(root.path().join("a/b/c").is_dir());
        assert!(root.path().join("a/file").is_file());
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
    }

    #[test]
    fn own_directory_is_no_link() {
        let base = tempfile::tempdir().unwrap();
        symlink("/etc", base.path().join("local")).unwrap();
        let open = open_dir("task", base.path()).unwrap();

        assert!(open_own_dir(&open, "local", 0o755, None).is_err());
        open_own_dir(&open, "tmp", 0o1777, None).unwrap();

        let mode = base.path().join("tmp").metadata().unwrap().permissions();
        assert_eq!(mode.mode() & 0o7777, 0o1777);
    }
}
