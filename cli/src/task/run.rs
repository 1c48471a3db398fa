//! Creates a task and waits for its result. Each wait states its reason.

use std::time::{Duration, Instant};

use muster_wire::api::task::{Task, TaskResponse};

use super::{RESOLVE, RunArgs, desired, path, show};
use crate::client::Client;
use crate::exit::{CliError, CliResult, Exit};
use crate::output;

/// The wait of one blocking query before it is repeated.
const POLL: Duration = Duration::from_secs(2);
/// The interval of reminders while nothing changes.
const REMIND: Duration = Duration::from_secs(10);

pub(super) fn run(client: &Client, json: bool, args: &RunArgs) -> CliResult {
    let answer = desired(client, &args.desire)?;
    let guid = answer.task_guid;
    if !answer.created {
        output::eprint(&format!(
            "{guid} was desired before: this is what becomes of that; choose another guid to have it done again"
        ));
    }
    let deadline = Instant::now() + Duration::from_secs(args.timeout);
    let task = wait_for_end(client, &guid, deadline)?;
    if json {
        output::print_json(&task)?;
    } else {
        show::result(&task)?;
    }
    // The callback's endpoint resolves a task with a callback.
    if !args.keep && task.definition.completion_callback_url.is_empty() {
        delete_finished_task(client, &guid);
    }
    Ok(if task.status.failed {
        Exit::Failed
    } else {
        Exit::Done
    })
}

fn wait_for_end(client: &Client, guid: &str, deadline: Instant) -> Result<Task, CliError> {
    let mut index = 0;
    let mut printed = String::new();
    let mut printed_at = Instant::now();
    loop {
        let answer = client.get_after::<Task>(&path(guid, ""), index, POLL)?;
        let task = answer.value;
        let status = &task.status;
        if matches!(status.state.as_str(), "Completed" | "Resolving") {
            return Ok(task);
        }
        let now = match status.waits_for() {
            "" => status.phase.clone(),
            reason => format!("{} ({reason})", status.phase),
        };
        if now != printed || printed_at.elapsed() >= REMIND {
            output::eprint(&format!("{guid}: {}", output::clean(&now)));
            printed = now;
            printed_at = Instant::now();
        }
        if Instant::now() >= deadline {
            let waited = format!("{guid} is still {}", status.phase);
            return Err(CliError::new(Exit::TimedOut, waited).help(format!(
                "it goes on; look again with `muster task get {guid}`, end it with `muster task cancel {guid}`"
            )));
        }
        index = answer.index;
    }
}

/// Deletes a task whose result was printed. A task that another client has claimed is left to that client.
fn delete_finished_task(client: &Client, guid: &str) {
    let forgotten = client.delete::<TaskResponse>(&path(guid, RESOLVE));
    if let Err(error) = forgotten {
        output::eprint(&format!("{guid} is kept: {error}"));
    }
}
