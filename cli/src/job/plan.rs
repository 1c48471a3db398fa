//! `muster job plan`: the effects of running a job file.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use muster_wire::api::diff::DiffType;
use muster_wire::api::job::{DesiredUpdates, PlanResponse};
use muster_wire::api::time;
use serde_json::{Value, json};

use super::diff;
use super::file::{self, ValueArgs};
use crate::client::{Client, escape};
use crate::exit::{CliError, CliResult, Exit};
use crate::output;
use crate::reason::reasons;

/// Evicted allocations that are listed.
const PREEMPTED_SHOWN_MAX: usize = 10;

/// Arguments of `muster job plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// The job file: HCL or JSON; `-` is standard input.
    pub file: PathBuf,
    /// Values of its variables.
    #[command(flatten)]
    pub values: ValueArgs,
    /// Do not show the differences from the registered job.
    #[arg(long)]
    pub no_diff: bool,
    /// Show every added and removed line.
    #[arg(long)]
    pub verbose: bool,
}

pub(super) fn run(client: &Client, json: bool, args: &PlanArgs) -> CliResult {
    // Exit code 1 means that there are changes.
    plan(client, json, args).map_err(|error| CliError {
        exit: Exit::Undetermined,
        ..error
    })
}

fn plan(client: &Client, json: bool, args: &PlanArgs) -> CliResult {
    let job = file::read(&args.file, &args.values)?;
    let id = job.get("ID").and_then(Value::as_str).unwrap_or_default();
    let path = format!("/v1/job/{}/plan", escape(id));
    let answer: PlanResponse = client.put(&path, &json!({ "Job": job, "Diff": true }))?;
    let changes = changes(&answer);
    if json {
        output::print_json(&answer)?;
        output::warn(&answer.warnings);
        return Ok(changes);
    }
    if let Some(diff) = answer.diff.as_ref().filter(|_| !args.no_diff) {
        output::print(&format!("{}\n", diff::text(diff, args.verbose)))?;
    }
    let is_system = matches!(job["Type"].as_str(), Some("system" | "sysbatch"));
    output::print(&dry_run(&answer, is_system))?;
    output::print(&preemptions(&answer))?;
    output::warn(&answer.warnings);
    output::print(&hint(&answer, &args.file.display().to_string()))?;
    Ok(changes)
}

/// Whether running the job would change anything.
fn changes(answer: &PlanResponse) -> Exit {
    let mut groups = answer.annotations.desired_tg_updates.values();
    let is_changed = answer
        .diff
        .as_ref()
        .is_some_and(|diff| diff.diff_type != DiffType::None);
    if is_changed || groups.any(DesiredUpdates::creates_or_destroys) {
        Exit::Changes
    } else {
        Exit::Done
    }
}

fn dry_run(answer: &PlanResponse, is_system: bool) -> String {
    let mut lines = vec!["Scheduler dry-run:".to_owned()];
    lines.push(match (answer.failed_tg_allocs.is_empty(), is_system) {
        (true, _) => "- All tasks successfully allocated.".to_owned(),
        (false, true) => "- WARNING: Failed to place allocations on all nodes.".to_owned(),
        (false, false) => "- WARNING: Failed to place all allocations.".to_owned(),
    });
    for (group, metric) in &answer.failed_tg_allocs {
        let count = metric.coalesced_failures + 1;
        let noun = if count == 1 {
            "allocation"
        } else {
            "allocations"
        };
        lines.push(format!(
            "  Task Group {group:?} (failed to place {count} {noun}):"
        ));
        lines.push(format!("    * {}", reasons(metric)));
    }
    if let Some(next) = answer.next_periodic_launch {
        lines.push(format!(
            "- If submitted now, next periodic launch would be at {} ({} from now).",
            time::text(next.0),
            output::span(from_now(next.0.0))
        ));
    }
    lines.join("\n") + "\n"
}

/// The time from now until `at`, in nanoseconds since the epoch.
pub(super) fn from_now(at: u64) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let left = Duration::from_nanos(at).saturating_sub(now.unwrap_or_default());
    Duration::from_secs(left.as_secs())
}

fn preemptions(answer: &PlanResponse) -> String {
    let preempted = &answer.annotations.preempted_allocs;
    if preempted.is_empty() {
        return String::new();
    }
    let mut lines = vec![
        String::new(),
        format!("Preemptions: {} would be evicted", preempted.len()),
    ];
    for alloc in preempted.iter().take(PREEMPTED_SHOWN_MAX) {
        lines.push(format!(
            "  {}  {}  on {}",
            output::short_id(&alloc.id),
            output::clean(&alloc.name),
            output::clean(&alloc.node_name)
        ));
    }
    let more = preempted.len().saturating_sub(PREEMPTED_SHOWN_MAX);
    if more > 0 {
        lines.push(format!("  and {more} more"));
    }
    lines.join("\n") + "\n"
}

fn hint(answer: &PlanResponse, file: &str) -> String {
    let index = answer.job_modify_index;
    format!(
        "\nJob Modify Index: {index}\n\
         To submit the job with version verification run:\n\n\
         muster job run --check-index {index} {file}\n\n\
         It is then refused if somebody changed the job meanwhile, as the plan may no longer hold.\n"
    )
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use muster_wire::api::diff::JobDiff;

    use super::*;

    fn answer(body: Value) -> PlanResponse {
        serde_json::from_value(body).unwrap()
    }

    #[test]
    fn a_change_has_its_own_exit_code() {
        let mut plan = PlanResponse {
            diff: Some(JobDiff::default()),
            ..PlanResponse::default()
        };
        assert_eq!(changes(&plan), Exit::Done);

        let place = DesiredUpdates {
            place: 1,
            ..DesiredUpdates::default()
        };
        let updates = &mut plan.annotations.desired_tg_updates;
        updates.insert("api".to_owned(), place);
        assert_eq!(changes(&plan), Exit::Changes);

        let edited = JobDiff {
            diff_type: DiffType::Edited,
            ..JobDiff::default()
        };
        let in_place = PlanResponse {
            diff: Some(edited),
            ..PlanResponse::default()
        };
        assert_eq!(changes(&in_place), Exit::Changes);
        assert_eq!(Exit::Changes.code(), 1);
        assert_eq!(Exit::Undetermined.code(), 255);
    }

    #[test]
    fn groups_without_room_are_listed() {
        let plan = answer(json!({"FailedTGAllocs": {"api": {
            "NodesEvaluated": 2, "NodesExhausted": 2, "CoalescedFailures": 1,
            "DimensionExhausted": {"memory": 2},
        }}}));

        expect![[r#"
            Scheduler dry-run:
            - WARNING: Failed to place all allocations.
              Task Group "api" (failed to place 2 allocations):
                * 2 nodes lack memory
        "#]]
        .assert_eq(&dry_run(&plan, false));
    }

    #[test]
    fn preempted_allocs_are_listed() {
        let plan = answer(json!({"Annotations": {"PreemptedAllocs": [
            {"ID": "01234567-89ab", "Name": "low.main[0]", "NodeName": "n1"},
        ]}}));

        expect![[r"

            Preemptions: 1 would be evicted
              01234567  low.main[0]  on n1
        "]]
        .assert_eq(&preemptions(&plan));
    }
}
