//! `muster job`: plan, run, validate, status, change, dispatch, stop, inspect.

mod change;
mod children;
mod diff;
mod file;
mod follow;
mod history;
mod launch;
mod logs;
mod plan;
mod run;
mod status;
mod tag;

pub use change::{EvalArgs, RevertArgs, ScaleArgs};
pub use file::ValueArgs;
pub use follow::FollowArgs;
pub use history::HistoryArgs;
pub use launch::{DispatchArgs, PeriodicCommand};
pub use logs::JobLogsArgs;
pub use plan::PlanArgs;
pub use run::RunArgs;
pub use tag::TagCommand;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use muster_wire::api::job::{Job, RegisterResponse, ValidateResponse};
use serde_json::json;

use crate::client::{Client, escape};
use crate::exit::{CliError, CliResult, Exit};
use crate::{deployment, names, output};

/// Commands about jobs.
#[derive(Debug, Subcommand)]
pub enum JobCommand {
    /// Show the changes that a job file would make, without running it.
    ///
    /// Exit codes: 0 for no change, 1 for a change, 255 for an error.
    ///
    /// Example: muster job plan examples/web.hcl
    Plan(PlanArgs),
    /// Register a job, wait until its instances run, and follow its deployment to the end.
    ///
    /// Example: muster job run examples/web.hcl
    Run(RunArgs),
    /// Check a job file here and on the server, without running it.
    Validate {
        /// The job file; `-` is standard input.
        file: PathBuf,
        /// Values of its variables.
        #[command(flatten)]
        values: ValueArgs,
    },
    /// Show all jobs, or one with its allocations.
    ///
    /// Example: muster job status web
    Status {
        /// Name of the job, or a unique prefix. Default: all jobs.
        job: Option<String>,
    },
    /// Promote the canaries of a job's new version if they are healthy.
    ///
    /// Example: muster job promote web
    Promote {
        /// Name of the job.
        job: String,
        /// Only this group. May be repeated. Default: all groups.
        #[arg(long = "group", value_name = "GROUP")]
        groups: Vec<String>,
    },
    /// Show the versions of a job and their changes.
    History(HistoryArgs),
    /// Revert a job to an older version.
    Revert(RevertArgs),
    /// Tag versions of a job, so that they are kept.
    Tag {
        /// The command on tags.
        #[command(subcommand)]
        command: TagCommand,
    },
    /// Change the number of instances of a group.
    ///
    /// Example: muster job scale web 5
    Scale(ScaleArgs),
    /// Show how the groups of a job were scaled, newest first.
    ScalingEvents {
        /// The job's name or a unique prefix.
        job: String,
    },
    /// Create an evaluation: the scheduler checks the job again.
    Eval(EvalArgs),
    /// Print the output of all tasks of a job. Each line begins with its instance, task and allocation.
    ///
    /// Kept output is sorted by time. With -f new output follows as it comes, also from new allocations, until the
    /// job ends.
    ///
    /// Example: muster job logs -f --tail 20 web
    Logs(JobLogsArgs),
    /// Run a parameterized job.
    ///
    /// Example: muster job dispatch --meta file=a.png convert payload.json
    Dispatch(DispatchArgs),
    /// Manage periodic jobs.
    Periodic {
        /// The command on periodic jobs.
        #[command(subcommand)]
        command: PeriodicCommand,
    },
    /// Stop a job and wait until its allocations have ended.
    Stop(StopArgs),
    /// Print the registered job as JSON.
    Inspect {
        /// Name of the job, or a unique prefix.
        job: String,
    },
}

/// Arguments of `muster job stop`.
#[derive(Debug, Args)]
pub struct StopArgs {
    /// Name of the job.
    pub job: String,
    /// Also delete the job.
    #[arg(long)]
    pub purge: bool,
    /// Return when the stop is registered.
    #[arg(long)]
    pub detach: bool,
    /// How long to wait for instances to stop, in seconds.
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    pub timeout: u64,
}

