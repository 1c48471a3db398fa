//! Waits after a change of a job until the scheduler has processed it, and shows the result.

use std::time::{Duration, Instant};

use clap::Args;
use muster_wire::api::alloc::AllocListStub;
use muster_wire::api::job::RegisterResponse;
use serde_json::json;

use super::run;
use crate::client::Client;
use crate::exit::{CliResult, Exit};
use crate::output;

/// How a command that changes a job waits.
#[derive(Debug, Args)]
pub struct FollowArgs {
    /// Return when the change is made.
    #[arg(long)]
    pub detach: bool,
    /// How long to wait for the scheduler, in seconds.
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    pub timeout: u64,
}

pub(super) fn follow_to_end(
    client: &Client,
    json: bool,
    args: &FollowArgs,
    id: &str,
    answer: &RegisterResponse,
) -> CliResult {
    output::warn(&answer.warnings);
    if args.detach || answer.eval_id.is_empty() {
        if json {
            output::print_json(answer)?;
        } else if answer.eval_id.is_empty() {
            output::print(&format!("{id}: done, there is nothing to place.\n"))?;
        } else {
            output::print(&format!("{id}: done (evaluation {}).\n", answer.eval_id))?;
        }
        return Ok(Exit::Done);
    }
    let started = Instant::now();
    let deadline = started + Duration::from_secs(args.timeout);
    let eval = run::wait_evaluated(client, &answer.eval_id, deadline)?;
    let placed: Vec<AllocListStub> =
        client.get(&format!("/v1/evaluation/{}/allocations", eval.id))?;
    let short: u32 = eval.queued_allocations.values().sum();
    if json {
        output::print_json(&json!({
            "JobID": id, "EvalID": eval.id, "Placed": placed.len(), "Queued": short,
        }))?;
    } else {
        run::show_placement(client, id, &eval, &placed, started.elapsed())?;
    }
    Ok(if short > 0 { Exit::Partial } else { Exit::Done })
}
