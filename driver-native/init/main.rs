//! The first process of a task with `init = true`.
//!
//! The reaper runs the program as its child, forwards every signal to the child, and reaps every process that dies. It
//! ends with the child's exit code, or with 128 and the number of the signal that ended the child. It is the first
//! process of a pid namespace: when it ends, the kernel kills all other processes in the namespace. Without a path for
//! a program it has no child. It then reaps orphans, ignores every signal and runs until it is killed.
//!
//! The program is static, has no standard library and allocates no memory. It has a few KiB and cannot fail for lack
//! of a resource. Its arguments are the number of paths for the program, those paths, and the program's arguments.
//! Signals are blocked from the start and taken one by one, so that none is lost.
#![no_std]
#![no_main]

use core::arch::{asm, global_asm};

global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "mov rdi, rsp",
    "and rsp, -16",
    "call {main}",
    "ud2",
    main = sym main,
);

const SYS_WRITE: usize = 1;
const SYS_RT_SIGPROCMASK: usize = 14;
const SYS_FORK: usize = 57;
const SYS_EXECVE: usize = 59;
const SYS_WAIT4: usize = 61;
const SYS_KILL: usize = 62;
const SYS_RT_SIGTIMEDWAIT: usize = 128;
const SYS_PRCTL: usize = 157;
const SYS_EXIT_GROUP: usize = 231;

const SIG_SETMASK: usize = 2;
const SIGCHLD: i64 = 17;
const SIGSET_BYTES: usize = 8;
const WNOHANG: usize = 1;
const PR_SET_NAME: usize = 15;
const PR_SET_CHILD_SUBREAPER: usize = 36;
/// The name that `ps` shows. A program that is started from a memfd would have the name of the memfd.
const NAME: &core::ffi::CStr = c"muster-init";
const EINTR: i64 = -4;
const EACCES: i64 = -13;
/// A value that is neither a process id nor the result of a failed call.
const NO_CHILD: i64 = i64::MIN;
/// The exit codes of shells when the program is missing, and when it is not executable.
const NOT_FOUND: usize = 127;
const NOT_RUN: usize = 126;

/// # Safety
///
/// The arguments are valid for the system call `number`.
unsafe fn call(number: usize, args: [usize; 4]) -> i64 {
    let result: i64;
    // SAFETY: the caller's promise; the kernel keeps every register but these.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

/// # Safety
///
/// `stack` is the initial stack that the kernel gives a new program: the number of arguments, their addresses, a null,
/// the addresses of the environment, a null.
unsafe extern "C" fn main(stack: *const usize) -> ! {
    // SAFETY: see above.
    let count = unsafe { *stack };
    let args = stack.wrapping_add(1);
    let envp = args.wrapping_add(count + 1);
    let all = u64::MAX;
    let mut before = 0_u64;
    let set = [SIG_SETMASK, &raw const all as usize, &raw mut before as usize, SIGSET_BYTES];
    // SAFETY: both sets have the kernel's size.
    unsafe { call(SYS_RT_SIGPROCMASK, set) };
    // SAFETY: the name ends with a zero byte.
    unsafe { call(SYS_PRCTL, [PR_SET_NAME, NAME.as_ptr() as usize, 0, 0]) };
    // Outside of a pid namespace, this makes the process the parent of orphans. SAFETY: no pointers.
    unsafe { call(SYS_PRCTL, [PR_SET_CHILD_SUBREAPER, 1, 0, 0]) };
    // SAFETY: the arguments are as the driver made them.
    let places = unsafe { places(args) };
    let child = if places == 0 {
        NO_CHILD
    } else {
        // SAFETY: no pointers; the child is a copy.
        unsafe { call(SYS_FORK, [0; 4]) }
    };
    if child == 0 {
        let set = [SIG_SETMASK, &raw const before as usize, 0, SIGSET_BYTES];
        // SAFETY: the set has the kernel's size.
        unsafe { call(SYS_RT_SIGPROCMASK, set) };
        // SAFETY: the arguments are as the driver made them.
        unsafe { run(args, places, envp) }
    }
    if child < 0 && child != NO_CHILD {
        complain(b"muster-init: the kernel made no process\n");
        exit(NOT_RUN);
    }
    loop {
        reap(child);
        let wait = [&raw const all as usize, 0, 0, SIGSET_BYTES];
        // SAFETY: the set has the kernel's size; information and timeout are not asked for.
        let signal = unsafe { call(SYS_RT_SIGTIMEDWAIT, wait) };
        if signal > 0 && signal != SIGCHLD && child != NO_CHILD {
            // SAFETY: no pointers. The child is not reaped, or this process would have ended.
            unsafe { call(SYS_KILL, [child as usize, signal as usize, 0, 0]) };
        }
    }
}

/// Reaps all dead processes, and exits when the child is dead.
fn reap(child: i64) {
    loop {
        let mut status = 0_i32;
        let wait = [usize::MAX, &raw mut status as usize, WNOHANG, 0];
        // SAFETY: the status has the kernel's size.
        let pid = unsafe { call(SYS_WAIT4, wait) };
        if pid == EINTR {
            continue;
        }
        if pid <= 0 {
            return;
        }
        if pid == child {
            let signal = status & 0x7F;
            exit(if signal == 0 {
                (status >> 8 & 0xFF) as usize
            } else {
                128 + signal as usize
            });
        }
    }
}

/// Returns the number of paths for the program.
///
/// # Safety
///
/// `args` begins with this program's name and that number.
unsafe fn places(args: *const usize) -> usize {
    // SAFETY: see above.
    let mut digit = unsafe { *args.wrapping_add(1) } as *const u8;
    let mut places = 0;
    loop {
        // SAFETY: the text ends with a zero byte.
        let byte = unsafe { *digit };
        if !byte.is_ascii_digit() {
            break;
        }
        places = places * 10 + usize::from(byte - b'0');
        digit = digit.wrapping_add(1);
    }
    places
}

/// Runs the program at the first path that has one.
///
/// # Safety
///
/// `args` and `envp` are null-terminated; `args` begins with this program's name and the number of
/// places.
unsafe fn run(args: *const usize, places: usize, envp: *const usize) -> ! {
    let argv = args.wrapping_add(2 + places);
    let mut code = NOT_FOUND;
    let mut place = 0;
    while place < places {
        // SAFETY: there are that many places.
        let path = unsafe { *args.wrapping_add(2 + place) };
        // SAFETY: path, arguments and environment end with zeros.
        let failed = unsafe { call(SYS_EXECVE, [path, argv as usize, envp as usize, 0]) };
        if failed == EACCES {
            code = NOT_RUN;
        }
        place += 1;
    }
    complain(b"muster-init: the task's program cannot be run: not found, or not executable\n");
    exit(code)
}

fn complain(words: &[u8]) {
    // SAFETY: the length is that of the bytes.
    unsafe { call(SYS_WRITE, [2, words.as_ptr() as usize, words.len(), 0]) };
}

fn exit(code: usize) -> ! {
    loop {
        // SAFETY: no pointers.
        unsafe { call(SYS_EXIT_GROUP, [code, 0, 0, 0]) };
    }
}

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    exit(NOT_RUN)
}
