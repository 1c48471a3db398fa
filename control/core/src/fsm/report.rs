//! Reports of agents about allocations.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_domain::alloc::{AllocReport, ClientStatus};
use muster_domain::eval::Trigger;
use muster_domain::id::{JobKey, NodeId, Timestamp};
use muster_domain::node::NodeCollected;

use super::change::Change;
use super::deployment;
use super::rejection::{NodeRejection, Rejection};
use super::response::Response;
use crate::scheduler;
use crate::state::{AllocView, State};

/// Records reports of nodes. It skips a report that has no news, or whose allocation is unknown, on another node or
/// ended. So a repeated or late report changes nothing. A job gets one evaluation, however many nodes reported on it.
pub(super) fn apply(change: &mut Change<'_>, reports: Vec<(NodeId, Vec<AllocReport>)>) -> Response {
    let mut requested_evals = RequestedEvals::new();
    let mut health_updates = deployment::HealthUpdates::default();
    let mut unknown = Vec::new();
    for (node_id, reports) in reports {
        if record_all(
            change,
            node_id,
            reports,
            &mut requested_evals,
            &mut health_updates,
        )
        .is_err()
        {
            unknown.push(node_id);
        }
    }
    deployment::apply_health_updates(change, health_updates);
    create_evals(change, requested_evals);
    Response::NodesReported { unknown }
}

/// Notes the results of collections on nodes. That changes nothing; the response lists the unknown nodes.
pub(super) fn note_collections(state: &State, collections: &[(NodeId, NodeCollected)]) -> Response {
    let node_ids = collections.iter().map(|(node_id, _)| *node_id);
    let unknown = node_ids.filter(|node_id| state.nodes().get(node_id).is_none());
    Response::NodesReported {
        unknown: unknown.collect(),
    }
}

/// The evaluations to add, by job, trigger and time, and the first node that caused each.
type RequestedEvals = BTreeMap<(Arc<JobKey>, Trigger, Timestamp), EvalReason>;

/// The reason for an evaluation.
#[derive(Debug)]
struct EvalReason {
    node_id: NodeId,
    /// Allocations that wait for the evaluation, by key.
    waiting: Vec<u64>,
}

impl EvalReason {
    fn of(node_id: NodeId) -> Self {
        Self {
            node_id,
            waiting: Vec::new(),
        }
    }
}

fn record_all(
    change: &mut Change<'_>,
    node_id: NodeId,
    reports: Vec<AllocReport>,
    requested_evals: &mut RequestedEvals,
    health_updates: &mut deployment::HealthUpdates,
) -> Result<(), Rejection> {
    if change.state.nodes.get(&node_id).is_none() {
        return Err(Rejection::Node(NodeRejection::Unknown(node_id)));
    }
    for report in reports {
        let Some(alloc) = change.state.allocs.get(&report.alloc_id) else {
            continue;
        };
        if alloc.node_id() != node_id || !may_follow(alloc, &report) {
            continue;
        }
        if let Some(tasks) = alloc.changed_task_states(&report) {
            let (key, was_live) = (alloc.key(), !alloc.is_terminal());
            let (healthy, was) = (alloc.healthy(), alloc.client_status());
            change.update_from_report(key, &report, tasks);
            if was_live {
                deployment::decide_health_of_ended(change, key);
            }
            if let Some(alloc) = change.state.allocs.at(key) {
                health_updates.record_health(healthy, alloc);
            }
            if was == ClientStatus::Unknown {
                request_reconnect_eval(change, key, requested_evals, node_id);
            }
            if let Some(reason) = ask_for_evaluation(change, key, was_live) {
                let waits = reason.2 > Timestamp(0);
                let reason = requested_evals
                    .entry(reason)
                    .or_insert(EvalReason::of(node_id));
                reason.waiting.extend(waits.then_some(key));
            }
        }
    }
    Ok(())
}

fn create_evals(change: &mut Change<'_>, requested_evals: RequestedEvals) {
    for ((key, trigger, wait_until), reason) in requested_evals {
        let EvalReason { node_id, waiting } = reason;
        let Some(job) = change.state.jobs.get(&key).map(Arc::clone) else {
            continue;
        };
        let mut eval = change.new_eval(&job, trigger);
        eval.node_id = Some(node_id);
        eval.wait_until = wait_until;
        let eval_id = change.put_eval(eval);
        for key in waiting {
            change.update_silently(key, |row| row.set_follow_up(eval_id));
        }
    }
}

/// Returns whether an agent can report this status of an allocation with the status in the state.
fn may_follow(alloc: AllocView<'_>, report: &AllocReport) -> bool {
    let from_agent = match report.client_status {
        // A task that has run is not pending again. A server may have held back a report while the agent sent a newer
        // one to another server. Such a report must not take the newer one back.
        ClientStatus::Pending => alloc.client_status() != ClientStatus::Running,
        ClientStatus::Running | ClientStatus::Complete | ClientStatus::Failed => true,
        ClientStatus::Lost | ClientStatus::Unknown => false,
    };
    from_agent && !alloc.client_status().is_terminal()
}

/// Finds the job to evaluate because the allocation has ended by itself, and the time.
fn ask_for_evaluation(
    change: &Change<'_>,
    key: u64,
    was_live: bool,
) -> Option<(Arc<JobKey>, Trigger, Timestamp)> {
    let alloc = change.state.allocs.at(key)?;
    if !was_live || !alloc.client_status().is_terminal() {
        return None;
    }
    let key = Arc::clone(alloc.job_key());
    if change.state.jobs.get(&key)?.stop {
        return None;
    }
    let at = scheduler::replaced_at(alloc)?;
    Some((key, Trigger::AllocFailure, at))
}

/// Asks for an evaluation of the job of an allocation that was out of reach and is back: it may have a replacement.
fn request_reconnect_eval(
    change: &Change<'_>,
    key: u64,
    requested_evals: &mut RequestedEvals,
    node_id: NodeId,
) {
    if let Some(alloc) = change.state.allocs.at(key) {
        let reason = (
            Arc::clone(alloc.job_key()),
            Trigger::Reconnect,
            Timestamp(0),
        );
        requested_evals
            .entry(reason)
            .or_insert(EvalReason::of(node_id));
    }
}
