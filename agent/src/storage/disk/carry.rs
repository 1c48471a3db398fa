//! Assigns a tree to another project, so that the tree may be moved below that project's directory. The file system
//! refuses to rename across projects (`EXDEV`).
//!
//! As everywhere below an allocation, each directory is opened in its parent and no link is followed. An entry that is
//! neither a directory nor a file has no content, and keeps its project. An entry that may not be changed also keeps
//! its project.

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::rc::Rc;

use muster_driver::beneath::{self, Traversal};
use rustix::fs::{FileType, OFlags, RawDir};
use rustix::io::Errno;

use super::limits::{DEPTH_MAX, READ_BYTES};
use crate::sys;

const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK);

/// Assigns the directory `tree` and its content to `project`.
///
/// # Errors
///
/// If a directory cannot be read, is deeper than can be opened, or the project has no room for all of it (`EDQUOT`).
pub(crate) fn assign_to_project(tree: OwnedFd, project: u32) -> io::Result<()> {
    let mut buffer = vec![MaybeUninit::uninit(); READ_BYTES];
    let mut pending: Vec<(Rc<OwnedFd>, CString, u32)> = Vec::new();
    let mut next = Some((Rc::new(tree), 1));
    while let Some((dir, depth)) = next.take() {
        set_project(dir.as_fd(), project)?;
        let mut entries = RawDir::new(dir.as_fd(), &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name();
            match entry.file_type() {
                _ if name == c"." || name == c".." => {}
                FileType::Directory if depth >= DEPTH_MAX => {
                    return Err(io::Error::other(format!(
                        "its directories are nested more than {DEPTH_MAX} times"
                    )));
                }
                FileType::Directory => pending.push((Rc::clone(&dir), name.to_owned(), depth + 1)),
                FileType::RegularFile => {
                    let file = beneath::open(&*dir, name, READ, Traversal::Dirs)?;
                    set_project(file.as_fd(), project)?;
                }
                FileType::Symlink
                | FileType::Fifo
                | FileType::Socket
                | FileType::CharacterDevice
                | FileType::BlockDevice
                | FileType::Unknown => {}
            }
        }
        if let Some((parent, name, depth)) = pending.pop() {
            let flags = READ.union(OFlags::DIRECTORY);
            let dir = beneath::open(&*parent, &name, flags, Traversal::Dirs)?;
            next = Some((Rc::new(dir), depth));
        }
    }
    Ok(())
}

fn set_project(file: BorrowedFd<'_>, project: u32) -> io::Result<()> {
    match sys::move_to_project(file, project) {
        Err(error) if error.raw_os_error() == Some(Errno::PERM.raw_os_error()) => Ok(()),
        given => given,
    }
}
