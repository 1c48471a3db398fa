//! Compares the instances of a job with the wanted ones: decides which to place, stop, update and delay.
//!
//! The result is a function of the job, its allocations, its deployment and the time. The decisions are Nomad's,
//! checked against its recorded ones. Where Nomad's decisions depend on the order of a map, these go by name and then
//! by age.
//!
//! | file | content |
//! |---|---|
//! | `reconciler/group.rs` | one group, step by step |
//! | `reconciler/instance.rs` | an allocation as the comparison sees it |
//! | `reconciler/names.rs` | which instance numbers are taken |
//! | `reconciler/reschedule.rs` | when an instance that failed is replaced |

mod group;
mod instance;
mod names;
mod reschedule;

use std::collections::BTreeMap;
use std::time::Duration;

use muster_domain::alloc::ClientStatus;
use muster_domain::deployment::{Deployment, DeploymentGroup, DeploymentStatus};
use muster_domain::id::{AllocId, EvalId, Timestamp};
use muster_domain::job::{Disconnect, ReschedulePolicy, UpdateStrategy};

use crate::limits;
pub(super) use instance::{Instance, ReconnectFacts, RescheduleEvent, Taint};
#[cfg(test)]
use muster_domain::alloc::Transition;
use muster_domain::number;
pub(super) use reschedule::{next_delay, next_time};

/// The reasons for stopping instances, in Nomad's words.
pub(super) const NOT_NEEDED: &str = "alloc not needed due to job update";
pub(super) const LOST: &str = "alloc is lost since its node is down";
pub(super) const MIGRATING: &str = "alloc is being migrated";
pub(super) const UPDATING: &str = "alloc is being updated due to job update";
pub(super) const RECONNECTED: &str = "alloc not needed due to disconnected client reconnect";
pub(super) const RESCHEDULED: &str = "alloc was rescheduled because it failed";

/// A job and its allocations, deployment and groups.
#[derive(Debug)]
pub(super) struct Input<'a> {
    /// Instances run to completion.
    pub(super) batch: bool,
    /// The job is gone or stopped.
    pub(super) stopped: bool,
    pub(super) deployment: Option<&'a Deployment>,
    /// Whether the deployment is of the current version.
    pub(super) deployment_is_current: bool,
    /// The groups of the current version, and those that only allocations have.
    pub(super) groups: Vec<GroupInput<'a>>,
    /// The evaluation being processed.
    pub(super) eval_id: EvalId,
    /// The earliest start of another evaluation of the job that is pending.
    pub(super) next_look: Option<Timestamp>,
    /// The time of the comparison.
    pub(super) now: Timestamp,
}

/// A group and its allocations.
#[derive(Debug)]
pub(super) struct GroupInput<'a> {
    pub(super) name: &'a str,
    /// The group in the current version; `None`: it has no such group.
    pub(super) spec: Option<GroupSpec<'a>>,
    pub(super) instances: Vec<Instance>,
}

/// The wanted state of a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupSpec<'a> {
    pub(super) count: u32,
    /// The strategy of updates. `None`: all instances at once, without a deployment.
    pub(super) update: Option<&'a UpdateStrategy>,
    /// The policy after failures; `None`: failed instances are not replaced.
    pub(super) reschedule: Option<&'a ReschedulePolicy>,
    /// Time after which the agent stops an instance when it has lost its server, kill timeout included.
    pub(super) stop_after: Option<Duration>,
    /// The policy for an instance whose node is out of reach; `None`: it is lost.
    pub(super) disconnect: Option<&'a Disconnect>,
}

