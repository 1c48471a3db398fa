//! `muster job scale`, `scaling-events`, `revert` and `eval`.

use clap::Args;
use muster_wire::api::job::{Job, RegisterResponse, ScaleStatus};
use serde_json::json;

use super::follow::{self, FollowArgs};
use super::tag;
use crate::client::{Client, escape};
use crate::exit::{CliError, CliResult, Exit};
use crate::{names, output};

/// Arguments of `muster job scale`.
#[derive(Debug, Args)]
pub struct ScaleArgs {
    /// Name of the job.
    pub job: String,
    /// The group (needed if the job has several) and its number of instances.
    #[arg(required = true, num_args = 1..=2, value_names = ["GROUP] [COUNT"])]
    pub group_and_count: Vec<String>,
    /// Scale only if the job still has this modify index.
    #[arg(long, value_name = "INDEX")]
    pub check_index: Option<u64>,
    /// How to wait.
    #[command(flatten)]
    pub follow: FollowArgs,
}

/// Arguments of `muster job revert`.
#[derive(Debug, Args)]
pub struct RevertArgs {
    /// Name of the job.
    pub job: String,
    /// Version number from `muster job history`, or tag, to go back to.
    pub version: String,
    /// How to wait.
    #[command(flatten)]
    pub follow: FollowArgs,
}

/// Arguments of `muster job eval`.
#[derive(Debug, Args)]
pub struct EvalArgs {
    /// Name of the job.
    pub job: String,
    /// Replace failed instances at once and ignore their reschedule policy.
    #[arg(long)]
    pub force_reschedule: bool,
    /// How to wait.
    #[command(flatten)]
    pub follow: FollowArgs,
}

pub(super) fn scale(client: &Client, json: bool, args: &ScaleArgs) -> CliResult {
    let id = names::job(client, &args.job, names::Access::Change)?;
    let (group, count) = match args.group_and_count.as_slice() {
        [group, count] => (group.clone(), count),
        [count] => (only_group(client, &id)?, count),
        _ => return Err(CliError::new(Exit::Usage, "the count is missing")),
    };
    let number: u32 = count.parse().map_err(|error| {
        CliError::new(Exit::Usage, format!("invalid count `{count}`: {error}"))
            .help(format!("muster job scale {id} [GROUP] COUNT"))
    })?;
    let body = json!({
        "Count": number,
        "Target": { "Job": id, "Group": group },
        "Message": "scaled by the command line",
        "EnforceIndex": args.check_index.is_some(),
        "JobModifyIndex": args.check_index.unwrap_or(0),
    });
    let answer: RegisterResponse = client.put(&format!("/v1/job/{}/scale", escape(&id)), &body)?;
    follow::follow_to_end(client, json, &args.follow, &id, &answer)
}

/// Shows the scaling events of a job, newest first.
pub(super) fn scaling_events(client: &Client, json: bool, job: &str) -> CliResult {
    let id = names::job(client, job, names::Access::Show)?;
    let status: ScaleStatus = client.get(&format!("/v1/job/{}/scale", escape(&id)))?;
    if json {
        output::print_json(&status)?;
        return Ok(Exit::Done);
    }
    let mut rows: Vec<_> = status
        .task_groups
        .iter()
        .flat_map(|(group, status)| status.events.iter().map(move |event| (group, event)))
        .collect();
    if rows.is_empty() {
        output::eprint(&format!("{id} has no scaling events"));
        return Ok(Exit::Done);
    }
    rows.sort_by_key(|(_, event)| std::cmp::Reverse(event.create_index));
    let mut table = output::table(&[
        "GROUP", "COUNT", "PREVIOUS", "ERROR", "EVAL", "WHEN", "MESSAGE",
    ]);
    for (group, event) in rows {
        let count = event
            .count
            .map_or_else(String::new, |count| count.to_string());
        let eval = event.eval_id.as_deref().unwrap_or_default();
        table.add_row([
            output::clean(group),
            count,
            event.previous_count.to_string(),
            if event.error { "yes" } else { "no" }.to_owned(),
            output::short_id(eval).to_owned(),
            output::time_since(event.time),
            output::clean(&event.message),
        ]);
    }
    output::print_table(&table)?;
    Ok(Exit::Done)
}

/// The name of the group of a job that has one.
fn only_group(client: &Client, id: &str) -> Result<String, CliError> {
    let job: Job = client.get(&format!("/v1/job/{}", escape(id)))?;
    let names: Vec<String> = job
        .task_groups
        .into_iter()
        .map(|group| group.name)
        .collect();
    match names.as_slice() {
        [one] => Ok(one.clone()),
        several => Err(CliError::new(
            Exit::Usage,
            format!("{id} has {} groups: {}", several.len(), several.join(", ")),
        )
        .help(format!("name one: muster job scale {id} GROUP COUNT"))),
    }
}

pub(super) fn revert(client: &Client, json: bool, args: &RevertArgs) -> CliResult {
    let id = names::job(client, &args.job, names::Access::Change)?;
    let version = tag::version(client, &id, &args.version)?;
    let body = json!({ "JobID": id, "JobVersion": version });
    let answer: RegisterResponse = client.put(&format!("/v1/job/{}/revert", escape(&id)), &body)?;
    follow::follow_to_end(client, json, &args.follow, &id, &answer)
}

pub(super) fn eval(client: &Client, json: bool, args: &EvalArgs) -> CliResult {
    let id = names::job(client, &args.job, names::Access::Change)?;
    let body = json!({
        "JobID": id,
        "EvalOptions": { "ForceReschedule": args.force_reschedule },
    });
    let answer: RegisterResponse =
        client.put(&format!("/v1/job/{}/evaluate", escape(&id)), &body)?;
    follow::follow_to_end(client, json, &args.follow, &id, &answer)
}
