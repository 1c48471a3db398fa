//! The status of jobs, with the reason beside each failure.

use muster_wire::api::alloc::{AllocListStub, Metric};
use muster_wire::api::eval::Evaluation;
use muster_wire::api::job::{Job, JobListStub, JobSummary};
use serde_json::json;

use crate::client::{Client, escape};
use crate::exit::{CliResult, Exit};
use crate::{deployment, names, output};

pub(super) fn list(client: &Client, json: bool) -> CliResult {
    let jobs: Vec<JobListStub> = client.get("/v1/jobs")?;
    if json {
        output::print_json(&jobs)?;
        return Ok(Exit::Done);
    }
    let mut table = output::table(&[
        "JOB",
        "TYPE",
        "PRIORITY",
        "STATUS",
        "RUNNING",
        "QUEUED",
        "FAILED",
        "SUBMITTED",
    ]);
    for job in &jobs {
        let sum = |count: fn(&muster_wire::api::job::GroupSummary) -> u32| -> u32 {
            job.job_summary.summary.values().map(count).sum()
        };
        table.add_row([
            output::clean(&job.id),
            job.job_type.clone(),
            job.priority.to_string(),
            if job.stop {
                format!("{} (stopped)", job.status)
            } else {
                job.status.clone()
            },
            sum(|group| group.running).to_string(),
            sum(|group| group.queued).to_string(),
            sum(|group| group.failed).to_string(),
            output::ago(job.submit_time),
        ]);
    }
    if jobs.is_empty() {
        output::eprint("no jobs; run one with `muster job run FILE`");
    } else {
        output::print_table(&table)?;
    }
    Ok(Exit::Done)
}

pub(super) fn one(client: &Client, json: bool, name: &str) -> CliResult {
    let id = names::job(client, name, names::Access::Show)?;
    let path = format!("/v1/job/{}", escape(&id));
    let job: Job = client.get(&path)?;
    let summary: JobSummary = client.get(&format!("{path}/summary"))?;
    let mut allocs: Vec<AllocListStub> = client.get(&format!("{path}/allocations"))?;
    let evals: Vec<Evaluation> = client.get(&format!("{path}/evaluations"))?;
    let latest = deployment::latest(client, &id)?;
    if json {
        output::print_json(&json!({
            "Job": job, "Summary": summary, "Allocations": allocs, "Evaluations": evals,
            "LatestDeployment": latest,
        }))?;
        return Ok(Exit::Done);
    }
    output::print(&format!(
        "{}  {} · priority {} · version {} · {}{} · submitted {}\n\n",
        output::clean(&job.id),
        job.job_type,
        job.priority,
        job.version,
        job.status,
        if job.stop { " (stopped)" } else { "" },
        output::ago(job.submit_time)
    ))?;
    if job.periodic.is_some() || job.parameterized_job.is_some() {
        super::children::show(client, &job, &summary)?;
        return Ok(Exit::Done);
    }
    let mut groups = output::table(&[
        "GROUP", "WANTED", "QUEUED", "STARTING", "RUNNING", "COMPLETE", "FAILED", "LOST",
    ]);
    for group in &job.task_groups {
        let counts = summary
            .summary
            .get(&group.name)
            .copied()
            .unwrap_or_default();
        groups.add_row([
            group.name.clone(),
            if job.stop {
                "0".to_owned()
            } else {
                group.count.to_string()
            },
            counts.queued.to_string(),
            counts.starting.to_string(),
            counts.running.to_string(),
            counts.complete.to_string(),
            counts.failed.to_string(),
            counts.lost.to_string(),
        ]);
    }
    output::print_table(&groups)?;
    show_blocked(&evals)?;
    if let Some(latest) = &latest {
        output::print("\n")?;
        deployment::show(latest)?;
    }
    show_allocs(&mut allocs)?;
    Ok(Exit::Done)
}

fn show_blocked(evals: &[Evaluation]) -> Result<(), crate::exit::CliError> {
    for eval in evals.iter().filter(|eval| eval.status == "blocked") {
        for (group, metric) in &eval.failed_tg_allocs {
            output::print(&format!(
                "\n{group}: {} wait for room: {}\n",
                metric.coalesced_failures + 1,
                reasons(metric)
            ))?;
        }
    }
    Ok(())
}

