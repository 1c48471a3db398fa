//! Deployments: the step-by-step replacement of a job's older version by a newer one.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::id::{AllocId, DeploymentId, JobKey, LogIndex, Timestamp};

/// The state of a deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum DeploymentStatus {
    Running,
    /// An operator has paused the deployment.
    Paused,
    /// Every group is healthy.
    Successful,
    Failed,
    /// A newer version or the end of the job makes the deployment needless.
    Cancelled,
}

crate::text_enum!(pub DeploymentStatus {
    Running => "running",
    Paused => "paused",
    Successful => "successful",
    Failed => "failed",
    Cancelled => "cancelled",
});

impl DeploymentStatus {
    /// Whether the deployment runs or may be resumed.
    #[must_use]
    pub fn is_active(self) -> bool {
        match self {
            Self::Running | Self::Paused => true,
            Self::Successful | Self::Failed | Self::Cancelled => false,
        }
    }
}

/// The replacement of a job's older version by a newer one: a row of the state table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deployment {
    pub id: DeploymentId,
    pub job: JobKey,
    /// The version that the deployment rolls out.
    pub job_version: u64,
    /// The entry that registered that version.
    pub job_modify_index: LogIndex,
    /// The entry that first registered a job of this key.
    pub job_create_index: LogIndex,
    /// State of the deployment.
    pub status: DeploymentStatus,
    /// Reason for the status, as text for a human reader.
    pub status_description: String,
    /// The groups of the deployment.
    pub groups: Vec<DeploymentGroup>,
    /// The entry that created the deployment.
    pub create_index: LogIndex,
    /// The last entry that changed this row.
    pub modify_index: LogIndex,
    /// Time of the creation.
    pub create_time: Timestamp,
    /// Time of the last change.
    pub modify_time: Timestamp,
}

impl Deployment {
    /// The group called `name`.
    #[must_use]
    pub fn group(&self, name: &str) -> Option<&DeploymentGroup> {
        self.groups.iter().find(|group| group.name == name)
    }

    /// Whether a group waits for its canaries to be promoted.
    #[must_use]
    pub fn requires_promotion(&self) -> bool {
        self.groups
            .iter()
            .any(|group| group.desired_canaries > 0 && !group.promoted)
    }

    /// Whether every group that waits for promotion is promoted by itself.
    #[must_use]
    pub fn has_auto_promote(&self) -> bool {
        self.groups
            .iter()
            .filter(|group| group.desired_canaries > 0)
            .all(|group| group.auto_promote)
    }
}

/// A group within a deployment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeploymentGroup {
    pub name: String,
    /// Whether a failed deployment reverts to the last stable version.
    pub auto_revert: bool,
    /// Whether canaries are promoted as soon as all are healthy.
    pub auto_promote: bool,
    /// Time until the next instance must have become healthy, in nanoseconds; 0 for none.
    pub progress_deadline_ns: u64,
    /// Time by which the next instance must have become healthy; 0 if no instance is awaited yet.
    pub require_progress_by: Timestamp,
    /// Whether the canaries were promoted.
    pub promoted: bool,
    pub placed_canaries: Vec<AllocId>,
    pub desired_canaries: u32,
    pub desired_total: u32,
    /// Instances of the new version placed.
    pub placed: u32,
    /// Placed instances that are healthy.
    pub healthy: u32,
    /// Placed instances that are unhealthy.
    pub unhealthy: u32,
}

impl DeploymentGroup {
    /// Restarts the progress deadline at `now`, if there is one. A clock that went back does not shorten the deadline.
    pub fn await_progress(&mut self, now: Timestamp) {
        if self.progress_deadline_ns > 0 {
            let deadline = Duration::from_nanos(self.progress_deadline_ns);
            self.require_progress_by = self.require_progress_by.max(now.plus(deadline));
        }
    }

    /// Whether the canaries are not promoted yet.
    #[must_use]
    pub fn awaits_promotion(&self) -> bool {
        self.desired_canaries > 0 && !self.promoted
    }

    /// Whether enough instances are healthy and the canaries are promoted.
    #[must_use]
    pub fn is_done(&self) -> bool {
        !self.awaits_promotion() && self.healthy >= self.desired_total.max(self.desired_canaries)
    }

    /// The time by which the next instance must be healthy.
    ///
    /// `None` without a limit, while no instance is awaited, and for a finished group. `None` also if all canaries are
    /// healthy and an operator must promote them. Other instances of the group do not count for that.
    #[must_use]
    pub fn deadline(&self, healthy_canaries: u32) -> Option<Timestamp> {
        let awaits_operator = self.awaits_promotion()
            && !self.auto_promote
            && healthy_canaries >= self.desired_canaries;
        let counts = self.require_progress_by > Timestamp(0) && !awaits_operator && !self.is_done();
        counts.then_some(self.require_progress_by)
    }
}