/// The work for all groups of a job.
#[derive(Debug, Default)]
pub(super) struct JobWork {
    /// Per group, in the order given.
    pub(super) groups: Vec<GroupWork>,
    /// A deployment to begin, without ids and times.
    pub(super) new_deployment: Option<NewDeployment>,
    /// The update of the existing deployment.
    pub(super) deployment_update: Option<(DeploymentStatus, &'static str)>,
    /// The existing deployment goes on, and is successful as soon as no group has actions left.
    pub(super) deployment_continues: bool,
}

/// A deployment to begin.
#[derive(Debug, Default)]
pub(super) struct NewDeployment {
    pub(super) description: &'static str,
    pub(super) groups: Vec<DeploymentGroup>,
}

/// The work for one group.
#[derive(Debug, Default)]
pub(super) struct GroupWork {
    pub(super) place: Vec<Placement>,
    pub(super) destructive: Vec<AllocId>,
    /// Instances in `destructive` whose replacement gets another number.
    pub(super) renamed: BTreeMap<AllocId, u32>,
    /// Further instances to replace, but not now: that would be more at a time than allowed.
    pub(super) held_back: Vec<AllocId>,
    /// Number of further instances to place or replace, but not by this plan, because the plan is a slice.
    pub(super) left: u32,
    /// Number of instances placed beyond those that may be replaced at a time.
    pub(super) placed_over_limit: u32,
    pub(super) in_place: Vec<AllocId>,
    pub(super) stop: Vec<Stop>,
    /// Instances whose node is out of reach now.
    pub(super) unreachable: Vec<AllocId>,
    /// Evaluations to come, and the allocations that wait for each.
    pub(super) follow_ups: Vec<FollowUp>,
    pub(super) counts: DesiredUpdates,
    /// Actions after which the deployment can be over; `None`: the group is not healthy yet.
    pub(super) actions_left: Option<usize>,
}

/// The number of instances of a group by action. A placement counts whether or not there is room for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DesiredUpdates {
    /// Left as they are.
    pub ignore: u32,
    pub place: u32,
    /// Migrated to another node.
    pub migrate: u32,
    pub stop: u32,
    /// Updated in place to the new version.
    pub in_place: u32,
    /// Replaced by the new version.
    pub destructive: u32,
    /// Placed in addition to the older instances until a promotion.
    pub canary: u32,
}

/// An instance to place.
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts that any two of can be true together"
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placement {
    pub(super) name_index: u32,
    /// It runs in addition to the older instances until it is promoted.
    pub(super) canary: bool,
    /// The allocation that it replaces.
    pub(super) previous: Option<AllocId>,
    /// The previous allocation failed.
    pub(super) reschedule: bool,
    /// The previous allocation was lost.
    pub(super) lost: bool,
    /// The previous allocation is out of reach and is left as it is.
    pub(super) keeps_previous: bool,
    /// The instance gets the last stable version instead of the current one: canaries wait.
    pub(super) last_stable: bool,
    /// The oldest version that the instance may have.
    pub(super) version_min: u64,
}

/// An instance to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stop {
    pub(super) alloc_id: AllocId,
    pub(super) client_status: Option<ClientStatus>,
    pub(super) why: &'static str,
    /// Position of the evaluation to come that continues with it.
    pub(super) follow_up: Option<usize>,
}

/// An evaluation to come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FollowUp {
    pub(super) wait_until: Timestamp,
    /// It waits for nodes that are out of reach, not to replace failed instances.
    pub(super) is_timeout: bool,
    /// Allocations that wait for it and record its id.
    pub(super) allocs: Vec<AllocId>,
}

/// The deployments as one comparison sees them.
#[derive(Debug, Default)]
struct Deployments<'a> {
    /// The active deployment of the current version.
    current: Option<&'a Deployment>,
    /// A deployment that is over or of an older version: its canaries are stopped.
    old: Option<&'a Deployment>,
    /// The deployment begun by this comparison.
    new: Option<NewDeployment>,
    is_paused: bool,
    has_failed: bool,
}

impl JobWork {
    /// Ends the existing deployment if every group is healthy and has no actions left.
    pub(super) fn end_deployment(&mut self) {
        let mut groups = self.groups.iter();
        if self.deployment_continues && groups.all(|group| group.actions_left == Some(0)) {
            self.deployment_update = Some((
                DeploymentStatus::Successful,
                "Deployment completed successfully",
            ));
        }
    }
}

