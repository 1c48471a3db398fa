//! Starts a process without fork, and watches for its end. This is the only unsafe code of the crate.
//!
//! `clone3` with `CLONE_VM | CLONE_VFORK` creates a child that shares this process's memory, on a separate stack. The
//! calling thread waits until the child has loaded its program. Nothing is copied, so the cost does not grow with the
//! caller's memory. `CLONE_INTO_CGROUP` creates the child directly in its cgroup. In return, the child may only make
//! system calls on values that the parent prepared, until it runs its program. The child allocates nothing, takes no
//! lock, and reports a failure through two integers in the shared memory.
//!
//! The driver's file table, which has some files for every running task, is not copied either. The child shares the
//! table for one call. That call gives the child its own table, with only the files up to the highest one that its
//! calls name. So the files that the driver keeps open for a task have high numbers ([`move_to_high_fd`]). A script may
//! begin with calls that are made before that; the last of them opens a file for the driver.
//!
//! The parent writes the calls as a [`Script`]: namespaces, mounts, limits, user, capabilities, seccomp. The child
//! makes the calls in order and then runs the program.
#![expect(
    unsafe_code,
    reason = "clone3 with a stack of our own, and the child between it and execve"
)]

mod exit_info;
mod landlock;
mod namespace;
mod script;
mod sys;

use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int, c_long};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};

use thiserror::Error;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::limits;

pub(crate) use exit_info::{ExitInfo, exit_info};
pub(crate) use landlock::abstract_scope;
pub(crate) use namespace::user_namespace;
use script::Call;
pub(crate) use script::{Arg, IgnoreErrno, Script, SpawnStep};
pub(crate) use sys::{MountFlags, Propagation, map_owners, restrict_mount, restrict_mount_with};

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!(
    "driver-native starts processes with a few lines of assembler that exist for x86_64 Linux only"
);

/// A process to start, with all data that the child must not create itself.
#[derive(Debug)]
pub(crate) struct Spawn<'a> {
    /// The calls of the child before its program.
    pub(crate) script: &'a Script,
    pub(crate) program: ProgramLocation<'a>,
    /// The arguments; the program's name is the first.
    pub(crate) argv: &'a [CString],
    /// The environment, as `NAME=value`.
    pub(crate) envp: &'a [CString],
    /// The cgroup in which the child is created.
    pub(crate) cgroup: Option<BorrowedFd<'a>>,
    /// The namespaces in which the child is created, as flags of clone(2).
    pub(crate) namespaces: u64,
}

/// The place of the program.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ProgramLocation<'a> {
    /// The first of these paths that has a program, as the child sees the paths.
    Paths(&'a [CString]),
    /// A program in an open file.
    File(BorrowedFd<'a>),
}

/// A limit of open files, soft and hard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenFiles {
    pub(crate) soft: u64,
    pub(crate) hard: u64,
}

/// A process that runs its program.
#[derive(Debug)]
pub(crate) struct SpawnedProcess {
    pub(crate) pid: i32,
    pub(crate) pidfd: Arc<OwnedFd>,
    /// The file that the script opened for the parent, if there is one.
    pub(crate) parent_file: Option<OwnedFd>,
}

impl SpawnedProcess {
    /// Kills a process that no code will follow, and waits for its end.
    pub(crate) fn kill_and_reap(&self) {
        use rustix::process::{Signal, pidfd_send_signal};
        // The process is an unreaped child, so its pidfd cannot refer to another process.
        if pidfd_send_signal(&self.pidfd, Signal::KILL).is_ok() {
            reap(self);
        }
    }
}

/// The reason why a process could not be started.
#[derive(Debug, Error)]
pub(crate) enum SpawnError {
    /// The kernel created no process.
    #[error("make a process (clone3)")]
    Clone {
        #[source]
        source: io::Error,
    },
    /// The kernel does not create a process directly in that cgroup. A process may join the cgroup later.
    #[error("make a process in its cgroup (clone3 with CLONE_INTO_CGROUP)")]
    IntoCgroup {
        #[source]
        source: io::Error,
    },
    /// The process failed before it ran its program, and has ended.
    #[error("{operation}")]
    Child {
        step: SpawnStep,
        /// The failed operation and its object.
        operation: Cow<'static, str>,
        #[source]
        source: io::Error,
    },
    /// Something killed the process before it ran its program.
    #[error("the process was killed before it ran its program (step {step:?})")]
    Killed { step: SpawnStep },
}

