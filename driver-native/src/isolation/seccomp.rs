//! The system calls that a contained task may make.
//!
//! The filter denies by default, like Docker's profile. It refuses an unlisted call with `EPERM`, so that programs
//! which probe for a call continue without it.
//!
//! - `io_uring` is refused, because the filter cannot see its operations.
//! - Socket families are refused that bypass the network policy or lead into the kernel's crypto code.
//! - Two requests of `ioctl` are refused: they change a file's project, or whether a directory's files inherit it.
//!   With them a task could leave the quota of its allocation.
//! - `clone3` and calls newer than this list fail as missing (`ENOSYS`), so that libraries use the older call. The
//!   filter can check the flags of `clone`, but not those of `clone3`.
//!
//! A task that may write to a directory of the host must not create files there that give other users more than their
//! content. It can set neither the set-user-id nor the set-group-id bit, and it can create no devices. `openat2` is
//! missing for such a task, because a filter cannot see its arguments.
//!
//! The numbers are those of x86-64. Calls of other architectures of the same kernel (32 bit) are refused.

use std::sync::LazyLock;

use libc::{c_long, sock_filter};

/// `AUDIT_ARCH_X86_64` of linux/audit.h: machine 62, 64 bit, little endian.
const ARCH: u32 = 0xC000_003E;
/// Offsets in `struct seccomp_data`; for an argument, the offset of its lower half.
const OFFSET_NUMBER: u32 = 0;
const OFFSET_ARCH: u32 = 4;
const OFFSET_ARG0: u32 = 16;
const OFFSET_ARG1: u32 = 24;
const OFFSET_ARG2: u32 = 32;
const OFFSET_ARG3: u32 = 40;

/// The newest call when this list was made (`file_setattr`, Linux 6.17).
const NEWEST_SYSCALL: c_long = 469;
/// All flags of clone(2) that create a namespace.
const CLONE_NAMESPACES: u32 = 0x7E02_0000;
/// Families that socket(2) refuses: packet, crypto, virtual machine sockets.
const REFUSED_FAMILIES: [u32; 3] = [
    libc::AF_PACKET.cast_unsigned(),
    libc::AF_ALG.cast_unsigned(),
    libc::AF_VSOCK.cast_unsigned(),
];
/// The values that personality(2) may set: Linux, with or without 32-bit addresses and Linux 2.6's name. The last
/// value queries the current one.
const PERSONALITIES: [u32; 5] = [0, 0x8, 0x2_0000, 0x2_0008, 0xFFFF_FFFF];

/// The requests that ioctl(2) refuses: `FS_IOC_SETFLAGS` and `FS_IOC_FSSETXATTR` (linux/fs.h). The equivalent call
/// `file_setattr` is not in the list of allowed calls.
const REFUSED_REQUESTS: [u32; 2] = [0x4008_6602, 0x401C_5820];

/// The mode bits of special files: set-user-id, set-group-id, and the bit that mknod(2) sets only for devices.
const SPECIAL_MODES: u32 = 0o6000 | 0o020_000;
/// The flags with which open(2) takes a mode: `O_CREAT` and `__O_TMPFILE`.
const CREATE_FLAGS: u32 = 0o100 | 0o20_000_000;

/// The kinds of files that a task can create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CreatableFiles {
    /// All files that its user may create.
    Any,
    /// No set-id files and no devices.
    Plain,
}

/// The decision about a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SyscallVerdict {
    Allow,
    Refuse,
    Unknown,
    /// Decided by the first argument.
    Clone,
    /// Decided by the second argument.
    Ioctl,
    Personality,
    Socket,
    /// Decided by the mode, which is the argument at this offset.
    Mode(u32),
    /// Decided by the flags and then by the mode.
    Open {
        flags: u32,
        mode: u32,
    },
}

/// The compiled filter of most tasks.
static FILTER: LazyLock<Vec<sock_filter>> = LazyLock::new(|| compile(CreatableFiles::Any));
/// The filter of tasks that write to directories of the host.
static PLAIN_FILES: LazyLock<Vec<sock_filter>> = LazyLock::new(|| compile(CreatableFiles::Plain));

