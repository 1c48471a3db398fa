//! Commands that change a node: its fingerprint, its status, its eligibility.
//!
//! The agent says what a node *is*; the control plane says what it is *for*. `heartbeat` decides when a
//! node is down; this file records it.

use std::collections::BTreeSet;
use std::sync::Arc;

use muster_domain::alloc::ClientStatus;
use muster_domain::eval::Trigger;
use muster_domain::id::{JobKey, NodeId};
use muster_domain::node::{Eligibility, Node, NodeSpec, NodeStatus};

use super::{Change, Effect, Rejection, Response};
use crate::state::AllocView;

/// Records what an agent found. A node that was down stays so until its heartbeats are back.
pub(super) fn register(change: &mut Change<'_>, spec: NodeSpec) -> Result<Response, Rejection> {
    let faults = spec.faults();
    if !faults.is_empty() {
        return Err(Rejection::InvalidNode(faults));
    }
    let node_id = spec.id;
    let old = change.state.nodes.get(&node_id).map(Arc::clone);
    let node = match &old {
        Some(old) if *old.spec == spec => return Ok(Response::NodeRegistered),
        Some(old) => Node {
            spec: Arc::new(spec),
            modify_index: change.index,
            ..(**old).clone()
        },
        None => Node {
            spec: Arc::new(spec),
            status: NodeStatus::Initializing,
            status_at: change.at,
            eligibility: Eligibility::Eligible,
            drain: None,
            create_index: change.index,
            modify_index: change.index,
        },
    };
    if node.takes_work() {
        change.freed(node_id);
    }
    change.put_node(node);
    Ok(Response::NodeRegistered)
}

/// Records `status`. A node that goes down loses its live allocations, and each job that lost one is
/// evaluated again: once, however many it lost.
pub(super) fn set_status(
    change: &mut Change<'_>,
    node_id: NodeId,
    status: NodeStatus,
) -> Result<Response, Rejection> {
    let Some(old) = change.state.nodes.get(&node_id).map(Arc::clone) else {
        return Err(Rejection::UnknownNode(node_id));
    };
    if old.status == status {
        // A leader that took over in the middle may propose what is already so.
        return Ok(Response::Done);
    }
    change.put_node(Node {
        status,
        status_at: change.at,
        modify_index: change.index,
        ..(*old).clone()
    });
    match status {
        NodeStatus::Ready => {
            change.effect(Effect::NodeReady(node_id));
            change.freed(node_id);
        }
        NodeStatus::Down => {
            change.effect(Effect::NodeGone(node_id));
            lose_allocs(change, node_id);
        }
        NodeStatus::Initializing | NodeStatus::Disconnected => {}
    }
    Ok(Response::Done)
}

/// Marks the node's live allocations lost. They are told to stop as well: an agent that comes back must
/// not go on running what was replaced.
fn lose_allocs(change: &mut Change<'_>, node_id: NodeId) {
    let running: Vec<u64> = change
        .state
        .allocs_on(&node_id)
        .filter(|alloc| !alloc.client_status().is_terminal())
        .map(AllocView::key)
        .collect();
    let mut jobs: BTreeSet<Arc<JobKey>> = BTreeSet::new();
    for key in running {
        if let Some(alloc) = change
            .state
            .allocs
            .at(key)
            .filter(|alloc| !alloc.is_terminal())
        {
            jobs.insert(Arc::clone(alloc.job_key()));
        }
        change.stop(key, "its node is down", Some(ClientStatus::Lost));
    }
    for key in jobs {
        let Some(job) = change.state.jobs.get(&key).map(Arc::clone) else {
            continue;
        };
        let mut eval = change.new_eval(&job, Trigger::NodeUpdate);
        eval.node_id = Some(node_id);
        change.put_eval(eval);
    }
}

/// Records whether the node takes new work.
pub(super) fn set_eligibility(
    change: &mut Change<'_>,
    node_id: NodeId,
    eligibility: Eligibility,
) -> Result<Response, Rejection> {
    let Some(old) = change.state.nodes.get(&node_id).map(Arc::clone) else {
        return Err(Rejection::UnknownNode(node_id));
    };
    if old.eligibility == eligibility {
        return Ok(Response::Done);
    }
    let node = Node {
        eligibility,
        modify_index: change.index,
        ..(*old).clone()
    };
    if node.takes_work() {
        change.freed(node_id);
    }
    change.put_node(node);
    Ok(Response::Done)
}