/// `struct clone_args` of clone3(2), version 2.
#[repr(C, align(8))]
#[derive(Debug, Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// From `linux/sched.h`; a 64-bit flag that the libc crate does not name.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
/// From `linux/sched.h`, like the flag above: every signal with a handler gets its default action.
const CLONE_CLEAR_SIGHAND: u64 = 0x1_0000_0000;
/// Highest signal number of Linux.
const SIGNAL_MAX: c_int = 64;
/// Size of the kernel's signal set.
const SIGSET_BYTES: usize = 8;
/// The set of all signals.
const ALL_SIGNALS: u64 = u64::MAX;
/// The child's position while it has no file table of its own. It is not the index of a call.
const AT_FILES: u32 = u32::MAX;
/// The child's exit code when it failed; only the parent's reaping reads it.
const CHILD_FAILED: c_long = 127;

/// The input of the child. Every pointer points into the parent's memory. The parent waits until the child has ended
/// or runs its program.
#[repr(C)]
struct Plan {
    calls: *const Call,
    calls_len: usize,
    programs: *const *const c_char,
    programs_len: usize,
    /// The file to run in place of `programs`; -1 means none.
    file: c_int,
    argv: *const *const c_char,
    envp: *const *const c_char,
    /// The signals whose default action the child restores, signal 1 in bit 0.
    ignored: u64,
    /// The child closes this descriptor and all higher ones.
    files_end: c_int,
    /// The number of calls at the beginning that use the parent's file table.
    shared_calls: usize,
    /// The file that the last of those calls opened for the parent; -1 means none.
    parent_file: AtomicI32,
    /// The index in `calls` of the child's current call. A value past the end means the program.
    at: AtomicU32,
    /// The error number of the failed call; 0 while no call has failed.
    errno: AtomicI32,
}

/// A unit with the alignment of a stack on x86_64.
type StackUnit = u128;

/// Starts the process. Blocks the calling thread until the program is loaded or has failed to.
///
/// # Errors
///
/// [`SpawnError`]; then no process is left.
pub(crate) fn spawn(spawn: &Spawn<'_>) -> Result<SpawnedProcess, SpawnError> {
    let argv = null_terminated(spawn.argv);
    let envp = null_terminated(spawn.envp);
    let (programs, file) = match spawn.program {
        ProgramLocation::Paths(paths) => (paths.iter().map(|path| path.as_ptr()).collect(), -1),
        ProgramLocation::File(file) => (Vec::new(), file.as_raw_fd()),
    };
    let calls = spawn.script.calls();
    let plan = Plan {
        calls: calls.as_ptr(),
        calls_len: calls.len(),
        programs: programs.as_ptr(),
        programs_len: programs.len(),
        file,
        argv: argv.as_ptr(),
        envp: envp.as_ptr(),
        ignored: *IGNORED,
        files_end: spawn.script.file_max().max(file).max(2) + 1,
        shared_calls: spawn.script.shared_calls(),
        parent_file: AtomicI32::new(-1),
        at: AtomicU32::new(0),
        errno: AtomicI32::new(0),
    };
    let mut child = clone_child(&plan, spawn.cgroup, spawn.namespaces)?;
    child.parent_file = match plan.parent_file.load(Ordering::Acquire) {
        // SAFETY: the child opened the file in the table that it shared with this process. The child then got a
        // separate table, so no other code owns the file.
        left @ 0.. => Some(unsafe { OwnedFd::from_raw_fd(left) }),
        _ => None,
    };
    let (step, operation) = match plan.at.load(Ordering::Acquire) {
        AT_FILES => (
            SpawnStep::CloseFiles,
            Cow::Borrowed("leave the driver's files"),
        ),
        at => spawn.script.describe(at as usize),
    };
    match plan.errno.load(Ordering::Acquire) {
        // A successful last step leaves no trace, and a kill in the middle of it looks the same. The caller that waits
        // for the process sees the kill.
        0 if step == SpawnStep::Exec => Ok(child),
        0 => {
            reap(&child);
            Err(SpawnError::Killed { step })
        }
        errno => {
            reap(&child);
            Err(SpawnError::Child {
                step,
                operation,
                source: io::Error::from_raw_os_error(errno),
            })
        }
    }
}

/// The signals that this process ignores, signal 1 in bit 0. These are the signals that its parent left ignored, and
/// SIGPIPE, which Rust's runtime ignores from the start. No code here ignores another signal later, so the set is read
/// once.
static IGNORED: LazyLock<u64> = LazyLock::new(|| {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let set = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    let set = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    // Without an answer, all signals may be ignored. Restoring the default of a signal that has its default does no
    // harm. The C library does not name the signals that it reserves for itself.
    set.unwrap_or(ALL_SIGNALS)
});

