//! `cargo xtask ci`: the complete gate. It writes nothing outside the target folder.
//!
//! Each step runs even if another failed, so that one run names all faults.

use std::process::ExitCode;

use crate::compiler::Build;
use crate::test::{CheckOutcome, SourceCheck};
use crate::{compiler, shell, test, tidy};

/// Options that leave out or add steps.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Leave out the tests: `cargo xtask test` runs them
    #[arg(long)]
    no_test: bool,
    /// Run every repetition of the tests, which takes hours
    #[arg(long, conflicts_with = "no_test")]
    long: bool,
}

/// Checks that need no build and run during it. Each takes seconds.
const DURING_BUILD: [SourceCheck; 2] = [
    SourceCheck {
        name: "format",
        command: "cargo xtask fix",
        run: || format().map(CheckOutcome::from),
    },
    SourceCheck {
        name: "tidy",
        command: "cargo xtask tidy",
        run: || tidy::run().map(CheckOutcome::from),
    },
];

/// Checks that run after the build. Clippy compiles the tests, so the lints are not a separate step.
const AFTER_BUILD: [SourceCheck; 2] = [
    SourceCheck {
        name: "documents",
        command: "cargo xtask ci --no-test",
        run: || compiler::documents(Build::Tests).map(CheckOutcome::from),
    },
    ADVISORIES,
];

/// The checks in place of [`AFTER_BUILD`] when nothing is compiled for tests.
const WITHOUT_TESTS: [SourceCheck; 3] = [
    SourceCheck {
        name: "lints",
        command: "cargo clippy --workspace --all-targets -- -D warnings",
        run: || lints().map(CheckOutcome::from),
    },
    SourceCheck {
        name: "documents",
        command: "cargo xtask ci --no-test",
        run: || documents().map(CheckOutcome::from),
    },
    ADVISORIES,
];

const ADVISORIES: SourceCheck = SourceCheck {
    name: "advisories",
    command: "cargo deny check",
    run: advisories,
};

/// Runs the `ci` command. The exit status and the summary name the failures.
///
/// # Errors
///
/// When the tests could not be started.
pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    if options.no_test {
        return Ok(checks());
    }
    test::run_gate(
        &test::Options::everything(options.long),
        true,
        &DURING_BUILD,
        &AFTER_BUILD,
    )
}

/// Runs only the checks, one after the other.
fn checks() -> ExitCode {
    let mut failed = false;
    for SourceCheck { name, command, run } in DURING_BUILD.into_iter().chain(WITHOUT_TESTS) {
        println!("── {name}");
        match run() {
            Ok(CheckOutcome::Passed) => {}
            Ok(CheckOutcome::Skipped { reason }) => {
                println!("  skipped {name}: {reason}; run: {command}");
            }
            Err(error) => {
                failed = true;
                println!("  FAILED {name}: {error:#}; repeat: {command}");
            }
        }
    }
    if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

fn format() -> anyhow::Result<()> {
    shell::run(shell::cargo().args(["fmt", "--all", "--check"]))
        .map_err(|error| error.context("not formatted; run: cargo xtask fix"))
}

fn lints() -> anyhow::Result<()> {
    shell::run(shell::cargo().args([
        "clippy",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ]))
}

/// Checks the documents including private items, so that a link to a renamed private item is found.
fn documents() -> anyhow::Result<()> {
    shell::run(
        shell::cargo()
            .args([
                "doc",
                "--workspace",
                "--no-deps",
                "--document-private-items",
            ])
            .env(
                "RUSTDOCFLAGS",
                "-D warnings -A rustdoc::private_intra_doc_links",
            ),
    )
}

/// Checks for known vulnerabilities of crates. [`tidy`] checks the other rules of `deny.toml`, without another
/// program and without a network.
fn advisories() -> anyhow::Result<CheckOutcome> {
    if shell::find_program("cargo-deny").is_none() {
        return Ok(CheckOutcome::Skipped {
            reason: "cargo-deny is not installed (cargo install --locked cargo-deny)".to_owned(),
        });
    }
    if let Err(error) = shell::capture(shell::cargo().args(["deny", "fetch", "db"])) {
        let text = error.to_string();
        let reason = text.lines().last().unwrap_or_default();
        return Ok(CheckOutcome::Skipped {
            reason: format!("the advisory database cannot be fetched: {reason}"),
        });
    }
    shell::run(shell::cargo().args(["deny", "check"])).map(CheckOutcome::from)
}
