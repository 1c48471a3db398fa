//! The reaper: the first process of a task with `init = true`, and of every task with actions.
//!
//! A program that is the first process of its pid namespace must reap orphans. It receives only signals that it has a
//! handler for. Most programs are not written for that; the reaper is. It is a static program of a few KiB, in
//! `../init`. It is built with this crate and kept in a sealed memfd, so that no task can change the program of the
//! next task.
//!
//! In a task with actions the reaper has no child program. It keeps the task's namespaces while actions start and end.
//!
//! A task otherwise has no process of the driver. The reaper is the exception, and only tasks that need it have it.

use std::ffi::CString;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{CWD, MemfdFlags, Mode, OFlags, SealFlags};

/// The program that `build.rs` builds.
const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/muster-init"));
/// The name that `ps` shows.
const NAME: &std::ffi::CStr = c"muster-init";

/// Returns a sealed file that holds the program.
pub(crate) fn sealed_file() -> io::Result<OwnedFd> {
    sealed(NAME, PROGRAM)
}

/// Returns a sealed memfd that holds `program`.
pub(crate) fn sealed(name: &std::ffi::CStr, program: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels before 6.3 do not support `MFD_EXEC`.
    let file = rustix::fs::memfd_create(name, flags | MemfdFlags::EXEC)
        .or_else(|_old| rustix::fs::memfd_create(name, flags))?;
    let mut file = std::fs::File::from(file);
    file.write_all(program)?;
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    // A file that is open for writing cannot be executed.
    Ok(reopened(&file.into(), OFlags::RDONLY)?)
}

fn reopened(file: &OwnedFd, access: OFlags) -> rustix::io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::openat(CWD, path, access | OFlags::CLOEXEC, Mode::empty())
}

/// Returns the reaper's arguments: its name, the number of paths for the program, those paths, and the program's own
/// arguments.
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