/// Moves a file to a number above those of the files that starts need temporarily. The file stays open as long as its
/// task is known. A child copies every file below the highest number that its calls name.
pub(crate) fn move_to_high_fd(file: OwnedFd) -> OwnedFd {
    // With a lower limit of open files, the file keeps its number.
    rustix::io::fcntl_dupfd_cloexec(&file, limits::HIGH_FD_MIN).unwrap_or(file)
}

/// Returns a pidfd that the runtime watches. The pidfd is readable once its process has ended. Must be called within a
/// runtime.
///
/// # Errors
///
/// The runtime's poller refuses the file.
pub(crate) fn watch(pidfd: Arc<OwnedFd>) -> io::Result<AsyncFd<Arc<OwnedFd>>> {
    register(pidfd, Interest::READABLE)
}

/// Returns a non-blocking file that the runtime reads and writes. Must be called within a runtime.
///
/// # Errors
///
/// The runtime's poller refuses the file.
pub(crate) fn watch_both_ways(file: Arc<OwnedFd>) -> io::Result<AsyncFd<Arc<OwnedFd>>> {
    register(file, Interest::READABLE | Interest::WRITABLE)
}

fn register(file: Arc<OwnedFd>, interest: Interest) -> io::Result<AsyncFd<Arc<OwnedFd>>> {
    // SAFETY: an `Arc<OwnedFd>` returns the same descriptor every time and keeps it open. The AsyncFd owns a share of
    // the Arc, so the descriptor is closed after its removal from the poller.
    let watched = unsafe { AsyncFd::register_with_interest(file, interest) };
    Ok(watched?)
}

fn null_terminated(strings: &[CString]) -> Vec<*const c_char> {
    strings
        .iter()
        .map(|string| string.as_ptr())
        .chain([ptr::null()])
        .collect()
}

thread_local! {
    /// The stack for the children of this thread, which run one after the other. The stack is kept, because the
    /// allocator would map and unmap whole pages for each child.
    static STACK: RefCell<Vec<MaybeUninit<StackUnit>>> = const { RefCell::new(Vec::new()) };
}

/// Creates the child and waits until it has ended or runs its program.
fn clone_child(
    plan: &Plan,
    cgroup: Option<BorrowedFd<'_>>,
    namespaces: u64,
) -> Result<SpawnedProcess, SpawnError> {
    STACK.with_borrow_mut(|stack| {
        let units = limits::CHILD_STACK_BYTES / size_of::<StackUnit>();
        stack.resize(units, MaybeUninit::uninit());
        clone_child_on(stack, plan, cgroup, namespaces)
    })
}

fn clone_child_on(
    stack: &mut [MaybeUninit<StackUnit>],
    plan: &Plan,
    cgroup: Option<BorrowedFd<'_>>,
    namespaces: u64,
) -> Result<SpawnedProcess, SpawnError> {
    let mut pidfd: c_int = -1;
    let shared = libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_VFORK | libc::CLONE_PIDFD;
    let args = CloneArgs {
        flags: u64::from(shared.cast_unsigned())
            | CLONE_CLEAR_SIGHAND
            | namespaces
            | cgroup.map_or(0, |_dir| CLONE_INTO_CGROUP),
        pidfd: (&raw mut pidfd).addr() as u64,
        exit_signal: u64::from(libc::SIGCHLD.cast_unsigned()),
        stack: stack.as_mut_ptr().addr() as u64,
        stack_size: size_of_val(stack) as u64,
        cgroup: cgroup.map_or(0, |dir| u64::from(dir.as_raw_fd().cast_unsigned())),
        ..CloneArgs::default()
    };
    let blocked = BlockedSignals::new();
    // SAFETY: `args` describes `stack`, which is aligned to 16 bytes and is used by no other code. The stack lives
    // until the child has left it, because CLONE_VFORK resumes this thread only then. `plan` and all data it points to
    // live as long. All signals are blocked, so that no handler runs in the child.
    let result = unsafe { clone3(&args, plan) };
    drop(blocked);
    match i32::try_from(result) {
        Ok(pid) if pid > 0 => {
            // SAFETY: clone3 succeeded with CLONE_PIDFD, so the kernel stored a descriptor here that no other code
            // owns.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(SpawnedProcess {
                pid,
                pidfd: Arc::new(move_to_high_fd(pidfd)),
                parent_file: None,
            })
        }
        _ => {
            let source = io::Error::from_raw_os_error(i32::try_from(-result).unwrap_or(0));
            Err(match (cgroup, source.raw_os_error()) {
                // An old kernel, or a directory of another hierarchy.
                (Some(_), Some(libc::EINVAL | libc::E2BIG | libc::EBADF | libc::EOPNOTSUPP)) => {
                    SpawnError::IntoCgroup { source }
                }
                _ => SpawnError::Clone { source },
            })
        }
    }
}

