//! A user namespace that exists before the process that enters it.
//!
//! The ids of a namespace are mapped from outside, while a process is in it. The thread that starts a task waits for
//! the task and can map nothing. So an idle process creates the namespace first, and is killed when the mapping is
//! written. The namespace stays alive through an open file.

use std::ffi::c_int;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;

use super::{BlockedSignals, CloneArgs, SpawnedProcess, StackUnit};
use crate::limits;

/// Creates a user namespace in which the ids from 0 to `count - 1` are the host's ids from `first` on.
///
/// # Errors
///
/// The kernel refuses to create a user namespace (`user.max_user_namespaces`) or to write the mapping.
pub(crate) fn user_namespace(first: u32, count: u32) -> io::Result<OwnedFd> {
    let mut stack =
        vec![MaybeUninit::<StackUnit>::uninit(); limits::IDLE_STACK_BYTES / size_of::<StackUnit>()];
    let child = clone_idle(&mut stack)?;
    let made = map_and_open(child.pid, first, count);
    // This kills the process and waits for it, so that its stack is free.
    child.kill_and_reap();
    drop(stack);
    made
}

fn map_and_open(pid: i32, first: u32, count: u32) -> io::Result<OwnedFd> {
    let map = format!("0 {first} {count}\n");
    fs::write(format!("/proc/{pid}/uid_map"), &map)?;
    fs::write(format!("/proc/{pid}/gid_map"), &map)?;
    Ok(fs::File::open(format!("/proc/{pid}/ns/user"))?.into())
}

/// Starts a process in a separate user namespace that sleeps until it is killed.
fn clone_idle(stack: &mut [MaybeUninit<StackUnit>]) -> io::Result<SpawnedProcess> {
    let mut pidfd: c_int = -1;
    // The file table is shared too: the process opens no file, and the time for a copy grows with the number of tasks.
    let shared = libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_PIDFD | libc::CLONE_NEWUSER;
    let args = CloneArgs {
        flags: u64::from(shared.cast_unsigned()),
        pidfd: (&raw mut pidfd).addr() as u64,
        exit_signal: u64::from(libc::SIGCHLD.cast_unsigned()),
        stack: stack.as_mut_ptr().addr() as u64,
        stack_size: size_of_val(stack) as u64,
        ..CloneArgs::default()
    };
    let blocked = BlockedSignals::new();
    let result: i64;
    // SAFETY: the child has a separate stack and never returns from the loop below, which touches no memory. The
    // caller keeps the stack until the child is killed and reaped. The parent falls through, with all registers except
    // rax, rcx and r11 unchanged.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "3:",
            "mov eax, {pause}",
            "syscall",
            "jmp 3b",
            "2:",
            pause = const libc::SYS_pause,
            inlateout("rax") libc::SYS_clone3 => result,
            in("rdi") std::ptr::from_ref(&args),
            in("rsi") size_of::<CloneArgs>(),
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    drop(blocked);
    match i32::try_from(result) {
        Ok(pid) if pid > 0 => Ok(SpawnedProcess {
            pid,
            // SAFETY: clone3 succeeded with CLONE_PIDFD, so the kernel stored a descriptor here that no other code
            // owns.
            pidfd: Arc::new(unsafe { OwnedFd::from_raw_fd(pidfd) }),
            parent_file: None,
        }),
        _ => Err(io::Error::from_raw_os_error(
            i32::try_from(-result).unwrap_or(0),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_outlives_its_first_process() {
        if !nix::unistd::geteuid().is_root() {
            muster_driver::fixture::skipped_here(
                "only root can map many ids; run the tests as root",
            );
            return;
        }

        let namespace = user_namespace(1 << 30, 65_536).unwrap();

        let link = std::os::fd::AsRawFd::as_raw_fd(&namespace);
        let name = fs::read_link(format!("/proc/self/fd/{link}")).unwrap();
        let own = fs::read_link("/proc/self/ns/user").unwrap();
        assert!(name.to_str().unwrap().starts_with("user:"));
        assert_ne!(name, own);
    }
}
