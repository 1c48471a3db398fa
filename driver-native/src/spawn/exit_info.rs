//! The exit status of a process that is not a child, as the kernel tells it since Linux 6.15 (`PIDFD_GET_INFO`).

use std::os::fd::{AsRawFd, BorrowedFd};

/// The request of ioctl(2), whose number holds the size of [`PidfdInfo`].
const PIDFD_GET_INFO: libc::Ioctl = 0xc040_ff0b;
/// The bit of the mask that asks for the exit status.
const PIDFD_INFO_EXIT: u64 = 1 << 3;

/// `struct pidfd_info` of `linux/pidfd.h` in its first version.
#[repr(C)]
#[derive(Default)]
struct PidfdInfo {
    mask: u64,
    cgroup_id: u64,
    /// Process, thread group, parent, and the eight ids of users and groups.
    ids: [u32; 11],
    exit_code: i32,
}

/// The answer of the kernel about a process that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExitInfo {
    /// The status, as wait(2) reports it.
    Status(i32),
    /// The parent of the process has not taken its status yet; only then the kernel tells others.
    NotReaped,
    /// This kernel does not tell.
    Unsupported,
}

/// Asks the kernel how the process of `pidfd` ended.
pub(crate) fn exit_info(pidfd: BorrowedFd<'_>) -> ExitInfo {
    let mut info = PidfdInfo {
        mask: PIDFD_INFO_EXIT,
        ..PidfdInfo::default()
    };
    // SAFETY: the kernel writes as many bytes as the number of the request says, which is the size of `info`.
    let result = unsafe { libc::ioctl(pidfd.as_raw_fd(), PIDFD_GET_INFO, &raw mut info) };
    if result != 0 {
        return ExitInfo::Unsupported;
    }
    if info.mask & PIDFD_INFO_EXIT == 0 {
        return ExitInfo::NotReaped;
    }
    ExitInfo::Status(info.exit_code)
}

#[cfg(test)]
mod tests {
    use std::mem::size_of;

    use super::*;

    #[test]
    fn request_holds_the_size_of_the_answer() {
        assert_eq!(
            size_of::<PidfdInfo>() as u64,
            (PIDFD_GET_INFO >> 16) & 0x3fff
        );
    }
}