/// The system call. In the parent it returns the child's pid or a negative error number. The child continues in
/// [`child_main`] on the stack that `args` names, and never returns.
///
/// # Safety
///
/// `args` must share the memory (CLONE_VM), wait for the child (CLONE_VFORK), and name a stack. The stack must be
/// 16-byte aligned at its end, and no other code may use it. `plan` must hold valid pointers.
unsafe fn clone3(args: &CloneArgs, plan: &Plan) -> i64 {
    let result: i64;
    // SAFETY: the kernel keeps every register except rax, rcx and r11. The child has its own stack pointer before its
    // first instruction, so it does not touch this frame, and it ends in child_main. The parent falls through.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call {child_main}",
            "ud2",
            "2:",
            child_main = sym child_main,
            inlateout("rax") libc::SYS_clone3 => result,
            in("rdi") ptr::from_ref(args),
            in("rsi") size_of::<CloneArgs>(),
            in("r12") ptr::from_ref(plan),
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

/// Blocks all signals of the calling thread while this value exists.
struct BlockedSignals {
    before: libc::sigset_t,
}

impl BlockedSignals {
    fn new() -> Self {
        let mut all = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: sigfillset writes the set it is given.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        // SAFETY: `all` was filled, and pthread_sigmask writes `before`; with SIG_SETMASK and valid
        // pointers it cannot fail.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
        Self {
            // SAFETY: pthread_sigmask wrote it.
            before: unsafe { before.assume_init() },
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: `before` is the mask that pthread_sigmask returned for this thread; the value is not sent to another
        // thread.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut())
        };
    }
}

fn reap(child: &SpawnedProcess) {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    // The child has ended or is ending, so this does not wait long. An error leaves a zombie, and must not hide the
    // first error.
    loop {
        let id = WaitId::PidFd(std::os::fd::AsFd::as_fd(&child.pidfd));
        match waitid(id, WaitIdOptions::EXITED) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(_) | Err(_) => return,
        }
    }
}

/// Runs the child from its creation to its program.
///
/// # Safety
///
/// Runs on a separate stack in memory that it shares with a waiting parent. `plan` is valid until the parent
/// continues.
unsafe extern "C" fn child_main(plan: *const Plan) -> ! {
    // SAFETY: the parent keeps the plan until this process has left its memory.
    let plan = unsafe { &*plan };
    default_signals(plan.ignored);
    // SAFETY: the plan's pointers are valid, see above.
    let failed = unsafe { prepare_and_exec(plan) };
    plan.errno.store(failed, Ordering::Release);
    end();
}

fn end() -> ! {
    loop {
        // SAFETY: the call ends this process immediately; it neither runs nor frees anything of the parent's.
        unsafe { libc::syscall(libc::SYS_exit_group, CHILD_FAILED) };
    }
}

/// Replaces the parent's file table with a table of the files below `end`. Returns the error number, if there is one.
fn own_files(end: c_int) -> Option<c_int> {
    let unshare = libc::CLOSE_RANGE_UNSHARE;
    // SAFETY: the call takes numbers. It closes nothing in the parent's table.
    let result = unsafe { libc::syscall(libc::SYS_close_range, end, c_int::MAX, unshare) };
    (result < 0).then(errno)
}

/// Restores the default action of ignored signals: a program must not inherit the driver's ignored signals. Signals
/// with a handler have their default since the clone.
fn default_signals(ignored: u64) {
    /// The kernel's `struct sigaction`: handler, flags, restorer, mask.
    const DEFAULT: [u64; 4] = [0; 4];
    for signal in 1..=SIGNAL_MAX {
        if ignored & (1 << (signal - 1)) == 0 {
            continue;
        }
        // SAFETY: DEFAULT has the size and form that the kernel expects. The child's dispositions are its own, because
        // CLONE_SIGHAND is not set. The kernel refuses SIGKILL and SIGSTOP, which is harmless.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                DEFAULT.as_ptr(),
                ptr::null::<u64>(),
                SIGSET_BYTES,
            )
        };
    }
}

