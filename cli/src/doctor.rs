//! `muster doctor`: the capabilities of this machine, and fixes for missing ones.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use muster_agent::bpf::{ProgramCost, measure_cost};
use muster_agent::monitoring::doctor::{Finding, Status, private_files};
use serde_json::json;

use crate::exit::{CliError, CliResult, Exit};
use crate::output;

/// Arguments of `muster doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Data directory of the agent. It need not exist.
    #[arg(long, default_value = super::serve::AGENT_DATA_DIR, value_name = "DIR")]
    pub data_dir: PathBuf,
    /// Data directory of the server, checked if it exists.
    #[arg(long, default_value = super::serve::SERVER_DATA_DIR, value_name = "DIR")]
    pub server_data_dir: PathBuf,
    /// Print instead the cost of the eBPF programs of this machine's agents, measured by the kernel for this many
    /// seconds.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "5")]
    pub cost: Option<f64>,
}

/// Seconds that may be measured.
const COST_SECONDS: RangeInclusive<f64> = 0.1..=3_600.0;

/// Shows the cost of each program per run, and the total as a share of one core.
fn cost(json: bool, seconds: f64) -> CliResult {
    if !COST_SECONDS.contains(&seconds) {
        let (least, most) = (COST_SECONDS.start(), COST_SECONDS.end());
        let reason = format!("--cost {seconds} is outside {least} to {most} seconds");
        return Err(CliError::new(Exit::Usage, reason));
    }
    let costs = measure_cost(Duration::from_secs_f64(seconds))
        .map_err(|error| CliError::from_chain(Exit::Failed, &error))?;
    if costs.is_empty() {
        let reason = "no agent's eBPF programs are loaded on this machine: start `muster agent` or `muster dev`";
        return Err(CliError::new(Exit::Failed, reason));
    }
    let nanos_each = |cost: &ProgramCost| match cost.runs {
        0 => None,
        runs => Some(cost.time.as_nanos() as f64 / runs as f64),
    };
    let core_percent = |time: Duration| 100.0 * time.as_secs_f64() / seconds;
    if json {
        let all: Vec<_> = costs
            .iter()
            .map(|cost| {
                json!({
                    "Program": cost.name,
                    "Runs": cost.runs,
                    "NanosEach": nanos_each(cost),
                    "PercentOfCore": core_percent(cost.time),
                })
            })
            .collect();
        output::print_json(&all)?;
        return Ok(Exit::Done);
    }
    let mut table = output::table(&["PROGRAM", "RUNS/S", "NS/RUN", "% OF A CORE"]);
    for cost in &costs {
        table.add_row([
            cost.name.clone(),
            format!("{:.0}", cost.runs as f64 / seconds),
            nanos_each(cost).map_or_else(|| "–".to_owned(), |nanos| format!("{nanos:.0}")),
            format!("{:.3}", core_percent(cost.time)),
        ]);
    }
    output::print_table(&table)?;
    let all: Duration = costs.iter().map(|cost| cost.time).sum();
    output::print(&format!(
        "all of them: {:.3} % of one core over {seconds} s, what measuring costs included\n",
        core_percent(all)
    ))?;
    Ok(Exit::Done)
}

/// Examines this machine. Ends with [`Exit::Failed`] if an agent could not run here.
///
/// # Errors
///
/// If standard output is closed.
pub fn run(json: bool, args: &DoctorArgs) -> CliResult {
    if let Some(seconds) = args.cost {
        return cost(json, seconds);
    }
    let mut findings = muster_agent::monitoring::doctor::findings(&args.data_dir);
    findings.extend(private_files("server's files", &args.server_data_dir, &[]));
    let missing = findings
        .iter()
        .any(|finding| finding.status == Status::Missing);
    if json {
        let list: Vec<_> = findings
            .iter()
            .map(|finding| {
                json!({
                    "Name": finding.name,
                    "Status": word(finding.status),
                    "Detail": finding.detail,
                    "Fix": finding.fix,
                })
            })
            .collect();
        output::print_json(&list)?;
    } else {
        for finding in &findings {
            show(finding)?;
        }
    }
    Ok(if missing { Exit::Failed } else { Exit::Done })
}

fn word(status: Status) -> &'static str {
    match status {
        Status::Ok => "ok",
        Status::Degraded => "degraded",
        Status::Missing => "missing",
    }
}

fn show(finding: &Finding) -> Result<(), CliError> {
    output::print(&format!(
        "{:<9} {:<22} {}\n",
        word(finding.status),
        finding.name,
        finding.detail
    ))?;
    if finding.status != Status::Ok && !finding.fix.is_empty() {
        output::print(&format!("{:<9} {:<22} fix: {}\n", "", "", finding.fix))?;
    }
    Ok(())
}
