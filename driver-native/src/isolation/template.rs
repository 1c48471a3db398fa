//! The root of contained tasks. It is created once, and the kernel copies it for each task.
//!
//! A template is a separate mount namespace. It contains a small tmpfs with the host's directories bound into it
//! read-only, a `/dev` and a `/sys`. Empty directories are mount points for the mounts that differ between tasks. A
//! task enters the namespace and takes a copy (`setns`, `unshare`), which costs some microseconds a mount. The host's
//! own mounts are never copied and cannot be reached: the template was made with `pivot_root`, and the old root is
//! unmounted.
//!
//! Everything in a template is read-only and shared by the tasks that copy it. Small files of `/etc` are in its tmpfs.
//! When such a file changes on the host, the next task gets a new template.

use std::collections::BTreeSet;
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sched::CloneFlags;
use rustix::fs::{CWD, FileType, Mode, OFlags, makedev};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags,
};
use thiserror::Error;

use crate::limits;
use crate::spawn::{MountFlags, restrict_mount};

/// The path at which the tree is built. This hides `/sys` only from the thread that builds the tree.
const WORKSHOP: &str = "/sys";
/// An empty directory, mounted over directories that a task must not see.
pub(crate) const EMPTY_DIR: &str = "/var/empty";
/// The hidden paths of `/sys`.
const MASKED_SYS: [&str; 2] = ["sys/firmware", "sys/devices/virtual/powercap"];
/// The directories of every root: mount points, and directories that programs expect.
const DIRS: [&str; 17] = [
    "alloc",
    "dev",
    "etc",
    "home",
    "local",
    "mnt",
    "opt",
    "proc",
    "root",
    "run",
    "secrets",
    "srv",
    "sys",
    "tmp",
    "var",
    "var/empty",
    "var/lib",
];
/// The devices of a task, by name and number.
const DEVICES: [(&str, u32, u32); 6] = [
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
];
const LINKS: [(&str, &str); 7] = [
    ("/proc/self/fd", "dev/fd"),
    ("/proc/self/fd/0", "dev/stdin"),
    ("/proc/self/fd/1", "dev/stdout"),
    ("/proc/self/fd/2", "dev/stderr"),
    ("pts/ptmx", "dev/ptmx"),
    ("/run", "var/run"),
    ("/tmp", "var/tmp"),
];

/// The properties by which templates differ.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TemplateKey {
    /// The paths of the host, as in the node's configuration.
    pub(crate) host_dirs: Vec<String>,
    /// The paths at which a task has its own mounts.
    pub(crate) mount_points: BTreeSet<MountPoint>,
}

/// A place to mount on.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct MountPoint {
    pub(crate) path: String,
    pub(crate) is_dir: bool,
}

/// A root that tasks copy.
#[derive(Debug)]
pub(crate) struct Template {
    /// The namespace, for setns(2).
    pub(crate) namespace: OwnedFd,
    /// The small files that were copied, with their state at that time.
    files: Vec<(PathBuf, FileStamp)>,
}

/// A file's identity and last change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    inode: u64,
    size: u64,
    seconds: i64,
    nanoseconds: i64,
}

