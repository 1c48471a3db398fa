//! The lock that allows only one agent for each data directory.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use muster_link::private;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

const FILE: &str = "agent.lock";

/// Entries that an agent makes in its data directory. Unreadable stores are set aside under longer names.
const ENTRIES: [&str; 15] = [
    FILE,
    "agent.redb",
    "alloc",
    "bpf",
    "cgroup-tree.json",
    "cgroup-tree.new",
    "contact",
    "drivers",
    "logs",
    "lost+found",
    "node-id",
    "node-id.new",
    "roots",
    "tls",
    "trash",
];

fn is_entry(name: &str) -> bool {
    ENTRIES.contains(&name) || name.starts_with("agent.redb.")
}

/// Held as long as an agent uses a data directory. The kernel releases the lock when the process ends, for every cause
/// of the end.
#[derive(Debug)]
pub(crate) struct DataDirLock {
    /// Kept for its lock.
    _file: Flock<File>,
}

/// The reason why a data directory could not be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockDataDirError {
    /// Another agent uses it.
    #[error(
        "{}: agent with pid {pid} uses this data directory; stop it, or give another --data-dir",
        path.display()
    )]
    Held {
        path: PathBuf,
        /// The process id of that agent.
        pid: String,
    },
    /// The directory cannot be used.
    #[error("{}: the data directory cannot be used; check its owner and free space", path.display())]
    Io {
        /// The directory or file.
        path: PathBuf,
        /// The error of the kernel.
        #[source]
        source: std::io::Error,
    },
}

impl DataDirLock {
    /// Locks `data_dir`, which is made if it is absent.
    ///
    /// # Errors
    ///
    /// [`LockDataDirError`].
    pub(crate) fn take(data_dir: &Path) -> Result<Self, LockDataDirError> {
        let path = data_dir.join(FILE);
        let io = |source| LockDataDirError::Io {
            path: path.clone(),
            source,
        };
        if !private::claim_dir(data_dir, is_entry).map_err(io)? {
            tracing::warn!(
                path = %data_dir.display(),
                "other users may look into the data directory, which holds more than an agent's: see `muster doctor`"
            );
        }
        let file = private::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(io)?;
        private::restrict(&file).map_err(io)?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(mut file) => {
                let pid = format!("{}\n", std::process::id());
                file.set_len(0).map_err(io)?;
                file.rewind().map_err(io)?;
                file.write_all(pid.as_bytes()).map_err(io)?;
                Ok(Self { _file: file })
            }
            Err((mut file, Errno::EWOULDBLOCK)) => {
                let mut pid = String::new();
                file.read_to_string(&mut pid).map_err(io)?;
                let pid = pid.trim();
                let pid = if pid.is_empty() { "unknown" } else { pid }.to_owned();
                Err(LockDataDirError::Held {
                    path: data_dir.to_owned(),
                    pid,
                })
            }
            Err((_file, errno)) => Err(io(errno.into())),
        }
    }
}
