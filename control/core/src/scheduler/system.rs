//! System and sysbatch jobs: one instance of each group on every feasible node.

mod deployment;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_domain::alloc::ClientStatus;
use muster_domain::eval::{Evaluation, FailedGroup, Trigger};
use muster_domain::id::{AllocId, Timestamp};
use muster_domain::job::{Job, JobType, TaskGroup};
use muster_domain::plan::{
    GroupPlacements, PlacementDetail, PlacementRun, Plan, PlannedFollowUp, PlannedStop,
};

use self::deployment::{GroupChange, GroupProgress, JobDeployment};
use super::fleet::{ProjectedNodes, seed};
use super::instances::{InstanceChanges, is_of_type, taint};
use super::outcome::{ScheduleOutcome, empty_plan, outcome};
use super::rank::{RankedNode, Ranking};
use super::reconciler::DesiredUpdates;
use super::reconciler::{LOST, MIGRATING, NOT_NEEDED, Taint, UPDATING};
use super::replacement::replaced_at;
use super::update::Change;
use crate::state::{AllocView, State};
pub(crate) use deployment::awaited_nodes;

/// The instances of a group.
#[derive(Default)]
struct ExistingInstances<'a> {
    /// Nodes that need no new instance, by number.
    served: BTreeSet<usize>,
    in_place: Vec<AllocId>,
    destructive: Vec<AllocView<'a>>,
    /// Instances of older versions that stay as they are, because their nodes take no work or are out of reach.
    left_behind: Vec<AllocId>,
    /// Instances that a client asked to replace. The only place for the replacement is the same node.
    restarted: Vec<AllocView<'a>>,
    /// The progress of the active deployment.
    progress: GroupProgress,
}

pub(super) fn schedule(
    state: &State,
    job: Option<&Job>,
    eval: &Evaluation,
    now: Timestamp,
) -> ScheduleOutcome {
    let mut plan = empty_plan(state, job, eval);
    let running = job.filter(|job| job.wants_instances());
    let mut groups: BTreeMap<&str, ExistingInstances<'_>> = BTreeMap::new();
    let mut desired: BTreeMap<String, DesiredUpdates> = BTreeMap::new();
    let deployment = JobDeployment::of(state, job, eval);
    let mut looking = SystemReconciler {
        state,
        deployment,
        job: running,
        now,
        changes: InstanceChanges::new(state),
        plan: &mut plan,
    };
    for alloc in state.allocs().of_job(&eval.job) {
        let name = alloc.group().name.as_str();
        let counts = desired.entry(name.to_owned()).or_default();
        looking.classify_instance(alloc, groups.entry(name).or_default(), counts);
    }
    let mut changes = Vec::new();
    if let Some(job) = running {
        let mut fleet = ProjectedNodes::new(state, seed(&eval.id));
        for stop in &plan.stops {
            if let Some(alloc) = state.allocs().get(&stop.alloc_id) {
                fleet.give_back(alloc);
            }
        }
        for group in &job.current.spec.groups {
            let present = groups.get(group.name.as_str());
            for alloc_id in present.map_or(&[][..], |present| &present.in_place) {
                if let Some(alloc) = state.allocs().get(alloc_id) {
                    fleet.resize(alloc, group);
                }
            }
        }
        for (group_at, group) in (0..).zip(&job.current.spec.groups) {
            let present = groups.remove(group.name.as_str()).unwrap_or_default();
            let counts = desired.entry(group.name.clone()).or_default();
            changes.push(place_group(
                &mut fleet, job, group_at, group, present, deployment, counts, &mut plan,
            ));
        }
    }
    deployment.conclude(state, running, now, &changes, &mut plan);
    plan.stops.sort_by_key(|stop| stop.alloc_id.origin());
    let update = outcome(state, eval, &mut plan);
    ScheduleOutcome {
        plan,
        update,
        is_partial: false,
        desired: desired.into_iter().collect(),
    }
}

/// Compares the instances of a job with the wanted ones.
struct SystemReconciler<'a, 'p> {
    state: &'a State,
    deployment: JobDeployment<'a>,
    /// The job, if it exists and is not stopped.
    job: Option<&'a Job>,
    now: Timestamp,
    changes: InstanceChanges<'a>,
    plan: &'p mut Plan,
}

