//! Programs that the machine has installed, and the CPU time of threads.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;

/// Whether `program` is in a directory of `PATH`.
pub(crate) fn is_in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// Returns the CPU time of a thread with nanosecond precision, from its file `schedstat`.
pub(crate) fn thread_cpu_time(schedstat: &Path) -> anyhow::Result<Duration> {
    let text = std::fs::read_to_string(schedstat)?;
    let nanos = text.split(' ').next().context("schedstat has numbers")?;
    Ok(Duration::from_nanos(nanos.parse()?))
}
