//! `cargo xtask bless`: rewrites the golden files with the current output of the code, and locks new lines of
//! formats.

use std::process::Command;

use crate::shell;
use crate::tidy::formats;

/// Which tests' golden files.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The package; without it, all
    #[arg(long, short)]
    package: Option<String>,
    /// Run no tests: only lock the new lines of formats
    #[arg(long, conflicts_with = "package")]
    formats: bool,
}

/// Runs the `bless` command. It writes to the tree and lists the files that differ from the last commit. A person
/// must review them.
///
/// # Errors
///
/// When a test fails for another reason than its golden file, or a locked line of a format changed.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    if options.formats {
        return formats::lock(&shell::root());
    }
    let mut cargo = shell::cargo();
    cargo.args(["test", "--no-fail-fast"]);
    match &options.package {
        Some(package) => cargo.args(["--package", package]),
        None => cargo.arg("--workspace"),
    };
    // The crate expect-test reads the first variable, and our own tests read the second.
    cargo.env("UPDATE_EXPECT", "1").env("MUSTER_BLESS", "1");
    let tested = shell::run(&mut cargo);
    let locked = formats::lock(&shell::root());
    shell::run(
        Command::new("git")
            .args(["--no-pager", "diff", "--stat"])
            .current_dir(shell::root()),
    )?;
    tested.and(locked)
}