/// The error of a root that cannot be created.
#[derive(Debug, Error)]
#[error("make the root of contained tasks: {what} {}", path.display())]
pub(crate) struct TemplateError {
    what: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// The content of one path of the root.
#[derive(Debug)]
enum TemplateEntry {
    Dir { mount: OwnedFd },
    File { content: Vec<u8> },
    Link { target: PathBuf },
}

impl Template {
    /// Builds the root, in a thread in a separate namespace.
    pub(crate) fn build(key: &TemplateKey) -> Result<Self, TemplateError> {
        let key = key.clone();
        let thread = std::thread::Builder::new()
            .name("root-template".to_owned())
            .spawn(move || build_here(&key))
            .map_err(failed("start a thread for", Path::new("/")))?;
        match thread.join() {
            Ok(template) => template,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Returns whether none of the copied files has changed.
    pub(crate) fn is_current(&self) -> bool {
        self.files.iter().all(|(path, stamp)| {
            fs::metadata(path).is_ok_and(|file| FileStamp::of(&file) == *stamp)
        })
    }
}

impl FileStamp {
    fn of(file: &Metadata) -> Self {
        Self {
            inode: file.ino(),
            size: file.size(),
            seconds: file.mtime(),
            nanoseconds: file.mtime_nsec(),
        }
    }
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> TemplateError + use<> {
    let path = path.to_owned();
    move |source| TemplateError { what, path, source }
}

fn errno(what: &'static str, path: &Path) -> impl FnOnce(Errno) -> TemplateError + use<> {
    let failed = failed(what, path);
    move |source| failed(source.into())
}

fn build_here(key: &TemplateKey) -> Result<Template, TemplateError> {
    let host = Path::new("/");
    nix::sched::unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS)
        .map_err(|source| failed("unshare the mounts of", host)(source.into()))?;
    // The umask belongs to this thread alone, because its file system state is unshared.
    let _before = rustix::process::umask(Mode::empty());
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private).map_err(errno("make private", host))?;
    let namespace = File::open("/proc/thread-self/ns/mnt")
        .map_err(failed("open the mount namespace of", host))?;
    let (entries, files) = collect(&key.host_dirs)?;

    let root = new_tmpfs("mode=755", MountAttrFlags::MOUNT_ATTR_NODEV)
        .map_err(errno("mount a tmpfs for", host))?;
    attach(root.as_fd(), CWD, Path::new(WORKSHOP))?;
    create_mount_points(root.as_fd(), key)?;
    for (path, entry) in &entries {
        add_entry(root.as_fd(), path, entry)?;
    }
    make_devices(root.as_fd())?;
    make_sys(root.as_fd())?;
    restrict_mount(root.as_fd(), MountFlags::READ_ONLY, false)
        .map_err(failed("make read-only", host))?;
    rustix::process::fchdir(&root).map_err(errno("enter", host))?;
    nix::unistd::pivot_root(".", ".")
        .map_err(|source| failed("pivot_root into", host)(source.into()))?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).map_err(errno("unmount what was", host))?;
    Ok(Template {
        namespace: namespace.into(),
        files,
    })
}

/// Opens the existing paths of the host; missing paths are left out.
#[expect(clippy::type_complexity, reason = "two lists, used in one place")]
fn collect(
    host_dirs: &[String],
) -> Result<(Vec<(PathBuf, TemplateEntry)>, Vec<(PathBuf, FileStamp)>), TemplateError> {
    let mut entries = Vec::new();
    let mut files = Vec::new();
    for path in host_dirs.iter().flat_map(|named| expand(named)) {
        let Ok(found) = fs::symlink_metadata(&path) else {
            continue;
        };
        // A dangling link is left out.
        let Ok(metadata) = fs::metadata(&path) else {
            continue;
        };
        let entry = if metadata.is_dir() && found.is_symlink() {
            let target = fs::read_link(&path).map_err(failed("read the link", &path))?;
            TemplateEntry::Link { target }
        } else if metadata.is_dir() {
            TemplateEntry::Dir {
                mount: clone_tree(&path)?,
            }
        } else if metadata.is_file() && metadata.len() <= limits::HOST_FILE_BYTES_MAX {
            files.push((path.clone(), FileStamp::of(&metadata)));
            TemplateEntry::File {
                content: read_bounded(&path).map_err(failed("read", &path))?,
            }
        } else {
            continue;
        };
        entries.push((path, entry));
    }
    Ok((entries, files))
}

/// Returns the paths that match a configured path.
fn expand(named: &str) -> Vec<PathBuf> {
    let Some(prefix) = named.strip_suffix('*') else {
        return vec![PathBuf::from(named)];
    };
    let prefix = Path::new(prefix);
    let (Some(dir), Some(begin)) = (prefix.parent(), prefix.file_name()) else {
        return Vec::new();
    };
    let mut found: Vec<PathBuf> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            path.file_name()
                .is_some_and(|name| name.as_bytes().starts_with(begin.as_bytes()))
        })
        .collect();
    found.sort_unstable();
    found
}

fn clone_tree(path: &Path) -> Result<OwnedFd, TemplateError> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE;
    let tree = rustix::mount::open_tree(CWD, path, flags).map_err(errno("bind", path))?;
    let flags = MountFlags::READ_ONLY
        .and(MountFlags::NO_SET_USER)
        .and(MountFlags::NO_DEVICES);
    restrict_mount(tree.as_fd(), flags, true).map_err(failed("make read-only", path))?;
    Ok(tree)
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::open(path)?
        .take(limits::HOST_FILE_BYTES_MAX)
        .read_to_end(&mut content)?;
    Ok(content)
}

fn new_tmpfs(options: &str, flags: MountAttrFlags) -> rustix::io::Result<OwnedFd> {
    let tmpfs = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for option in options.split(',') {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        rustix::mount::fsconfig_set_string(&tmpfs, key, value)?;
    }
    new_mount(&tmpfs, flags)
}

fn new_mount(fs: &OwnedFd, flags: MountAttrFlags) -> rustix::io::Result<OwnedFd> {
    rustix::mount::fsconfig_create(fs)?;
    let flags = flags | MountAttrFlags::MOUNT_ATTR_NOSUID;
    rustix::mount::fsmount(fs, FsMountFlags::FSMOUNT_CLOEXEC, flags)
}

fn attach(mount: BorrowedFd<'_>, dir: BorrowedFd<'_>, path: &Path) -> Result<(), TemplateError> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    rustix::mount::move_mount(mount, "", dir, path, flags).map_err(errno("mount at", path))
}

