//! Tests that cannot run on a machine say so, by name and reason, and are counted by `cargo xtask test`.

#![expect(clippy::print_stderr, reason = "tests are read by people")]

use std::fs::OpenOptions;
use std::io::Write as _;

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