/// Makes every call of the script and runs the program. Returns the error number of the failed call, and does not
/// return if no call fails.
///
/// The system call itself sets the user and groups, because the library's functions would also set them for the
/// parent's threads. The kernel makes shared memory undumpable when the user changes. So processes of that user cannot
/// trace the driver through the child.
///
/// # Safety
///
/// The plan's pointers are valid, and each call of its script may be made in a process that shares
/// the parent's memory.
unsafe fn prepare_and_exec(plan: &Plan) -> c_int {
    // SAFETY: the parent keeps `calls_len` calls there.
    let calls = unsafe { raw_slice(plan.calls, plan.calls_len) };
    let shared = calls.get(..plan.shared_calls).unwrap_or_default();
    let own = calls.get(plan.shared_calls..).unwrap_or_default();
    let mut slots = [0_u64; script::SLOTS];
    // SAFETY: the caller's promise.
    match unsafe { make(plan, shared, &mut slots) } {
        Ok(Some(left)) => plan.parent_file.store(left, Ordering::Release),
        Ok(None) => {}
        Err(failed) => return failed,
    }
    if let Some(failed) = own_files(plan.files_end) {
        plan.at.store(AT_FILES, Ordering::Release);
        return failed;
    }
    // SAFETY: the caller's promise.
    if let Err(failed) = unsafe { make(plan, own, &mut slots) } {
        return failed;
    }
    let none: u64 = 0;
    // SAFETY: the mask has the kernel's size. Signals that arrived in the meantime now act on this process.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const none,
            ptr::null::<u64>(),
            SIGSET_BYTES,
        )
    };
    // SAFETY: the plan's pointers are valid.
    unsafe { exec(plan) }
}

/// Makes the calls in order. Returns the result of the last call, or nothing if that call failed with a tolerated
/// error. Returns the error number of a call whose failure is not tolerated.
///
/// # Safety
///
/// As [`prepare_and_exec`].
unsafe fn make(
    plan: &Plan,
    calls: &[Call],
    slots: &mut [u64; script::SLOTS],
) -> Result<Option<c_int>, c_int> {
    let mut last = None;
    for call in calls {
        let args = call.args(slots);
        // SAFETY: the author of the script upholds the rules of `Script`.
        let result = unsafe {
            libc::syscall(
                call.number,
                args[0],
                args[1],
                args[2],
                args[3],
                args[4],
                args[5],
            )
        };
        if result < 0 {
            let errno = errno();
            if !call.ignores_errno(errno) {
                return Err(errno);
            }
            last = None;
        } else if !call.is_expected(result) {
            return Err(libc::EPERM);
        } else {
            call.store_result(result, slots);
            last = c_int::try_from(result).ok();
        }
        // Only this process writes the value, so no read-modify-write is needed.
        let next = plan.at.load(Ordering::Relaxed).wrapping_add(1);
        plan.at.store(next, Ordering::Release);
    }
    Ok(last)
}

/// Runs the program. Returns the error number if no program could be executed.
///
/// # Safety
///
/// The plan's pointers are valid.
unsafe fn exec(plan: &Plan) -> c_int {
    if plan.file >= 0 {
        // SAFETY: argv and envp are null-terminated, as the parent made them, and the path is empty.
        unsafe {
            libc::syscall(
                libc::SYS_execveat,
                plan.file,
                c"".as_ptr(),
                plan.argv,
                plan.envp,
                libc::AT_EMPTY_PATH,
            )
        };
        return errno();
    }
    // SAFETY: the parent keeps `programs_len` paths there.
    let programs = unsafe { raw_slice(plan.programs, plan.programs_len) };
    let mut failed = libc::ENOENT;
    for program in programs {
        // SAFETY: all three are null-terminated, as the parent made them.
        unsafe { libc::syscall(libc::SYS_execve, *program, plan.argv, plan.envp) };
        match errno() {
            libc::ENOENT | libc::ENOTDIR => {}
            // Like a shell: a file that may not be executed is remembered, and the search continues.
            libc::EACCES => failed = libc::EACCES,
            other => return other,
        }
    }
    failed
}

/// Like [`std::slice::from_raw_parts`], without its checks, because a failed check would panic.
///
/// # Safety
///
/// `start` is valid for `len` reads of initialized values.
unsafe fn raw_slice<'a, T>(start: *const T, len: usize) -> &'a [T] {
    if len == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(start, len) }
}

fn errno() -> c_int {
    // SAFETY: the location belongs to the calling thread; the child uses the location of the waiting thread.
    unsafe { *libc::__errno_location() }
}

#[cfg(test)]
mod tests;
