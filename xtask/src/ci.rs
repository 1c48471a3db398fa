//! `cargo xtask ci`: the whole gate. It writes nothing outside the target folder.
//!
//! Each step runs whatever became of the one before, so that one run tells all there is to mend.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;

use crate::{shell, sim, test, tidy};

/// What to leave out.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Leave out the tests: `cargo xtask test` runs them
    #[arg(long)]
    no_test: bool,
}

#[derive(Debug)]
struct Step {
    name: &'static str,
    what: Result<(), anyhow::Error>,
    duration: Duration,
}

/// The `ci` command. What failed is in the exit status and the summary.
pub(crate) fn run(options: &Options) -> ExitCode {
    let mut steps = vec![
        step("format", format),
        step("lints", lints),
        step("tidy", tidy::run),
        step("documents", documents),
    ];
    if shell::find_program("cargo-deny").is_some() {
        steps.push(step("advisories", advisories));
    }
    if !options.no_test {
        steps.push(step("simulator", sim::ci));
        steps.push(step("tests", tests));
    }

    println!("\nmuster ci");
    for Step {
        name,
        what,
        duration,
    } in &steps
    {
        let outcome = what
            .as_ref()
            .map_or_else(|error| format!("FAILED: {error:#}"), |()| "ok".into());
        println!("  {name:12} {:>10}  {outcome}", shell::seconds(*duration));
    }
    if !steps.iter().any(|step| step.name == "advisories") {
        println!(
            "  advisories      skipped  cargo-deny is not installed; run: cargo install cargo-deny"
        );
    }
    let failed = steps.iter().any(|step| step.what.is_err());
    if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

fn step(name: &'static str, run: fn() -> anyhow::Result<()>) -> Step {
    println!("── {name}");
    let started = Instant::now();
    let what = run();
    if let Err(error) = &what {
        eprintln!("error: {error:#}");
    }
    Step {
        name,
        what,
        duration: started.elapsed(),
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

/// With private items, so that a link to one that was renamed is found.
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

fn advisories() -> anyhow::Result<()> {
    shell::run(shell::cargo().args(["deny", "check"]))
}

fn tests() -> anyhow::Result<()> {
    if test::run(&test::Options::default())? != ExitCode::SUCCESS {
        bail!("a test failed, see above");
    }
    Ok(())
}
