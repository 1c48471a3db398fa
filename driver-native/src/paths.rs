//! Every open of a path that a task, or whoever shares its directories, could have tampered with.
//!
//! Output FIFOs are opened without following a link in their last part and are looked at before
//! use. A working directory is resolved beneath the task's directory, so that a link cannot lead
//! out of it. Their parent directories belong to the agent, which keeps tasks from writing there.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use thiserror::Error;

/// Where a name is looked for when the task's environment has no `PATH`.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const NULL_DEVICE: &str = "/dev/null";

/// A path that cannot be used.
#[derive(Debug, Error)]
pub(crate) enum PathError {
    /// It cannot be opened.
    #[error("open {what} {}", path.display())]
    Open {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// It is something else.
    #[error(
        "open {what} {}: it is {found}, not a FIFO; nothing was written to it", path.display()
    )]
    NoFifo {
        what: &'static str,
        path: PathBuf,
        found: &'static str,
    },
    /// No such program.
    #[error(
        "command {command:?} not found: looked in {searched}; install it on the node or give its path"
    )]
    NoCommand { command: String, searched: String },
}

/// A file for a task's output, readable and writable, so that a reader that goes away never ends
/// the task. An empty path and `/dev/null` are the null device.
pub(crate) fn open_output(what: &'static str, path: &Path) -> Result<OwnedFd, PathError> {
    if path.as_os_str().is_empty() || path == Path::new(NULL_DEVICE) {
        return open_null();
    }
    let failed = |source: rustix::io::Errno| PathError::Open {
        what,
        path: path.to_owned(),
        source: source.into(),
    };
    // Opening must not wait, neither for a reader nor, if it is no FIFO, for a device.
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
    // The task writes like to any pipe: it waits while the pipe is full.
    rustix::fs::fcntl_setfl(&file, OFlags::RDWR).map_err(failed)?;
    Ok(file)
}

/// The null device, for reading and writing.
pub(crate) fn open_null() -> Result<OwnedFd, PathError> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY;
    rustix::fs::openat(CWD, NULL_DEVICE, flags, Mode::empty()).map_err(|source| PathError::Open {
        what: "null device",
        path: NULL_DEVICE.into(),
        source: source.into(),
    })
}

/// The directory a task begins in. A relative `work_dir` is beneath `task_dir`, whatever links are
/// on the way; an absolute one is taken as it is. Without a `task_dir` it is the root directory.
pub(crate) fn open_work_dir(task_dir: &Path, work_dir: Option<&str>) -> Result<OwnedFd, PathError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = |path: &Path| {
        rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(|source| PathError::Open {
            what: "working directory",
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
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
            rustix::fs::openat2(&base, path, flags, Mode::empty(), resolve).map_err(|source| {
                PathError::Open {
                    what: "working directory",
                    path: root.join(path),
                    source: source.into(),
                }
            })
        }
    }
}

/// The program that `command` names. It is run by its path, as the task's own user, so that finding
/// it grants nothing.
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
    // An empty part of PATH means the current directory, which here would be the driver's.
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
    fn name_is_found_in_the_task_before_the_path() {
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
    fn missing_command_says_where_it_was_looked_for() {
        let error = find_command("no-such", Path::new("/t"), Some("/bin:/usr/bin")).unwrap_err();

        assert_eq!(
            error.to_string(),
            "command \"no-such\" not found: looked in /t/local, /t, /bin, /usr/bin; \
             install it on the node or give its path"
        );
    }
}
