//! Plans: the changes that a scheduler proposes. A plan leaves no choice open.

mod runs;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::alloc::{ClientStatus, PlacementMetrics, Score};
use crate::deployment::{DeploymentGroup, DeploymentStatus};
use crate::eval::{FailedGroup, Trigger};
use crate::id::{AllocId, DeploymentId, EvalId, JobKey, LogIndex, NodeNumber, Timestamp};
use crate::resources::Holding;

/// The changes that a scheduler proposes for one evaluation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The evaluation of the plan.
    pub eval_id: EvalId,
    pub job: JobKey,
    /// The job version to place.
    pub job_version: u64,
    /// The snapshot that the plan is based on.
    pub snapshot_index: LogIndex,
    /// Instances to place, by group.
    pub groups: Vec<GroupPlacements>,
    pub stops: Vec<PlannedStop>,
    /// Groups that could not be placed.
    pub failed: Vec<FailedGroup>,
    /// A deployment that begins with the placements.
    pub new_deployment: Option<NewDeployment>,
    /// The update of the job's deployment.
    pub deployment_update: Option<DeploymentUpdate>,
    pub follow_ups: Vec<PlannedFollowUp>,
    /// Allocations whose node is out of reach and that may come back.
    pub unreachable: Vec<AllocId>,
    /// Whether the placements are applied whole or not at all.
    pub all_at_once: bool,
}

impl Plan {
    /// A plan that changes nothing.
    #[must_use]
    pub fn empty(eval_id: EvalId, job: JobKey, job_version: u64, snapshot_index: LogIndex) -> Self {
        Self {
            eval_id,
            job,
            job_version,
            snapshot_index,
            groups: Vec::new(),
            stops: Vec::new(),
            failed: Vec::new(),
            new_deployment: None,
            deployment_update: None,
            follow_ups: Vec::new(),
            unreachable: Vec::new(),
            all_at_once: false,
        }
    }

    /// Removes all changes from the plan.
    pub fn clear(&mut self) {
        let (job, failed) = (self.job.clone(), std::mem::take(&mut self.failed));
        *self = Self {
            failed,
            all_at_once: self.all_at_once,
            ..Self::empty(self.eval_id, job, self.job_version, self.snapshot_index)
        };
    }

    /// Whether the plan only places new instances, without replacement or preemption. It may also begin a deployment.
    #[must_use]
    pub fn only_places(&self) -> bool {
        let Self {
            eval_id: _,
            job: _,
            job_version: _,
            snapshot_index: _,
            groups,
            stops,
            failed,
            new_deployment: _,
            deployment_update,
            follow_ups,
            unreachable,
            all_at_once: _,
        } = self;
        let is_free = |run: &PlacementRun| run.previous().is_none() && run.preempted().is_empty();
        stops.is_empty()
            && failed.is_empty()
            && deployment_update.is_none()
            && follow_ups.is_empty()
            && unreachable.is_empty()
            && groups.iter().all(|group| {
                !group.in_place
                    && group.left_behind.is_empty()
                    && group.placements.iter().all(is_free)
            })
    }

    /// Instances that it places.
    #[must_use]
    pub fn instances(&self) -> u32 {
        let runs = self.groups.iter().flat_map(|group| &group.placements);
        runs.fold(0, |sum: u32, run| sum.saturating_add(run.count))
    }

    /// Whether the plan changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.stops.is_empty()
            && self.new_deployment.is_none()
            && self.deployment_update.is_none()
            && self.follow_ups.is_empty()
            && self.unreachable.is_empty()
            && self
                .groups
                .iter()
                .all(|group| group.placements.is_empty() && !group.in_place)
    }
}

/// Instances of one group to place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupPlacements {
    /// Position of the group in the job.
    pub group_at: u16,
    /// Whether running instances of older versions are updated to `job_version` in place. The changes do not concern
    /// their tasks. The flag takes one byte, and a list would take more.
    pub in_place: bool,
    /// Exceptions to `in_place`: instances that must be replaced, but for which there is not enough room yet.
    pub left_behind: Vec<AllocId>,
    /// Details of the choice of places.
    pub metrics: Arc<PlacementMetrics>,
    /// The places, as runs. Ascending node numbers take the fewest bytes in the log.
    #[serde(with = "runs")]
    pub placements: Vec<PlacementRun>,
}

/// Consecutive instances on one node: `count` instances with the name indexes
/// `first_index..first_index + count`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementRun {
    /// The number of the node in the plan's snapshot. The check of a plan refuses a number that was reassigned since.
    pub node: NodeNumber,
    /// The first instance's index.
    pub first_index: u32,
    /// Instances. 1 where `detail` is set, and for a job that has one instance on each node, whose
    /// instances all have the index 0.
    pub count: u32,
    /// The node's score for the first instance.
    pub score: Score,
    /// Details that few placements have.
    pub detail: Option<Box<PlacementDetail>>,
}

impl PlacementRun {
    /// The name indexes of its instances, ascending.
    pub fn name_indexes(&self) -> Range<u32> {
        self.first_index..self.first_index.saturating_add(self.count)
    }

    /// The allocation that the placement replaces.
    #[must_use]
    pub fn previous(&self) -> Option<AllocId> {
        self.detail.as_ref().and_then(|detail| detail.previous)
    }

    /// The allocations that the placement preempts.
    #[must_use]
    pub fn preempted(&self) -> &[AllocId] {
        self.detail
            .as_ref()
            .map_or(&[], |detail| detail.preempted.as_slice())
    }

    /// Ports, cores and devices that the placement holds on its node.
    #[must_use]
    pub fn holding(&self) -> Option<&Holding> {
        let holding = self.detail.as_ref().map(|detail| &detail.holding);
        holding.filter(|holding| !holding.is_empty())
    }
}

/// The rare details of a placement.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementDetail {
    /// Ports, cores and devices.
    pub holding: Holding,
    /// The allocation that the placement replaces.
    pub previous: Option<AllocId>,
    /// The delay, if the placement replaces a failed allocation.
    pub reschedule: Option<Duration>,
    /// Whether the instance is a canary. Canaries run alongside the older instances until the deployment is promoted.
    pub canary: bool,
    /// Allocations that the placement preempts.
    pub preempted: Vec<AllocId>,
    /// The older job version to place, while the newest waits for its canaries.
    pub version: Option<u64>,
}

/// An allocation to stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedStop {
    pub alloc_id: AllocId,
    /// Reason for the stop, as text for a human reader.
    pub description: String,
    /// The client status to record if the agent cannot report: `lost`.
    pub client_status: Option<ClientStatus>,
    /// Position in `follow_ups` of the evaluation that handles the allocation next.
    pub follow_up: Option<u16>,
}

/// A later evaluation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedFollowUp {
    /// The earliest time of processing.
    pub wait_until: Timestamp,
    /// Allocations that wait for the evaluation and record its id.
    pub allocs: Vec<AllocId>,
    /// Reason for the evaluation.
    pub trigger: Trigger,
}

/// A deployment to begin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewDeployment {
    /// Text for a human reader.
    pub description: String,
    pub groups: Vec<DeploymentGroup>,
}

/// A change of a deployment's status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeploymentUpdate {
    pub id: DeploymentId,
    pub status: DeploymentStatus,
    /// Reason for the new status, as text for a human reader.
    pub description: String,
}
