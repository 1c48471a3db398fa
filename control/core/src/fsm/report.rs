//! What agents report of allocations.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_domain::alloc::{AllocReport, ClientStatus};
use muster_domain::eval::Trigger;
use muster_domain::id::{JobKey, NodeId, Timestamp};

use super::{Change, Rejection, Response};
use crate::scheduler::reschedule::{self, Due};
use crate::state::AllocView;

/// Records reports. What is unknown, elsewhere, already so or about an allocation that has ended is
/// passed over: a report that is repeated or late changes nothing.
pub(super) fn apply(
    change: &mut Change<'_>,
    node_id: NodeId,
    reports: Vec<AllocReport>,
) -> Result<Response, Rejection> {
    let mut asks = Asks::new();
    record_all(change, node_id, reports, &mut asks)?;
    ask(change, asks);
    Ok(Response::Done)
}

/// The same for many nodes. A job is evaluated once, however many nodes had something of it.
pub(super) fn apply_all(
    change: &mut Change<'_>,
    reports: Vec<(NodeId, Vec<AllocReport>)>,
) -> Response {
    let mut asks = Asks::new();
    let mut unknown = Vec::new();
    for (node_id, reports) in reports {
        if record_all(change, node_id, reports, &mut asks).is_err() {
            unknown.push(node_id);
        }
    }
    ask(change, asks);
    Response::NodesReported { unknown }
}

/// Jobs to look at, why and when, and the first node that was the reason.
type Asks = BTreeMap<(Arc<JobKey>, Trigger, Timestamp), NodeId>;

fn record_all(
    change: &mut Change<'_>,
    node_id: NodeId,
    reports: Vec<AllocReport>,
    asks: &mut Asks,
) -> Result<(), Rejection> {
    if change.state.nodes.get(&node_id).is_none() {
        return Err(Rejection::UnknownNode(node_id));
    }
    for report in reports {
        let Some(alloc) = change.state.allocs.get(&report.alloc_id) else {
            continue;
        };
        if alloc.node_id() != node_id || !may_follow(alloc, &report) {
            continue;
        }
        if let Some(tasks) = alloc.news(&report) {
            let (key, was_live) = (alloc.key(), !alloc.is_terminal());
            change.report(key, &report, tasks);
            if let Some(reason) = ask_for_evaluation(change, key, was_live) {
                asks.entry(reason).or_insert(node_id);
            }
        }
    }
    Ok(())
}

fn ask(change: &mut Change<'_>, asks: Asks) {
    for ((key, trigger, wait_until), node_id) in asks {
        let Some(job) = change.state.jobs.get(&key).map(Arc::clone) else {
            continue;
        };
        let mut eval = change.new_eval(&job, trigger);
        eval.node_id = Some(node_id);
        eval.wait_until = wait_until;
        change.put_eval(eval);
    }
}

/// Whether an agent can say so of an allocation of which the state says what it does.
fn may_follow(alloc: AllocView<'_>, report: &AllocReport) -> bool {
    let from_agent = match report.client_status {
        // What has run is not pending again. A report that a server held back, while the agent told
        // another server more, must not take that back.
        ClientStatus::Pending => alloc.client_status() != ClientStatus::Running,
        ClientStatus::Running | ClientStatus::Complete | ClientStatus::Failed => true,
        ClientStatus::Lost | ClientStatus::Unknown => false,
    };
    from_agent && !alloc.client_status().is_terminal()
}

/// Which job must be looked at because the allocation has ended by itself, and when.
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
    match reschedule::due(alloc) {
        Due::Never => None,
        Due::Now => Some((key, Trigger::AllocStop, Timestamp(0))),
        Due::At(at) => Some((key, Trigger::AllocFailure, at)),
    }
}
