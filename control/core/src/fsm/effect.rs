//! Results of applied commands: effects, and the rows that changed.

use std::sync::Arc;

use muster_domain::id::{AllocId, EvalId, NodeId};
use muster_domain::one_off::OneOff;

use super::response::Response;
use crate::state::ChangedRow;

/// Something the leader's shell must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Give this evaluation to the broker.
    EnqueueEval(EvalId),
    /// Let this evaluation wait for room.
    BlockEval(EvalId),
    /// Drop this evaluation: it has ended.
    ForgetEval(EvalId),
    /// Wake blocked evaluations that this node could help.
    CapacityFreed { node_id: NodeId },
    /// Wake every blocked evaluation: more is allowed than before.
    RulesEased,
    /// Push desired allocations to this node's agent. For every server, not only the leader.
    NodeChanged(NodeId),
    /// Notify this node's agent within some time that allocations of the node were removed; no process waits for it.
    /// For every server, not only the leader.
    NodeForgot(NodeId),
    /// Send the cluster's network policy to every node's agent. For every server, not only the leader.
    ClusterPolicyChanged,
    /// Expect heartbeats from this node.
    NodeReady(NodeId),
    /// Expect no heartbeats from this node.
    NodeGone(NodeId),
    /// Deployments, drains, periodic jobs or one-off tasks changed: their duties look again.
    DutiesDue,
    /// The one-off task of this allocation has ended, and the leader of the entry's term holds the claim on its
    /// callback. Make the callback. If the leader does not make it, the claim ends by time.
    CallbackClaimed(AllocId),
}

/// The result of applying a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApplyResult {
    /// For the proposer of the command.
    pub response: Response,
    /// For the leader's shell.
    pub effects: Vec<Effect>,
    /// Rows written or removed, each once: nodes, jobs, evaluations, allocations.
    pub changed: Vec<ChangedRow>,
    /// One-off tasks in the states in between, if the command moved a task by two states. Followers of tasks see each
    /// state.
    pub passed: Vec<Arc<OneOff>>,
    /// Removed one-off tasks in their last state.
    pub removed: Vec<Arc<OneOff>>,
}

impl ApplyResult {
    pub(super) fn without_change(response: Response) -> Self {
        Self {
            response,
            effects: Vec::new(),
            changed: Vec::new(),
            passed: Vec::new(),
            removed: Vec::new(),
        }
    }
}