fn make_dirs(root: BorrowedFd<'_>, path: &Path) -> Result<(), TemplateError> {
    let mut made = PathBuf::new();
    for part in path {
        made.push(part);
        match rustix::fs::mkdirat(root, &made, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(source) => return Err(errno("make the directory", &made)(source)),
        }
    }
    Ok(())
}

fn make_file(root: BorrowedFd<'_>, path: &Path, content: &[u8]) -> Result<(), TemplateError> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(root, path, flags, Mode::from_raw_mode(0o644))
        .map_err(errno("make the file", path))?;
    File::from(file)
        .write_all(content)
        .map_err(failed("write", path))
}

/// Converts an absolute path of the root to one below the open directory.
fn relative_to_root(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

/// Creates the directories and files to mount on. Below directories that are bound from the host they must exist
/// already.
fn create_mount_points(root: BorrowedFd<'_>, key: &TemplateKey) -> Result<(), TemplateError> {
    for dir in DIRS {
        make_dirs(root, Path::new(dir))?;
    }
    for point in &key.mount_points {
        let path = Path::new(&point.path);
        if key.host_dirs.iter().any(|dir| path.starts_with(dir)) {
            continue;
        }
        if point.is_dir {
            make_dirs(root, relative_to_root(path))?;
        } else {
            make_dirs(root, relative_to_root(path.parent().unwrap_or(path)))?;
            make_file(root, relative_to_root(path), b"")?;
        }
    }
    Ok(())
}

fn add_entry(
    root: BorrowedFd<'_>,
    path: &Path,
    entry: &TemplateEntry,
) -> Result<(), TemplateError> {
    let place = relative_to_root(path);
    if let Some(parent) = place.parent() {
        make_dirs(root, parent)?;
    }
    match entry {
        TemplateEntry::Dir { mount } => {
            make_dirs(root, place)?;
            attach(mount.as_fd(), root, place)
        }
        TemplateEntry::File { content } => make_file(root, place, content),
        TemplateEntry::Link { target } => {
            rustix::fs::symlinkat(target, root, place).map_err(errno("make the link", path))
        }
    }
}

/// Mounts a separate tmpfs for devices, because the root allows no devices.
fn make_devices(root: BorrowedFd<'_>) -> Result<(), TemplateError> {
    let path = Path::new("dev");
    let dev = new_tmpfs("mode=755", MountAttrFlags::MOUNT_ATTR_NOEXEC)
        .map_err(errno("mount a tmpfs for", path))?;
    attach(dev.as_fd(), root, path)?;
    for (name, major, minor) in DEVICES {
        make_device(dev.as_fd(), name, makedev(major, minor))?;
    }
    for dir in ["pts", "shm", "mqueue"] {
        make_dirs(dev.as_fd(), Path::new(dir))?;
    }
    for (target, link) in LINKS {
        // Some links are in the root and not in /dev.
        rustix::fs::symlinkat(target, root, link)
            .map_err(errno("make the link", Path::new(link)))?;
    }
    restrict_mount(dev.as_fd(), MountFlags::READ_ONLY, false)
        .map_err(failed("make read-only", path))
}

/// Creates a device node, or binds the host's node where the driver must not create one.
fn make_device(dev: BorrowedFd<'_>, name: &str, number: u64) -> Result<(), TemplateError> {
    let path = Path::new(name);
    let mode = Mode::from_raw_mode(0o666);
    match rustix::fs::mknodat(dev, name, FileType::CharacterDevice, mode, number) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => {
            make_file(dev, path, b"")?;
            let host = Path::new("/dev").join(name);
            let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
            let node = rustix::mount::open_tree(CWD, &host, flags).map_err(errno("bind", &host))?;
            attach(node.as_fd(), dev, path)
        }
        Err(source) => Err(errno("make the device", path)(source)),
    }
}

/// Binds the host's `/sys` and hides parts of it.
fn make_sys(root: BorrowedFd<'_>) -> Result<(), TemplateError> {
    let path = Path::new("sys");
    let flags = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let sys = rustix::mount::fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)
        .and_then(|fs| new_mount(&fs, flags))
        .map_err(errno("mount sysfs at", path))?;
    attach(sys.as_fd(), root, path)?;
    for masked in MASKED_SYS {
        let masked = Path::new(masked);
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let empty = rustix::mount::open_tree(root, relative_to_root(Path::new(EMPTY_DIR)), flags)
            .map_err(errno("bind", Path::new(EMPTY_DIR)))?;
        restrict_mount(empty.as_fd(), MountFlags::READ_ONLY, false)
            .map_err(failed("make read-only", masked))?;
        match attach(empty.as_fd(), root, masked) {
            // The path does not exist on this machine.
            Err(error) if error.source.kind() == io::ErrorKind::NotFound => {}
            attached => attached?,
        }
    }
    Ok(())
}
