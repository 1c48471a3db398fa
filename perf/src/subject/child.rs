//! This program again, as the child process of a subject.

use std::ffi::OsStr;
use std::process::Command;

/// The variable that names the role of a child process. A subject starts this same program with it.
pub(super) const CHILD_ENV: &str = "MUSTER_PERF_CHILD";

/// Whether this process is a child of a subject.
pub(crate) fn is_child() -> bool {
    std::env::var_os(CHILD_ENV).is_some()
}

/// Returns a command that runs this program again, in the role `what`.
pub(crate) fn child_command<'a>(
    what: &str,
    args: impl IntoIterator<Item = &'a OsStr>,
) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.env(CHILD_ENV, what).args(args);
    Ok(command)
}
