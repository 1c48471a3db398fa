//! The benchmark suite.
//!
//! A *subject* measures something of Muster and, in the same run and interleaved with it (A B A B), a
//! *rival*: the bare system calls, a plain loop, another library. Single numbers move by a factor of two
//! between hours on a shared machine; ratios within one run do not, so budgets are ratios where a rival
//! exists. `budgets.toml` lists what is promised.
//!
//! ```text
//! cargo xtask perf                     all subjects
//! cargo xtask perf schedule --quick    one, shorter
//! cargo xtask perf --check             fail if a budget is missed
//! cargo xtask perf --json out.json     results with machine facts
//! cargo xtask perf schedule --plot costs.svg   the cost of a placement by nodes, as a drawing
//! ```
//!
//! Beside neighbours, what waits for a disk or for another process is measured as
//! `chrt -f 1 target/release/muster-perf raft_commit --quick`: a thread that wakes then runs at once,
//! and not at the neighbour's next tick, 4 ms later. Short runs only: the neighbours stand still.

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

/// As in the program that is measured.
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
        // Beside the program: on a disk, and where git does not look.
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
    let verdicts = budget::judge(&budgets, &results, &args.subjects);
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
    // A promise without a number is not kept either.
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
