//! Registers a job and waits for its instances. Each wait states its reason.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use muster_wire::api::alloc::{AllocListStub, Allocation};
use muster_wire::api::deployment::Deployment;
use muster_wire::api::eval::Evaluation;
use muster_wire::api::job::{Job, RegisterResponse};
use muster_wire::api::node::NodeListStub;
use serde_json::{Value, json};

use super::file::{self, ValueArgs};
use crate::client::{Client, escape};
use crate::exit::{CliError, CliResult, Exit};
use crate::reason::{reason, reasons};
use crate::{deployment, names, output};
use muster_jobspec::ConfigSpans;

/// The wait of one blocking query before it is repeated.
const POLL: Duration = Duration::from_secs(2);
/// The interval of reminders while nothing changes.
const REMIND: Duration = Duration::from_secs(10);

/// Arguments of `muster job run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The job file: HCL or JSON; `-` is standard input.
    pub file: PathBuf,
    /// Values of its variables.
    #[command(flatten)]
    pub values: ValueArgs,
    /// Return when the job is registered.
    #[arg(long)]
    pub detach: bool,
    /// How long to wait for instances to run and for the deployment to end, in seconds.
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    pub timeout: u64,
    /// Register only if the job still has this modify index. 0 means that it must not exist.
    #[arg(long, value_name = "INDEX")]
    pub check_index: Option<u64>,
}

pub(super) fn run(client: &Client, json: bool, args: &RunArgs) -> CliResult {
    let job = file::read(&args.file, &args.values)?;
    let id = job
        .get("ID")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    let body = match args.check_index {
        None => json!({ "Job": job }),
        Some(index) => json!({ "Job": job, "EnforceIndex": true, "JobModifyIndex": index }),
    };
    let started = Instant::now();
    let answer: RegisterResponse = client.put("/v1/jobs", &body)?;
    output::warn(&answer.warnings);
    if answer.eval_id.is_empty() && !json {
        output::print(&format!(
            "{id} is registered; it only makes other jobs.   more: muster job status {id}\n"
        ))?;
        return Ok(Exit::Done);
    }
    if args.detach || answer.eval_id.is_empty() {
        if json {
            output::print_json(&answer)?;
        } else {
            output::print(&format!(
                "{id} is registered (evaluation {}).\n",
                answer.eval_id
            ))?;
        }
        return Ok(Exit::Done);
    }
    let deadline = started + Duration::from_secs(args.timeout);
    let eval = wait_evaluated(client, &answer.eval_id, deadline)?;
    let placed: Vec<AllocListStub> =
        client.get(&format!("/v1/evaluation/{}/allocations", eval.id))?;
    if !json {
        show_placement(client, &id, &eval, &placed, started.elapsed())?;
    }
    let running = wait_running(client, &id, &placed, deadline)?;
    let short: u32 = eval.queued_allocations.values().sum();
    if !json {
        show_end(&id, &running, short, started.elapsed(), args)?;
    }
    let deployment = if short == 0 && (running.started > 0 || running.failed == 0) {
        end_of_deployment(client, &id, answer.job_modify_index, deadline)?
    } else {
        // Instances that wait for room, or failed on every node, would delay the command until the progress deadline.
        None
    };
    if json {
        let elapsed = u64::try_from(started.elapsed().as_nanos());
        let elapsed = elapsed.expect("a command runs for less than 584 years");
        output::print_json(&json!({
            "JobID": id,
            "EvalID": eval.id,
            "Placed": placed.len(),
            "Queued": short,
            "Failed": running.failed,
            "Allocations": running.allocs,
            "Deployment": deployment,
            "Elapsed": elapsed,
        }))?;
    }
    if let Some(deployment) = deployment {
        // An instance that failed and was replaced in time does not count as a failure.
        return Ok(deployment::exit_of_deployment(&deployment));
    }
    if running.failed > 0 {
        return Ok(Exit::Failed);
    }
    Ok(if short > 0 { Exit::Partial } else { Exit::Done })
}