/// Returns `struct sock_fprog` of seccomp(2), which points into memory that is never freed.
pub(crate) fn program(files: CreatableFiles) -> Vec<u8> {
    let filter: &'static [sock_filter] = match files {
        CreatableFiles::Any => &FILTER,
        CreatableFiles::Plain => &PLAIN_FILES,
    };
    let length = filter.len() as u64;
    let address = filter.as_ptr().expose_provenance() as u64;
    // The length is a u16 in the lowest bytes; the compiler of the filter keeps the filter short enough.
    [length.to_le_bytes(), address.to_le_bytes()].concat()
}

fn verdict(number: c_long, files: CreatableFiles) -> SyscallVerdict {
    match (files, number) {
        (
            CreatableFiles::Plain,
            libc::SYS_chmod | libc::SYS_fchmod | libc::SYS_creat | libc::SYS_mknod,
        ) => SyscallVerdict::Mode(OFFSET_ARG1),
        (CreatableFiles::Plain, libc::SYS_fchmodat | libc::SYS_fchmodat2 | libc::SYS_mknodat) => {
            SyscallVerdict::Mode(OFFSET_ARG2)
        }
        (CreatableFiles::Plain, libc::SYS_open) => SyscallVerdict::Open {
            flags: OFFSET_ARG1,
            mode: OFFSET_ARG2,
        },
        (CreatableFiles::Plain, libc::SYS_openat) => SyscallVerdict::Open {
            flags: OFFSET_ARG2,
            mode: OFFSET_ARG3,
        },
        (CreatableFiles::Plain, libc::SYS_openat2) => SyscallVerdict::Unknown,
        (CreatableFiles::Plain | CreatableFiles::Any, _) => default_verdict(number),
    }
}

fn default_verdict(number: c_long) -> SyscallVerdict {
    match number {
        libc::SYS_clone => SyscallVerdict::Clone,
        libc::SYS_clone3 => SyscallVerdict::Unknown,
        libc::SYS_ioctl => SyscallVerdict::Ioctl,
        libc::SYS_personality => SyscallVerdict::Personality,
        libc::SYS_socket => SyscallVerdict::Socket,
        number if number > NEWEST_SYSCALL => SyscallVerdict::Unknown,
        number if ALLOWED.contains(&number) => SyscallVerdict::Allow,
        _ => SyscallVerdict::Refuse,
    }
}

/// Compiles a search tree over ranges of numbers with the same verdict. A call needs some seven comparisons, and the
/// program is so short that the kernel installs it in microseconds.
fn compile(files: CreatableFiles) -> Vec<sock_filter> {
    let mut ranges: Vec<(u32, SyscallVerdict)> = Vec::new();
    for number in 0..=NEWEST_SYSCALL + 1 {
        let verdict = verdict(number, files);
        if ranges.last().is_none_or(|(_, last)| *last != verdict) {
            ranges.push((u32::try_from(number).expect("numbers are small"), verdict));
        }
    }
    let mut filter = vec![
        load(OFFSET_ARCH),
        jump(libc::BPF_JEQ, ARCH, 1, 0),
        errno(libc::EPERM),
        load(OFFSET_NUMBER),
    ];
    filter.extend(tree(&ranges));
    assert!(u16::try_from(filter.len()).is_ok());
    filter
}

fn tree(ranges: &[(u32, SyscallVerdict)]) -> Vec<sock_filter> {
    let (left, right) = ranges.split_at(ranges.len() / 2);
    let Some((start, verdict)) = right.first() else {
        return Vec::new();
    };
    if left.is_empty() {
        return leaf(*verdict);
    }
    let left = tree(left);
    let far = u8::try_from(left.len()).expect("the filter is short");
    let mut code = vec![jump(libc::BPF_JGE, *start, far, 0)];
    code.extend(left);
    code.extend(tree(right));
    code
}

