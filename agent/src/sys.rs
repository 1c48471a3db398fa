//! System calls for which neither `rustix` nor `nix` has a function.

#![expect(unsafe_code, reason = "system calls without a safe wrapper")]

use std::io;

/// `IOPRIO_WHO_PROCESS` (`ioprio_set(2)`); with the number 0 it means the calling thread.
const WHO_THREAD: libc::c_int = 1;
/// `IOPRIO_PRIO_VALUE(IOPRIO_CLASS_IDLE, 0)`: the class stands above 13 bits of level.
const CLASS_IDLE: libc::c_int = 3 << 13;

/// Lets the calling thread use a disk only when nobody else wants it, where the disk's scheduler knows
/// priorities (`bfq`, `mq-deadline`).
pub(crate) fn idle_io_priority() -> io::Result<()> {
    // SAFETY: the call takes three numbers and touches no memory of this process.
    let answer = unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_THREAD, 0, CLASS_IDLE) };
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
    fn only_the_calling_thread_becomes_idle() {
        let inside = std::thread::spawn(|| idle_io_priority().map(|()| class()));

        assert_eq!(inside.join().unwrap().unwrap(), 3);
        assert_ne!(class(), 3);
    }
}
