//! Plans: what a scheduler wants to change. A plan leaves no choice open.

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

/// The changes that a scheduler wants for one evaluation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The evaluation it answers.
    pub eval_id: EvalId,
    pub job: JobKey,
    /// The job's version placed.
    pub job_version: u64,
    /// The state it was made from.
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
    /// Placed whole or not at all.
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

    /// Takes back everything that it would change.
    pub fn clear(&mut self) {
        let (job, failed) = (self.job.clone(), std::mem::take(&mut self.failed));
        *self = Self {
            failed,
            all_at_once: self.all_at_once,
            ..Self::empty(self.eval_id, job, self.job_version, self.snapshot_index)
        };
    }

    /// Whether all it does is to place instances that replace nothing and take nobody's place, and perhaps to begin a
    /// deployment with them.
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

    /// Whether it changes nothing.
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
    /// Live instances of older versions that the plan does not stop go over to `job_version` where
    /// they are: what changed does not concern their tasks. A rule, so that it costs one byte.
    pub in_place: bool,
    /// Exceptions to `in_place`: they must be replaced, but there is not enough room for that yet.
    pub left_behind: Vec<AllocId>,
    /// Details of the choice of places.
    pub metrics: Arc<PlacementMetrics>,
    /// The places, as runs. Best in the order of the nodes' numbers: the log takes fewer bytes then.
    #[serde(with = "runs")]
    pub placements: Vec<PlacementRun>,
}

/// Consecutive instances on one node: `count` instances with the name indexes
/// `first_index..first_index + count`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementRun {
    /// The node that had this number in the plan's snapshot. A number that has changed hands since is refused when the
    /// plan is checked.
    pub node: NodeNumber,
    /// The first instance's index.
    pub first_index: u32,
    /// Instances. 1 where `detail` is set, and for a job that has one instance on each node, whose
    /// instances all have the index 0.
    pub count: u32,
    /// The node's score for the first of them.
    pub score: Score,
    /// Rare details, which few placements have.
    pub detail: Option<Box<PlacementDetail>>,
}

impl PlacementRun {
    /// The name indexes of its instances, ascending.
    pub fn name_indexes(&self) -> Range<u32> {
        self.first_index..self.first_index.saturating_add(self.count)
    }

    /// The allocation it replaces.
    #[must_use]
    pub fn previous(&self) -> Option<AllocId> {
        self.detail.as_ref().and_then(|detail| detail.previous)
    }

    /// The allocations that make room for it.
    #[must_use]
    pub fn preempted(&self) -> &[AllocId] {
        self.detail
            .as_ref()
            .map_or(&[], |detail| detail.preempted.as_slice())
    }

    /// Resources of its node that the placement holds besides amounts.
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
    /// The allocation it replaces.
    pub previous: Option<AllocId>,
    /// It replaces one that failed, after this delay.
    pub reschedule: Option<Duration>,
    /// It stands beside the older ones until its deployment is promoted.
    pub canary: bool,
    /// Allocations that are evicted for it.
    pub preempted: Vec<AllocId>,
    /// It is of this older version: the job's newest waits for its canaries.
    pub version: Option<u64>,
}

/// An allocation to stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedStop {
    pub alloc_id: AllocId,
    /// Reason for the stop, as text for a human reader.
    pub description: String,
    /// The client status to record where the agent cannot report: `lost`.
    pub client_status: Option<ClientStatus>,
    /// Position in `follow_ups` of the evaluation that goes on with it.
    pub follow_up: Option<u16>,
}

/// An evaluation to come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedFollowUp {
    /// Not to be looked at before.
    pub wait_until: Timestamp,
    /// Allocations that wait for it and learn its id.
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
