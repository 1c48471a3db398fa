//! Restrictions of mounts that a task sees.

use std::io;
use std::os::fd::BorrowedFd;

use muster_driver::mount;

use crate::limits;

pub(crate) use muster_driver::mount::{MountFlags, Propagation, map_owners};

/// Restricts a mount like [`restrict_mount_with`], with private propagation.
///
/// # Errors
///
/// The kernel's error.
pub(crate) fn restrict_mount(
    mount: BorrowedFd<'_>,
    flags: MountFlags,
    whole: bool,
) -> io::Result<()> {
    restrict_mount_with(mount, flags, whole, Propagation::Private)
}

/// Restricts a mount like [`mount::restrict_with`], and tries again while a file on the mount is open for writing. A
/// child of this process may have such a file open for a moment, until it runs its program.
///
/// # Errors
///
/// The kernel's error.
pub(crate) fn restrict_mount_with(
    mount: BorrowedFd<'_>,
    flags: MountFlags,
    whole: bool,
    propagation: Propagation,
) -> io::Result<()> {
    for _ in 1..limits::READ_ONLY_ATTEMPTS_MAX {
        match mount::restrict_with(mount, flags, whole, propagation) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                std::thread::sleep(limits::READ_ONLY_PAUSE);
            }
            done => return done,
        }
    }
    mount::restrict_with(mount, flags, whole, propagation)
}
