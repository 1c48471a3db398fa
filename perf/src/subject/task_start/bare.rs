//! The floor: clone3 straight into a cgroup, exec, wait.

#![expect(
    unsafe_code,
    reason = "clone3 with a shared address space is measured, and nothing wraps it"
)]

use std::arch::asm;
use std::ffi::CString;
use std::mem::size_of;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr;

use anyhow::ensure;
use rustix::process::{WaitId, WaitIdOptions, waitid};

use crate::cgroup::Cgroup;

/// A program without arguments and environment, ready for exec.
#[derive(Debug)]
pub(super) struct Program {
    path: CString,
}

impl Program {
    pub(super) fn new(path: &Path) -> anyhow::Result<Self> {
        Ok(Self {
            path: CString::new(path.as_os_str().as_bytes())?,
        })
    }
}

/// A process that was started.
#[derive(Debug)]
pub(super) struct Started {
    pidfd: OwnedFd,
}

impl Started {
    /// Waits for its end and checks that it was a good one.
    pub(super) fn wait(self) -> anyhow::Result<()> {
        let status = waitid(
            WaitId::PidFd(std::os::fd::AsFd::as_fd(&self.pidfd)),
            WaitIdOptions::EXITED,
        )?;
        let code = status.and_then(|status| status.exit_status());
        ensure!(code == Some(0), "the program ended with {code:?}");
        Ok(())
    }
}

/// Starts `program` in `cgroup` and returns once it runs.
pub(super) fn start(program: &Program, cgroup: &Cgroup) -> anyhow::Result<Started> {
    let dir = cgroup.open()?;
    let mut pidfd: libc::c_int = -1;
    // SAFETY: clone_args is plain numbers, for which zero means "not set" (clone(2)).
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = (libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD)
        .cast_unsigned()
        .into();
    args.flags |= CLONE_INTO_CGROUP;
    args.pidfd = (&raw mut pidfd) as u64;
    args.exit_signal = libc::SIGCHLD.cast_unsigned().into();
    args.cgroup = dir.as_raw_fd().cast_unsigned().into();
    let argv: [*const libc::c_char; 2] = [program.path.as_ptr(), ptr::null()];
    let envp: [*const libc::c_char; 1] = [ptr::null()];
    let mut result: i64 = libc::SYS_clone3;
    // SAFETY: CLONE_VFORK keeps this thread still until the child has executed or ended. The child
    // shares this address space and, as args.stack is 0, this stack; the block touches no memory in
    // it, makes only system calls and never leaves, so the parent finds everything as it was. args,
    // argv, envp and the path outlive the block, and args.pidfd points at a c_int of this frame.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "mov rdi, {path}",
            "mov rsi, {argv}",
            "mov rdx, {envp}",
            "mov eax, {execve}",
            "syscall",
            "mov edi, 127",
            "mov eax, {exit}",
            "syscall",
            "2:",
            path = in(reg) program.path.as_ptr(),
            argv = in(reg) argv.as_ptr(),
            envp = in(reg) envp.as_ptr(),
            execve = const libc::SYS_execve,
            exit = const libc::SYS_exit,
            inlateout("rax") result,
            inlateout("rdi") &raw const args => _,
            inlateout("rsi") size_of::<libc::clone_args>() => _,
            // Not `lateout`: path, argv and envp are read after these are overwritten.
            out("rdx") _,
            out("rcx") _,
            out("r11") _,
        );
    }
    ensure!(
        result > 0,
        "clone3: {}",
        std::io::Error::from_raw_os_error(i32::try_from(-result)?)
    );
    // SAFETY: the kernel wrote a descriptor that nobody else knows (CLONE_PIDFD, and clone3 succeeded).
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Started { pidfd })
}

/// Linux 5.7; beyond the width of libc's flags.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