/// Follows the deployment of the version that the entry `job_modify_index` registered. `None` without a deployment.
fn end_of_deployment(
    client: &Client,
    id: &str,
    job_modify_index: u64,
    deadline: Instant,
) -> Result<Option<Deployment>, CliError> {
    let latest = names::latest_deployment(client, id)?;
    let Some(latest) = latest.filter(|latest| latest.job_spec_modify_index == job_modify_index)
    else {
        return Ok(None);
    };
    let patience = deadline.saturating_duration_since(Instant::now());
    deployment::follow(client, &latest.id, patience).map(Some)
}

pub(super) fn wait_evaluated(
    client: &Client,
    id: &str,
    deadline: Instant,
) -> Result<Evaluation, CliError> {
    let mut index = 0;
    loop {
        let answer =
            client.get_after::<Evaluation>(&format!("/v1/evaluation/{id}"), index, POLL)?;
        match answer.value.status.as_str() {
            "complete" => return Ok(answer.value),
            "failed" | "canceled" => {
                return Err(CliError::new(
                    Exit::Failed,
                    format!(
                        "evaluation {id} is {}: {}",
                        answer.value.status, answer.value.status_description
                    ),
                ));
            }
            _ => {}
        }
        if Instant::now() >= deadline {
            return Err(CliError::new(
                Exit::TimedOut,
                format!("evaluation {id} is still {}", answer.value.status),
            )
            .help(format!(
                "the job is registered; look again with `muster eval status {id}`"
            )));
        }
        index = answer.index;
    }
}

pub(super) fn show_placement(
    client: &Client,
    id: &str,
    eval: &Evaluation,
    placed: &[AllocListStub],
    elapsed: Duration,
) -> Result<(), CliError> {
    let total = placed.len() + eval.queued_allocations.values().sum::<u32>() as usize;
    if total == 0 {
        let (span, why) = (
            output::span(elapsed),
            idle_reason(client, id, &eval.job_type)?,
        );
        return output::print(&format!("{id}: nothing to place ({span}): {why}\n"));
    }
    let mut nodes: BTreeMap<&str, usize> = BTreeMap::new();
    for alloc in placed {
        *nodes.entry(&alloc.node_name).or_default() += 1;
    }
    let spread: Vec<String> = nodes
        .iter()
        .map(|(node, count)| format!("{node} ×{count}"))
        .collect();
    output::print(&format!(
        "{id}: {} of {total} placed in {}{}\n",
        placed.len(),
        output::span(elapsed),
        if spread.is_empty() {
            String::new()
        } else {
            format!(" on {}", spread.join(", "))
        }
    ))?;
    for alloc in placed.iter().take(10) {
        let whole: Allocation = client.get(&format!("/v1/allocation/{}", alloc.id))?;
        let score = whole
            .metrics
            .as_ref()
            .and_then(|metrics| {
                metrics
                    .score_meta_data
                    .iter()
                    .find(|meta| meta.node_id == alloc.node_id)
            })
            .map(|meta| format!("score {:.3}", meta.norm_score))
            .unwrap_or_default();
        output::print(&format!(
            "  {}  {} → {}  {score}\n",
            output::short_id(&alloc.id),
            alloc.name,
            alloc.node_name
        ))?;
    }
    for (group, metric) in &eval.failed_tg_allocs {
        output::print(&format!(
            "  {group}: {} not placed: {}\n",
            metric.coalesced_failures + 1,
            reasons(metric)
        ))?;
    }
    let lacks_driver = eval.failed_tg_allocs.values().any(|metric| {
        let mut filtered = metric.constraint_filtered.keys();
        filtered.any(|reason| reason.starts_with(MISSING_DRIVER))
    });
    if lacks_driver {
        output::print(&format!("  drivers of the nodes: {}\n", drivers(client)?))?;
    }
    Ok(())
}

/// The begin of the reason of a node that has not got a task's driver.
const MISSING_DRIVER: &str = "missing driver";

/// The drivers that are healthy on some node.
fn drivers(client: &Client) -> Result<String, CliError> {
    let nodes: Vec<NodeListStub> = client.get("/v1/nodes")?;
    let healthy: BTreeSet<&str> = nodes
        .iter()
        .flat_map(|node| &node.drivers)
        .filter(|(_, driver)| driver.healthy)
        .map(|(name, _)| name.as_str())
        .collect();
    if healthy.is_empty() {
        return Ok("none".to_owned());
    }
    Ok(healthy
        .into_iter()
        .map(output::clean)
        .collect::<Vec<_>>()
        .join(", "))
}

