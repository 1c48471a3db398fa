//! The FIFO between a task and its log.
//!
//! The task and the agent open the FIFO for reading *and* writing. So the loss of the reader can only block the
//! task, and never kills it with SIGPIPE. The agent's stream does not end while no process writes. Bytes in a FIFO
//! live as long as any process has it open: the task, the driver that started it, or the agent.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::pipe::{fcntl_getpipe_size, fcntl_setpipe_size};

use crate::logs::dir::LogDir;
use crate::logs::limits::{PIPE_BYTES, PIPE_BYTES_MIN};

/// The user a FIFO belongs to.
///
/// A task that opens `/dev/stdout` opens the FIFO again and needs the permission for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FifoOwner {
    pub uid: u32,
    pub gid: u32,
}

/// An open file that was checked to be a FIFO.
#[derive(Debug)]
pub struct Fifo {
    fd: OwnedFd,
    path: PathBuf,
    capacity: usize,
}

/// Why a FIFO could not be made or opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenFifoError {
    /// The FIFO could not be made.
    #[error("make FIFO {path}")]
    Make {
        path: PathBuf,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// The FIFO could not be opened, or the name is a symbolic link.
    #[error("open FIFO {path} without following a symbolic link")]
    Open {
        path: PathBuf,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// Something else has its name.
    #[error("{path} is a {found} and not a FIFO; it was replaced, remove it and restart the task")]
    NotFifo {
        path: PathBuf,
        /// The kind of file that is there.
        found: String,
    },
}

impl Fifo {
    /// Makes the FIFO `name` in `dir` with mode 0600 unless it exists, and opens it.
    ///
    /// # Errors
    ///
    /// [`OpenFifoError`]; any existing file of that name stays as it is.
    pub fn create(
        dir: &LogDir,
        name: &str,
        owner: Option<FifoOwner>,
    ) -> Result<Self, OpenFifoError> {
        let path = dir.path().join(name);
        match rustix::fs::mkfifoat(dir, name, Mode::RUSR | Mode::WUSR) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(errno) => {
                return Err(OpenFifoError::Make {
                    path,
                    source: errno.into(),
                });
            }
        }
        let fifo = Self::open(dir, name)?;
        let fail = |errno: rustix::io::Errno| OpenFifoError::Make {
            path: fifo.path.clone(),
            source: errno.into(),
        };
        // The umask may have taken bits, and an adopted FIFO may have had others.
        rustix::fs::fchmod(&fifo.fd, Mode::RUSR | Mode::WUSR).map_err(fail)?;
        if let Some(FifoOwner { uid, gid }) = owner {
            let (uid, gid) = (
                rustix::fs::Uid::from_raw(uid),
                rustix::fs::Gid::from_raw(gid),
            );
            rustix::fs::fchown(&fifo.fd, Some(uid), Some(gid)).map_err(fail)?;
        }
        Ok(fifo)
    }

    /// Opens the existing FIFO `name` of `dir`, as after a restart of the agent.
    ///
    /// # Errors
    ///
    /// [`OpenFifoError::Open`] and [`OpenFifoError::NotFifo`].
    pub fn open(dir: &LogDir, name: &str) -> Result<Self, OpenFifoError> {
        let path = dir.path().join(name);
        let flags =
            OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fail = |errno: rustix::io::Errno| OpenFifoError::Open {
            path: path.clone(),
            source: errno.into(),
        };
        let fd = rustix::fs::openat(dir, name, flags, Mode::empty()).map_err(fail)?;
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&fd).map_err(fail)?.st_mode);
        if kind != FileType::Fifo {
            return Err(OpenFifoError::NotFifo {
                path,
                found: format!("{kind:?}"),
            });
        }
        let capacity = grow(&fd);
        Ok(Self { fd, path, capacity })
    }

    /// Bytes that the FIFO can hold before its writer blocks.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The path of the FIFO.
    pub fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// Bytes that wait in the FIFO.
    ///
    /// # Errors
    ///
    /// The error of `FIONREAD`, which does not fail on a FIFO.
    pub fn waiting(&self) -> io::Result<u64> {
        Ok(rustix::io::ioctl_fionread(&self.fd)?)
    }

    /// Converts the FIFO into its descriptor.
    pub(crate) fn into_fd(self) -> OwnedFd {
        self.fd
    }
}

impl AsFd for Fifo {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Raises the capacity as far as the kernel allows (`fs.pipe-max-size`, pages per user).
fn grow(fd: &OwnedFd) -> usize {
    let current = fcntl_getpipe_size(fd).unwrap_or(PIPE_BYTES_MIN);
    let mut wanted = PIPE_BYTES;
    while wanted > current {
        if let Ok(granted) = fcntl_setpipe_size(fd, wanted) {
            return granted;
        }
        wanted /= 2;
    }
    current
}
