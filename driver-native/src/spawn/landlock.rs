//! The only Landlock feature that isolates tasks: the scope of abstract sockets.

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};

/// The structure `struct landlock_ruleset_attr` of landlock_create_ruleset(2), as in the sixth version of Landlock.
#[repr(C)]
struct RulesetAttr {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

/// From `linux/landlock.h`; the libc crate does not name it.
const LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET: u64 = 1;

/// Creates a Landlock ruleset under which a process reaches only the abstract sockets that it or its descendants
/// created. The ruleset restricts neither paths nor ports.
///
/// # Errors
///
/// The kernel has no Landlock, is older than 6.12 (`E2BIG`), or has Landlock disabled (`EOPNOTSUPP`).
pub(crate) fn abstract_scope() -> io::Result<OwnedFd> {
    let attr = RulesetAttr {
        handled_access_fs: 0,
        handled_access_net: 0,
        scoped: LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET,
    };
    // SAFETY: `attr` has the size that is given, and the kernel only reads it.
    let made = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::from_ref(&attr),
            size_of::<RulesetAttr>(),
            0,
        )
    };
    match i32::try_from(made) {
        // SAFETY: the kernel has just opened the file for this process, which is the only owner.
        Ok(ruleset @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(ruleset) }),
        _ => Err(io::Error::last_os_error()),
    }
}