/// The reason why an evaluation placed nothing, and the next command where no instance runs.
fn idle_reason(client: &Client, id: &str, job_type: &str) -> Result<String, CliError> {
    let allocs: Vec<AllocListStub> = client.get(&format!("/v1/job/{}/allocations", escape(id)))?;
    let count = |status: &str| {
        let of_status = allocs.iter().filter(|alloc| {
            alloc.client_status == status
                && (alloc.desired_status == "run" || status == "complete")
                && alloc.next_allocation.is_empty()
        });
        of_status.count()
    };
    if count("running") + count("pending") > 0 {
        return Ok("what runs stays, and takes what changes in place".to_owned());
    }
    let job: Job = client.get(&format!("/v1/job/{}", escape(id)))?;
    if job.stop {
        return Ok("the job is stopped.\n  start it again: muster job run".to_owned());
    }
    let failed = count("failed");
    if failed > 0 {
        let why = match job_type {
            "system" => "they start again after a pause",
            "sysbatch" => "each node runs a version once",
            _ => "the reschedule policy allows no replacement now",
        };
        return Ok(format!(
            "{failed} failed, and {why}.\n  replace them at once: muster job eval --force-reschedule {id}"
        ));
    }
    let complete = count("complete");
    if complete > 0 && matches!(job_type, "batch" | "sysbatch") {
        return Ok(format!(
            "the work of this version is done, {complete} complete.\n  do it again: muster job stop {id}, then muster job run"
        ));
    }
    Ok("the job wants no instance".to_owned())
}

/// The result of a wait for instances.
#[derive(Debug, Default)]
struct StartProgress {
    allocs: Vec<AllocListStub>,
    started: usize,
    failed: usize,
}

/// Waits until every allocation in `placed` has started or ended.
fn wait_running(
    client: &Client,
    job: &str,
    placed: &[AllocListStub],
    deadline: Instant,
) -> Result<StartProgress, CliError> {
    let path = format!("/v1/job/{}/allocations", escape(job));
    let mut index = 0;
    let mut printed_at = Instant::now();
    loop {
        let answer = client.get_after::<Vec<AllocListStub>>(&path, index, POLL)?;
        let allocs: Vec<AllocListStub> = answer
            .value
            .into_iter()
            .filter(|alloc| placed.iter().any(|placed| placed.id == alloc.id))
            .collect();
        let waiting: Vec<&AllocListStub> = allocs
            .iter()
            .filter(|alloc| alloc.client_status == "pending")
            .collect();
        if waiting.is_empty() {
            let failed = allocs
                .iter()
                .filter(|alloc| matches!(alloc.client_status.as_str(), "failed" | "lost"))
                .count();
            return Ok(StartProgress {
                started: allocs.len() - failed,
                failed,
                allocs,
            });
        }
        if Instant::now() >= deadline {
            return Err(CliError::new(
                Exit::TimedOut,
                format!(
                    "{} of {} allocations have not started, {} first",
                    waiting.len(),
                    allocs.len(),
                    waiting[0].name
                ),
            )
            .help(format!(
                "the job goes on; see why with `muster alloc status {}`",
                output::short_id(&waiting[0].id)
            )));
        }
        if printed_at.elapsed() >= REMIND {
            output::eprint(&format!(
                "waiting for {} to start, {} first",
                output::count_with_noun(waiting.len(), "allocation"),
                waiting[0].name
            ));
            printed_at = Instant::now();
        }
        index = answer.index;
    }
}

