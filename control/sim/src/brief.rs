//! Short descriptions of commands and answers, for the trace.

use muster_control_core::fsm::{
    AllocCommand, ApplyResult, ChangedRow, Command, DeploymentCommand, EvalCommand, GcCommand,
    JobCommand, NodeCommand, OneOffCommand, Response, ServerCommand,
};
use muster_control_core::state::{AllocView, State};
use muster_domain::alloc::AllocReport;
use muster_domain::deployment::Deployment;
use muster_domain::eval::Evaluation;
use muster_domain::id::NodeId;

use crate::limits;

/// Describes a command in a few words.
#[must_use]
#[expect(clippy::too_many_lines, reason = "one arm a command, no more in it")]
pub fn command(command: &Command) -> String {
    match command {
        Command::Node(NodeCommand::Register { spec, .. }) => format!("register {}", spec.name),
        Command::Node(NodeCommand::SetStatus {
            node_id, status, ..
        }) => format!("node {} {}", node(*node_id), status.as_str()),
        Command::Node(NodeCommand::SetEligibility {
            node_id,
            eligibility,
            ..
        }) => format!("node {} {}", node(*node_id), eligibility.as_str()),
        Command::Job(JobCommand::Register {
            spec,
            places: Some(places),
            ..
        }) => {
            let groups = places.plan.groups.iter();
            let runs = groups.flat_map(|group| &group.placements);
            let nodes: Vec<String> = runs.map(|run| format!("{:?}", run.node)).collect();
            format!("run {} on {}", spec.id, nodes.join(", "))
        }
        Command::Job(JobCommand::Register {
            spec, places: None, ..
        }) => format!("run {} x{}", spec.id, spec.groups[0].count),
        Command::Job(JobCommand::Deregister { key, .. }) => format!("stop {key}"),
        Command::Job(JobCommand::Evaluate { key, .. }) => format!("evaluate {key}"),
        Command::Eval(EvalCommand::ApplyPlans { plans, evals, .. }) => {
            let names: Vec<String> = plans.iter().map(|plan| plan.job.to_string()).collect();
            format!("plans of {} and {} updates", names.join(", "), evals.len())
        }
        Command::Eval(EvalCommand::Update { evals, .. }) => format!("{} updates", evals.len()),
        Command::Alloc(AllocCommand::Report { reports, .. }) => {
            let nodes: Vec<String> = reports
                .iter()
                .map(|(node_id, reports)| node_reports(*node_id, reports))
                .collect();
            nodes.join("; ")
        }
        Command::Deployment(DeploymentCommand::Change { id, change, .. }) => {
            format!("deployment {} {change:?}", id.short())
        }
        Command::Node(NodeCommand::Drain { node_id, drain, .. }) => {
            format!("drain {} {}", node(*node_id), drain.is_some())
        }
        Command::Node(NodeCommand::CompleteDrain { node_id, .. }) => {
            format!("{} is drained", node(*node_id))
        }
        Command::Alloc(AllocCommand::Migrate { alloc_ids, .. }) => {
            format!("migrate {}", alloc_ids.len())
        }
        Command::Job(JobCommand::Revert { key, version, .. }) => {
            format!("revert {key} to {version}")
        }
        Command::Job(JobCommand::TagVersion {
            key, name, given, ..
        }) => {
            format!(
                "{key} tag {name} {}",
                if given.is_some() {
                    "given"
                } else {
                    "taken back"
                }
            )
        }
        Command::Job(JobCommand::SetStable { key, version, .. }) => {
            format!("{key} {version} is stable")
        }
        Command::Job(JobCommand::ScaleGroup { key, scaling, .. }) => {
            format!("scale {key} to {:?}", scaling.count)
        }
        Command::Job(JobCommand::Dispatch { key, .. }) => format!("dispatch {key}"),
        Command::Job(JobCommand::LaunchPeriodic { key, .. }) => format!("launch {key}"),
        Command::Job(JobCommand::Purge { key, .. }) => format!("purge {key}"),
        Command::Node(
            NodeCommand::AddEventV1 { message, .. } | NodeCommand::AddEvent { message, .. },
        ) => {
            format!("node event: {message}")
        }
        Command::Node(NodeCommand::NoteCollections { collections, .. }) => {
            format!("collections on {} nodes", collections.len())
        }
        Command::Server(ServerCommand::NoteHealth { name, faults, .. }) => {
            format!("{name} has faults: {faults:?}")
        }
        Command::OneOff(OneOffCommand::FreshenDomain { domain, .. }) => {
            format!("{domain} is fresh")
        }
        Command::OneOff(OneOffCommand::Desire { tasks, seen, .. }) => {
            let each = tasks.iter().map(|(task, place)| {
                let place = place.as_ref().map(|place| place.node);
                format!("{} at {place:?}", task.guid)
            });
            let each: Vec<String> = each.collect();
            format!("desire tasks {} as of {}", each.join(", "), seen.0)
        }
        Command::OneOff(OneOffCommand::Change { changes, .. }) => {
            let each = changes.iter();
            let words: Vec<String> = each
                .map(|change| format!("{} {:?}", change.guid, change.step))
                .collect();
            format!("tasks {}", words.join(", "))
        }
        Command::Gc(GcCommand::Collect { rule, after, .. }) => {
            format!("collect {rule:?}{}", after.as_ref().map_or("", |_| " on"))
        }
        Command::Keyed {
            once,
            command: inner,
        } => {
            format!("{} as {}", self::command(inner.command()), once.key)
        }
        other => other.cause().to_owned(),
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

/// Returns the name of a node. The simulator uses node names as node ids.
fn node(node_id: NodeId) -> String {
    let name = node_id.0.iter().take_while(|byte| **byte != 0);
    name.map(|byte| char::from(*byte)).collect()
}

/// Describes an answer in a few words.
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

/// Describes the jobs, evaluations, deployments and allocations that an entry changed, in a few words each.
pub fn changed(applied: &ApplyResult, state: &State) -> impl Iterator<Item = String> {
    applied.changed.iter().filter_map(|changed| match changed {
        ChangedRow::Job(key) => {
            let job = state.jobs().get(key)?;
            let (version, status) = (job.current.version, job.status);
            Some(format!("job {key} v{version} {status:?} stop {}", job.stop))
        }
        ChangedRow::Eval(id) => state.evals().get(id).map(|row| eval(row)),
        ChangedRow::Deployment(id) => state.deployments().get(id).map(|row| deployment(row)),
        ChangedRow::Alloc(id) => {
            let row = state.allocs().get(id)?;
            Some(format!("{} of {}", alloc(row), row.job_key()))
        }
        _ => None,
    })
}

fn eval(eval: &Evaluation) -> String {
    let (id, job, status) = (eval.id.short(), &eval.job, eval.status.as_str());
    let (trigger, queued) = (eval.trigger, &eval.queued);
    let at = eval.wait_until.since(limits::EPOCH);
    format!("evaluation {id} of {job} {status} {trigger:?} not before {at:?} queued {queued:?}")
}

fn deployment(row: &Deployment) -> String {
    let (id, job, version) = (row.id.short(), &row.job, row.job_version);
    let (status, groups) = (row.status.as_str(), &row.groups);
    format!("deployment {id} of {job} v{version} {status} {groups:?}")
}

/// Describes an allocation in a few words.
#[must_use]
pub fn alloc(alloc: AllocView<'_>) -> String {
    let at = alloc.modify_time().since(limits::EPOCH);
    format!(
        "{} [{}] v{} {} {} healthy {:?} at {at:?}, {:?} before, {:?} after",
        alloc.id().short(),
        alloc.name_index(),
        alloc.job().version,
        alloc.desired().as_str(),
        alloc.client_status().as_str(),
        alloc.healthy(),
        alloc.previous().map(|id| id.short()),
        alloc.next().map(|id| id.short()),
    )
}
