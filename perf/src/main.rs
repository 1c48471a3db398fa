//! The benchmark suite.
//!
//! A *subject* measures a part of Muster. In the same run, alternating with it (A B A B), it measures a *rival*: the
//! bare system calls, a plain loop, another library. Single numbers vary by a factor of two between hours on a shared
//! machine. Ratios within one run do not, so budgets are ratios where a rival exists. `budgets.toml` lists the
//! promises.
//!
//! ```text
//! cargo xtask perf                     all subjects
//! cargo xtask perf schedule --quick    one, shorter
//! cargo xtask perf --check             fail if a budget is missed
//! cargo xtask perf --json out.json     results with machine facts
//! cargo xtask perf schedule --plot costs.svg   the cost of a placement by nodes, as a drawing
//! ```
//!
//! Some subjects wait for a disk or for another process. On a shared machine they are measured with
//! `chrt -f 1 target/release/muster-perf raft_commit --quick`. A thread that wakes then runs at once, and not at the
//! next scheduler tick, 4 ms later. Such runs must be short, because other programs do not run meanwhile.

#![expect(clippy::print_stdout, reason = "prints results for a living")]

mod budget;
mod cgroup;
mod harness;
mod machine;
mod plot;
mod program;
mod report;
mod subject;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

/// The allocator is the same as in the measured program.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Measures Muster against rivals in the same run, and against its budgets.
#[derive(Debug, Parser)]
#[command(name = "muster-perf")]
struct Args {
    /// Subjects to run; all unless said.
    subjects: Vec<String>,
    /// Fewer rounds and smaller loads: for a look, not for a claim.
    #[arg(long)]
    quick: bool,
    /// Write results and machine facts to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the cost of a placement against the number of nodes to this file, as SVG; needs `schedule`.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Exit with 1 if a budget is missed.
    #[arg(long)]
    check: bool,
    /// Where to put files that are measured, as the file system matters; beside this program unless said.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

fn main() -> anyhow::Result<ExitCode> {
    if subject::child::is_child() {
        return subject::run_child();
    }
    let args = Args::parse();
    let budgets = budget::load()?;
    let known = subject::names();
    for name in &args.subjects {
        anyhow::ensure!(
            known.contains(&name.as_str()),
            "unknown benchmark `{name}`: use one of {}",
            known.join(", ")
        );
    }
    let scratch = match &args.dir {
        Some(dir) => tempfile::tempdir_in(dir)?,
        // The directory is beside the program: it is on a disk, and git ignores it.
        None => tempfile::tempdir_in(std::env::current_exe()?.parent().unwrap_or(Path::new(".")))?,
    };
    let context = harness::Context {
        quick: args.quick,
        dir: scratch.path().to_owned(),
    };
    let machine = machine::facts(&context)?;
    println!("{machine}");

    let mut results = Vec::new();
    let mut broken = Vec::new();
    for (name, run) in subject::ALL {
        if !args.subjects.is_empty() && !args.subjects.iter().any(|wanted| wanted == *name) {
            continue;
        }
        println!("\n{name}");
        match run(&context) {
            Ok(metrics) => {
                report::print(&metrics);
                results.extend(
                    metrics
                        .into_iter()
                        .map(|metric| ((*name).to_owned(), metric)),
                );
            }
            Err(error) => {
                println!("  not measured: {error:#}");
                broken.push(*name);
            }
        }
    }
    let verdicts = budget::compare_with_budgets(&budgets, &results, &args.subjects);
    println!();
    report::print_verdicts(&verdicts);
    if let Some(path) = &args.json {
        report::write_json(path, &machine, &results, &verdicts)?;
        println!("\nresults in {}", path.display());
    }
    if let Some(path) = &args.plot {
        plot::write(path, &results)?;
        println!("\nplot in {}", path.display());
    }
    // A promise without a measured number counts as not kept.
    let kept = broken.is_empty()
        && !verdicts.iter().any(|verdict| {
            matches!(
                verdict.outcome,
                budget::Outcome::Missed | budget::Outcome::Unmeasured
            )
        });
    Ok(if args.check && !kept {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}
