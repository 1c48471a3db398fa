//! The status of jobs, with the reason for each failure.

use muster_wire::api::alloc::AllocListStub;
use muster_wire::api::eval::Evaluation;
use muster_wire::api::job::{Job, JobListStub, JobSummary};
use serde_json::json;

use crate::client::{Client, escape};
use crate::exit::{CliResult, Exit};
use crate::reason::{reason, reasons};
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
            output::time_since(job.submit_time),
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
    let latest = names::latest_deployment(client, &id)?;
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
        output::time_since(job.submit_time)
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
            output::time_since(alloc.modify_time),
            output::clean(&reason(alloc)),
        ]);
    }
    output::print("\n")?;
    output::print_table(&table)
}
