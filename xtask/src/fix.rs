//! `cargo xtask fix`: formats, and applies what clippy can mend by itself.

use crate::shell;

/// The `fix` command. It writes to the tree, changes that are not committed included.
///
/// # Errors
///
/// When cargo fails, which it does on code that does not compile.
pub(crate) fn run() -> anyhow::Result<()> {
    let mut clippy = shell::cargo();
    clippy.args([
        "clippy",
        "--workspace",
        "--all-targets",
        "--fix",
        "--allow-dirty",
        "--allow-staged",
    ]);
    shell::run(&mut clippy)?;
    // Last, since a correction may leave a line too long.
    shell::run(shell::cargo().args(["fmt", "--all"]))
}
