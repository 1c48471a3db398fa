//! Periodic and parameterized jobs: the number and list of their child jobs, and the next launch.

use muster_wire::api::job::{Job, JobListStub, JobSummary, PlanResponse};
use muster_wire::api::time;
use serde_json::json;

use super::plan::from_now;
use crate::client::{Client, escape};
use crate::exit::CliError;
use crate::output;

/// Children that are listed.
const SHOWN_MAX: usize = 20;

pub(super) fn show(client: &Client, job: &Job, summary: &JobSummary) -> Result<(), CliError> {
    if let Some(periodic) = &job.periodic {
        let mut specs = periodic.specs.clone();
        if !periodic.spec.is_empty() {
            specs.push(periodic.spec.clone());
        }
        output::print(&format!(
            "launched by time: {} ({}){}\n",
            output::clean(&specs.join(", ")),
            output::clean(&periodic.time_zone),
            next_launch(client, job)?
        ))?;
    }
    if let Some(parameterized) = &job.parameterized_job {
        output::print(&format!(
            "run by dispatch: payload {}, metadata wanted: {}, taken: {}\n",
            parameterized.payload,
            list(&parameterized.meta_required),
            list(&parameterized.meta_optional)
        ))?;
    }
    let counts = summary.children;
    output::print(&format!(
        "made {}: {} pending, {} running, {} dead\n",
        output::count_with_noun(counts.pending + counts.running + counts.dead, "job"),
        counts.pending,
        counts.running,
        counts.dead
    ))?;
    show_children(client, job)
}

fn list(keys: &[String]) -> String {
    if keys.is_empty() {
        "none".to_owned()
    } else {
        output::clean(&keys.join(", "))
    }
}

/// The time of the next launch. The server calculates it in a plan of the registered job.
fn next_launch(client: &Client, job: &Job) -> Result<String, CliError> {
    if job.stop {
        return Ok(String::new());
    }
    let path = format!("/v1/job/{}/plan", escape(&job.id));
    let plan: PlanResponse = client.put(&path, &json!({ "Job": job }))?;
    Ok(match plan.next_periodic_launch {
        Some(at) => format!(
            ", next at {} ({} from now)",
            time::text(at.0),
            output::span(from_now(at.0.0))
        ),
        None => ", never again by itself".to_owned(),
    })
}

fn show_children(client: &Client, job: &Job) -> Result<(), CliError> {
    let prefix = format!("{}/", job.id);
    let mut children: Vec<JobListStub> =
        client.get(&format!("/v1/jobs?prefix={}", escape(&prefix)))?;
    children.retain(|child| child.parent_id == job.id);
    children.sort_by_key(|child| std::cmp::Reverse(child.create_index));
    if children.is_empty() {
        return Ok(());
    }
    let mut table = output::table(&["JOB", "STATUS", "SUBMITTED"]);
    for child in children.iter().take(SHOWN_MAX) {
        table.add_row([
            output::clean(&child.id),
            child.status.clone(),
            output::time_since(child.submit_time),
        ]);
    }
    output::print("\n")?;
    output::print_table(&table)?;
    let more = children.len().saturating_sub(SHOWN_MAX);
    if more > 0 {
        output::print(&format!("and {more} more\n"))?;
    }
    Ok(())
}
