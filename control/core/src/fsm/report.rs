//! What agents report of allocations.

use std::collections::BTreeSet;
use std::sync::Arc;

use muster_domain::alloc::{AllocReport, Allocation, ClientStatus};
use muster_domain::eval::Trigger;
use muster_domain::id::{JobKey, NodeId, Timestamp};

use super::{Change, Rejection, Response};
use crate::scheduler::reschedule::{self, Due};

/// Records reports. What is unknown, elsewhere, already so or about an allocation that has ended is
/// passed over: a report that is repeated or late changes nothing.
pub(super) fn apply(
    change: &mut Change<'_>,
    node_id: NodeId,
    reports: Vec<AllocReport>,
) -> Result<Response, Rejection> {
    if change.state.nodes.get(&node_id).is_none() {
        return Err(Rejection::UnknownNode(node_id));
    }
    let mut asks: BTreeSet<(JobKey, Trigger, Timestamp)> = BTreeSet::new();
    for report in reports {
        let Some(alloc) = change.state.allocs.get(&report.alloc_id).map(Arc::clone) else {
            continue;
        };
        if alloc.node_id == node_id && is_news(&alloc, &report) {
            record(change, &alloc, report);
            asks.extend(ask_for_evaluation(change, &alloc));
        }
    }
    for (key, trigger, wait_until) in asks {
        let Some(job) = change.state.jobs.get(&key).map(Arc::clone) else {
            continue;
        };
        let mut eval = change.new_eval(&job, trigger);
        eval.node_id = Some(node_id);
        eval.wait_until = wait_until;
        change.put_eval(eval);
    }
    Ok(Response::Done)
}

fn is_news(alloc: &Allocation, report: &AllocReport) -> bool {
    let from_agent = match report.client_status {
        ClientStatus::Pending
        | ClientStatus::Running
        | ClientStatus::Complete
        | ClientStatus::Failed => true,
        ClientStatus::Lost | ClientStatus::Unknown => false,
    };
    from_agent
        && !alloc.client_status.is_terminal()
        && (alloc.client_status != report.client_status
            || alloc.client_description != report.client_description
            || alloc.task_states != report.task_states)
}

fn record(change: &mut Change<'_>, alloc: &Allocation, report: AllocReport) {
    let mut alloc = alloc.clone();
    alloc.client_status = report.client_status;
    alloc.client_description = report.client_description;
    alloc.task_states = report.task_states;
    change.put_reported(alloc);
}

/// Which job must be looked at because `old` has ended by itself, and when.
fn ask_for_evaluation(
    change: &Change<'_>,
    old: &Allocation,
) -> Option<(JobKey, Trigger, Timestamp)> {
    let alloc = change.state.allocs.get(&old.id)?;
    let key = alloc.job_key();
    let job = change.state.jobs.get(&key)?;
    if old.is_terminal() || !alloc.client_status.is_terminal() || job.stop {
        return None;
    }
    match reschedule::due(change.state, alloc) {
        Due::Never => None,
        Due::Now => Some((key, Trigger::AllocStop, Timestamp(0))),
        Due::At(at) => Some((key, Trigger::AllocFailure, at)),
    }
}