fn show_end(
    id: &str,
    running: &StartProgress,
    short: u32,
    elapsed: Duration,
    args: &RunArgs,
) -> Result<(), CliError> {
    for alloc in running
        .allocs
        .iter()
        .filter(|alloc| alloc.client_status == "failed")
    {
        output::print(&format!(
            "  {}  {} failed: {}\n",
            output::short_id(&alloc.id),
            alloc.name,
            output::clean(&reason(alloc))
        ))?;
        for place in places(alloc, args) {
            output::print(&format!("      {}\n", output::clean(&place)))?;
        }
    }
    if running.allocs.is_empty() && short == 0 {
        return output::print(&format!(
            "{id} is registered.   more: muster job status {id}   versions: muster job history {id}\n"
        ));
    }
    if running.allocs.is_empty() {
        return output::print(&format!(
            "{id} runs nowhere yet: it waits for a node that can take it.   more: muster job status {id}   undo: muster job stop {id}\n"
        ));
    }
    let state = match (running.failed, short) {
        (0, 0) => "is running",
        (0, _) => "is running in part; the rest waits for room",
        (_, _) => "has failed allocations",
    };
    output::print(&format!(
        "{id} {state}: {} started in {}.   logs: muster alloc logs {}   more: muster job status {id}   undo: muster job stop {id}\n",
        running.started,
        output::span(elapsed),
        one_of(id, &running.allocs)
    ))
}

/// The places in the job file of faults that the drivers of an allocation's tasks reported.
fn places(alloc: &AllocListStub, args: &RunArgs) -> Vec<String> {
    let places = ConfigSpans::read(&args.file, &args.values.inputs());
    let mut found = Vec::new();
    for (task, state) in &alloc.task_states {
        let failures = state.events.iter();
        let failures = failures.filter(|event| event.kind == "Driver Failure");
        if let Some(newest) = failures.max_by_key(|event| event.time) {
            found.extend(places.of(&alloc.task_group, task, &newest.display_message));
        }
    }
    found
}

/// A name that refers to one allocation: the job's if it has only one, otherwise the first allocation's.
fn one_of(id: &str, allocs: &[AllocListStub]) -> String {
    let names = allocs.iter().map(|alloc| &alloc.name);
    match names.min() {
        Some(name) if allocs.len() > 1 => format!("'{name}'"),
        Some(_) | None => id.to_owned(),
    }
}

/// The number of allocations of `job` that have not ended.
pub(super) fn count_live(client: &Client, job: &str) -> Result<usize, CliError> {
    let allocs: Vec<AllocListStub> = client.get(&allocations(job))?;
    Ok(live(&allocs).len())
}

fn allocations(job: &str) -> String {
    format!("/v1/job/{}/allocations", escape(job))
}

fn live(allocs: &[AllocListStub]) -> Vec<&AllocListStub> {
    let is_live =
        |alloc: &&AllocListStub| matches!(alloc.client_status.as_str(), "pending" | "running");
    allocs.iter().filter(is_live).collect()
}

/// Waits until nothing of `job` runs.
pub(super) fn wait_stopped(client: &Client, job: &str, timeout: Duration) -> Result<(), CliError> {
    let path = allocations(job);
    let deadline = Instant::now() + timeout;
    let mut index = 0;
    let mut printed_at = Instant::now();
    loop {
        let answer = match client.get_after::<Vec<AllocListStub>>(&path, index, POLL) {
            Ok(answer) => answer,
            // The job was purged together with its allocations.
            Err(error) if error.exit == Exit::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let live = live(&answer.value);
        if live.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(CliError::new(
                Exit::TimedOut,
                format!(
                    "not ended yet: {} of {job}, {} first",
                    output::count_with_noun(live.len(), "allocation"),
                    live[0].name
                ),
            ));
        }
        if printed_at.elapsed() >= REMIND {
            output::eprint(&format!(
                "waiting for {} to end, {} first",
                output::count_with_noun(live.len(), "allocation"),
                live[0].name
            ));
            printed_at = Instant::now();
        }
        index = answer.index;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_that_ended_are_not_live() {
        let allocs = ["complete", "running", "failed", "pending", "lost"];
        let allocs = allocs.map(|status| AllocListStub {
            client_status: status.to_owned(),
            ..AllocListStub::default()
        });

        let found = live(&allocs).into_iter();

        let statuses: Vec<&str> = found.map(|alloc| alloc.client_status.as_str()).collect();
        assert_eq!(statuses, ["running", "pending"]);
    }
}
