//! System calls that neither rustix nor nix has.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::limits;

/// What is done to a mount. The numbers are `MOUNT_ATTR_*` of mount_setattr(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MountFlags(u64);

impl MountFlags {
    pub(crate) const READ_ONLY: Self = Self(libc::MOUNT_ATTR_RDONLY);
    pub(crate) const NO_SET_USER: Self = Self(libc::MOUNT_ATTR_NOSUID);
    pub(crate) const NO_DEVICES: Self = Self(libc::MOUNT_ATTR_NODEV);
    pub(crate) const NO_PROGRAMS: Self = Self(libc::MOUNT_ATTR_NOEXEC);

    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) const fn and_if(self, wanted: bool, other: Self) -> Self {
        if wanted { self.and(other) } else { self }
    }
}

/// `struct mount_attr` of mount_setattr(2).
#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// Sets `flags` on the mount at `mount`, and with `whole` on all below it, and cuts it off from what
/// is mounted elsewhere.
///
/// # Errors
///
/// The kernel refuses.
pub(crate) fn restrict_mount(
    mount: BorrowedFd<'_>,
    flags: MountFlags,
    whole: bool,
) -> io::Result<()> {
    let attr = MountAttr {
        set: flags.0,
        clear: 0,
        propagation: libc::MS_PRIVATE,
        user_namespace: 0,
    };
    // A file that was written on it may still be open in a child of this process that has not reached
    // its program yet: that is over in moments.
    for _ in 1..limits::READ_ONLY_ATTEMPTS_MAX {
        match mount_setattr(mount, &attr, whole) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                std::thread::sleep(limits::READ_ONLY_PAUSE);
            }
            done => return done,
        }
    }
    mount_setattr(mount, &attr, whole)
}

/// Shows the files at `mount`, which is attached nowhere yet, with their owners as ids of
/// `user_namespace`.
///
/// # Errors
///
/// `EINVAL` when the file system cannot do that.
pub(crate) fn id_mapped(mount: BorrowedFd<'_>, user_namespace: BorrowedFd<'_>) -> io::Result<()> {
    let attr = MountAttr {
        set: libc::MOUNT_ATTR_IDMAP,
        clear: 0,
        propagation: 0,
        user_namespace: i64::from(user_namespace.as_raw_fd()).cast_unsigned(),
    };
    mount_setattr(mount, &attr, false)
}

fn mount_setattr(mount: BorrowedFd<'_>, attr: &MountAttr, whole: bool) -> io::Result<()> {
    let flags = libc::AT_EMPTY_PATH | if whole { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is empty and ends with a zero byte; `attr` has the size that is given.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            std::ptr::from_ref(attr),
            size_of::<MountAttr>(),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
