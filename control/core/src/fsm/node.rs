//! Commands that change a node: its fingerprint, its status, its eligibility.
//!
//! The agent reports what the machine is; the control plane decides how it is used. `heartbeat` decides when a node is
//! down; this file records it.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::Arc;

use muster_domain::alloc::ClientStatus;
use muster_domain::eval::Trigger;
use muster_domain::id::{JobKey, NodeId};
use muster_domain::node::{
    Drain, DrainSpec, Eligibility, NODE_EVENT_BYTES_MAX, Node, NodeCollected, NodeEvent, NodeSpec,
    NodeStatus, NodeSubsystem,
};

use serde::{Deserialize, Serialize};

use super::change::Change;
use super::effect::Effect;
use super::rejection::{NodeRejection, Rejection};
use super::report;
use super::response::Response;
use crate::state::AllocView;

/// A change of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeCommand {
    /// An agent reports its machine. A new node begins as `Initializing`.
    Register { spec: Box<NodeSpec> },
    /// The heartbeats of a node began or ended.
    SetStatus {
        node_id: NodeId,
        /// The status that the control plane gives the node.
        status: NodeStatus,
    },
    /// An operator sets whether a node takes new work.
    SetEligibility {
        node_id: NodeId,
        eligibility: Eligibility,
    },
    /// An operator begins to drain a node, or ends the drain.
    Drain {
        node_id: NodeId,
        /// The drain. `None`: the drain ends.
        drain: Option<DrainSpec>,
        /// Only without `drain`: whether the node takes work again.
        mark_eligible: bool,
    },
    /// The drain of a node is complete. The node stays ineligible.
    CompleteDrain { node_id: NodeId },
    /// Agents of one server report their collections of finished allocations: one entry for many nodes. No row keeps
    /// the reports. They are in the log so that every server reports them in its event stream at the same index.
    NoteCollections {
        /// The collections that each node reported.
        collections: Vec<(NodeId, NodeCollected)>,
    },
    /// [`Self::AddEvent`] of version 1, which has no details. It appears only in logs that a server of version 1 wrote.
    AddEventV1 {
        node_id: NodeId,
        /// The part of Muster that it is about.
        subsystem: NodeSubsystem,
        /// A sentence for the operator.
        message: String,
    },
    /// An event of a node that its operator should see.
    AddEvent {
        node_id: NodeId,
        /// The part of Muster that it is about.
        subsystem: NodeSubsystem,
        /// A sentence for the operator.
        message: String,
        details: BTreeMap<String, String>,
    },
}

impl NodeCommand {
    /// The kind of change, as Nomad's event type.
    pub(super) fn cause(&self) -> &'static str {
        match self {
            Self::Register { .. } => "NodeRegistration",
            Self::SetStatus { .. } | Self::AddEventV1 { .. } | Self::AddEvent { .. } => {
                "NodeStreamEvent"
            }
            Self::SetEligibility { .. } | Self::Drain { .. } | Self::CompleteDrain { .. } => {
                "NodeDrain"
            }
            Self::NoteCollections { .. } => "NodeGarbageCollected",
        }
    }

    pub(super) fn version(&self) -> u32 {
        match self {
            Self::AddEvent { .. } => 2,
            Self::Register { .. }
            | Self::SetStatus { .. }
            | Self::SetEligibility { .. }
            | Self::Drain { .. }
            | Self::CompleteDrain { .. }
            | Self::NoteCollections { .. }
            | Self::AddEventV1 { .. } => 1,
        }
    }
}

