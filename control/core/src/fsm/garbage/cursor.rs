//! Positions at which slices of a collection end.

use muster_domain::id::{DeploymentId, EvalId, JobKey, LogIndex, NodeId, Timestamp};
use serde::{Deserialize, Serialize};

/// The position at which a slice ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GcCursor {
    /// After this deployment, in the order of their end.
    Deployment { at: Timestamp, id: DeploymentId },
    /// At an evaluation of a job that is not a batch job, in the order of their end.
    Eval {
        at: Timestamp,
        eval_id: EvalId,
        /// Before the evaluation's allocation with this key.
        alloc: u64,
    },
    /// At a job, in the order of submission.
    Job {
        /// The time of submission.
        at: Timestamp,
        key: JobKey,
        /// The progress within the job.
        step: GcJobStep,
    },
    /// At this node, in the order of the times at which they went down.
    Node {
        /// The time at which the node went down.
        at: Timestamp,
        node_id: NodeId,
    },
    /// At this one-off task, in the order of the times at which they are due.
    OneOff { due: Timestamp, guid: String },
    /// At an evaluation of a batch job, in the order of jobs' keys and of their end.
    BatchEval {
        key: JobKey,
        at: Timestamp,
        eval_id: EvalId,
        /// Before the evaluation's allocation with this key.
        alloc: u64,
    },
}

/// The progress of a collection within a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GcJobStep {
    /// The job has not been looked at.
    Begin,
    /// Everything below the job may be removed, up to this evaluation and its allocation with this key.
    Look {
        eval_id: EvalId,
        alloc: u64,
        /// The result is valid only if the job did not change after this entry.
        index: LogIndex,
    },
    /// The row is removed; the objects below the job are not, yet. This variant is not written any more.
    Remove,
    /// The row is removed; the objects below the job are not, yet, from this evaluation and its allocation with this
    /// key on.
    RemoveFrom { eval_id: EvalId, alloc: u64 },
}
