//! The flags of a mount and the owners of its files (`mount_setattr(2)`), for the agent and for drivers.
//!
//! Absent on purpose: making and attaching mounts, for which `rustix` has functions.

#![expect(
    unsafe_code,
    reason = "neither `rustix` nor `nix` has mount_setattr(2)"
)]

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// Changes to a mount. The numbers are `MOUNT_ATTR_*` of `mount_setattr(2)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MountFlags(u64);

impl MountFlags {
    /// Makes the mount read-only.
    pub const READ_ONLY: Self = Self(libc::MOUNT_ATTR_RDONLY);
    /// The kernel ignores set-user-id and set-group-id bits on the mount.
    pub const NO_SET_USER: Self = Self(libc::MOUNT_ATTR_NOSUID);
    /// Device files on the mount cannot be opened.
    pub const NO_DEVICES: Self = Self(libc::MOUNT_ATTR_NODEV);
    /// Programs on the mount cannot be executed.
    pub const NO_PROGRAMS: Self = Self(libc::MOUNT_ATTR_NOEXEC);

    /// Returns the union of both sets of flags.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the union of both sets of flags if `wanted`, else `self`.
    #[must_use]
    pub const fn and_if(self, wanted: bool, other: Self) -> Self {
        if wanted { self.and(other) } else { self }
    }
}

/// `struct mount_attr` of `mount_setattr(2)`.
#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// Whether a mount receives the mounts that are made at its source later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Propagation {
    #[default]
    Private,
    /// The mount receives later mounts, if the mount of the source is shared. Mounts made below it do not reach the
    /// source.
    Slave,
}

/// Sets `flags` on the mount at `mount`, and with `whole` on all mounts below it. The mount no longer receives mounts
/// made elsewhere.
///
/// # Errors
///
/// The kernel's error: `EBUSY` while a file on the mount is open for writing.
pub fn restrict(mount: BorrowedFd<'_>, flags: MountFlags, whole: bool) -> io::Result<()> {
    restrict_with(mount, flags, whole, Propagation::Private)
}

/// Sets `flags` and `propagation` on the mount at `mount`, and with `whole` on all mounts below it.
///
/// # Errors
///
/// As [`restrict`].
pub fn restrict_with(
    mount: BorrowedFd<'_>,
    flags: MountFlags,
    whole: bool,
    propagation: Propagation,
) -> io::Result<()> {
    let attr = MountAttr {
        set: flags.0,
        clear: 0,
        propagation: match propagation {
            Propagation::Private => libc::MS_PRIVATE,
            Propagation::Slave => libc::MS_SLAVE,
        },
        user_namespace: 0,
    };
    set_attr(mount, &attr, whole)
}

/// Maps the owners of the files at `mount`, which is not attached yet, to ids of `user_namespace`.
///
/// # Errors
///
/// `EINVAL` when the file system does not support mapped owners.
pub fn map_owners(mount: BorrowedFd<'_>, user_namespace: BorrowedFd<'_>) -> io::Result<()> {
    let attr = MountAttr {
        set: libc::MOUNT_ATTR_IDMAP,
        clear: 0,
        propagation: 0,
        user_namespace: i64::from(user_namespace.as_raw_fd()).cast_unsigned(),
    };
    set_attr(mount, &attr, false)
}

fn set_attr(mount: BorrowedFd<'_>, attr: &MountAttr, whole: bool) -> io::Result<()> {
    let flags = libc::AT_EMPTY_PATH | if whole { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is empty and ends with a zero byte; `attr` has the size that is given and outlives the call.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            std::ptr::from_ref(attr),
            size_of::<MountAttr>(),
        )
    };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
