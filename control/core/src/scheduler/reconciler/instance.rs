//! An allocation as the comparison sees it.

use muster_domain::alloc::{ClientStatus, DesiredStatus, Score, Transition};
use muster_domain::id::{AllocId, DeploymentId, EvalId, Timestamp};

use crate::scheduler::update::Change;

/// The fault of an allocation's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::scheduler) enum Taint {
    /// The node is healthy.
    Healthy,
    /// The node is being drained.
    Draining,
    /// The node is out of reach, and its allocations may come back.
    OutOfReach,
    /// The node is down, or gone.
    Down,
}

/// The facts that decide between an allocation that came back and its replacement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::scheduler) struct ReconnectFacts {
    /// The allocation that replaced it.
    pub(in crate::scheduler) next: Option<AllocId>,
    /// The score of its node.
    pub(in crate::scheduler) score: Score,
    /// Start time of its first task.
    pub(in crate::scheduler) started_at: Option<Timestamp>,
}

/// An earlier replacement in the same chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::scheduler) struct RescheduleEvent {
    /// Time of the replacement.
    pub(in crate::scheduler) at: Timestamp,
    /// Delay before the replacement.
    pub(in crate::scheduler) delay: std::time::Duration,
}

/// An allocation, as the comparison sees it.
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts that any two of can be true together"
)]
#[derive(Clone, Debug)]
pub(in crate::scheduler) struct Instance {
    pub(in crate::scheduler) id: AllocId,
    pub(in crate::scheduler) name_index: u32,
    pub(in crate::scheduler) taint: Taint,
    /// It is of an older version or of an earlier job with the same name.
    pub(in crate::scheduler) is_older: bool,
    /// It is of an earlier job with the same name and another type.
    pub(in crate::scheduler) is_of_other_type: bool,
    /// It is of exactly the current version.
    pub(in crate::scheduler) is_current: bool,
    pub(in crate::scheduler) version: u64,
    /// The change that the current version requires of it.
    pub(in crate::scheduler) change: Change,
    pub(in crate::scheduler) desired: DesiredStatus,
    pub(in crate::scheduler) client: ClientStatus,
    /// Every task ended well.
    pub(in crate::scheduler) ran_successfully: bool,
    pub(in crate::scheduler) deployment: Option<DeploymentId>,
    /// Whether it is healthy. `None`: not known yet.
    pub(in crate::scheduler) healthy: Option<bool>,
    pub(in crate::scheduler) canary: bool,
    pub(in crate::scheduler) has_next: bool,
    /// The evaluation that continues with it.
    pub(in crate::scheduler) follow_up: Option<EvalId>,
    pub(in crate::scheduler) transition: Transition,
    /// Time of its failure.
    pub(in crate::scheduler) ended_at: Timestamp,
    /// Time at which it was marked lost.
    pub(in crate::scheduler) lost_at: Option<Timestamp>,
    pub(in crate::scheduler) events: Vec<RescheduleEvent>,
    /// The facts that count if it was out of reach.
    pub(in crate::scheduler) reconnect_facts: ReconnectFacts,
}

impl Instance {
    /// Returns whether no task of it runs or will run, or it was asked to stop.
    pub(super) fn is_terminal(&self) -> bool {
        self.desired != DesiredStatus::Run || self.client.is_terminal()
    }
}
