//! The exit status of a process that is not a child, which the kernel reports since Linux 6.15 (`PIDFD_GET_INFO`).

use std::os::fd::{AsRawFd, BorrowedFd};

/// The request of ioctl(2). Its number contains the size of [`PidfdInfo`].
const PIDFD_GET_INFO: libc::Ioctl = 0xc040_ff0b;
/// The bit of the mask that requests the exit status.
const PIDFD_INFO_EXIT: u64 = 1 << 3;

/// `struct pidfd_info` of `linux/pidfd.h` in its first version.
#[repr(C)]
#[derive(Default)]
struct PidfdInfo {
    mask: u64,
    cgroup_id: u64,
    /// The pid, the thread group, the parent, and the eight ids of users and groups.
    ids: [u32; 11],
    exit_code: i32,
}

/// The kernel's answer about an ended process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExitInfo {
    /// The status, as wait(2) reports it.
    Status(i32),
    /// The parent has not reaped the process yet; the kernel reports the status to other processes only afterwards.
    NotReaped,
    /// This kernel does not report the status.
    Unsupported,
}

/// Reads the exit status of the process of `pidfd` from the kernel.
pub(crate) fn exit_info(pidfd: BorrowedFd<'_>) -> ExitInfo {
    let mut info = PidfdInfo {
        mask: PIDFD_INFO_EXIT,
        ..PidfdInfo::default()
    };
    // SAFETY: the kernel writes as many bytes as the number of the request contains, which is the size of `info`.
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
