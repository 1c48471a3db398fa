//! `cargo xtask fix`: formats the code and applies clippy's automatic corrections.

use crate::shell;

/// Runs the `fix` command. It writes to the tree, even if there are uncommitted changes.
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
    // Formatting comes last, since a correction may leave a line too long.
    shell::run(shell::cargo().args(["fmt", "--all"]))
}