pub(super) fn apply(change: &mut Change<'_>, command: NodeCommand) -> Result<Response, Rejection> {
    match command {
        NodeCommand::Register { spec } => register(change, *spec),
        NodeCommand::SetStatus { node_id, status } => set_status(change, node_id, status),
        NodeCommand::SetEligibility {
            node_id,
            eligibility,
        } => set_eligibility(change, node_id, eligibility),
        NodeCommand::Drain {
            node_id,
            drain: wanted,
            mark_eligible,
        } => drain(change, node_id, wanted, mark_eligible),
        NodeCommand::CompleteDrain { node_id } => complete_drain(change, node_id),
        NodeCommand::NoteCollections { collections } => {
            Ok(report::note_collections(change.state, &collections))
        }
        NodeCommand::AddEventV1 {
            node_id,
            subsystem,
            message,
        } => add_event(change, node_id, subsystem, message, BTreeMap::new()),
        NodeCommand::AddEvent {
            node_id,
            subsystem,
            message,
            details,
        } => add_event(change, node_id, subsystem, message, details),
    }
}

/// Records the fingerprint that an agent reported. A node that was down stays down until its heartbeats are back.
fn register(change: &mut Change<'_>, spec: NodeSpec) -> Result<Response, Rejection> {
    let faults = spec.faults();
    if !faults.is_empty() {
        return Err(Rejection::Node(NodeRejection::Invalid(faults)));
    }
    let node_id = spec.id;
    let old = change.state.nodes.get(&node_id).map(Arc::clone);
    let node = match &old {
        Some(old) if old.spec.secret_hash != spec.secret_hash => {
            return Err(Rejection::Node(NodeRejection::Secret(node_id)));
        }
        Some(old) if *old.spec == spec => return Ok(Response::NodeRegistered),
        Some(old) => Node {
            events: events(change, old, NodeSubsystem::Cluster, "Node re-registered"),
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
            events: Arc::new(vec![event(
                change,
                NodeSubsystem::Cluster,
                "Node registered",
            )]),
            create_index: change.index,
            modify_index: change.index,
        },
    };
    let takes_work = node.takes_work();
    change.put_node(node);
    if takes_work {
        takes_more_work(change, node_id);
    }
    Ok(Response::NodeRegistered)
}

fn event(change: &Change<'_>, subsystem: NodeSubsystem, message: &str) -> NodeEvent {
    let mut message = message.to_owned();
    message.truncate(message.floor_char_boundary(NODE_EVENT_BYTES_MAX));
    NodeEvent {
        subsystem,
        message,
        details: BTreeMap::new(),
        at: change.at,
        index: change.index,
    }
}

/// Returns the events of `node` and one more.
fn events(
    change: &Change<'_>,
    node: &Node,
    subsystem: NodeSubsystem,
    message: &str,
) -> Arc<Vec<NodeEvent>> {
    node.events_with(event(change, subsystem, message))
}

/// Records an event of a node. An event that repeats the newest event is not recorded again. Details above the bound
/// are left out; the message describes the event without them.
fn add_event(
    change: &mut Change<'_>,
    node_id: NodeId,
    subsystem: NodeSubsystem,
    message: String,
    details: BTreeMap<String, String>,
) -> Result<Response, Rejection> {
    let Some(old) = change.state.nodes.get(&node_id).map(Arc::clone) else {
        return Err(Rejection::Node(NodeRejection::Unknown(node_id)));
    };
    let mut event = event(change, subsystem, &message);
    let bytes = details.iter().map(|(key, value)| key.len() + value.len());
    if bytes.sum::<usize>() <= NODE_EVENT_BYTES_MAX {
        event.details = details;
    }
    let repeats = old.events.last().is_some_and(|last| {
        (last.subsystem, &last.message, &last.details)
            == (event.subsystem, &event.message, &event.details)
    });
    if !repeats {
        change.put_node(Node {
            events: old.events_with(event),
            modify_index: change.index,
            ..(*old).clone()
        });
    }
    Ok(Response::Done)
}

/// Handles that the node takes work again, or other work than before. Waiting evaluations are woken. Jobs that have an
/// instance on every node are evaluated.
fn takes_more_work(change: &mut Change<'_>, node_id: NodeId) {
    change.record_freed_room(node_id);
    let jobs: Vec<_> = change.state.jobs.on_every_node().map(Arc::clone).collect();
    for job in jobs {
        let mut eval = change.new_eval(&job, Trigger::NodeUpdate);
        eval.node_id = Some(node_id);
        change.put_eval(eval);
    }
}

