//! The groups below a group.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::resources::cgroup::file::CgroupFileError;
use crate::resources::cgroup::limits::NESTED_MAX;

/// The link count of a directory without subdirectories.
const LINKS_WITHOUT_CHILDREN: u64 = 2;

/// The groups directly below `dir`, in no order; none if it is gone.
pub(crate) fn children(dir: &Path) -> Result<Vec<PathBuf>, CgroupFileError> {
    let failed = |source| CgroupFileError::Read {
        path: dir.into(),
        source,
    };
    // A group's links are its own, its parent's and one of each child. Reading the link count is cheaper than listing
    // its files.
    if fs::metadata(dir).is_ok_and(|metadata| metadata.nlink() == LINKS_WITHOUT_CHILDREN) {
        return Ok(Vec::new());
    }
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(failed(source)),
    };
    let mut children = Vec::new();
    for entry in entries {
        // Groups may vanish while they are listed.
        let Ok(entry) = entry else { continue };
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            children.push(entry.path());
        }
    }
    Ok(children)
}

/// All groups below `dir`, parents before children, at most [`NESTED_MAX`].
pub(crate) fn descendants(dir: &Path) -> Result<Vec<PathBuf>, CgroupFileError> {
    let mut found = children(dir)?;
    let mut at = 0;
    while at < found.len() && found.len() < NESTED_MAX {
        let below = children(&found[at])?;
        found.extend(below);
        at += 1;
    }
    Ok(found)
}
