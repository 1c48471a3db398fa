//! For tests: those that cannot run on a machine say so, by name and reason, and are counted by `cargo xtask test`; and a
//! tree that changes under whoever walks it.

#![expect(clippy::print_stderr, reason = "tests are read by people")]

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, RenameFlags};

/// Says that the test `name` did not run: on its output, and in the file that `MUSTER_SKIP_FILE` names.
///
/// # Panics
///
/// If that file cannot be written.
pub fn skipped(name: &str, reason: &str) {
    eprintln!("skipped: {name}: {reason}");
    if let Some(path) = std::env::var_os("MUSTER_SKIP_FILE") {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let mut file = file.expect("MUSTER_SKIP_FILE can be written");
        // At once: tests of one binary run side by side.
        file.write_all(format!("{name}: {reason}\n").as_bytes())
            .expect("MUSTER_SKIP_FILE can be written");
    }
}

/// The same of the test whose thread this is.
///
/// # Panics
///
/// As [`skipped`].
pub fn skipped_here(reason: &str) {
    let thread = std::thread::current();
    let path = thread.name().unwrap_or("a test");
    skipped(path.rsplit("::").next().unwrap_or(path), reason);
}

/// Whether tests are to do all of their repetitions (`cargo xtask test --long`).
#[must_use]
pub fn long() -> bool {
    std::env::var_os("MUSTER_TEST_LONG").is_some_and(|value| value == "1")
}

/// Does `work` while `one` and `other` are exchanged for each other again and again, as fast as can be.
pub fn exchanging<T>(one: &Path, other: &Path, work: impl FnOnce() -> T) -> T {
    /// Ends the exchange, whatever becomes of the work.
    struct EndGuard<'a>(&'a AtomicBool);

    impl Drop for EndGuard<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                // One that whoever works has moved or removed comes back, or does not.
                let _exchanged =
                    rustix::fs::renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE);
            }
        });
        let _end = EndGuard(&is_over);
        work()
    })
}
