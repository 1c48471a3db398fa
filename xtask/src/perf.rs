//! `cargo xtask perf`: builds the benchmarks in release mode and runs them.

use crate::shell;

/// Arguments that go to `muster-perf`; `cargo xtask perf --help` shows them.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Options {
    /// Subjects and flags
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Runs the `perf` command.
///
/// # Errors
///
/// When the build fails, or a budget is missed and `--check` was given.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let mut cargo = shell::cargo();
    cargo.args([
        "run",
        "--quiet",
        "--release",
        "--package",
        "muster-perf",
        "--",
    ]);
    shell::run(cargo.args(&options.arguments))
}
