//! Commands and answers in a few words, for the trace.

use muster_control_core::fsm::{Command, Response};
use muster_control_core::state::AllocView;
use muster_domain::alloc::AllocReport;
use muster_domain::id::NodeId;

use crate::limits;

/// A command in a few words.
#[must_use]
#[expect(clippy::too_many_lines, reason = "one arm a command, no more in it")]
pub fn command(command: &Command) -> String {
    match command {
        Command::RegisterNode { spec, .. } => format!("register {}", spec.name),
        Command::SetNodeStatus {
            node_id, status, ..
        } => format!("node {} {}", node(*node_id), status.as_str()),
        Command::SetEligibility {
            node_id,
            eligibility,
            ..
        } => format!("node {} {}", node(*node_id), eligibility.as_str()),
        Command::RegisterJob {
            spec,
            places: Some(places),
            ..
        } => {
            let groups = places.plan.groups.iter();
            let runs = groups.flat_map(|group| &group.placements);
            let nodes: Vec<String> = runs.map(|run| format!("{:?}", run.node)).collect();
            format!("run {} on {}", spec.id, nodes.join(", "))
        }
        Command::RegisterJob {
            spec, places: None, ..
        } => format!("run {} x{}", spec.id, spec.groups[0].count),
        Command::DeregisterJob { key, .. } => format!("stop {key}"),
        Command::EvaluateJob { key, .. } => format!("evaluate {key}"),
        Command::ApplyPlans { plans, evals, .. } => {
            let names: Vec<String> = plans.iter().map(|plan| plan.job.to_string()).collect();
            format!("plans of {} and {} updates", names.join(", "), evals.len())
        }
        Command::UpdateEvals { evals, .. } => format!("{} updates", evals.len()),
        Command::ReportNodes { reports, .. } => {
            let nodes: Vec<String> = reports
                .iter()
                .map(|(node_id, reports)| node_reports(*node_id, reports))
                .collect();
            nodes.join("; ")
        }
        Command::ChangeDeployment { id, change, .. } => {
            format!("deployment {} {change:?}", id.short())
        }
        Command::DrainNode { node_id, drain, .. } => {
            format!("drain {} {}", node(*node_id), drain.is_some())
        }
        Command::CompleteDrain { node_id, .. } => format!("{} is drained", node(*node_id)),
        Command::MigrateAllocs { alloc_ids, .. } => format!("migrate {}", alloc_ids.len()),
        Command::RevertJob { key, version, .. } => format!("revert {key} to {version}"),
        Command::TagJobVersion {
            key, name, given, ..
        } => {
            format!(
                "{key} tag {name} {}",
                if given.is_some() {
                    "given"
                } else {
                    "taken back"
                }
            )
        }
        Command::SetJobStable { key, version, .. } => format!("{key} {version} is stable"),
        Command::ScaleGroup { key, scaling, .. } => format!("scale {key} to {:?}", scaling.count),
        Command::DispatchJob { key, .. } => format!("dispatch {key}"),
        Command::LaunchPeriodic { key, .. } => format!("launch {key}"),
        Command::SetSchedulerConfig { .. } => "settings".to_owned(),
        Command::SetClusterPolicy { .. } => "network policy".to_owned(),
        Command::PurgeJob { key, .. } => format!("purge {key}"),
        Command::AddNodeEventV1 { message, .. } | Command::AddNodeEvent { message, .. } => {
            format!("node event: {message}")
        }
        Command::NoteCollections { collections, .. } => {
            format!("collections on {} nodes", collections.len())
        }
        Command::NoteServerHealth { name, faults, .. } => format!("{name} has faults: {faults:?}"),
        Command::FreshenDomain { domain, .. } => format!("{domain} is fresh"),
        Command::SetOneOffTimes { .. } => "times of tasks".to_owned(),
        Command::DesireOneOffs { tasks, seen, .. } => {
            let each = tasks.iter().map(|(task, place)| {
                let place = place.as_ref().map(|place| place.node);
                format!("{} at {place:?}", task.guid)
            });
            let each: Vec<String> = each.collect();
            format!("desire tasks {} as of {}", each.join(", "), seen.0)
        }
        Command::ChangeOneOffs { changes, .. } => {
            let each = changes.iter();
            let words: Vec<String> = each
                .map(|change| format!("{} {:?}", change.guid, change.step))
                .collect();
            format!("tasks {}", words.join(", "))
        }
        Command::CollectGarbage { rule, after, .. } => {
            format!("collect {rule:?}{}", after.as_ref().map_or("", |_| " on"))
        }
        Command::Keyed {
            once,
            command: inner,
        } => {
            format!("{} as {}", self::command(inner.command()), once.key)
        }
    }
}

fn node_reports(node_id: NodeId, reports: &[AllocReport]) -> String {
    let words: Vec<String> = reports
        .iter()
        .map(|report| {
            let (id, status) = (report.alloc_id.short(), report.client_status.as_str());
            format!("{id} {status}")
        })
        .collect();
    format!("{} reports {}", node(node_id), words.join(", "))
}

/// The simulator's nodes have their names for ids.
fn node(node_id: NodeId) -> String {
    let name = node_id.0.iter().take_while(|byte| **byte != 0);
    name.map(|byte| char::from(*byte)).collect()
}

/// An answer in a few words.
#[must_use]
pub fn response(response: &Response) -> String {
    match response {
        Response::Rejected(rejection) => format!("refused: {rejection}"),
        Response::PlansApplied { outcomes } => {
            let placed: u32 = outcomes.iter().map(|outcome| outcome.placed).sum();
            let dropped: u32 = outcomes.iter().map(|outcome| outcome.dropped).sum();
            format!("{placed} placed, {dropped} refused")
        }
        other => format!("{other:?}"),
    }
}

/// An allocation in a few words.
#[must_use]
pub fn alloc(alloc: AllocView<'_>) -> String {
    let at = alloc.modify_time().since(limits::EPOCH);
    format!(
        "{} [{}] v{} {} {} at {at:?}, {:?} before, {:?} after",
        alloc.id().short(),
        alloc.name_index(),
        alloc.job().version,
        alloc.desired().as_str(),
        alloc.client_status().as_str(),
        alloc.previous().map(|id| id.short()),
        alloc.next().map(|id| id.short()),
    )
}
