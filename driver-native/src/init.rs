//! The reaper that a task with `init = true` has as its first process, and every task with actions.
//!
//! A program that is the first process of its pid namespace has to reap what others leave, and gets no
//! signal that it has no handler for. Most are not written for that. The reaper is: a static program of
//! a few KiB, in `../init`, built with this crate and kept in a sealed file in memory, so that no task
//! can change what the next one runs.
//!
//! Beside actions it has no program of its own: it keeps the task's namespaces while actions come and go.
//!
//! This is the one exception to "no process of ours beside a task", and only a task that asks has it.

use std::ffi::CString;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{CWD, MemfdFlags, Mode, OFlags, SealFlags};

/// Built by `build.rs`.
const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/muster-init"));
/// As `ps` shows it.
const NAME: &std::ffi::CStr = c"muster-init";

/// A file that holds the program and that nobody can change.
pub(crate) fn sealed_file() -> io::Result<OwnedFd> {
    sealed(NAME, PROGRAM)
}

/// A file in memory that holds `program` for good.
pub(crate) fn sealed(name: &std::ffi::CStr, program: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels before 6.3 know no difference between files that may be run and others.
    let file = rustix::fs::memfd_create(name, flags | MemfdFlags::EXEC)
        .or_else(|_old| rustix::fs::memfd_create(name, flags))?;
    let mut file = std::fs::File::from(file);
    file.write_all(program)?;
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    // A file that is open for writing is not run.
    Ok(reopened(&file.into(), OFlags::RDONLY)?)
}

fn reopened(file: &OwnedFd, access: OFlags) -> rustix::io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::openat(CWD, path, access | OFlags::CLOEXEC, Mode::empty())
}

/// The reaper's arguments: its name, how many places to look for the program in, those, and the
/// program's own arguments.
pub(crate) fn arguments(programs: &[CString], argv: &[CString]) -> Vec<CString> {
    let count = CString::new(programs.len().to_string()).unwrap_or_default();
    [NAME.to_owned(), count]
        .into_iter()
        .chain(programs.iter().cloned())
        .chain(argv.iter().cloned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_is_small_and_static() {
        assert!(PROGRAM.len() < 100 << 10, "{} bytes", PROGRAM.len());
        assert_eq!(&PROGRAM[..4], b"\x7fELF");
        let interpreter = b"/lib64/ld-linux";
        assert!(!PROGRAM.windows(interpreter.len()).any(|w| w == interpreter));
    }

    #[test]
    fn sealed_file_cannot_be_written() {
        let file = reopened(&sealed_file().unwrap(), OFlags::RDWR).unwrap();

        let error = std::fs::File::from(file).write(b"x").unwrap_err();

        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }
}
