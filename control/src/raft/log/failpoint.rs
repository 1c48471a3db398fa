//! Points in the code where tests make the disk fail or the process die.
//!
//! Outside this crate's own tests a failpoint does nothing. A test arms a failpoint for the files below one
//! directory, so that simultaneous tests do not interfere. `MUSTER_FAILPOINT=name` in the environment of a test's
//! child process kills that process at the failpoint, as `kill -9` would.

use std::io;
use std::path::Path;

/// Passes the failpoint `name`, which concerns the file or directory `path`. Always succeeds outside of tests.
#[cfg(not(test))]
#[expect(clippy::unnecessary_wraps, reason = "armed in tests, it fails")]
pub(crate) fn hit(_name: &'static str, _path: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
pub(crate) use armed::{Armed, hit};

#[cfg(test)]
mod armed {
    use std::path::PathBuf;
    use std::sync::{Mutex, PoisonError};

    use super::{Path, io};

    /// The environment variable with the failpoint at which the process dies.
    pub(crate) const KILL: &str = "MUSTER_FAILPOINT";

    static ARMED: Mutex<Vec<(&'static str, PathBuf, i32)>> = Mutex::new(Vec::new());

    fn list() -> std::sync::MutexGuard<'static, Vec<(&'static str, PathBuf, i32)>> {
        ARMED.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// See [`super::hit`].
    pub(crate) fn hit(name: &'static str, path: &Path) -> io::Result<()> {
        if std::env::var(KILL).is_ok_and(|killed| killed == name) {
            std::process::abort();
        }
        let armed = list();
        let errno = armed.iter().find_map(|(armed, below, errno)| {
            (*armed == name && path.starts_with(below)).then_some(*errno)
        });
        errno.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
    }

    /// An armed failpoint, which returns an error of the operating system until it is dropped.
    #[derive(Debug)]
    pub(crate) struct Armed(&'static str, PathBuf);

    impl Armed {
        /// Arms `name` for all files below `dir`.
        pub(crate) fn new(name: &'static str, dir: &Path, errno: i32) -> Self {
            list().push((name, dir.to_owned(), errno));
            Self(name, dir.to_owned())
        }
    }

    impl Drop for Armed {
        fn drop(&mut self) {
            list().retain(|(name, dir, _)| *name != self.0 || *dir != self.1);
        }
    }
}
