//! Evaluations: reasons to look at a job.

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
    /// A node came, went or changed.
    NodeUpdate,
    AllocFailure,
    /// An allocation ended or its operator asked to stop it.
    AllocStop,
    /// Placements waited for room.
    QueuedAllocs,
    /// An evaluation failed too often; this is its follow-up.
    FailedFollowUp,
    /// A node is being emptied.
    NodeDrain,
    /// A deployment goes on.
    DeploymentWatcher,
    /// An allocation made room for a more important one.
    Preemption,
    /// A periodic job was launched.
    PeriodicJob,
    /// A group was scaled.
    JobScale,
    /// A node that is out of reach has been so for too long.
    MaxDisconnect,
    /// A node came back that was out of reach.
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
    /// Waits for a worker, or one has it.
    Pending,
    Complete,
    Failed,
    /// A newer one of the same job makes it needless.
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
    /// Whether nothing more will happen to it.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Complete | Self::Failed | Self::Canceled => true,
            Self::Blocked | Self::Pending => false,
        }
    }
}

/// A reason to look at a job: a row of the state table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evaluation {
    pub id: EvalId,
    /// The job to look at.
    pub job: JobKey,
    /// The job's type, which decides the scheduler.
    pub job_type: JobType,
    pub priority: u8,
    /// Reason for the evaluation.
    pub trigger: Trigger,
    /// The node that changed, if that is why.
    pub node_id: Option<NodeId>,
    /// The deployment that it looks at or that its plan began.
    pub deployment: Option<DeploymentId>,
    /// State of the evaluation.
    pub status: EvalStatus,
    /// Details of the status, as text for a human reader.
    pub status_description: String,
    /// The evaluation it follows.
    pub previous: Option<EvalId>,
    /// The blocked evaluation made for what it could not place.
    pub blocked: Option<EvalId>,
    /// The groups with instances that could not be placed, and the reasons.
    pub failed_groups: Vec<FailedGroup>,
    /// Not to be looked at before; 0 means at once.
    pub wait_until: Timestamp,
    /// Instances that wait, by group.
    pub queued: Vec<(String, u32)>,
    /// The entry that registered the job version it was made for.
    pub job_modify_index: LogIndex,
    /// The snapshot its plan was made from.
    pub snapshot_index: LogIndex,
    /// The entry that made it.
    pub create_index: LogIndex,
    /// The last entry that changed this row.
    pub modify_index: LogIndex,
    /// Time of the creation.
    pub create_time: Timestamp,
    /// Time of the last change.
    pub modify_time: Timestamp,
}

impl Evaluation {
    /// A pending one that looks at `job` as it is, made by the entry at `index`.
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
