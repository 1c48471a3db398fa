//! The server's data directory: its lock, its format and its files.
//!
//! ```text
//! lock          held while a server runs; its process id
//! version       the format of everything below
//! server.json   addresses of the running server, for tools
//! tls/          certificates of the cluster
//! raft/id       the server's number; never reused
//! raft/evaluations  evaluations that the scheduler has under way
//! raft/founding.json  the cluster that the server has promised to found, until it is founded
//! raft/log/     the log
//! raft/snapshots/
//! ```

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use muster_domain::saturating;
use muster_link::private;
use rand::Rng;

/// The format that this version writes, and the newest that it reads.
const FORMAT: u32 = 1;
/// Entries of a data directory: those listed above, and files that a stopped server leaves.
const ENTRIES: [&str; 9] = [
    "lock",
    "version",
    "version.tmp",
    "server.json",
    "server.tmp",
    "state-differs",
    "tls",
    "raft",
    "lost+found",
];

/// The reason why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenDataDirError {
    /// The directory or a file in it cannot be read or written.
    #[error("data directory: {} cannot be used: give --data-dir a directory that this user may write", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// Another server uses the directory.
    #[error(
        "data directory {} is in use by another server{}: stop that one, or give this one a --data-dir of its own",
        path.display(),
        pid.map_or_else(String::new, |pid| format!(" (process {pid})"))
    )]
    InUse {
        path: PathBuf,
        /// The process id of the other server, if it wrote one.
        pid: Option<u32>,
    },
    /// A newer version wrote the directory.
    #[error(
        "data directory {} has format {found}; this server ({version}) understands up to {FORMAT}: start the newer version that wrote it, or restore a snapshot from before the upgrade",
        path.display(),
        version = env!("CARGO_PKG_VERSION")
    )]
    Newer { path: PathBuf, found: u32 },
    /// A file in the directory has other content.
    #[error("data directory: {} holds `{text}`, not a number: it is not a data directory of a server, or it is damaged", path.display())]
    Malformed {
        path: PathBuf,
        /// The text in the file.
        text: String,
    },
}

/// A data directory that no other process uses while this value lives.
#[derive(Debug)]
pub(crate) struct DataDir {
    path: PathBuf,
    server_id: u64,
    // The lock is held and never read: dropping it admits the next server.
    _lock: File,
}

impl DataDir {
    /// Opens `path`, creates it if it does not exist, and locks it.
    pub(crate) fn open(path: &Path) -> Result<Self, OpenDataDirError> {
        // Jobs carry secrets in their environment, and the log contains jobs.
        let is_closed =
            private::claim_dir(path, |name| ENTRIES.contains(&name)).map_err(failed(path))?;
        if !is_closed {
            tracing::warn!(
                path = %path.display(),
                "other users may look into the data directory, which holds more than a server's: see `muster doctor`"
            );
        }
        let raft = path.join("raft");
        private::claim_dir(&raft, |_| true).map_err(failed(&raft))?;
        let lock = lock(path)?;
        check_version(path)?;
        let server_id = server_id(&path.join("raft/id"))?;
        Ok(Self {
            path: path.to_owned(),
            server_id,
            _lock: lock,
        })
    }

    /// The path of the directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The server's number, chosen at random when the directory was made. A wiped server returns with another
    /// number.
    pub(crate) fn server_id(&self) -> u64 {
        self.server_id
    }

    /// The directory of certificates.
    pub(crate) fn tls(&self) -> PathBuf {
        self.path.join("tls")
    }

    /// The directory of the log.
    pub(crate) fn log(&self) -> PathBuf {
        self.path.join("raft/log")
    }

    /// The directory of snapshots.
    pub(crate) fn snapshots(&self) -> PathBuf {
        self.path.join("raft/snapshots")
    }

