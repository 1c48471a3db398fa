//! Stopping an allocation and waiting until it has ended.

use std::time::{Duration, Instant};

use muster_wire::api::alloc::{AllocStopResponse, Allocation};
use serde_json::json;

use super::StopArgs;
use crate::client::Client;
use crate::exit::{CliError, CliResult, Exit};
use crate::{names, output};

/// The wait of one blocking query before it is repeated.
const POLL: Duration = Duration::from_secs(2);

/// Stops the allocation that `args` name.
///
/// # Errors
///
/// [`CliError`].
pub(super) fn run(client: &Client, json: bool, args: &StopArgs) -> CliResult {
    let found = names::alloc(client, &args.alloc, names::Access::Change)?;
    let path = format!("/v1/allocation/{}", found.id);
    let answer: AllocStopResponse = client.put(&format!("{path}/stop"), &json!({}))?;
    let name = output::clean(&found.name);
    if args.detach {
        if json {
            output::print_json(&answer)?;
        } else {
            output::print(&format!(
                "{name} is being stopped (evaluation {}).\n",
                answer.eval_id
            ))?;
        }
        return Ok(Exit::Done);
    }
    let ended = wait_ended(client, &path, Duration::from_secs(args.timeout))?;
    if json {
        output::print_json(&json!({ "EvalID": answer.eval_id, "Allocation": ended }))?;
        return Ok(Exit::Done);
    }
    let next = if ended.next_allocation.is_empty() {
        "nothing takes its place yet".to_owned()
    } else {
        let next: Allocation = client.get(&format!("/v1/allocation/{}", ended.next_allocation))?;
        format!(
            "{} on {} takes its place and is {}",
            output::short_id(&next.id),
            output::clean(&next.node_name),
            next.client_status
        )
    };
    output::print(&format!(
        "{name} ({}) is stopped; {next}.\n",
        output::short_id(&found.id)
    ))?;
    Ok(Exit::Done)
}

fn wait_ended(client: &Client, path: &str, patience: Duration) -> Result<Allocation, CliError> {
    let deadline = Instant::now() + patience;
    let mut index = 0;
    loop {
        let answer = client.get_after::<Allocation>(path, index, POLL)?;
        let alloc = answer.value;
        let is_live = matches!(
            alloc.client_status.as_str(),
            "pending" | "running" | "unknown"
        );
        if !is_live && alloc.desired_status != "run" {
            return Ok(alloc);
        }
        if Instant::now() >= deadline {
            return Err(CliError::new(
                Exit::TimedOut,
                format!(
                    "{} is wanted to {} and still {} after {}",
                    output::clean(&alloc.name),
                    alloc.desired_status,
                    alloc.client_status,
                    output::span(patience)
                ),
            )
            .help(format!(
                "look again with `muster alloc status {}`",
                output::short_id(&alloc.id)
            )));
        }
        index = answer.index;
    }
}
