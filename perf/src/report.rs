//! Output of the results, for people and for programs.

#![expect(clippy::print_stdout, reason = "prints results for a living")]

use std::path::Path;

use serde::Serialize;

use crate::budget::{BudgetResult, Outcome};
use crate::harness::{Metric, Samples};
use crate::machine::Machine;

/// Prints each metric with its spread over the rounds, and the values of its rivals.
pub(crate) fn print(metrics: &[Metric]) {
    for metric in metrics {
        let Metric {
            name,
            unit,
            ours,
            rivals,
        } = metric;
        println!("  {name:<38} {} {unit}", spread(ours));
        for rival in rivals {
            let ratio = metric.ratio(rival);
            // The ratio of two zeros does not exist.
            let ours = if ratio.is_nan() {
                String::new()
            } else {
                format!("   ours is {ratio:.2} of it")
            };
            println!(
                "    {:<36} {} {unit}{ours}",
                rival.name,
                spread(&rival.theirs)
            );
        }
    }
}

/// Prints the outcome of each promise.
pub(crate) fn print_verdicts(verdicts: &[BudgetResult]) {
    println!("budgets");
    for verdict in verdicts {
        let word = match verdict.outcome {
            Outcome::Kept => "kept",
            Outcome::Missed => "MISSED",
            Outcome::Pending => "pending",
            Outcome::Unmeasured => "unmeasured",
        };
        println!(
            "  {word:<11}{}\n             {}",
            verdict.budget.promise, verdict.found
        );
    }
    let count = |outcome| {
        verdicts
            .iter()
            .filter(|verdict| verdict.outcome == outcome)
            .count()
    };
    println!(
        "  {} kept, {} missed, {} unmeasured, {} pending",
        count(Outcome::Kept),
        count(Outcome::Missed),
        count(Outcome::Unmeasured),
        count(Outcome::Pending)
    );
}

/// Writes all results as JSON.
pub(crate) fn write_json(
    path: &Path,
    machine: &Machine,
    results: &[(String, Metric)],
    verdicts: &[BudgetResult],
) -> anyhow::Result<()> {
    #[derive(Serialize)]
    struct Report<'a> {
        machine: &'a Machine,
        results: &'a [(String, Metric)],
        verdicts: &'a [BudgetResult],
    }
    let file = std::fs::File::create(path)?;
    serde_json::to_writer_pretty(
        file,
        &Report {
            machine,
            results,
            verdicts,
        },
    )?;
    Ok(())
}

fn spread(samples: &Samples) -> String {
    format!(
        "{:>12}  [{} … {}]",
        number(samples.median()),
        number(samples.min()),
        number(samples.max())
    )
}

fn number(value: f64) -> String {
    match value.abs() {
        x if x >= 10_000.0 => format!("{value:.0}"),
        x if x >= 100.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}