impl GroupWork {
    /// Returns whether instances are updated to the current version, now or later.
    pub(super) fn is_updating(&self) -> bool {
        !(self.destructive.is_empty() && self.held_back.is_empty() && self.in_place.is_empty())
    }

    /// Handles that `number` planned placements are dropped: other instances may be replaced in their stead.
    pub(super) fn handle_dropped_placements(&mut self, number: usize) {
        let paid = number.min(self.placed_over_limit as usize);
        self.placed_over_limit -= u32::try_from(paid).unwrap_or(self.placed_over_limit);
        let more = (number - paid).min(self.held_back.len());
        self.destructive.extend(self.held_back.drain(..more));
        let more = number::count(more);
        self.counts.destructive += more;
        self.counts.ignore -= more.min(self.counts.ignore);
    }

    /// Handles that `number` failed instances are not replaced after all: the deployment does not wait for them.
    pub(super) fn leave_failed(&mut self, number: usize) {
        // Each of them counted once as a placement and once as a replacement.
        let left = self.actions_left.as_mut();
        if let Some(left) = left {
            *left = left.saturating_sub(2 * number);
        }
    }
}

/// Compares the instances with the wanted ones and returns the work.
pub(super) fn reconcile(input: &Input<'_>) -> JobWork {
    let mut work = JobWork::default();
    let mut deployments = deployments(input, &mut work);
    if input.stopped {
        for group in &input.groups {
            work.groups.push(group::stop_all(&group.instances, true));
        }
        return work;
    }
    let slice = slice(input);
    for group in &input.groups {
        let group_work = match group.spec {
            Some(spec) => group::Reconciler::new(input, group, spec, &mut deployments, slice).run(),
            None => group::stop_all(&group.instances, false),
        };
        work.groups.push(group_work);
    }
    work.deployment_continues = deployments.current.is_some() && deployments.new.is_none();
    work.end_deployment();
    work.new_deployment = deployments.new.map(|mut new| {
        let waiting = || new.groups.iter().filter(|group| group.desired_canaries > 0);
        new.description = if waiting().next().is_none() {
            "Deployment is running"
        } else if waiting().all(|group| group.auto_promote) {
            "Deployment is running pending automatic promotion"
        } else {
            "Deployment is running but requires manual promotion"
        };
        new
    });
    work
}

/// Returns the number of instances of each group that one plan may place. Each group of a large job has a share, so
/// that no group waits for another to find room.
fn slice(input: &Input<'_>) -> u32 {
    let specs = input.groups.iter().filter_map(|group| group.spec);
    let wanted: u64 = specs.map(|spec| u64::from(spec.count)).sum();
    if wanted <= u64::from(limits::PLACEMENTS_MAX) {
        return limits::PLACEMENTS_MAX;
    }
    let groups = number::count(input.groups.len());
    (limits::PLACEMENTS_MAX / groups.max(1)).max(1)
}

/// Finds the deployment that counts; a superfluous one is cancelled.
fn deployments<'a>(input: &Input<'a>, work: &mut JobWork) -> Deployments<'a> {
    let mut deployments = Deployments::default();
    let Some(deployment) = input.deployment else {
        return deployments;
    };
    let active = deployment.status.is_active();
    let cancelled = |why| active.then_some((DeploymentStatus::Cancelled, why));
    if input.stopped {
        work.deployment_update = cancelled("Cancelled because job is stopped");
        deployments.old = Some(deployment);
    } else if !input.deployment_is_current {
        work.deployment_update = cancelled("Cancelled due to newer version of job");
        deployments.old = Some(deployment);
    } else if deployment.status == DeploymentStatus::Successful {
        deployments.old = Some(deployment);
    } else {
        deployments.is_paused = deployment.status == DeploymentStatus::Paused;
        deployments.has_failed = deployment.status == DeploymentStatus::Failed;
        deployments.current = Some(deployment);
    }
    deployments
}

/// Instances by id.
type ById<'a> = BTreeMap<AllocId, &'a Instance>;

#[cfg(test)]
mod tests;
