//! Files and directories that only their owner may use. Jobs carry secrets in their environment, so files with jobs
//! are closed to other users.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};

/// Permissions of a directory.
pub const DIR_MODE: u32 = 0o700;
/// Permissions of a file.
pub const FILE_MODE: u32 = 0o600;
/// Permission bits that let other users read or change an entry, and not only pass through it.
const OTHERS: u32 = 0o066;
/// All permissions of the group and of others.
const GROUP_AND_OTHERS: u32 = 0o077;
/// The sticky bit. In a directory that all users may write, such as `/tmp`, only the owner may delete an entry.
const STICKY: u32 = 0o1000;
/// The most entries that one check examines. A data directory may have very many.
const CHECKED_ENTRIES_MAX: usize = 100_000;
/// The most exposed entries that one check reports. A few are enough to show the fault.
const EXPOSED_MAX: usize = 5;

/// Returns options that create a file for its owner only. The caller adds read, write and the handling of an existing
/// file.
#[must_use]
pub fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(FILE_MODE);
    options
}

/// Creates an empty file, or empties the existing one.
///
/// # Errors
///
/// As [`File::create`].
pub fn create(path: &Path) -> io::Result<File> {
    let file = options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)?;
    restrict(&file)?;
    Ok(file)
}

/// Writes a file.
///
/// # Errors
///
/// As [`fs::write`].
pub fn write(path: &Path, contents: impl AsRef<[u8]>) -> io::Result<()> {
    create(path)?.write_all(contents.as_ref())
}

/// Removes the permissions of other users, which an earlier version granted.
///
/// # Errors
///
/// The file belongs to another user.
pub fn restrict(file: &File) -> io::Result<()> {
    let mode = file.metadata()?.permissions().mode();
    if mode & GROUP_AND_OTHERS == 0 {
        return Ok(());
    }
    file.set_permissions(Permissions::from_mode(FILE_MODE))
}

/// Applies [`restrict`] to the file at `path` if it exists.
///
/// # Errors
///
/// As [`restrict`].
pub fn restrict_at(path: &Path) -> io::Result<()> {
    match File::open(path) {
        Ok(file) => restrict(&file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Creates a directory and its missing parents. An existing directory stays unchanged.
///
/// # Errors
///
/// As [`fs::create_dir_all`].
pub fn create_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(DIR_MODE)
        .create(path)
}

/// Creates a directory for one process, or closes the existing one to other users.
///
/// `is_own` returns whether the process itself creates entries of the given name. A directory stays unchanged if it
/// has foreign entries, belongs to another user, or is sticky: it may be `/var/lib` or `/tmp`. Missing parents get
/// the usual permissions, because a task may have to pass through them. Returns whether the directory is closed.
///
/// # Errors
///
/// The directory cannot be created or read.
pub fn claim_dir(path: &Path, is_own: impl Fn(&str) -> bool) -> io::Result<bool> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    create_dir(path)?;
    let meta = fs::metadata(path)?;
    let mode = meta.permissions().mode();
    if mode & GROUP_AND_OTHERS == 0 {
        return Ok(true);
    }
    if mode & STICKY != 0 || meta.uid() != rustix::process::geteuid().as_raw() {
        return Ok(false);
    }
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name();
        if !name.to_str().is_some_and(&is_own) {
            return Ok(false);
        }
    }
    fs::set_permissions(path, Permissions::from_mode(DIR_MODE))?;
    Ok(true)
}

/// A file or directory that other users may read or change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExposedFile {
    pub path: PathBuf,
    pub mode: u32,
}

/// Returns the first entries of `dir`, including `dir` itself, that other users may read or change. Entries below a
/// directory that only its owner may enter are not exposed. Entries with a name in `skipped` are open on purpose and
/// are not checked.
///
/// # Errors
///
/// The directory cannot be read.
pub fn exposed(dir: &Path, skipped: &[&str]) -> io::Result<Vec<ExposedFile>> {
    let mut found = Vec::new();
    let mut open = vec![dir.to_owned()];
    let mut checked = 0;
    let skipped = |name: &OsStr| skipped.iter().any(|skipped| name == *skipped);
    while let Some(path) = open.pop() {
        let meta = match fs::symlink_metadata(&path) {
            Ok(meta) => meta,
            // The entry may have been deleted meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        checked += 1;
        if checked > CHECKED_ENTRIES_MAX || found.len() == EXPOSED_MAX {
            break;
        }
        let mode = meta.permissions().mode() & 0o7777;
        if meta.is_symlink() {
            continue;
        }
        if mode & OTHERS != 0 {
            found.push(ExposedFile {
                path: path.clone(),
                mode,
            });
        }
        if meta.is_dir() && mode & 0o077 != 0 {
            for entry in fs::read_dir(&path)? {
                let entry = entry?;
                if !skipped(&entry.file_name()) {
                    open.push(entry.path());
                }
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn files_are_for_their_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");

        write(&path, "new").unwrap();
        assert_eq!(mode(&path), FILE_MODE);
        set_mode(&path, 0o644);
        write(&path, "again").unwrap();

        assert_eq!(mode(&path), FILE_MODE);
    }

    #[test]
    fn own_directories_are_closed() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("a/own");

        assert!(claim_dir(&own, |_| false).unwrap());
        assert_eq!(mode(&own), DIR_MODE);
        set_mode(&own, 0o755);
        write(&own.join("lock"), "").unwrap();

        assert!(claim_dir(&own, |name| name == "lock").unwrap());
        assert_eq!(mode(&own), DIR_MODE);
    }

    /// Checks that a directory such as `/var/lib` stays unchanged.
    #[test]
    fn directories_of_others_are_left() {
        let dir = tempfile::tempdir().unwrap();
        write(&dir.path().join("theirs"), "").unwrap();
        set_mode(dir.path(), 0o755);
        assert!(!claim_dir(dir.path(), |name| name == "lock").unwrap());
        assert_eq!(mode(dir.path()), 0o755);

        set_mode(dir.path(), 0o1777);
        assert!(!claim_dir(dir.path(), |_| true).unwrap());
        assert_eq!(mode(dir.path()), 0o1777);
    }

    #[test]
    fn exposed_entries_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        write(&file, "secret").unwrap();
        set_mode(&file, 0o644);
        set_mode(dir.path(), 0o700);
        assert_eq!(exposed(dir.path(), &[]).unwrap(), [], "nobody gets there");

        set_mode(dir.path(), 0o711);

        let found = exposed(dir.path(), &[]).unwrap();
        let mode = 0o644;
        assert_eq!(found, [ExposedFile { path: file, mode }]);
        assert_eq!(exposed(dir.path(), &["file"]).unwrap(), []);
    }
}