/// Records `status`. If a node goes down, each job with an allocation on it is evaluated: once, however many
/// allocations it lost. If one of the allocations may come back with its node, the node is disconnected, not down.
fn set_status(
    change: &mut Change<'_>,
    node_id: NodeId,
    status: NodeStatus,
) -> Result<Response, Rejection> {
    let Some(old) = change.state.nodes.get(&node_id).map(Arc::clone) else {
        return Err(Rejection::Node(NodeRejection::Unknown(node_id)));
    };
    let status = match status {
        NodeStatus::Down if may_reconnect(change, &node_id) => NodeStatus::Disconnected,
        NodeStatus::Down
        | NodeStatus::Disconnected
        | NodeStatus::Ready
        | NodeStatus::Initializing => status,
    };
    if old.status == status {
        // A leader that took over in the middle may propose the current status again.
        return Ok(Response::Done);
    }
    let message = match (old.status, status) {
        (_, NodeStatus::Down | NodeStatus::Disconnected) => Some("Node heartbeat missed"),
        (NodeStatus::Down | NodeStatus::Disconnected, NodeStatus::Ready) => {
            Some("Node reregistered by heartbeat")
        }
        (_, NodeStatus::Ready | NodeStatus::Initializing) => None,
    };
    let node = Node {
        events: match message {
            Some(message) => events(change, &old, NodeSubsystem::Cluster, message),
            None => Arc::clone(&old.events),
        },
        status,
        status_at: change.at,
        modify_index: change.index,
        ..(*old).clone()
    };
    let takes_work = node.takes_work();
    change.put_node(node);
    match status {
        NodeStatus::Ready => {
            change.effect(Effect::NodeReady(node_id));
            if takes_work {
                takes_more_work(change, node_id);
            }
            if old.status == NodeStatus::Disconnected || old.status == NodeStatus::Down {
                add_job_evals(change, node_id, Trigger::Reconnect);
            }
        }
        NodeStatus::Down | NodeStatus::Disconnected => {
            change.effect(Effect::NodeGone(node_id));
            give_up_stopping(change, node_id);
            add_job_evals(change, node_id, Trigger::NodeUpdate);
        }
        NodeStatus::Initializing => {}
    }
    Ok(Response::Done)
}

/// Returns whether an allocation on the node may be out of reach for a time without being lost.
fn may_reconnect(change: &Change<'_>, node_id: &NodeId) -> bool {
    change.state.allocs_on(node_id).any(|alloc| {
        let is_over = if alloc.job_key().is_one_off() {
            alloc.client_status().is_terminal()
        } else {
            alloc.is_terminal()
        };
        !is_over && alloc.group().disconnect.keeps_unreachable()
    })
}

/// Marks as lost the allocations on a gone node that were asked to stop, because no agent will report them. The
/// allocation of a one-off task is out of reach until its agent must have ended it. Only then does the client that
/// cancelled the task receive that no process of it runs.
fn give_up_stopping(change: &mut Change<'_>, node_id: NodeId) {
    let stopping: Vec<u64> = change
        .state
        .allocs_on(&node_id)
        .filter(|alloc| alloc.server_terminal() && !alloc.client_status().is_terminal())
        .map(AllocView::key)
        .collect();
    for key in stopping {
        let is_one_off = |alloc: AllocView<'_>| alloc.job_key().is_one_off();
        let at = change.at;
        if change.state.allocs.at(key).is_some_and(is_one_off) {
            change.update_for_agent(key, |row| {
                row.set_client(ClientStatus::Unknown, "its node is out of reach");
                row.set_unreachable(Some(at));
            });
        } else {
            change.update_for_agent(key, |row| {
                row.set_client(ClientStatus::Lost, "its node is down");
            });
        }
    }
}

