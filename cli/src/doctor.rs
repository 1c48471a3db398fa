//! `muster doctor`: what this machine can do, and the fix for what it cannot.

use std::path::PathBuf;

use clap::Args;
use muster_agent::doctor::{Finding, Status};
use serde_json::json;

use crate::exit::{CliResult, Exit};
use crate::output;

/// Arguments of `muster doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// The agent's data directory, present or planned.
    #[arg(long, default_value = super::serve::AGENT_DATA_DIR, value_name = "DIR")]
    pub data_dir: PathBuf,
}

/// Examines this machine. Ends with [`Exit::Failed`] if an agent could not run here.
///
/// # Errors
///
/// If standard output is closed.
pub fn run(json: bool, args: &DoctorArgs) -> CliResult {
    let findings = muster_agent::doctor::findings(&args.data_dir);
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

fn show(finding: &Finding) -> Result<(), crate::exit::CliError> {
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
