//! Positions at which slices of a collection end.

use muster_domain::id::{DeploymentId, EvalId, JobKey, LogIndex, NodeId, Timestamp};
use serde::{Deserialize, Serialize};

/// Where a slice ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GcCursor {
    /// After this deployment, in the order of their end.
    Deployment { at: Timestamp, id: DeploymentId },
    /// At an evaluation of no batch job, in the order of their end.
    Eval {
        at: Timestamp,
        eval_id: EvalId,
        /// Before its allocation of this key.
        alloc: u64,
    },
    /// At a job, in the order of submission.
    Job {
        /// When it was submitted.
        at: Timestamp,
        key: JobKey,
        /// How far it is.
        step: GcJobStep,
    },
    /// At this node, in the order of their going down.
    Node {
        /// When it went down.
        at: Timestamp,
        node_id: NodeId,
    },
    /// At this one-off task, in the order in which time changes them.
    OneOff { due: Timestamp, guid: String },
    /// At an evaluation of a batch job, in the order of jobs' keys and of their end.
    BatchEval {
        key: JobKey,
        at: Timestamp,
        eval_id: EvalId,
        /// Before its allocation of this key.
        alloc: u64,
    },
}

/// How far a job is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GcJobStep {
    /// To be looked at.
    Begin,
    /// Everything below it may go, before this evaluation and its allocation of this key.
    Look {
        eval_id: EvalId,
        alloc: u64,
        /// The job had not changed since when this was begun.
        index: LogIndex,
    },
    /// Its row is gone; what was below it is not, yet. Not written any more.
    Remove,
    /// Its row is gone; what was below it is not, yet, from this evaluation and its allocation of this key on.
    RemoveFrom { eval_id: EvalId, alloc: u64 },
}