/// Adds an evaluation of each job that has a live allocation on the node.
fn add_job_evals(change: &mut Change<'_>, node_id: NodeId, trigger: Trigger) {
    let jobs: BTreeSet<Arc<JobKey>> = change
        .state
        .allocs_on(&node_id)
        .filter(|alloc| !alloc.is_terminal())
        .map(|alloc| Arc::clone(alloc.job_key()))
        .collect();
    for key in jobs {
        let Some(job) = change.state.jobs.get(&key).map(Arc::clone) else {
            mark_orphans_lost(change, node_id, &key);
            continue;
        };
        let mut eval = change.new_eval(&job, trigger);
        eval.node_id = Some(node_id);
        change.put_eval(eval);
    }
}

/// Marks as lost the allocations that a removed job has on a gone node. Such a job is evaluated no more.
fn mark_orphans_lost(change: &mut Change<'_>, node_id: NodeId, job: &JobKey) {
    let orphans: Vec<u64> = change
        .state
        .allocs_on(&node_id)
        .filter(|alloc| !alloc.is_terminal() && **alloc.job_key() == *job)
        .map(AllocView::key)
        .collect();
    for key in orphans {
        change.stop(key, "its node is down", Some(ClientStatus::Lost));
    }
}

/// Records whether the node takes new work.
fn set_eligibility(
    change: &mut Change<'_>,
    node_id: NodeId,
    eligibility: Eligibility,
) -> Result<Response, Rejection> {
    let Some(old) = change.state.nodes.get(&node_id).map(Arc::clone) else {
        return Err(Rejection::Node(NodeRejection::Unknown(node_id)));
    };
    if old.eligibility == eligibility {
        return Ok(Response::Done);
    }
    if old.drain.is_some() && eligibility == Eligibility::Eligible {
        return Err(Rejection::Node(NodeRejection::Draining(node_id)));
    }
    let message = match eligibility {
        Eligibility::Eligible => "Node marked as eligible for scheduling",
        Eligibility::Ineligible => "Node marked as ineligible for scheduling",
    };
    let node = Node {
        events: events(change, &old, NodeSubsystem::Cluster, message),
        eligibility,
        modify_index: change.index,
        ..(*old).clone()
    };
    let takes_work = node.takes_work();
    change.put_node(node);
    if takes_work {
        takes_more_work(change, node_id);
    }
    Ok(Response::Done)
}

/// Begins to drain the node, or ends the drain. The drain duty decides when each allocation leaves.
fn drain(
    change: &mut Change<'_>,
    node_id: NodeId,
    spec: Option<DrainSpec>,
    mark_eligible: bool,
) -> Result<Response, Rejection> {
    let Some(old) = change.state.nodes.get(&node_id).map(Arc::clone) else {
        return Err(Rejection::Node(NodeRejection::Unknown(node_id)));
    };
    let eligibility = match spec {
        Some(_) => Eligibility::Ineligible,
        None if mark_eligible => Eligibility::Eligible,
        None => old.eligibility,
    };
    let message = match (&spec, &old.drain) {
        (Some(_), None) => "Node drain strategy set",
        (Some(_), Some(_)) => "Node drain strategy updated",
        (None, _) => "Node drain strategy unset",
    };
    let node = Node {
        events: events(change, &old, NodeSubsystem::Drain, message),
        drain: spec.map(|spec| Drain {
            spec,
            started_at: change.at,
        }),
        eligibility,
        modify_index: change.index,
        ..(*old).clone()
    };
    let takes_work = node.takes_work();
    change.put_node(node);
    change.effect(Effect::DutiesDue);
    if takes_work {
        takes_more_work(change, node_id);
    }
    Ok(Response::Done)
}

/// Records that the drain of the node is complete.
fn complete_drain(change: &mut Change<'_>, node_id: NodeId) -> Result<Response, Rejection> {
    let Some(old) = change.state.nodes.get(&node_id).map(Arc::clone) else {
        return Err(Rejection::Node(NodeRejection::Unknown(node_id)));
    };
    if old.drain.is_some() {
        change.put_node(Node {
            events: events(change, &old, NodeSubsystem::Drain, "Node drain complete"),
            drain: None,
            modify_index: change.index,
            ..(*old).clone()
        });
    }
    Ok(Response::Done)
}