fn leaf(verdict: SyscallVerdict) -> Vec<sock_filter> {
    match verdict {
        SyscallVerdict::Allow => vec![allow()],
        SyscallVerdict::Refuse => vec![errno(libc::EPERM)],
        SyscallVerdict::Unknown => vec![errno(libc::ENOSYS)],
        SyscallVerdict::Clone => vec![
            load(OFFSET_ARG0),
            jump(libc::BPF_JSET, CLONE_NAMESPACES, 0, 1),
            errno(libc::EPERM),
            allow(),
        ],
        SyscallVerdict::Socket => {
            one_of(OFFSET_ARG0, &REFUSED_FAMILIES, errno(libc::EPERM), allow())
        }
        SyscallVerdict::Ioctl => {
            one_of(OFFSET_ARG1, &REFUSED_REQUESTS, errno(libc::EPERM), allow())
        }
        SyscallVerdict::Personality => {
            one_of(OFFSET_ARG0, &PERSONALITIES, allow(), errno(libc::EPERM))
        }
        SyscallVerdict::Mode(mode) => vec![
            load(mode),
            jump(libc::BPF_JSET, SPECIAL_MODES, 0, 1),
            errno(libc::EPERM),
            allow(),
        ],
        SyscallVerdict::Open { flags, mode } => vec![
            load(flags),
            jump(libc::BPF_JSET, CREATE_FLAGS, 0, 3),
            load(mode),
            jump(libc::BPF_JSET, SPECIAL_MODES, 0, 1),
            errno(libc::EPERM),
            allow(),
        ],
    }
}

/// Returns `then` if the argument at `offset` is one of `values`.
fn one_of(
    offset: u32,
    values: &[u32],
    then: sock_filter,
    otherwise: sock_filter,
) -> Vec<sock_filter> {
    let mut code = vec![load(offset)];
    for (at, value) in values.iter().enumerate() {
        let left = u8::try_from(values.len() - at).expect("the list is short");
        code.push(jump(libc::BPF_JEQ, *value, left, 0));
    }
    code.extend([otherwise, then]);
    code
}

fn instruction(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter {
        code: u16::try_from(code).expect("codes of BPF have 16 bits"),
        jt,
        jf,
        k,
    }
}

fn load(offset: u32) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0, 0)
}

fn jump(condition: u32, value: u32, jt: u8, jf: u8) -> sock_filter {
    instruction(libc::BPF_JMP | condition | libc::BPF_K, value, jt, jf)
}

fn allow() -> sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0)
}

fn errno(errno: i32) -> sock_filter {
    let action = libc::SECCOMP_RET_ERRNO | errno.cast_unsigned();
    instruction(libc::BPF_RET | libc::BPF_K, action, 0, 0)
}

