//! A directory opened once, and names opened relative to it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};

/// A directory of FIFOs or of log files, held open so that its path is resolved once.
#[derive(Debug)]
pub struct LogDir {
    fd: OwnedFd,
    path: PathBuf,
}

/// Why a log directory could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenLogDirError {
    /// The directory could not be made.
    #[error("make log directory {path}; check the owner and mode of its parent")]
    Make {
        path: PathBuf,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// The directory could not be opened, or its last component is a symbolic link.
    #[error("open log directory {path}; it must be a directory and not a symbolic link")]
    Open {
        path: PathBuf,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
}

impl LogDir {
    /// Makes `path` with mode 0700 unless it exists, and opens it.
    ///
    /// # Errors
    ///
    /// [`OpenLogDirError::Make`], and those of [`Self::open`].
    pub fn create(path: &Path) -> Result<Self, OpenLogDirError> {
        match rustix::fs::mkdir(path, Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => Self::open(path),
            Err(errno) => Err(OpenLogDirError::Make {
                path: path.into(),
                source: errno.into(),
            }),
        }
    }

    /// Opens `path`, whose last component must not be a symbolic link.
    ///
    /// # Errors
    ///
    /// [`OpenLogDirError::Open`].
    pub fn open(path: &Path) -> Result<Self, OpenLogDirError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| {
            OpenLogDirError::Open {
                path: path.into(),
                source: errno.into(),
            }
        })?;
        Ok(Self {
            fd,
            path: path.into(),
        })
    }

    /// Works like [`Self::open`], for callers that report the kernel's error.
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        Self::open(path).map_err(|error| match &error {
            OpenLogDirError::Make { source, .. } | OpenLogDirError::Open { source, .. } => {
                io::Error::new(source.kind(), format!("{error}: {source}"))
            }
        })
    }

    /// The path by which the directory was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the regular file `name`; anything else under that name is refused.
    pub(crate) fn open_file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = rustix::fs::openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR)?;
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode);
        if kind != FileType::RegularFile {
            return Err(io::Error::other(format!(
                "a {kind:?} and not a regular file"
            )));
        }
        Ok(File::from(fd))
    }

    /// Length of the regular file `name`.
    pub(crate) fn file_bytes(&self, name: &str) -> io::Result<u64> {
        let stat = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(u64::try_from(stat.st_size).unwrap_or(0))
    }

    /// Replaces `to` with `from` atomically.
    pub(crate) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.fd, from, &self.fd, to)?)
    }

    /// Removes `name`; the absence of the file counts as success.
    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The indexes N of the existing files `<name>.N`, ascending.
    pub(crate) fn indexes(&self, name: &str) -> io::Result<Vec<u64>> {
        let mut found = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.fd)? {
            let entry = entry?;
            if let Ok(entry) = entry.file_name().to_str() {
                found.extend(index_in(entry, name));
            }
        }
        found.sort_unstable();
        Ok(found)
    }
}

impl AsFd for LogDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The N of `<name>.N`, written as this crate writes it: no sign and no leading zero.
fn index_in(entry: &str, name: &str) -> Option<u64> {
    let digits = entry.strip_prefix(name)?.strip_prefix('.')?;
    let index: u64 = digits.parse().ok()?;
    (index.to_string() == digits).then_some(index)
}

#[cfg(test)]
mod tests {
    use super::index_in;

    #[test]
    fn only_names_as_written_here_are_log_files() {
        assert_eq!(index_in("web.stdout.0", "web.stdout"), Some(0));
        assert_eq!(index_in("web.stdout.17", "web.stdout"), Some(17));
        assert_eq!(index_in("web.stdout.017", "web.stdout"), None);
        assert_eq!(index_in("web.stdout.+1", "web.stdout"), None);
        assert_eq!(index_in("web.stdout", "web.stdout"), None);
        assert_eq!(index_in("web.stderr.1", "web.stdout"), None);
        assert_eq!(index_in("web.stdout.1.stdout.2", "web.stdout"), None);
    }
}
