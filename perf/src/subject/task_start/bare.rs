//! The floor of raw tasks: clone3 directly into a cgroup, a list of system calls, exec, wait.

#![expect(
    unsafe_code,
    reason = "clone3 with a shared address space is measured, and nothing wraps it"
)]

use std::arch::asm;
use std::ffi::{CStr, CString, c_long};
use std::mem::size_of;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr;

use anyhow::{Context as _, ensure};
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

use crate::cgroup::Cgroup;

/// The system calls of a child, of which the last executes its program. They are prepared before the child exists.
#[derive(Debug)]
pub(super) struct Script {
    calls: Vec<Call>,
    texts: Vec<CString>,
    /// The new namespaces of the child, as flags of clone(2).
    namespaces: u64,
    lists: Vec<Vec<u64>>,
}

/// One system call. The inline assembly depends on the layout of its fields.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Call {
    number: i64,
    args: [u64; 5],
    /// A negative result that does not count as a failure.
    tolerated: i64,
}

impl Script {
    pub(super) fn new(namespaces: i32) -> Self {
        Self {
            calls: Vec::new(),
            texts: Vec::new(),
            namespaces: namespaces.unsigned_abs().into(),
            lists: Vec::new(),
        }
    }

    /// Adds a system call. The error `tolerated` does not count as a failure.
    pub(super) fn call(&mut self, number: c_long, args: &[u64], tolerated: i32) {
        let mut call = Call {
            number,
            args: [0; 5],
            tolerated: -i64::from(tolerated),
        };
        call.args[..args.len()].copy_from_slice(args);
        self.calls.push(call);
    }

    /// Returns the address of a text that lives as long as this script.
    pub(super) fn text(&mut self, text: &CStr) -> u64 {
        let text = text.to_owned();
        let address = text.as_ptr().expose_provenance() as u64;
        // The heap data of the text does not move when the list grows.
        self.texts.push(text);
        address
    }

    /// Returns the address of a path that lives as long as this script.
    pub(super) fn path(&mut self, path: &Path) -> anyhow::Result<u64> {
        Ok(self.text(&CString::new(path.as_os_str().as_bytes())?))
    }

    /// Adds a call that makes `file` the standard output.
    pub(super) fn output(&mut self, file: BorrowedFd<'_>) {
        let file = u64::from(file.as_raw_fd().unsigned_abs());
        self.call(libc::SYS_dup3, &[file, 1, 0], 0);
    }

    /// Adds the execution of a program: the first of `words` is the program, the others are its arguments. The
    /// environment is empty.
    pub(super) fn exec(&mut self, words: &[&CStr]) -> anyhow::Result<()> {
        let mut addresses = Vec::new();
        for word in words {
            addresses.push(self.text(word));
        }
        let path = *addresses.first().context("a program has a name")?;
        addresses.push(0);
        let argv = self.list(addresses);
        let envp = self.list(vec![0]);
        self.call(libc::SYS_execve, &[path, argv, envp], 0);
        Ok(())
    }

    /// Returns the address of a list of addresses that lives as long as this script.
    fn list(&mut self, addresses: Vec<u64>) -> u64 {
        let address = addresses.as_ptr().expose_provenance() as u64;
        self.lists.push(addresses);
        address
    }
}

/// A process that was started.
#[derive(Debug)]
pub(super) struct StartedProcess {
    pidfd: OwnedFd,
}

impl StartedProcess {
    /// Waits for the end of the process and checks its exit status.
    pub(super) fn wait(self) -> anyhow::Result<()> {
        let status = waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED)?;
        let code = status.and_then(|status| status.exit_status());
        ensure!(code == Some(0), "the program ended with {code:?}");
        Ok(())
    }

    /// Kills the process and waits for its end.
    pub(super) fn kill(self) -> anyhow::Result<()> {
        pidfd_send_signal(&self.pidfd, Signal::KILL)?;
        let _status = waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED)?;
        Ok(())
    }
}

/// Starts a child in `cgroup` that carries out `script`. Returns when the child's program runs.
pub(super) fn start(script: &Script, cgroup: &Cgroup) -> anyhow::Result<StartedProcess> {
    let dir = cgroup.open()?;
    let mut pidfd: libc::c_int = -1;
    // SAFETY: clone_args is plain numbers, for which zero means "not set" (clone(2)).
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = (libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD)
        .cast_unsigned()
        .into();
    args.flags |= CLONE_INTO_CGROUP | script.namespaces;
    args.pidfd = (&raw mut pidfd) as u64;
    args.exit_signal = libc::SIGCHLD.cast_unsigned().into();
    args.cgroup = dir.as_raw_fd().cast_unsigned().into();
    let calls = script.calls.as_ptr_range();
    // The child stores the failed call here. It shares this memory with its parent.
    let mut failed: *const Call = ptr::null();
    let mut result: i64 = libc::SYS_clone3;
    // SAFETY: CLONE_VFORK keeps this thread still until the child has executed or ended. The child
    // shares this address space and, as args.stack is 0, this stack; the block touches no memory of
    // it but `failed`, makes only system calls and never leaves, so the parent finds everything as it
    // was. The script owns what its calls point to and outlives the block, as do args and failed, and
    // args.pidfd points at a c_int of this frame.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "3:",
            "mov rax, [r12]",
            "mov rdi, [r12 + 8]",
            "mov rsi, [r12 + 16]",
            "mov rdx, [r12 + 24]",
            "mov r10, [r12 + 32]",
            "mov r8, [r12 + 40]",
            "syscall",
            "test rax, rax",
            "jns 4f",
            "cmp rax, [r12 + 48]",
            "jne 5f",
            "4:",
            "add r12, {call_bytes}",
            "cmp r12, r13",
            "jb 3b",
            "xor eax, eax",
            "5:",
            "mov [r14], r12",
            "neg eax",
            "mov edi, eax",
            "mov eax, {exit}",
            "syscall",
            "2:",
            call_bytes = const size_of::<Call>(),
            exit = const libc::SYS_exit,
            in("r12") calls.start,
            in("r13") calls.end,
            in("r14") &raw mut failed,
            inlateout("rax") result,
            inlateout("rdi") &raw const args => _,
            inlateout("rsi") size_of::<libc::clone_args>() => _,
            out("rcx") _,
            out("r11") _,
        );
    }
    ensure!(
        result > 0,
        "clone3: {}",
        std::io::Error::from_raw_os_error(i32::try_from(-result)?)
    );
    // SAFETY: the kernel wrote a descriptor that has no other owner (CLONE_PIDFD, and clone3 succeeded).
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    if !failed.is_null() {
        let at = (failed.addr() - calls.start.addr()) / size_of::<Call>();
        let status = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED)?;
        let errno = status.and_then(|status| status.exit_status());
        anyhow::bail!(
            "call {at} of the bare loop, {:?}: errno {errno:?}",
            script.calls.get(at)
        );
    }
    Ok(StartedProcess { pidfd })
}

/// The flag exists since Linux 5.7. It is wider than libc's flags.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
