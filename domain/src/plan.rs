//! Plans: what a scheduler wants to change. A plan leaves no choice open.

mod runs;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::alloc::{ClientStatus, PlacementMetrics, Score};
use crate::eval::FailedGroup;
use crate::id::{AllocId, EvalId, JobKey, LogIndex, NodeNumber};
use crate::resources::AllocatedPort;

/// What a scheduler wants to change for one evaluation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The evaluation it answers.
    pub eval_id: EvalId,
    /// The job.
    pub job: JobKey,
    /// The job's version placed.
    pub job_version: u64,
    /// The state it was made from.
    pub snapshot_index: LogIndex,
    /// Instances to place, by group.
    pub groups: Vec<GroupPlacements>,
    /// Allocations to stop.
    pub stops: Vec<PlannedStop>,
    /// What could not be placed.
    pub failed: Vec<FailedGroup>,
}

impl Plan {
    /// Whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.stops.is_empty()
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
    /// Exceptions to `in_place`: they must be replaced, but there is no room for that yet.
    pub left_behind: Vec<AllocId>,
    /// How the places were chosen.
    pub metrics: Arc<PlacementMetrics>,
    /// The places, as runs. Best in the order of the nodes' numbers: the log takes fewer bytes then.
    #[serde(with = "runs")]
    pub placements: Vec<PlacementRun>,
}

/// Consecutive instances on one node: `count` instances with the name indexes
/// `first_index..first_index + count`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementRun {
    /// Where: the node that had this number in the plan's snapshot. A number that has changed hands
    /// since is refused when the plan is checked.
    pub node: NodeNumber,
    /// The first instance's index.
    pub first_index: u32,
    /// Instances. 1 where `ports` or `previous` is set.
    pub count: u32,
    /// The node's score for the first of them.
    pub score: Score,
    /// Ports of the instance; empty for a group that asks for none.
    pub ports: Vec<AllocatedPort>,
    /// The allocation it replaces.
    pub previous: Option<AllocId>,
}

/// An allocation to stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedStop {
    /// The allocation.
    pub alloc_id: AllocId,
    /// Why, for people.
    pub description: String,
    /// What to record as its client status, where its agent cannot say: `lost`.
    pub client_status: Option<ClientStatus>,
}