impl<'a> SystemReconciler<'a, '_> {
    fn classify_instance(
        &mut self,
        alloc: AllocView<'a>,
        present: &mut ExistingInstances<'a>,
        counts: &mut DesiredUpdates,
    ) {
        let job = self.job.filter(|job| is_of_type(job, alloc));
        let group = job.and_then(|job| job.current.spec.group(&alloc.group().name));
        let number = alloc.node().at();
        if alloc.is_terminal() {
            let is_current = job.is_some_and(|job| alloc.job().is_same(&job.current));
            let counts = || counts_although_over(alloc) || self.waits(alloc);
            // A user asks for another instance at once, even against the policy.
            let is_forced = alloc.transition().force_reschedule;
            if let Some(job) = job.filter(|_| is_current && !is_forced && self.waits(alloc)) {
                self.deployment.count(alloc, job, &mut present.progress);
            }
            if group.is_some() && is_current && !is_forced && counts() {
                present.served.insert(number);
            }
            return;
        }
        let taint = taint(self.state, alloc);
        if self.is_lost(alloc, taint) {
            counts.stop += 1;
            return self.stop(alloc, LOST, Some(ClientStatus::Lost));
        }
        let (Some(job), Some(group)) = (job, group) else {
            counts.stop += 1;
            return self.stop(alloc, NOT_NEEDED, None);
        };
        present.served.insert(number);
        // An instance that leaves its node with a drain is over: the deployment does not wait for its health.
        let is_leaving = alloc.transition().migrate && taint == Taint::Draining;
        if !is_leaving {
            self.deployment.count(alloc, job, &mut present.progress);
        }
        if taint == Taint::OutOfReach || alloc.client_status() == ClientStatus::Unknown {
            counts.ignore += 1;
            if !alloc.job().is_same(&job.current) {
                present.left_behind.push(alloc.id());
            }
            return self.wait_for(alloc);
        }
        if alloc.transition().migrate {
            counts.migrate += 1;
            if taint == Taint::Draining {
                return self.stop(alloc, MIGRATING, None);
            }
            present.restarted.push(alloc);
            return;
        }
        match self.changes.of(self.state, job, group, alloc) {
            Change::None => counts.ignore += 1,
            Change::InPlace => {
                counts.in_place += 1;
                present.in_place.push(alloc.id());
            }
            Change::Destructive if !self.changes.may_stay(self.state, job, group, alloc) => {
                counts.stop += 1;
                self.stop(alloc, NOT_NEEDED, None);
            }
            Change::Destructive if !deployment::takes_work(self.state, alloc) => {
                counts.ignore += 1;
                present.left_behind.push(alloc.id());
            }
            Change::Destructive => present.destructive.push(alloc),
        }
    }

    /// Returns whether an instance that ended by itself is started anew later. The evaluation for that was made when
    /// its end was reported.
    fn waits(&self, alloc: AllocView<'_>) -> bool {
        replaced_at(alloc).is_some_and(|at| at > self.now)
    }

    /// Returns whether the instance is lost with its node.
    fn is_lost(&self, alloc: AllocView<'_>, taint: Taint) -> bool {
        let is_out = taint == Taint::OutOfReach || alloc.client_status() == ClientStatus::Unknown;
        let is_over = || {
            let since = alloc.unreachable_at().unwrap_or(self.now);
            alloc.group().disconnect.is_lost(since, self.now)
        };
        taint == Taint::Down || (is_out && is_over())
    }

    /// Handles an instance that may come back: an evaluation looks again when it counts as lost.
    fn wait_for(&mut self, alloc: AllocView<'_>) {
        if alloc.client_status() == ClientStatus::Unknown {
            return;
        }
        self.plan.unreachable.push(alloc.id());
        let lost_after = alloc.group().disconnect.lost_after;
        self.plan
            .follow_ups
            .extend(lost_after.map(|after| PlannedFollowUp {
                wait_until: self.now.plus(after),
                allocs: Vec::new(),
                trigger: Trigger::MaxDisconnect,
            }));
    }

    fn stop(&mut self, alloc: AllocView<'_>, why: &str, client_status: Option<ClientStatus>) {
        self.plan.stops.push(PlannedStop {
            alloc_id: alloc.id(),
            description: why.to_owned(),
            client_status,
            follow_up: None,
        });
    }
}

/// Returns whether an ended instance still counts on its node: a sysbatch job runs once on each node, per version.
fn counts_although_over(alloc: AllocView<'_>) -> bool {
    let is_done = match alloc.client_status() {
        ClientStatus::Complete | ClientStatus::Failed => true,
        ClientStatus::Pending
        | ClientStatus::Running
        | ClientStatus::Lost
        | ClientStatus::Unknown => false,
    };
    alloc.job().spec.job_type == JobType::SysBatch && is_done && !alloc.server_terminal()
}

