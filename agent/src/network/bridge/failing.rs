//! Steps at which making a network can fail, or the agent can die.
//!
//! Outside of this crate's own tests, a step has no effect. A test counts the steps of its thread and makes one of
//! them fail. `MUSTER_NETWORK_STEP=N` in the environment of a test's child process ends that process at its step N,
//! as `kill -9` would.

/// Passes the next step.
#[cfg(not(test))]
#[expect(clippy::unnecessary_wraps, reason = "in tests it fails")]
pub(super) fn step() -> std::io::Result<()> {
    Ok(())
}

#[cfg(test)]
pub(super) use counted::{KILL, arm, disarm, step};

#[cfg(test)]
mod counted {
    use std::cell::Cell;
    use std::io;

    /// The environment variable with the step at which the process ends.
    pub(crate) const KILL: &str = "MUSTER_NETWORK_STEP";

    thread_local! {
        static TAKEN: Cell<u32> = const { Cell::new(0) };
        static FAILS: Cell<Option<u32>> = const { Cell::new(None) };
    }

    /// Makes the step `at` of this thread fail, counted from 1 from here on.
    pub(crate) fn arm(at: u32) {
        TAKEN.set(0);
        FAILS.set(Some(at));
    }

    /// Disarms the thread and returns whether the step was reached.
    pub(crate) fn disarm() -> bool {
        let at = FAILS.take();
        at.is_some_and(|at| TAKEN.get() >= at)
    }

    /// See [`super::step`].
    pub(crate) fn step() -> io::Result<()> {
        let taken = TAKEN.get() + 1;
        TAKEN.set(taken);
        if std::env::var(KILL).is_ok_and(|at| at == taken.to_string()) {
            std::process::abort();
        }
        if FAILS.get() == Some(taken) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        Ok(())
    }
}
