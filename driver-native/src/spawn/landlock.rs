//! The one thing of Landlock that tasks are kept by: the scope of abstract sockets.

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};

/// `struct landlock_ruleset_attr` of landlock_create_ruleset(2), as the sixth version of Landlock has it.
#[repr(C)]
struct RulesetAttr {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

/// From `linux/landlock.h`; the libc crate does not name it.
const LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET: u64 = 1;

/// A ruleset of Landlock under which a process reaches those abstract sockets only that it, or who came of it, made. It says
/// nothing of paths or ports.
///
/// # Errors
///
/// The kernel has no Landlock, or one that is older than 6.12 (`E2BIG`), or it is not switched on (`EOPNOTSUPP`).
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
        // SAFETY: the kernel has just opened it for this process, which owns it alone.
        Ok(ruleset @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(ruleset) }),
        _ => Err(io::Error::last_os_error()),
    }
}
