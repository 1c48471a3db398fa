//! Mounts that a task sees.

use std::io;
use std::os::fd::BorrowedFd;

use muster_driver::mount;

use crate::limits;

pub(crate) use muster_driver::mount::{MountFlags, Propagation, map_owners};

/// As [`restrict_mount_with`], for a private mount.
///
/// # Errors
///
/// The kernel refuses.
pub(crate) fn restrict_mount(
    mount: BorrowedFd<'_>,
    flags: MountFlags,
    whole: bool,
) -> io::Result<()> {
    restrict_mount_with(mount, flags, whole, Propagation::Private)
}

/// As [`mount::restrict_with`], which it tries again while a file that was written there is open: it may be so in a
/// child of this process that has not reached its program yet, which is over in moments.
///
/// # Errors
///
/// The kernel refuses.
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
