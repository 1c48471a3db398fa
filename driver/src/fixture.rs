//! Helpers for tests. They report tests that cannot run on a machine by name and reason, which `cargo xtask test`
//! counts. They also exchange two files while a test walks the tree.

#![expect(clippy::print_stderr, reason = "tests are read by people")]

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, RenameFlags};

/// Reports that the test `name` did not run: on the error output, and in the file that `MUSTER_SKIP_FILE` names.
///
/// # Panics
///
/// If that file cannot be written.
pub fn skipped(name: &str, reason: &str) {
    eprintln!("skipped: {name}: {reason}");
    if let Some(path) = std::env::var_os("MUSTER_SKIP_FILE") {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let mut file = file.expect("MUSTER_SKIP_FILE can be written");
        // One write per line, because tests of one binary run in parallel.
        file.write_all(format!("{name}: {reason}\n").as_bytes())
            .expect("MUSTER_SKIP_FILE can be written");
    }
}

/// Reports that the test of the current thread did not run.
///
/// # Panics
///
/// As [`skipped`].
pub fn skipped_here(reason: &str) {
    let thread = std::thread::current();
    let path = thread.name().unwrap_or("a test");
    skipped(path.rsplit("::").next().unwrap_or(path), reason);
}

/// Writes the text of a program to `path` and makes it executable.
///
/// A child process writes it. The kernel runs no file that is open for writing. Another test may be starting a child,
/// which briefly holds copies of all open files of this process.
///
/// # Panics
///
/// If the program cannot be written.
pub fn write_program(path: &Path, text: &str) {
    let written = Command::new("sh")
        .args(["-c", r#"printf %s "$1" > "$0" && chmod 755 "$0""#])
        .arg(path)
        .arg(text)
        .status()
        .expect("sh can be started");
    assert!(
        written.success(),
        "cannot write {}: {written}",
        path.display()
    );
}

/// Copies a program, by a child process, as [`write_program`] does.
///
/// # Panics
///
/// If the program cannot be copied.
pub fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new("sh")
        .args(["-c", r#"cp "$0" "$1" && chmod 755 "$1""#])
        .args([from, to])
        .status()
        .expect("sh can be started");
    assert!(
        copied.success(),
        "cannot copy to {}: {copied}",
        to.display()
    );
}

/// Whether tests should do all of their repetitions (`cargo xtask test --long`).
#[must_use]
pub fn long() -> bool {
    std::env::var_os("MUSTER_TEST_LONG").is_some_and(|value| value == "1")
}

/// Runs `work` while another thread exchanges `one` and `other` as fast as it can.
pub fn exchanging<T>(one: &Path, other: &Path, work: impl FnOnce() -> T) -> T {
    /// Ends the exchange even if the work panics.
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
                // The exchange fails while `work` has moved or removed one of the files.
                let _exchanged =
                    rustix::fs::renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE);
            }
        });
        let _end = EndGuard(&is_over);
        work()
    })
}