/// Carries out `command`.
///
/// # Errors
///
/// [`CliError`].
pub fn run(client: &Client, json: bool, command: &JobCommand) -> CliResult {
    match command {
        JobCommand::Plan(args) => plan::run(client, json, args),
        JobCommand::Run(args) => run::run(client, json, args),
        JobCommand::Validate { file, values } => validate(client, json, file, values),
        JobCommand::Status { job: None } => status::list(client, json),
        JobCommand::Status { job: Some(name) } => status::one(client, json, name),
        JobCommand::Promote { job, groups } => {
            let deployment =
                names::deployment_of(client, &names::job(client, job, names::Access::Change)?)?;
            deployment::promote(client, json, &deployment, groups)
        }
        JobCommand::History(args) => history::run(client, json, args),
        JobCommand::Revert(args) => change::revert(client, json, args),
        JobCommand::Tag { command } => tag::run(client, json, command),
        JobCommand::Scale(args) => change::scale(client, json, args),
        JobCommand::ScalingEvents { job } => change::scaling_events(client, json, job),
        JobCommand::Eval(args) => change::eval(client, json, args),
        JobCommand::Logs(args) => logs::run(client, args),
        JobCommand::Dispatch(args) => launch::dispatch(client, json, args),
        JobCommand::Periodic { command } => launch::periodic(client, json, command),
        JobCommand::Stop(args) => stop(client, json, args),
        JobCommand::Inspect { job } => inspect(client, job),
    }
}

fn validate(client: &Client, json: bool, file: &std::path::Path, values: &ValueArgs) -> CliResult {
    let job = file::read(file, values)?;
    let answer: ValidateResponse = client.put("/v1/validate/job", &json!({ "Job": job }))?;
    if json {
        output::print_json(&answer)?;
    } else if answer.validation_errors.is_empty() {
        output::print(&format!("{} is valid.\n", file.display()))?;
    }
    output::warn(&answer.warnings);
    if answer.validation_errors.is_empty() {
        return Ok(Exit::Done);
    }
    let list = answer.validation_errors.join("\n  ");
    let count = match answer.validation_errors.len() {
        1 => "a fault".to_owned(),
        many => format!("{many} faults"),
    };
    let message = format!("{} has {count}:\n  {list}", file.display());
    Err(CliError::new(Exit::Usage, message))
}

fn stop(client: &Client, json: bool, args: &StopArgs) -> CliResult {
    let id = names::job(client, &args.job, names::Access::Change)?;
    let path = format!("/v1/job/{}?purge={}", escape(&id), args.purge);
    // The count must precede the stop. Afterwards, instances that ended by themselves look the same.
    let counted = (!args.detach).then(|| run::count_live(client, &id));
    let counted = counted.transpose()?;
    let answer: RegisterResponse = client.delete(&path)?;
    let Some(stopped) = counted else {
        if json {
            output::print_json(&answer)?;
        } else {
            output::print(&format!(
                "{id} is being stopped (evaluation {}).\n{}",
                answer.eval_id,
                format_deleted_counts(&answer.freed)
            ))?;
        }
        return Ok(Exit::Done);
    };
    run::wait_stopped(client, &id, Duration::from_secs(args.timeout))?;
    if json {
        let (eval_id, freed) = (answer.eval_id, answer.freed);
        output::print_json(
            &json!({ "JobID": id, "Stopped": stopped, "EvalID": eval_id, "Freed": freed }),
        )?;
    } else {
        output::print(&format!(
            "{id} is stopped: {} ended.\n{}",
            output::count_with_noun(stopped, "allocation"),
            format_deleted_counts(&answer.freed)
        ))?;
    }
    Ok(Exit::Done)
}

/// A line on the objects that a purge deleted; none without a purge.
fn format_deleted_counts(counts: &BTreeMap<String, u64>) -> String {
    if counts.is_empty() {
        return String::new();
    }
    let each = counts.iter().map(|(kind, count)| format!("{count} {kind}"));
    let each: Vec<String> = each.collect();
    format!("Forgotten at once: {}.\n", each.join(", "))
}

fn inspect(client: &Client, name: &str) -> CliResult {
    let id = names::job(client, name, names::Access::Show)?;
    let job: Job = client.get(&format!("/v1/job/{}", escape(&id)))?;
    output::print_json(&json!({ "Job": job }))?;
    Ok(Exit::Done)
}