fn show_allocs(allocs: &mut [AllocListStub]) -> Result<(), crate::exit::CliError> {
    if allocs.is_empty() {
        return Ok(());
    }
    allocs.sort_by(|a, b| {
        b.create_index
            .cmp(&a.create_index)
            .then_with(|| a.name.cmp(&b.name))
    });
    let mut table = output::table(&[
        "ALLOC", "NAME", "NODE", "VERSION", "DESIRED", "STATUS", "CHANGED", "REASON",
    ]);
    for alloc in allocs.iter() {
        table.add_row([
            output::short_id(&alloc.id).to_owned(),
            output::clean(&alloc.name),
            alloc.node_name.clone(),
            alloc.job_version.to_string(),
            alloc.desired_status.clone(),
            alloc.client_status.clone(),
            output::ago(alloc.modify_time),
            output::clean(&reason(alloc)),
        ]);
    }
    output::print("\n")?;
    output::print_table(&table)
}

/// The reason of an allocation's status: an event of a task, or a description by the control plane or the agent.
///
/// Of an allocation that failed only the events of tasks that failed count: a poststop task or a sidecar may end later
/// and well.
pub(crate) fn reason(alloc: &AllocListStub) -> String {
    if alloc.client_status == "running" && alloc.desired_status == "run" {
        return String::new();
    }
    let descriptions = [&alloc.desired_description, &alloc.client_description];
    let description = || {
        let given = descriptions.into_iter().find(|text| !text.is_empty());
        given.cloned().unwrap_or_default()
    };
    if matches!(alloc.client_status.as_str(), "lost" | "unknown") {
        return description();
    }
    let has_failed = alloc.task_states.values().any(|state| state.failed);
    let events = alloc
        .task_states
        .iter()
        .filter(|(_, state)| state.failed || !has_failed)
        .flat_map(|(task, state)| state.events.iter().map(move |event| (task, event)));
    let event = events
        .filter(|(_, event)| {
            matches!(
                event.kind.as_str(),
                "Terminated" | "Driver Failure" | "Restarting" | "Disk Resources Exceeded"
            )
        })
        .max_by_key(|(_, event)| event.time)
        .map(|(task, event)| format!("{task}: {}", event.display_message));
    event.unwrap_or_else(description)
}

/// Why a group could not be placed.
pub(crate) fn reasons(metric: &Metric) -> String {
    let mut parts = Vec::new();
    if metric.nodes_evaluated == 0 {
        parts.push("no node is ready in its datacenters and pool".to_owned());
    }
    for (constraint, count) in &metric.constraint_filtered {
        let fail = if *count == 1 {
            "node fails"
        } else {
            "nodes fail"
        };
        parts.push(format!("{count} {fail} `{}`", output::clean(constraint)));
    }
    for (dimension, count) in &metric.dimension_exhausted {
        let lack = if *count == 1 {
            "node lacks"
        } else {
            "nodes lack"
        };
        // The agent's setting is the only limit of this dimension.
        let lacking = match dimension.as_str() {
            "allocations" => "room for more allocations (node_max_allocs)",
            other => other,
        };
        parts.push(format!("{count} {lack} {lacking}"));
    }
    if parts.is_empty() {
        parts.push(format!(
            "{} looked at, {} filtered, {} full",
            output::counted(metric.nodes_evaluated, "node"),
            metric.nodes_filtered,
            metric.nodes_exhausted
        ));
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use muster_wire::api::alloc::{TaskEvent, TaskState};

    use super::*;

    fn ended(failed: bool, time: u64, message: &str) -> TaskState {
        TaskState {
            failed,
            events: vec![TaskEvent {
                kind: "Terminated".to_owned(),
                time,
                display_message: message.to_owned(),
                ..TaskEvent::default()
            }],
            ..TaskState::default()
        }
    }

    #[test]
    fn the_reason_is_of_the_failed_task() {
        let mut alloc = AllocListStub {
            client_status: "failed".to_owned(),
            task_states: [
                ("main".to_owned(), ended(true, 1, "Exit Code: 3")),
                ("stop".to_owned(), ended(false, 2, "Exit Code: 0")),
            ]
            .into(),
            ..AllocListStub::default()
        };
        assert_eq!(reason(&alloc), "main: Exit Code: 3");

        alloc.client_status = "lost".to_owned();
        alloc.desired_description = "alloc is lost since its node is down".to_owned();
        assert_eq!(reason(&alloc), "alloc is lost since its node is down");
    }
}