/// The calls that every program may make, by purpose.
#[rustfmt::skip]
const ALLOWED: &[c_long] = &[
    // Files and directories.
    libc::SYS_read, libc::SYS_write, libc::SYS_open, libc::SYS_close, libc::SYS_stat, libc::SYS_fstat,
    libc::SYS_lstat, libc::SYS_lseek, libc::SYS_pread64, libc::SYS_pwrite64,
    libc::SYS_readv, libc::SYS_writev, libc::SYS_access, libc::SYS_pipe, libc::SYS_dup, libc::SYS_dup2,
    libc::SYS_sendfile, libc::SYS_fcntl, libc::SYS_flock, libc::SYS_fsync, libc::SYS_fdatasync,
    libc::SYS_truncate, libc::SYS_ftruncate, libc::SYS_getdents, libc::SYS_getcwd, libc::SYS_chdir,
    libc::SYS_fchdir, libc::SYS_rename, libc::SYS_mkdir, libc::SYS_rmdir, libc::SYS_creat,
    libc::SYS_link, libc::SYS_unlink, libc::SYS_symlink, libc::SYS_readlink, libc::SYS_chmod,
    libc::SYS_fchmod, libc::SYS_chown, libc::SYS_fchown, libc::SYS_lchown, libc::SYS_umask,
    libc::SYS_mknod, libc::SYS_statfs, libc::SYS_fstatfs, libc::SYS_sync, libc::SYS_chroot,
    libc::SYS_readahead, libc::SYS_setxattr, libc::SYS_lsetxattr, libc::SYS_fsetxattr,
    libc::SYS_getxattr, libc::SYS_lgetxattr, libc::SYS_fgetxattr, libc::SYS_listxattr,
    libc::SYS_llistxattr, libc::SYS_flistxattr, libc::SYS_removexattr, libc::SYS_lremovexattr,
    libc::SYS_fremovexattr, libc::SYS_getdents64, libc::SYS_fadvise64, libc::SYS_utime,
    libc::SYS_utimes, libc::SYS_openat, libc::SYS_mkdirat, libc::SYS_mknodat, libc::SYS_fchownat,
    libc::SYS_futimesat, libc::SYS_newfstatat, libc::SYS_unlinkat, libc::SYS_renameat,
    libc::SYS_linkat, libc::SYS_symlinkat, libc::SYS_readlinkat, libc::SYS_fchmodat,
    libc::SYS_faccessat, libc::SYS_splice, libc::SYS_tee, libc::SYS_sync_file_range,
    libc::SYS_vmsplice, libc::SYS_utimensat, libc::SYS_fallocate, libc::SYS_dup3, libc::SYS_pipe2,
    libc::SYS_preadv, libc::SYS_pwritev, libc::SYS_syncfs, libc::SYS_renameat2, libc::SYS_copy_file_range,
    libc::SYS_preadv2, libc::SYS_pwritev2, libc::SYS_statx, libc::SYS_close_range, libc::SYS_openat2,
    libc::SYS_faccessat2, libc::SYS_fchmodat2, libc::SYS_name_to_handle_at,
    // cachestat.
    451,
    // setxattrat, getxattrat, listxattrat, removexattrat.
    463, 464, 465, 466,
    // statmount, listmount.
    457, 458,
    // Waiting for files.
    libc::SYS_poll, libc::SYS_select, libc::SYS_pselect6, libc::SYS_ppoll, libc::SYS_epoll_create,
    libc::SYS_epoll_ctl_old, libc::SYS_epoll_wait_old, libc::SYS_epoll_wait, libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait, libc::SYS_epoll_create1, libc::SYS_epoll_pwait2, libc::SYS_eventfd,
    libc::SYS_eventfd2, libc::SYS_signalfd, libc::SYS_signalfd4, libc::SYS_inotify_init,
    libc::SYS_inotify_init1, libc::SYS_inotify_add_watch, libc::SYS_inotify_rm_watch,
    libc::SYS_fanotify_mark, libc::SYS_io_setup, libc::SYS_io_destroy, libc::SYS_io_getevents,
    libc::SYS_io_submit, libc::SYS_io_cancel,
    // io_pgetevents.
    333,
    // Memory.
    libc::SYS_mmap, libc::SYS_mprotect, libc::SYS_munmap, libc::SYS_brk, libc::SYS_mremap,
    libc::SYS_msync, libc::SYS_mincore, libc::SYS_madvise, libc::SYS_mlock, libc::SYS_munlock,
    libc::SYS_mlockall, libc::SYS_munlockall, libc::SYS_mlock2, libc::SYS_remap_file_pages,
    libc::SYS_memfd_create, libc::SYS_membarrier, libc::SYS_pkey_mprotect, libc::SYS_pkey_alloc,
    libc::SYS_pkey_free, libc::SYS_memfd_secret, libc::SYS_process_mrelease,
    // map_shadow_stack, mseal.
    453, 462,
    // Processes and threads. The kernel limits tracing to the task's own processes.
    libc::SYS_fork, libc::SYS_vfork, libc::SYS_execve, libc::SYS_execveat, libc::SYS_exit,
    libc::SYS_exit_group, libc::SYS_wait4, libc::SYS_waitid, libc::SYS_kill, libc::SYS_tkill,
    libc::SYS_tgkill, libc::SYS_getpid, libc::SYS_getppid, libc::SYS_gettid, libc::SYS_getpgrp,
    libc::SYS_getpgid, libc::SYS_setpgid, libc::SYS_getsid, libc::SYS_setsid, libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal, libc::SYS_ptrace, libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev, libc::SYS_prctl, libc::SYS_arch_prctl, libc::SYS_modify_ldt,
    libc::SYS_set_thread_area, libc::SYS_get_thread_area, libc::SYS_set_tid_address,
    libc::SYS_set_robust_list, libc::SYS_get_robust_list, libc::SYS_rseq, libc::SYS_futex,
    libc::SYS_futex_waitv, libc::SYS_pause, libc::SYS_restart_syscall,
    // uretprobe, futex_wake, futex_wait, futex_requeue.
    335, 454, 455, 456,
    // Signals.
    libc::SYS_rt_sigaction, libc::SYS_rt_sigprocmask, libc::SYS_rt_sigreturn, libc::SYS_rt_sigpending,
    libc::SYS_rt_sigtimedwait, libc::SYS_rt_sigqueueinfo, libc::SYS_rt_sigsuspend,
    libc::SYS_rt_tgsigqueueinfo, libc::SYS_sigaltstack,
    // The user and the rights of the process itself.
    libc::SYS_getuid, libc::SYS_getgid, libc::SYS_geteuid, libc::SYS_getegid, libc::SYS_setuid,
    libc::SYS_setgid, libc::SYS_setreuid, libc::SYS_setregid, libc::SYS_getgroups,
    libc::SYS_setgroups, libc::SYS_setresuid, libc::SYS_getresuid, libc::SYS_setresgid,
    libc::SYS_getresgid, libc::SYS_setfsuid, libc::SYS_setfsgid, libc::SYS_capget, libc::SYS_capset,
    libc::SYS_seccomp, libc::SYS_landlock_create_ruleset, libc::SYS_landlock_add_rule,
    libc::SYS_landlock_restrict_self,
    // Limits and scheduling.
    libc::SYS_getrlimit, libc::SYS_setrlimit, libc::SYS_prlimit64, libc::SYS_getrusage,
    libc::SYS_getpriority, libc::SYS_setpriority, libc::SYS_sched_setparam, libc::SYS_sched_getparam,
    libc::SYS_sched_setscheduler, libc::SYS_sched_getscheduler, libc::SYS_sched_get_priority_max,
    libc::SYS_sched_get_priority_min, libc::SYS_sched_rr_get_interval, libc::SYS_sched_yield,
    libc::SYS_sched_setaffinity, libc::SYS_sched_getaffinity, libc::SYS_sched_setattr,
    libc::SYS_sched_getattr, libc::SYS_ioprio_set, libc::SYS_ioprio_get, libc::SYS_getcpu,
    // Time.
    libc::SYS_nanosleep, libc::SYS_getitimer, libc::SYS_alarm, libc::SYS_setitimer,
    libc::SYS_gettimeofday, libc::SYS_time, libc::SYS_times, libc::SYS_timer_create,
    libc::SYS_timer_settime, libc::SYS_timer_gettime, libc::SYS_timer_getoverrun,
    libc::SYS_timer_delete, libc::SYS_clock_gettime, libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep, libc::SYS_clock_adjtime, libc::SYS_adjtimex, libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime, libc::SYS_timerfd_gettime,
    // Sockets, without the families above.
    libc::SYS_connect, libc::SYS_accept, libc::SYS_sendto, libc::SYS_recvfrom, libc::SYS_sendmsg,
    libc::SYS_recvmsg, libc::SYS_shutdown, libc::SYS_bind, libc::SYS_listen, libc::SYS_getsockname,
    libc::SYS_getpeername, libc::SYS_socketpair, libc::SYS_setsockopt, libc::SYS_getsockopt,
    libc::SYS_accept4, libc::SYS_recvmmsg, libc::SYS_sendmmsg,
    // IPC objects of processes; the IPC namespace belongs to the task.
    libc::SYS_shmget, libc::SYS_shmat, libc::SYS_shmctl, libc::SYS_shmdt, libc::SYS_semget,
    libc::SYS_semop, libc::SYS_semctl, libc::SYS_semtimedop, libc::SYS_msgget, libc::SYS_msgsnd,
    libc::SYS_msgrcv, libc::SYS_msgctl, libc::SYS_mq_open, libc::SYS_mq_unlink,
    libc::SYS_mq_timedsend, libc::SYS_mq_timedreceive, libc::SYS_mq_notify, libc::SYS_mq_getsetattr,
    // The machine.
    libc::SYS_uname, libc::SYS_sysinfo, libc::SYS_getrandom,
];

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
    const EPERM: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned();
    const ENOSYS: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned();

    /// Returns the kernel's decision for a call with `arg` in the place of each argument, and the number of
    /// instructions.
    fn run(arch: u32, number: u32, arg: u64) -> (u32, usize) {
        run_on(&FILTER, arch, number, [arg; 4])
    }

    fn run_on(filter: &[sock_filter], arch: u32, number: u32, args: [u64; 4]) -> (u32, usize) {
        let arg = |at: usize| u32::try_from(args[at] & u64::from(u32::MAX)).unwrap();
        let (mut at, mut value, mut steps) = (0, 0_u32, 0);
        loop {
            let sock_filter { code, jt, jf, k } = filter[at];
            let code = u32::from(code);
            steps += 1;
            at += 1;
            match code & 0x7 {
                libc::BPF_LD => {
                    value = match k {
                        OFFSET_ARCH => arch,
                        OFFSET_NUMBER => number,
                        OFFSET_ARG0 => arg(0),
                        OFFSET_ARG1 => arg(1),
                        OFFSET_ARG2 => arg(2),
                        OFFSET_ARG3 => arg(3),
                        other => panic!("offset {other}"),
                    }
                }
                libc::BPF_JMP => {
                    let holds = match code & 0xF0 {
                        libc::BPF_JEQ => value == k,
                        libc::BPF_JGE => value >= k,
                        libc::BPF_JSET => value & k != 0,
                        other => panic!("jump {other}"),
                    };
                    at += usize::from(if holds { jt } else { jf });
                }
                _ => return (k, steps),
            }
        }
    }

    fn decided(number: c_long, arg0: u64) -> u32 {
        run(ARCH, u32::try_from(number).unwrap(), arg0).0
    }

    #[test]
    fn every_number_gets_its_verdict() {
        for number in 0..600 {
            let expected = match verdict(number, CreatableFiles::Any) {
                SyscallVerdict::Refuse => EPERM,
                SyscallVerdict::Unknown => ENOSYS,
                // The arguments are harmless.
                SyscallVerdict::Allow
                | SyscallVerdict::Clone
                | SyscallVerdict::Ioctl
                | SyscallVerdict::Personality
                | SyscallVerdict::Socket
                | SyscallVerdict::Mode(_)
                | SyscallVerdict::Open { .. } => ALLOW,
            };
            assert_eq!(decided(number, 0), expected, "call {number}");
        }
    }

    #[test]
    fn dangerous_syscalls_are_refused() {
        for number in [
            libc::SYS_mount,
            libc::SYS_umount2,
            libc::SYS_pivot_root,
            libc::SYS_unshare,
            libc::SYS_setns,
            libc::SYS_bpf,
            libc::SYS_perf_event_open,
            libc::SYS_init_module,
            libc::SYS_finit_module,
            libc::SYS_kexec_load,
            libc::SYS_keyctl,
            libc::SYS_add_key,
            libc::SYS_userfaultfd,
            libc::SYS_open_by_handle_at,
            libc::SYS_io_uring_setup,
            libc::SYS_io_uring_enter,
            libc::SYS_io_uring_register,
            libc::SYS_open_tree,
            libc::SYS_move_mount,
            libc::SYS_fsopen,
            libc::SYS_mount_setattr,
            libc::SYS_pidfd_getfd,
            libc::SYS_reboot,
            libc::SYS_swapon,
            libc::SYS_settimeofday,
            libc::SYS_iopl,
            libc::SYS_ioperm,
            libc::SYS_fanotify_init,
            libc::SYS_process_madvise,
            libc::SYS_kcmp,
            libc::SYS_syslog,
        ] {
            assert_eq!(decided(number, 0), EPERM, "call {number}");
        }
    }

    #[test]
    fn arguments_decide_where_they_must() {
        let thread = 0x003D_0F00;

        assert_eq!(decided(libc::SYS_clone, thread), ALLOW);
        assert_eq!(decided(libc::SYS_clone, 0x1000_0000), EPERM);
        assert_eq!(decided(libc::SYS_clone3, 0), ENOSYS);
        for family in [17, 38, 40, (1 << 32) + 17] {
            assert_eq!(decided(libc::SYS_socket, family), EPERM, "{family}");
        }
        for family in [1, 2, 10, 16] {
            assert_eq!(decided(libc::SYS_socket, family), ALLOW, "{family}");
        }
        for request in REFUSED_REQUESTS {
            assert_eq!(
                decided(libc::SYS_ioctl, request.into()),
                EPERM,
                "{request:x}"
            );
        }
        // FIONBIO.
        assert_eq!(decided(libc::SYS_ioctl, 0x5421), ALLOW);
        assert_eq!(decided(libc::SYS_personality, 0xFFFF_FFFF), ALLOW);
        assert_eq!(decided(libc::SYS_personality, 0x40_0000), EPERM);
    }

    #[test]
    fn files_on_the_host_are_plain() {
        let create = u64::from(libc::O_CREAT.cast_unsigned());
        let decided = |number: c_long, args| {
            run_on(&PLAIN_FILES, ARCH, u32::try_from(number).unwrap(), args).0
        };

        for special in [0o4755, 0o2755, 0o6000, 0o020_666, 0o060_600] {
            for (number, args) in [
                (libc::SYS_chmod, [0, special, 0, 0]),
                (libc::SYS_fchmod, [0, special, 0, 0]),
                (libc::SYS_fchmodat, [0, 0, special, 0]),
                (libc::SYS_fchmodat2, [0, 0, special, 0]),
                (libc::SYS_creat, [0, special, 0, 0]),
                (libc::SYS_mknod, [0, special, 0, 0]),
                (libc::SYS_mknodat, [0, 0, special, 0]),
                (libc::SYS_open, [0, create, special, 0]),
                (libc::SYS_openat, [0, 0, create, special]),
            ] {
                assert_eq!(
                    decided(number, args),
                    EPERM,
                    "call {number} with {special:o}"
                );
                assert_eq!(
                    run_on(&FILTER, ARCH, u32::try_from(number).unwrap(), args).0,
                    ALLOW
                );
            }
        }
        assert_eq!(decided(libc::SYS_openat2, [0; 4]), ENOSYS);
        // A call that creates no file ignores the value in the place of the mode.
        assert_eq!(decided(libc::SYS_openat, [0, 0, 0, 0o4755]), ALLOW);
        assert_eq!(decided(libc::SYS_chmod, [0, 0o101_755, 0, 0]), ALLOW);
        // A FIFO and a socket.
        assert_eq!(decided(libc::SYS_mknod, [0, 0o010_600, 0, 0]), ALLOW);
        assert_eq!(decided(libc::SYS_mknod, [0, 0o140_600, 0, 0]), ALLOW);
    }

    #[test]
    fn other_architectures_are_refused() {
        let i386 = 0x4000_0003;
        let x32 = 0x4000_0000;

        assert_eq!(run(i386, 1, 0).0, EPERM);
        assert_eq!(run(ARCH, x32 | 1, 0).0, ENOSYS);
    }

    /// The kernel runs the filter once for every number when it is installed.
    #[test]
    fn filter_is_short_and_shallow() {
        let deepest = (0..600).map(|number| run(ARCH, number, 0).1).max();

        assert!(FILTER.len() < 400, "{} instructions", FILTER.len());
        assert!(deepest.unwrap() <= 20, "{deepest:?} steps");
    }
}
