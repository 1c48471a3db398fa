//! The payload of a dispatch, as a file of a task.
//!
//! The task may own every directory on the path, and an earlier start of it may have put links there. So each step is
//! resolved beneath the directory before it, and the file is always created anew.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use muster_driver::beneath::{self, Traversal};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};

use crate::logs::FifoOwner;

/// The reason why the payload could not be written.
#[derive(Debug, thiserror::Error)]
#[error("write the payload of the dispatch to {}", path.display())]
pub(crate) struct WritePayloadError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// Writes `payload` to `file` in the task's directory `local`, replacing an existing file. `file` was checked when the
/// job was registered, and the kernel checks it again.
pub(crate) fn write(
    local: &Path,
    file: &str,
    payload: &[u8],
    owner: Option<FifoOwner>,
) -> Result<(), WritePayloadError> {
    let attempt = || {
        let file = Path::new(file);
        let name = file.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
        let parents = file.parent().unwrap_or(Path::new(""));
        let dir = make_dirs(local, parents, owner)?;
        match rustix::fs::unlinkat(&dir, name, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        let (flags, mode) = (OFlags::WRONLY | OFlags::EXCL, Mode::from_raw_mode(0o644));
        let made = beneath::create(&dir, name, flags, mode, Traversal::Mounts)?;
        change_owner(&made, owner)?;
        File::from(made).write_all(payload)
    };
    attempt().map_err(|source| WritePayloadError {
        path: local.join(file),
        source,
    })
}

/// Opens the directory `parents` in `local`, and makes missing parts of it.
fn make_dirs(local: &Path, parents: &Path, owner: Option<FifoOwner>) -> io::Result<OwnedFd> {
    let mut dir = beneath::open_top(local, OFlags::RDONLY)?;
    for part in parents {
        let made = match rustix::fs::mkdirat(&dir, part, Mode::from_raw_mode(0o755)) {
            Ok(()) => true,
            Err(rustix::io::Errno::EXIST) => false,
            Err(errno) => return Err(errno.into()),
        };
        let walk = OFlags::RDONLY | OFlags::DIRECTORY;
        dir = beneath::open(&dir, part, walk, Traversal::Mounts)?;
        if made {
            change_owner(&dir, owner)?;
        }
    }
    Ok(dir)
}

fn change_owner(file: &OwnedFd, owner: Option<FifoOwner>) -> io::Result<()> {
    if let Some(FifoOwner { uid, gid }) = owner {
        rustix::fs::fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use muster_driver::fixture::exchanging;

    use super::*;

    #[test]
    fn a_payload_replaces_an_earlier_one() {
        let local = tempfile::tempdir().unwrap();
        fs::write(local.path().join("in.json"), "an earlier and longer one").unwrap();

        write(local.path(), "in.json", b"{}", None).unwrap();

        assert_eq!(fs::read(local.path().join("in.json")).unwrap(), b"{}");
    }

    #[test]
    fn directories_on_the_way_are_made() {
        let local = tempfile::tempdir().unwrap();

        write(local.path(), "a/b/in", b"x", None).unwrap();
        write(local.path(), "a/b/in", b"y", None).unwrap();

        assert_eq!(fs::read(local.path().join("a/b/in")).unwrap(), b"y");
    }

    #[test]
    fn symlink_in_place_of_payload_file_is_replaced() {
        let local = tempfile::tempdir().unwrap();
        let outside = tempfile::NamedTempFile::new().unwrap();
        symlink(outside.path(), local.path().join("in")).unwrap();

        write(local.path(), "in", b"x", None).unwrap();

        assert_eq!(fs::read(outside.path()).unwrap(), b"");
        assert_eq!(fs::read(local.path().join("in")).unwrap(), b"x");
    }

    #[test]
    fn payload_cannot_leave_the_directory() {
        let task = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        let local = task.path().join("local");
        fs::create_dir(&local).unwrap();
        symlink(outside.path(), local.join("dir")).unwrap();

        for file in ["dir/in", "../in", "a/../../in", "/in", "..", ""] {
            assert!(write(&local, file, b"x", None).is_err(), "{file}");
        }
        fs::remove_dir_all(&local).unwrap();
        symlink(outside.path(), &local).unwrap();
        assert!(write(&local, "in", b"x", None).is_err());

        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    }

    /// The task creates a link there while the agent resolves the path.
    #[test]
    fn no_race_leads_out_of_the_directory() {
        const TRIES: usize = 500;
        /// If one of the two threads hardly runs, the directory may be missing all the time.
        const TRIES_MAX: usize = 1_000 * TRIES;
        let (local, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let [dir, link] = ["dir", "link"].map(|name| local.path().join(name));
        fs::create_dir(&dir).unwrap();
        symlink(outside.path(), &link).unwrap();

        let written = exchanging(&dir, &link, || {
            let mut written = 0;
            for tried in 0..TRIES_MAX {
                if tried >= TRIES && written > 0 {
                    break;
                }
                written += usize::from(write(local.path(), "dir/in", b"x", None).is_ok());
            }
            written
        });

        assert!(written > 0);
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    }
}