#[expect(
    clippy::too_many_arguments,
    clippy::too_many_lines,
    reason = "one group's share of one evaluation, step after step; a struct for it would be made once"
)]
fn place_group<'j>(
    fleet: &mut ProjectedNodes<'_>,
    job: &'j Job,
    group_at: u16,
    group: &'j TaskGroup,
    present: ExistingInstances<'_>,
    deployment: JobDeployment<'_>,
    counts: &mut DesiredUpdates,
    plan: &mut Plan,
) -> GroupChange<'j> {
    let ExistingInstances {
        served,
        in_place,
        destructive,
        left_behind,
        restarted,
        progress,
    } = present;
    let key = job.key();
    let spec = &job.current.spec;
    let preemption = fleet.state().config().scheduler.preemption;
    let may_preempt = preemption.allows(spec.job_type);
    let preempting = may_preempt.then_some((&key, spec.priority));
    // Instances on other nodes do not affect the choice of a node.
    let mut ranking = Ranking::new(fleet, spec, group, std::iter::empty(), std::iter::empty());
    let at_start = ranking.metrics(fleet);
    let mut runs: Vec<PlacementRun> = Vec::new();
    let mut failed = 0;
    let numbers: Vec<usize> = ranking.numbers().collect();
    for number in numbers {
        if served.contains(&number) {
            continue;
        }
        match ranking.place_at(fleet, number, preempting) {
            Ok(place) => {
                counts.place += 1;
                runs.push(run(place, None));
            }
            Err(_) => failed += 1,
        }
    }
    let total = runs.len() + destructive.len() + in_place.len() + restarted.len();
    // New instances on nodes without an instance count against the limit as well: they are not healthy yet.
    let limit = deployment::strategy(job, group).map_or(usize::MAX, |update| {
        deployment
            .limit(&update, progress)
            .saturating_sub(runs.len())
    });
    let mut updated = 0;
    let wanted = destructive.iter().map(|alloc| (alloc, UPDATING));
    for (alloc, why) in wanted.chain(restarted.iter().map(|alloc| (alloc, MIGRATING))) {
        if why == UPDATING && updated == limit {
            continue;
        }
        let Some(number) = fleet.give_back(*alloc) else {
            continue;
        };
        match ranking.place_at(fleet, number, preempting) {
            Ok(place) => {
                counts.destructive += u32::from(why == UPDATING);
                updated += usize::from(why == UPDATING);
                runs.push(run(place, Some(alloc.id())));
                plan.stops.push(PlannedStop {
                    alloc_id: alloc.id(),
                    description: why.to_owned(),
                    client_status: None,
                    follow_up: None,
                });
            }
            // The old instance runs on until there is room for its replacement.
            Err(_) => {
                fleet.undo_give_back(number, *alloc);
                failed += 1;
            }
        }
    }
    if failed > 0 {
        plan.failed.push(FailedGroup {
            group: group.name.clone(),
            count: failed,
            metrics: Arc::new(ranking.metrics(fleet)),
        });
    }
    let is_moving = !in_place.is_empty();
    if is_moving || !runs.is_empty() {
        runs.sort_by_key(|run| run.node);
        plan.groups.push(GroupPlacements {
            group_at,
            in_place: is_moving,
            left_behind: if is_moving {
                let stopped =
                    |alloc: &AllocId| plan.stops.iter().any(|stop| stop.alloc_id == *alloc);
                let waiting = destructive.iter().map(|alloc| alloc.id());
                let waiting = waiting.filter(|alloc| !stopped(alloc));
                waiting.chain(left_behind).collect()
            } else {
                Vec::new()
            },
            metrics: Arc::new(at_start),
            placements: runs,
        });
    }
    let is_older = |alloc: &AllocView<'_>| !alloc.job().is_same(&job.current);
    GroupChange {
        group,
        total,
        is_updating: is_moving || destructive.iter().chain(&restarted).any(is_older),
        progress,
    }
}

fn run(place: RankedNode, previous: Option<AllocId>) -> PlacementRun {
    let RankedNode {
        node,
        score,
        holding,
        preempted,
    } = place;
    let detail = PlacementDetail {
        holding,
        preempted,
        previous,
        ..PlacementDetail::default()
    };
    PlacementRun {
        node,
        first_index: 0,
        count: 1,
        score,
        detail: (detail != PlacementDetail::default()).then(|| Box::new(detail)),
    }
}
