//! `muster eval`: the scheduler's decisions and their reasons.

use clap::Subcommand;
use muster_wire::api::alloc::AllocListStub;
use muster_wire::api::eval::Evaluation;
use serde_json::json;

use crate::client::Client;
use crate::exit::{CliResult, Exit};
use crate::reason::reasons;
use crate::{names, output};

/// Commands about evaluations.
#[derive(Debug, Subcommand)]
pub enum EvalCommand {
    /// Show all evaluations, or one with its placements and failures.
    Status {
        /// Id of the evaluation, or a unique prefix. Default: all.
        eval: Option<String>,
    },
}

/// Carries out `command`.
///
/// # Errors
///
/// [`crate::exit::CliError`].
pub fn run(client: &Client, json: bool, command: &EvalCommand) -> CliResult {
    match command {
        EvalCommand::Status { eval: None } => list(client, json),
        EvalCommand::Status { eval: Some(name) } => one(client, json, name),
    }
}

fn list(client: &Client, json: bool) -> CliResult {
    let mut evals: Vec<Evaluation> = client.get("/v1/evaluations")?;
    if json {
        output::print_json(&evals)?;
        return Ok(Exit::Done);
    }
    evals.sort_by_key(|eval| std::cmp::Reverse(eval.create_index));
    let mut table = output::table(&[
        "EVAL", "JOB", "TRIGGER", "STATUS", "QUEUED", "CHANGED", "REASON",
    ]);
    for eval in &evals {
        table.add_row([
            output::short_id(&eval.id).to_owned(),
            output::clean(&eval.job_id),
            eval.triggered_by.clone(),
            eval.status.clone(),
            eval.queued_allocations.values().sum::<u32>().to_string(),
            output::time_since(eval.modify_time),
            output::clean(&eval.status_description),
        ]);
    }
    output::print_table(&table)?;
    Ok(Exit::Done)
}

fn one(client: &Client, json: bool, name: &str) -> CliResult {
    let eval = names::eval(client, name)?;
    let placed: Vec<AllocListStub> =
        client.get(&format!("/v1/evaluation/{}/allocations", eval.id))?;
    if json {
        output::print_json(&json!({ "Evaluation": eval, "Allocations": placed }))?;
        return Ok(Exit::Done);
    }
    output::print(&format!(
        "{}  job {} · triggered by {} · {} {}\n",
        eval.id,
        output::clean(&eval.job_id),
        eval.triggered_by,
        eval.status,
        output::clean(&eval.status_description)
    ))?;
    for (what, id) in [
        ("for deployment", &eval.deployment_id),
        ("for node", &eval.node_id),
        ("goes on from evaluation", &eval.previous_eval),
    ] {
        if !id.is_empty() {
            output::print(&format!("{what} {id}\n"))?;
        }
    }
    if let Some(at) = eval.wait_until.filter(|_| eval.status == "pending") {
        output::print(&format!("is looked at {}\n", output::time_until(at.0.0)))?;
    }
    for (group, metric) in &eval.failed_tg_allocs {
        output::print(&format!(
            "{group}: {} not placed: {}\n",
            metric.coalesced_failures + 1,
            reasons(metric)
        ))?;
    }
    if !eval.blocked_eval.is_empty() {
        output::print(&format!(
            "what is left waits as evaluation {}\n",
            eval.blocked_eval
        ))?;
    }
    let mut table = output::table(&["ALLOC", "NAME", "NODE", "DESIRED", "STATUS"]);
    for alloc in &placed {
        table.add_row([
            output::short_id(&alloc.id).to_owned(),
            output::clean(&alloc.name),
            alloc.node_name.clone(),
            alloc.desired_status.clone(),
            alloc.client_status.clone(),
        ]);
    }
    if !placed.is_empty() {
        output::print_table(&table)?;
    }
    Ok(Exit::Done)
}