    /// Writes `text` to the file `name`, whole or not at all.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<(), OpenDataDirError> {
        write_durably(&self.path.join(name), text)
    }

    /// The text of the file `name`, if it can be read.
    pub(crate) fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.path.join(name)).ok()
    }

    /// Removes the file `name`, so that it is gone after a crash as well.
    pub(crate) fn remove_durably(&self, name: &str) -> Result<(), OpenDataDirError> {
        let path = self.path.join(name);
        let attempt = || {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            match path.parent() {
                Some(parent) => File::open(parent)?.sync_all(),
                None => Ok(()),
            }
        };
        attempt().map_err(failed(&path))
    }

    /// Removes the file `name` if it is there.
    pub(crate) fn remove(&self, name: &str) {
        // The file is only a convenience for tools: a stale one is overwritten at the next start.
        drop(fs::remove_file(self.path.join(name)));
    }
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> OpenDataDirError {
    move |source| OpenDataDirError::Io {
        path: path.to_owned(),
        source,
    }
}

fn lock(dir: &Path) -> Result<File, OpenDataDirError> {
    let path = dir.join("lock");
    let mut file = private::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(failed(&path))?;
    private::restrict(&file).map_err(failed(&path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            // The process id is optional: the message is correct without it.
            drop(file.read_to_string(&mut text));
            return Err(OpenDataDirError::InUse {
                path: dir.to_owned(),
                pid: text.trim().parse().ok(),
            });
        }
        Err(TryLockError::Error(source)) => return Err(failed(&path)(source)),
    }
    let note = || {
        file.set_len(0)?;
        writeln!(&file, "{}", std::process::id())
    };
    note().map_err(failed(&path))?;
    Ok(file)
}

fn check_version(dir: &Path) -> Result<(), OpenDataDirError> {
    let path = dir.join("version");
    match read_number(&path)? {
        None => write_durably(&path, &format!("{FORMAT}\n")),
        Some(found) => match u32::try_from(found) {
            Ok(known) if known <= FORMAT => Ok(()),
            _ => Err(OpenDataDirError::Newer {
                path: dir.to_owned(),
                found: saturating::to_u32(found),
            }),
        },
    }
}

fn server_id(path: &Path) -> Result<u64, OpenDataDirError> {
    if let Some(id) = read_number(path)? {
        return Ok(id);
    }
    let id = rand::rng().random_range(1..u64::MAX);
    write_durably(path, &format!("{id}\n"))?;
    Ok(id)
}

fn read_number(path: &Path) -> Result<Option<u64>, OpenDataDirError> {
    match fs::read_to_string(path) {
        Ok(text) => match text.trim().parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(OpenDataDirError::Malformed {
                path: path.to_owned(),
                text: text.trim().to_owned(),
            }),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(failed(path)(source)),
    }
}

/// Writes a small file so that it is whole after a crash: it writes a temporary file, syncs it and renames it.
fn write_durably(path: &Path, text: &str) -> Result<(), OpenDataDirError> {
    let temporary = path.with_extension("tmp");
    let attempt = || {
        let mut file = private::create(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        match path.parent() {
            Some(parent) => File::open(parent)?.sync_all(),
            None => Ok(()),
        }
    };
    attempt().map_err(failed(path))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn locked_data_dir_names_holding_process() {
        let dir = tempfile::tempdir().unwrap();
        let first = DataDir::open(dir.path()).unwrap();

        let error = DataDir::open(dir.path()).unwrap_err();

        assert!(
            error
                .to_string()
                .contains(&format!("process {}", std::process::id())),
            "{error}"
        );
        drop(first);
        DataDir::open(dir.path()).unwrap();
    }

    #[test]
    fn a_newer_format_is_refused_with_its_number() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("version"), "7\n").unwrap();

        let error = DataDir::open(dir.path()).unwrap_err();

        assert!(error.to_string().contains("format 7"), "{error}");
    }

    #[test]
    fn log_is_readable_by_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let _open = DataDir::open(dir.path()).unwrap();

        for entry in [".", "raft"] {
            let meta = fs::metadata(dir.path().join(entry)).unwrap();
            assert_eq!(meta.permissions().mode() & 0o777, 0o700, "{entry}");
        }
        for entry in ["lock", "version", "raft/id"] {
            let meta = fs::metadata(dir.path().join(entry)).unwrap();
            assert_eq!(meta.permissions().mode() & 0o777, 0o600, "{entry}");
        }
    }

    #[test]
    fn the_servers_number_stays() {
        let dir = tempfile::tempdir().unwrap();
        let first = DataDir::open(dir.path()).unwrap().server_id();

        assert_eq!(DataDir::open(dir.path()).unwrap().server_id(), first);
    }
}
