//! Evaluations: requests to reconsider a job.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::alloc::PlacementMetrics;
use crate::id::{DeploymentId, EvalId, JobKey, LogIndex, NodeId, Timestamp};
use crate::job::{Job, JobType};

/// The reason for an evaluation. The words are Nomad's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Trigger {
    /// A job was registered.
    JobRegister,
    /// A job was stopped.
    JobDeregister,
    /// A node registered, left or changed.
    NodeUpdate,
    AllocFailure,
    /// An allocation ended, or an operator asked to stop it.
    AllocStop,
    /// Placements waited for free resources.
    QueuedAllocs,
    /// An evaluation failed too often; this evaluation follows it up.
    FailedFollowUp,
    /// A node is being emptied.
    NodeDrain,
    /// A deployment made progress.
    DeploymentWatcher,
    /// An allocation was preempted by a more important one.
    Preemption,
    /// A periodic job was launched.
    PeriodicJob,
    /// A group was scaled.
    JobScale,
    /// A node has been out of reach for too long.
    MaxDisconnect,
    /// A node that was out of reach came back.
    Reconnect,
}

crate::text_enum!(pub Trigger {
    JobRegister => "job-register",
    JobDeregister => "job-deregister",
    NodeUpdate => "node-update",
    AllocFailure => "alloc-failure",
    AllocStop => "alloc-stop",
    QueuedAllocs => "queued-allocs",
    FailedFollowUp => "failed-follow-up",
    NodeDrain => "node-drain",
    DeploymentWatcher => "deployment-watcher",
    Preemption => "preemption",
    PeriodicJob => "periodic-job",
    JobScale => "job-scaling",
    MaxDisconnect => "max-disconnect-timeout",
    Reconnect => "reconnect",
});

/// The state of an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum EvalStatus {
    Blocked,
    /// The evaluation waits for a worker, or a worker processes it.
    Pending,
    Complete,
    Failed,
    /// A newer evaluation of the same job makes this one needless.
    Canceled,
}

crate::text_enum!(pub EvalStatus {
    Blocked => "blocked",
    Pending => "pending",
    Complete => "complete",
    Failed => "failed",
    Canceled => "canceled",
});

impl EvalStatus {
    /// Whether the evaluation is finished.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Complete | Self::Failed | Self::Canceled => true,
            Self::Blocked | Self::Pending => false,
        }
    }
}

/// A request to reconsider a job: a row of the state table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evaluation {
    pub id: EvalId,
    /// The job to reconsider.
    pub job: JobKey,
    /// The job's type, which decides the scheduler.
    pub job_type: JobType,
    pub priority: u8,
    /// Reason for the evaluation.
    pub trigger: Trigger,
    /// The node whose change caused the evaluation, if any.
    pub node_id: Option<NodeId>,
    /// The deployment that the evaluation belongs to or that its plan created.
    pub deployment: Option<DeploymentId>,
    /// State of the evaluation.
    pub status: EvalStatus,
    /// Details of the status, as text for a human reader.
    pub status_description: String,
    /// The evaluation it follows.
    pub previous: Option<EvalId>,
    /// The blocked evaluation for the instances that could not be placed.
    pub blocked: Option<EvalId>,
    /// The groups with instances that could not be placed, and the reasons.
    pub failed_groups: Vec<FailedGroup>,
    /// The earliest time of processing; 0 means at once.
    pub wait_until: Timestamp,
    /// Instances that wait, by group.
    pub queued: Vec<(String, u32)>,
    /// The entry that registered the job version of this evaluation.
    pub job_modify_index: LogIndex,
    /// The snapshot of the evaluation's plan.
    pub snapshot_index: LogIndex,
    /// The entry that created the evaluation.
    pub create_index: LogIndex,
    /// The last entry that changed this row.
    pub modify_index: LogIndex,
    /// Time of the creation.
    pub create_time: Timestamp,
    /// Time of the last change.
    pub modify_time: Timestamp,
}

impl Evaluation {
    /// A pending evaluation of the current version of `job`, created by the entry at `index`.
    #[must_use]
    pub fn of_job(id: EvalId, job: &Job, trigger: Trigger, index: LogIndex, at: Timestamp) -> Self {
        Self {
            id,
            job: job.key(),
            job_type: job.current.spec.job_type,
            priority: job.current.spec.priority,
            trigger,
            node_id: None,
            deployment: None,
            status: EvalStatus::Pending,
            status_description: String::new(),
            previous: None,
            blocked: None,
            failed_groups: Vec::new(),
            wait_until: Timestamp(0),
            queued: Vec::new(),
            job_modify_index: job.current.job_modify_index,
            snapshot_index: LogIndex(0),
            create_index: index,
            modify_index: index,
            create_time: at,
            modify_time: at,
        }
    }
}

/// A group of which instances could not be placed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedGroup {
    pub group: String,
    pub count: u32,
    /// Details of the placement, which show the reason.
    pub metrics: Arc<PlacementMetrics>,
}
