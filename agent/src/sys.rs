//! System calls for which neither `rustix` nor `nix` has a function.

#![expect(unsafe_code, reason = "system calls without a safe wrapper")]

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use rustix::process::Pid;

/// `IOPRIO_WHO_PROCESS` (`ioprio_set(2)`), which means a thread; the number 0 is the calling thread.
const WHO_THREAD: libc::c_int = 1;

/// The disk priority of a thread, where the disk's scheduler has priorities (`bfq`, `mq-deadline`). Values are
/// those of `IOPRIO_PRIO_VALUE`: the class is above 13 bits of level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum IoPriority {
    /// No class: the process's niceness decides.
    Default = 0,
    /// Only disk time that no other thread wants.
    Idle = 3 << 13,
}

/// Sets the disk priority of the thread.
pub(crate) fn set_io_priority(thread: Pid, priority: IoPriority) -> io::Result<()> {
    let (thread, priority) = (thread.as_raw_nonzero().get(), priority as i32);
    // SAFETY: the call takes three numbers and touches no memory of this process.
    let answer = unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_THREAD, thread, priority) };
    answered(answer)
}

/// `FS_IOC_FSGETXATTR` and `FS_IOC_FSSETXATTR` (linux/fs.h): a `struct fsxattr` of 28 bytes.
const GET_XATTR: libc::Ioctl = 0x801C_581F;
const SET_XATTR: libc::Ioctl = 0x401C_5820;
/// `FS_XFLAG_PROJINHERIT`: new files in the directory get its project.
const PROJECT_INHERIT: u32 = 0x200;
/// `PRJQUOTA`; commands of `quotactl(2)` are in the bits above it.
const PROJECT_QUOTA: u32 = 2;
const GET_QUOTA: u32 = 0x80_0007;
const SET_QUOTA: u32 = 0x80_0008;
/// `Q_XGETQSTATV` (linux/dqblk_xfs.h): `XQM_CMD(8)`.
const GET_STATE: u32 = (b'X' as u32) << 8 | 8;
/// `FS_QUOTA_PDQ_ENFD`: limits of projects are enforced.
const PROJECTS_ENFORCED: u16 = 1 << 5;
/// `QIF_BLIMITS | QIF_ILIMITS`.
const BOTH_LIMITS: u32 = 1 | 4;
/// Bytes of a block in which `struct if_dqblk` counts limits, independent of the file system's block size.
const QUOTA_BLOCK: u64 = 1024;

/// `struct fsxattr` (linux/fs.h).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct FsXattr {
    xflags: u32,
    extsize: u32,
    nextents: u32,
    project: u32,
    cowextsize: u32,
    padding: [u8; 8],
}

/// `struct if_dqblk` (linux/quota.h).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Dqblk {
    blocks_hard: u64,
    blocks_soft: u64,
    space: u64,
    inodes_hard: u64,
    inodes_soft: u64,
    inodes: u64,
    blocks_time: u64,
    inodes_time: u64,
    valid: u32,
}

/// The kernel's numbers of a project; 0 is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProjectQuota {
    /// Limit of bytes.
    pub(crate) bytes_max: u64,
    /// Bytes charged.
    pub(crate) bytes: u64,
    pub(crate) inodes_max: u64,
    pub(crate) inodes: u64,
}

/// The project of an open file or directory, and whether a directory's files inherit it.
pub(crate) fn project(file: BorrowedFd<'_>) -> io::Result<(u32, bool)> {
    let FsXattr {
        project, xflags, ..
    } = xattr(file)?;
    Ok((project, xflags & PROJECT_INHERIT != 0))
}

/// Sets the project of an open directory, which all new entries in it inherit.
pub(crate) fn set_project(dir: BorrowedFd<'_>, project: u32) -> io::Result<()> {
    let mut wanted = xattr(dir)?;
    wanted.project = project;
    wanted.xflags |= PROJECT_INHERIT;
    set_xattr(dir, &wanted)
}

/// Charges an open file or directory to another project. New files in a directory still get the project that they
/// got before.
pub(crate) fn move_to_project(file: BorrowedFd<'_>, project: u32) -> io::Result<()> {
    let mut wanted = xattr(file)?;
    wanted.project = project;
    set_xattr(file, &wanted)
}

fn set_xattr(file: BorrowedFd<'_>, wanted: &FsXattr) -> io::Result<()> {
    // SAFETY: the request reads 28 bytes, the size of the struct, which outlives the call.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), SET_XATTR, &raw const *wanted) };
    answered(answer.into())
}

fn xattr(file: BorrowedFd<'_>) -> io::Result<FsXattr> {
    let mut found = FsXattr::default();
    // SAFETY: the request writes 28 bytes, the size of the struct, which outlives the call.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), GET_XATTR, &raw mut found) };
    answered(answer.into()).map(|()| found)
}

/// Whether the file system of `dir` holds projects to their limits.
pub(crate) fn projects_are_limited(dir: BorrowedFd<'_>) -> io::Result<bool> {
    // `struct fs_quota_statv` has 160 bytes; its first is the version asked for, flags are the third and fourth.
    let mut state = [0_u8; 512];
    state[0] = 1;
    quotactl(dir, GET_STATE, 0, state.as_mut_ptr().cast())?;
    Ok(u16::from_ne_bytes([state[2], state[3]]) & PROJECTS_ENFORCED != 0)
}

/// Returns the file system's numbers of a project. xfs keeps none for a project that was never used.
pub(crate) fn project_quota(dir: BorrowedFd<'_>, project: u32) -> io::Result<ProjectQuota> {
    let mut found = Dqblk::default();
    match quotactl(dir, GET_QUOTA, project, (&raw mut found).cast()) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
        answer => answer?,
    }
    Ok(ProjectQuota {
        bytes_max: found.blocks_hard.saturating_mul(QUOTA_BLOCK),
        bytes: found.space,
        inodes_max: found.inodes_hard,
        inodes: found.inodes,
    })
}

/// Limits a project on the file system of `dir`; 0 is no limit.
pub(crate) fn limit_project(
    dir: BorrowedFd<'_>,
    project: u32,
    bytes_max: u64,
    inodes_max: u64,
) -> io::Result<()> {
    let mut wanted = Dqblk {
        blocks_hard: bytes_max.div_ceil(QUOTA_BLOCK),
        inodes_hard: inodes_max,
        valid: BOTH_LIMITS,
        ..Dqblk::default()
    };
    quotactl(dir, SET_QUOTA, project, (&raw mut wanted).cast())
}

/// Calls `quotactl_fd(2)` for projects. `data` is the buffer that the command reads or writes, and no smaller.
fn quotactl(
    dir: BorrowedFd<'_>,
    command: u32,
    project: u32,
    data: *mut libc::c_void,
) -> io::Result<()> {
    let command = command << 8 | PROJECT_QUOTA;
    // SAFETY: every caller passes a struct of its own of at least the size that the command reads or writes.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_quotactl_fd,
            dir.as_raw_fd(),
            command,
            project,
            data,
        )
    };
    answered(answer)
}

fn answered(answer: libc::c_long) -> io::Result<()> {
    if answer == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class() -> i64 {
        // SAFETY: the call takes two numbers and touches no memory of this process.
        let value = unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_THREAD, 0) };
        value >> 13
    }

    #[test]
    fn only_that_thread_becomes_idle() {
        let inside = std::thread::spawn(|| {
            set_io_priority(rustix::thread::gettid(), IoPriority::Idle).map(|()| class())
        });

        assert_eq!(inside.join().unwrap().unwrap(), 3);
        assert_ne!(class(), 3);
    }
}
