//! Service and batch jobs: a wanted number of instances of each group, on the best nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_domain::alloc::{ClientStatus, DesiredStatus, PlacementMetrics};
use muster_domain::deployment::{DeploymentGroup, DeploymentStatus};
use muster_domain::eval::{EvalStatus, Evaluation, FailedGroup, Trigger};
use muster_domain::id::{AllocId, JobKey, NodeId, NodeNumber, Timestamp};
use muster_domain::job::{Job, JobSpec, JobType, JobVersion, TaskGroup};
use muster_domain::number;
use muster_domain::plan::{
    DeploymentUpdate, GroupPlacements, NewDeployment, PlacementDetail, PlacementRun, Plan,
    PlannedFollowUp, PlannedStop,
};

use super::feasible::{self, Feasibility, FeasibilityCheck, GroupConstraints};
use super::fleet::{ExclusiveRequests, ProjectedNodes, seed};
use super::in_flight::InFlightPlans;
use super::instances::{InstanceChanges, job_type, kill_timeout};
use super::node_shapes::NodeShapes;
use super::outcome::{ScheduleOutcome, empty_plan, outcome};
use super::rank::{RankedNode, Ranking, Scan, ScanOutcome};
use super::reconciler::{
    self, GroupInput, GroupSpec, GroupWork, Input, Instance, JobWork, MIGRATING, NOT_NEEDED,
    Placement, RESCHEDULED,
};
use super::{unplaceable, update};
use crate::fsm::one_off_alloc::is_placed;
use crate::state::{AllocView, RemainingCapacity, State};

/// Returns the earliest start of another pending evaluation of the job of `eval`.
fn next_look(state: &State, eval: &Evaluation) -> Option<Timestamp> {
    let open = state.evals().open_of_job(&eval.job);
    let others = open.filter(|it| it.id != eval.id && it.status == EvalStatus::Pending);
    others.map(|it| it.wait_until).min()
}

pub(super) fn schedule(
    state: &State,
    job: Option<&Job>,
    eval: &Evaluation,
    now: Timestamp,
    kinds: &mut NodeShapes,
    ahead: &mut InFlightPlans,
) -> ScheduleOutcome {
    let mut plan = empty_plan(state, job, eval);
    let deployment = state.deployments().latest(&eval.job).map(|row| &**row);
    let deployment = deployment
        .filter(|row| job.is_none_or(|job| job.current.create_index == row.job_create_index));
    let groups = groups(state, job, eval);
    let is_new = groups.iter().all(|group| group.instances.is_empty());
    let input = Input {
        batch: job_type(job, eval) == JobType::Batch,
        stopped: job.is_none_or(|job| !job.wants_instances()),
        deployment,
        deployment_is_current: job
            .zip(deployment)
            .is_some_and(|(job, deployment)| deployment.job_version == job.current.version),
        groups,
        eval_id: eval.id,
        next_look: next_look(state, eval),
        now,
    };
    let mut work = reconciler::reconcile(&input);
    let names: Vec<&str> = input.groups.iter().map(|group| group.name).collect();
    plan.new_deployment = work.new_deployment.take().map(|new| NewDeployment {
        description: new.description.to_owned(),
        groups: new.groups,
    });
    let counts = work.groups.iter().map(|work| work.counts);
    let owned = names.iter().map(|name| (*name).to_owned());
    let desired = owned.zip(counts).collect();
    leave_stable_version(job, &names, &work, &mut plan);
    // Deviations only concern instances that existed before.
    if !is_new {
        apply_all_deviations(state, job, &eval.job, &names, &mut work, &mut plan);
    }
    plan.deployment_update = work
        .deployment_update
        .zip(deployment.filter(|row| row.status.is_active()))
        .map(|((status, description), deployment)| DeploymentUpdate {
            id: deployment.id,
            status,
            description: description.to_owned(),
        });
    let mut work: Vec<(&str, GroupWork)> = names.into_iter().zip(work.groups).collect();
    let is_forced = |alloc: AllocView<'_>| migrates_at_any_cost(state, alloc, now);
    for (_, work) in &mut work {
        if is_placed(state, &eval.job) {
            work.place.clear();
            work.destructive.clear();
        }
        add_stops(state, work, &is_forced, &mut plan);
        plan.unreachable.extend(&work.unreachable);
    }
    let left = deferred_groups(&work);
    if let Some(job) = job.filter(|job| job.wants_instances()) {
        let wants_room = |work: &GroupWork| !work.place.is_empty() || !work.destructive.is_empty();
        let seed = seed(&eval.id);
        if work.iter().any(|(_, work)| wants_room(work)) {
            let fleet = ProjectedNodes::with(state, seed, ahead, std::mem::take(kinds));
            let fleet = Placer::new(state, job, &eval.job, is_new, fleet).place(work, &mut plan);
            let (known, placed) = fleet.into_parts();
            *kinds = known;
            ahead.add(state, eval.id, placed);
        } else {
            let fleet = ProjectedNodes::new(state, seed);
            Placer::new(state, job, &eval.job, is_new, fleet).place(work, &mut plan);
        }
    }
    if input.stopped && job.is_some() {
        plan.stops
            .extend(input.groups.iter().flat_map(stops_of_failed));
    }
    plan.stops.sort_by_key(|stop| stop.alloc_id.origin());
    let is_partial =
        account_for_deferred(left, &mut plan) || places_updatable_instance(state, job, &plan);
    let update = outcome(state, eval, &mut plan);
    ScheduleOutcome {
        plan,
        update,
        is_partial,
        desired,
    }
}

/// Returns the groups with placements that are left to the next plan, and the number of these placements.
fn deferred_groups(work: &[(&str, GroupWork)]) -> Vec<(String, u32)> {
    let left = work.iter().filter(|(_, work)| work.left > 0);
    left.map(|(name, work)| ((*name).to_owned(), work.left))
        .collect()
}

/// Marks the failed instances of a stopped job as stopped, so that they hold no place if the job runs again.
fn stops_of_failed(group: &GroupInput<'_>) -> Vec<PlannedStop> {
    let failed = group.instances.iter().filter(|instance| {
        instance.client == ClientStatus::Failed && instance.desired == DesiredStatus::Run
    });
    failed
        .map(|instance| PlannedStop {
            alloc_id: instance.id,
            description: NOT_NEEDED.to_owned(),
            client_status: None,
            follow_up: None,
        })
        .collect()
}

/// Accounts for the instances that a slice has left, by group. If some instances of the slice found no place, the left
/// ones find none either and wait with them. Returns whether another slice is to come.
fn account_for_deferred(left: Vec<(String, u32)>, plan: &mut Plan) -> bool {
    let mut is_partial = false;
    for (name, left) in left {
        match plan.failed.iter_mut().find(|failed| failed.group == name) {
            Some(failed) => failed.count = failed.count.saturating_add(left),
            None => is_partial = true,
        }
    }
    is_partial
}

/// Returns whether `plan` places an instance of an older version that can be updated in place to the current version.
///
/// The same evaluation then looks again and updates the instance. Nomad leaves the update to another evaluation, which
/// may not come while canaries find no room.
fn places_updatable_instance(state: &State, job: Option<&Job>, plan: &Plan) -> bool {
    let Some(current) = job.map(|job| &job.current) else {
        return false;
    };
    let stays = |group: &TaskGroup, run: &PlacementRun| {
        let older = run.detail.as_ref().and_then(|detail| detail.version)?;
        let older = state.jobs().version(&plan.job, older)?;
        let old = (&older.spec, older.spec.group(&group.name)?);
        let (change, _) = update::change(old, (&current.spec, group));
        Some(change != update::Change::Destructive)
    };
    plan.groups.iter().any(|placed| {
        let group = current.spec.groups.get(usize::from(placed.group_at));
        let mut runs = placed.placements.iter();
        group.is_some_and(|group| runs.any(|run| stays(group, run) == Some(true)))
    })
}

/// Returns the groups of the current version, and the groups that only allocations have.
fn groups<'a>(state: &'a State, job: Option<&'a Job>, eval: &Evaluation) -> Vec<GroupInput<'a>> {
    let spec_groups: &[TaskGroup] = job.map_or(&[], |job| &job.current.spec.groups);
    let mut changes = InstanceChanges::new(state);
    let mut groups: Vec<GroupInput<'a>> = spec_groups
        .iter()
        .map(|group| GroupInput {
            name: &group.name,
            spec: Some(GroupSpec {
                count: group.count,
                update: group.update.as_ref(),
                reschedule: Some(&group.reschedule),
                stop_after: group
                    .disconnect
                    .stop_on_client_after
                    .map(|after| after.saturating_add(kill_timeout(group))),
                disconnect: Some(&group.disconnect),
            }),
            instances: Vec::new(),
        })
        .collect();
    let mut allocs = state.allocs().of_job(&eval.job).peekable();
    if allocs.peek().is_none() {
        return groups;
    }
    let mut places: BTreeMap<&str, usize> = groups
        .iter()
        .enumerate()
        .map(|(at, group)| (group.name, at))
        .collect();
    for alloc in allocs {
        let name = alloc.group().name.as_str();
        let at = *places.entry(name).or_insert_with(|| {
            groups.push(GroupInput {
                name,
                spec: None,
                instances: Vec::new(),
            });
            groups.len() - 1
        });
        let change = match (job, spec_groups.get(at)) {
            (Some(job), Some(group)) => changes.of(state, job, group, alloc),
            _ => update::Change::None,
        };
        groups[at]
            .instances
            .push(Instance::of(state, job, alloc, change));
    }
    groups
}

/// Drops the new deployment of a version that was deployed before, unless it replaces or updates instances.
///
/// Nomad begins one whenever it finds no trace of the version. A collection may remove a successful deployment and lost
/// instances while an evaluation waits for room. The new deployment would wait for that room as well.
fn leave_stable_version(job: Option<&Job>, names: &[&str], work: &JobWork, plan: &mut Plan) {
    let Some(new) = &mut plan.new_deployment else {
        return;
    };
    if !job.is_some_and(|job| job.is_stable(job.current.version)) {
        return;
    }
    let is_updated = |name: &str| {
        let mut groups = names.iter().zip(&work.groups);
        groups.any(|(of, work)| *of == name && work.is_updating())
    };
    new.groups.retain(|group| is_updated(&group.name));
    if new.groups.is_empty() {
        plan.new_deployment = None;
    }
}

/// Applies the deviations from Nomad to every group, and ends the deployment if it waited for nothing else.
fn apply_all_deviations(
    state: &State,
    job: Option<&Job>,
    key: &JobKey,
    names: &[&str],
    work: &mut JobWork,
    plan: &mut Plan,
) {
    for (name, work) in names.iter().zip(&mut work.groups) {
        place_missing_canaries(state, job, key, name, work);
        let dropped = apply_deviations_from_nomad(state, job, key, name, work);
        work.leave_failed(dropped);
        limit_deployment_total(plan, job, name, dropped);
        dedupe_replacement_names(state, key, name, work);
    }
    work.end_deployment();
}

/// Places canaries that the active deployment wants and lacks.
///
/// Nomad places canaries only while there are older instances to replace, and counts lost canaries. Then the deployment
/// waits for ever for the promotion of canaries that are never placed.
fn place_missing_canaries(
    state: &State,
    job: Option<&Job>,
    key: &JobKey,
    name: &str,
    work: &mut GroupWork,
) {
    let Some((job, deployment)) = job.zip(state.deployments().latest(key)) else {
        return;
    };
    let is_under_way = job.wants_instances()
        && deployment.status == DeploymentStatus::Running
        && deployment.job_version == job.current.version
        && deployment.job_create_index == job.current.create_index;
    let group = deployment
        .group(name)
        .filter(|group| is_under_way && group.awaits_promotion());
    let Some(group) = group else { return };
    let stopped: BTreeSet<AllocId> = work.stop.iter().map(|stop| stop.alloc_id).collect();
    let canaries = group.placed_canaries.iter();
    let canaries = canaries.filter_map(|alloc_id| state.allocs().get(alloc_id));
    let mut indexes: Vec<u32> = canaries
        .filter(|alloc| alloc.desired() == DesiredStatus::Run && alloc.next().is_none())
        .filter(|alloc| !stopped.contains(&alloc.id()))
        .map(AllocView::name_index)
        .collect();
    let placed = work.place.iter().filter(|place| place.canary);
    indexes.extend(placed.map(|place| place.name_index));
    let missing = (group.desired_canaries as usize).saturating_sub(indexes.len());
    let free = (0..u32::MAX).filter(|index| !indexes.contains(index));
    for name_index in free.take(missing) {
        work.counts.canary += 1;
        work.place.push(Placement {
            name_index,
            canary: true,
            previous: None,
            reschedule: false,
            lost: false,
            keeps_previous: false,
            last_stable: false,
            version_min: 0,
        });
    }
}

/// Corrects work that Nomad's decisions leave to the next evaluation, which may not come. While a deployment does not
/// progress, Nomad replaces a failed instance twice, and does not replace a lost one at all. Nomad also replaces failed
/// instances when the group has enough instances without them. Returns the number of placements that are dropped for
/// that reason.
fn apply_deviations_from_nomad(
    state: &State,
    job: Option<&Job>,
    key: &JobKey,
    name: &str,
    work: &mut GroupWork,
) -> usize {
    let Some(group) = job.and_then(|job| job.current.spec.group(name)) else {
        return 0;
    };
    if work.place.is_empty() && work.stop.is_empty() {
        return 0;
    }
    let mut replaced: BTreeSet<AllocId> = BTreeSet::new();
    work.place
        .retain(|place| place.previous.is_none_or(|id| replaced.insert(id)));
    let stopped: BTreeSet<AllocId> = work.stop.iter().map(|stop| stop.alloc_id).collect();
    let unreachable: BTreeSet<AllocId> = work.unreachable.iter().copied().collect();
    let staying: Vec<u32> = state
        .allocs()
        .of_job(key)
        .filter(|alloc| alloc.group().name == name && !alloc.is_terminal() && !alloc.canary())
        .filter(|alloc| !stopped.contains(&alloc.id()))
        .filter(|alloc| !is_unreachable(*alloc) && !unreachable.contains(&alloc.id()))
        .map(AllocView::name_index)
        .collect();
    let counts = |place: &&Placement| !place.reschedule && !place.canary;
    // The replacement of an older instance that has ended takes room, too.
    let replaced_ended = work.destructive.iter().chain(&work.held_back).filter(|id| {
        let alloc = state.allocs().get(id);
        alloc.is_some_and(AllocView::is_terminal)
    });
    let others = work.place.iter().filter(counts).count() + replaced_ended.count();
    let mut room = (group.count as usize).saturating_sub(staying.len() + others);
    let last_stable = work.place.iter().any(|place| place.last_stable);
    let lost = work.stop.iter().filter(|stop| {
        let waits = stop.follow_up.is_some() || replaced.contains(&stop.alloc_id);
        stop.client_status == Some(ClientStatus::Lost) && !waits
    });
    for alloc in lost.filter_map(|stop| state.allocs().get(&stop.alloc_id)) {
        let is_free = |place: &Placement| place.canary || place.name_index != alloc.name_index();
        // An allocation that was out of reach may have been replaced then.
        let is_wanted = room > 0
            && !alloc.canary()
            && alloc.name_index() < group.count
            && !staying.contains(&alloc.name_index())
            && !has_replacement(state, alloc);
        if is_wanted
            && !work.follow_ups.iter().any(|it| !it.is_timeout)
            && work.place.iter().all(is_free)
        {
            room -= 1;
            work.place.push(Placement {
                name_index: alloc.name_index(),
                canary: false,
                previous: Some(alloc.id()),
                reschedule: false,
                lost: true,
                keeps_previous: false,
                last_stable,
                version_min: alloc.job().version,
            });
        }
    }
    let mut dropped: BTreeSet<AllocId> = BTreeSet::new();
    work.place.retain(|place| {
        // A canary is not one of the instances that are counted here.
        let takes_room = place.reschedule && !place.canary;
        let fits = !takes_room || room > 0;
        if takes_room && fits {
            room -= 1;
        }
        if !fits {
            dropped.extend(place.previous);
        }
        fits
    });
    // A failed instance without a replacement stays as it is.
    work.stop
        .retain(|stop| stop.why != RESCHEDULED || !dropped.contains(&stop.alloc_id));
    work.handle_dropped_placements(dropped.len());
    dedupe_names(state, key, name, work);
    link_to_lost(state, key, name, work);
    dropped.len()
}

/// Reduces the number of instances that a new deployment waits for by `number`, and to at most the wanted number. A
/// deployment without instances is dropped. Nomad also counts failed instances that are not replaced.
fn limit_deployment_total(plan: &mut Plan, job: Option<&Job>, name: &str, number: usize) {
    let Some(new) = &mut plan.new_deployment else {
        return;
    };
    let wanted = job.and_then(|job| job.current.spec.group(name));
    let wanted = wanted.map_or(0, |group| group.count);
    if let Some(group) = new.groups.iter_mut().find(|group| group.name == name) {
        let total = group.desired_total.saturating_sub(number::count(number));
        group.desired_total = total.min(wanted);
    }
    new.groups.retain(|group| group.desired_total > 0);
    if new.groups.is_empty() {
        plan.new_deployment = None;
    }
}

/// Returns whether an allocation that replaced `alloc` runs, or will be replaced itself.
fn has_replacement(state: &State, alloc: AllocView<'_>) -> bool {
    let mut heir = None;
    let mut next = alloc.next();
    while let Some(alloc) = next.and_then(|id| state.allocs().get(&id)) {
        heir = Some(alloc);
        next = alloc.next();
    }
    heir.is_some_and(|heir| heir.desired() == DesiredStatus::Run)
}

/// Records that a new instance replaces a lost one with the same name, if the lost one found no place when it was lost.
fn link_to_lost(state: &State, key: &JobKey, name: &str, work: &mut GroupWork) {
    let is_fresh = |place: &Placement| place.previous.is_none() && !place.canary;
    if !work.place.iter().any(is_fresh) {
        return;
    }
    // Allocations come by age, so the newest of each name stays in the map.
    let lost: BTreeMap<u32, AllocId> = state
        .allocs()
        .of_job(key)
        .filter(|alloc| alloc.client_status() == ClientStatus::Lost && alloc.next().is_none())
        .filter(|alloc| alloc.group().name == name)
        .map(|alloc| (alloc.name_index(), alloc.id()))
        .collect();
    if lost.is_empty() {
        return;
    }
    for place in work.place.iter_mut().filter(|place| is_fresh(place)) {
        place.previous = lost.get(&place.name_index).copied();
        place.lost = place.previous.is_some();
    }
}

/// Gives placed instances distinct names. If canaries wait, Nomad may give a name twice.
///
/// A promoted canary can share its name with an older instance. When both fail, one replacement gets another name.
fn dedupe_names(state: &State, key: &JobKey, name: &str, work: &mut GroupWork) {
    let stopped: BTreeSet<AllocId> = work.stop.iter().map(|stop| stop.alloc_id).collect();
    let staying = state.allocs().of_job(key).filter(|alloc| {
        let is_of_group = alloc.group().name == name && !alloc.canary();
        is_of_group && !alloc.is_terminal() && !stopped.contains(&alloc.id())
    });
    let mut taken = BTreeSet::new();
    // The replacement of an instance that is out of reach shares its name.
    let mut unshared = BTreeSet::new();
    let replaced: BTreeSet<AllocId> = work.place.iter().filter_map(|it| it.previous).collect();
    for alloc in staying {
        taken.insert(alloc.name_index());
        if !is_unreachable(alloc) && alloc.next().is_none() && !replaced.contains(&alloc.id()) {
            unshared.insert(alloc.name_index());
        }
    }
    let mut nameless: Vec<&mut u32> = Vec::new();
    let placed = work.place.iter_mut().filter(|place| !place.canary);
    let (replacing, fresh): (Vec<_>, Vec<_>) = placed.partition(|place| place.previous.is_some());
    for place in replacing {
        if unshared.insert(place.name_index) {
            taken.insert(place.name_index);
        } else {
            nameless.push(&mut place.name_index);
        }
    }
    if taken.is_empty() {
        return;
    }
    for place in fresh {
        if !taken.insert(place.name_index) {
            nameless.push(&mut place.name_index);
        }
    }
    let mut free = (0..u32::MAX).filter(|index| !taken.contains(index));
    for name_index in nameless {
        *name_index = free.next().unwrap_or(*name_index);
    }
}

/// Gives replacements by a newer version names that are not taken. Two instances can share a name in the middle of an
/// update: the promoted canary and an older instance that is still to be replaced under that name.
fn dedupe_replacement_names(state: &State, key: &JobKey, name: &str, work: &mut GroupWork) {
    if work.destructive.is_empty() {
        return;
    }
    let stopped = work.stop.iter().map(|stop| stop.alloc_id);
    let going: BTreeSet<AllocId> = stopped.chain(work.destructive.iter().copied()).collect();
    // An instance that has ended and waits for its replacement keeps its name for that replacement.
    let has_name = |alloc: AllocView<'_>| {
        !alloc.is_terminal() || (!alloc.server_terminal() && alloc.next().is_none())
    };
    let staying = state.allocs().of_job(key).filter(|alloc| {
        alloc.group().name == name && !alloc.canary() && !going.contains(&alloc.id())
    });
    let mut taken: BTreeSet<u32> = staying
        .filter(|alloc| has_name(*alloc))
        .map(AllocView::name_index)
        .collect();
    taken.extend(work.place.iter().map(|place| place.name_index));
    let mut nameless = Vec::new();
    // A live instance keeps its name for its replacement. The node of the replacement may be gone when the plan is
    // carried out. Then the instance lives on under this name.
    let mut in_order: Vec<AllocId> = work.destructive.clone();
    in_order.sort_by_key(|id| state.allocs().get(id).is_none_or(AllocView::is_terminal));
    for alloc_id in &in_order {
        let alloc = state.allocs().get(alloc_id);
        if alloc.is_some_and(|alloc| !taken.insert(alloc.name_index())) {
            nameless.push(*alloc_id);
        }
    }
    let mut free = (0..u32::MAX).filter(|index| !taken.contains(index));
    work.renamed = nameless.into_iter().zip(&mut free).collect();
    // Replacements with another name come first. An instance whose replacement has no room stays, with its name.
    let renamed = &work.renamed;
    work.destructive.sort_by_key(|id| !renamed.contains_key(id));
}

/// Returns whether an instance that is to migrate leaves even if it finds no place. That is so when a client asked for
/// it, or when the drain of its node has reached its deadline.
fn migrates_at_any_cost(state: &State, alloc: AllocView<'_>, now: Timestamp) -> bool {
    let node = state.nodes().get(&alloc.node_id());
    match node.and_then(|node| node.drain) {
        Some(drain) => drain.deadline().is_some_and(|deadline| deadline <= now),
        None => true,
    }
}

/// Adds to the plan the stops that do not wait for a replacement, and the evaluations to come.
fn add_stops(
    state: &State,
    work: &GroupWork,
    is_forced: &impl Fn(AllocView<'_>) -> bool,
    plan: &mut Plan,
) {
    let replaced: BTreeSet<AllocId> = work.place.iter().filter_map(|it| it.previous).collect();
    let first = plan.follow_ups.len();
    let global = |at: usize| u16::try_from(first + at).ok();
    for stop in &work.stop {
        let alloc = state.allocs().get(&stop.alloc_id);
        let Some(alloc) = alloc.filter(|alloc| !alloc.server_terminal()) else {
            continue;
        };
        let goes_first = match stop.why {
            RESCHEDULED => false,
            MIGRATING => is_forced(alloc),
            _ => true,
        };
        // The plan gets the stop together with the replacement, if there is a place for that.
        if !goes_first && replaced.contains(&stop.alloc_id) {
            continue;
        }
        plan.stops.push(PlannedStop {
            alloc_id: stop.alloc_id,
            description: stop.why.to_owned(),
            client_status: stop.client_status,
            follow_up: stop.follow_up.and_then(global),
        });
    }
    for follow_up in &work.follow_ups {
        plan.follow_ups.push(PlannedFollowUp {
            wait_until: follow_up.wait_until,
            allocs: follow_up.allocs.clone(),
            trigger: if follow_up.is_timeout {
                Trigger::MaxDisconnect
            } else {
                Trigger::AllocFailure
            },
        });
    }
}

/// Places the work of the reconciler.
struct Placer<'s> {
    state: &'s State,
    job: &'s Job,
    key: &'s JobKey,
    /// Whether the job has no allocations.
    is_new: bool,
    fleet: ProjectedNodes<'s>,
    /// Nodes where the plan placed instances, by group.
    planned: Vec<(usize, u16)>,
    may_preempt: bool,
}

impl<'s> Placer<'s> {
    fn new(
        state: &'s State,
        job: &'s Job,
        key: &'s JobKey,
        is_new: bool,
        fleet: ProjectedNodes<'s>,
    ) -> Self {
        let preemption = state.config().scheduler.preemption;
        Self {
            state,
            job,
            key,
            is_new,
            fleet,
            planned: Vec::new(),
            may_preempt: preemption.allows(job.current.spec.job_type),
        }
    }

    /// Places the work, and returns the fleet as the plan leaves it.
    fn place(mut self, work: Vec<(&str, GroupWork)>, plan: &mut Plan) -> ProjectedNodes<'s> {
        for stop in &plan.stops {
            if let Some(alloc) = self.state.allocs().get(&stop.alloc_id) {
                self.fleet.give_back(alloc);
            }
        }
        let spec = &self.job.current.spec;
        for (name, work) in &work {
            let Some(group) = spec.group(name) else {
                continue;
            };
            for alloc_id in &work.in_place {
                if let Some(alloc) = self.state.allocs().get(alloc_id) {
                    self.fleet.resize(alloc, group);
                }
            }
        }
        let before = spec.all_at_once.then(|| plan.clone());
        for (name, work) in work {
            let Some(at) = spec.groups.iter().position(|group| group.name == name) else {
                continue;
            };
            if work.place.is_empty() && work.destructive.is_empty() && work.in_place.is_empty() {
                continue;
            }
            let group_at = u16::try_from(at).expect("validation bounds the groups of a job");
            self.place_group(group_at, &spec.groups[at], work, plan);
        }
        if let Some(before) = before.filter(|_| !plan.failed.is_empty()) {
            let failed = std::mem::take(&mut plan.failed);
            *plan = before;
            plan.failed = failed;
        }
        plan.all_at_once = spec.all_at_once;
        self.fleet
    }

    fn place_group(&mut self, group_at: u16, group: &TaskGroup, work: GroupWork, plan: &mut Plan) {
        let is_live = |alloc_id: &AllocId| {
            let alloc = self.state.allocs().get(alloc_id);
            alloc.is_some_and(|alloc| !alloc.is_terminal())
        };
        let in_place = work.in_place.iter().any(is_live);
        let mut placed = GroupPlacements {
            group_at,
            in_place,
            left_behind: if in_place {
                self.left_behind(group, &work)
            } else {
                Vec::new()
            },
            metrics: Arc::default(),
            placements: Vec::new(),
        };
        if work.place.is_empty() && work.destructive.is_empty() {
            plan.groups
                .extend(Some(placed).filter(|placed| placed.in_place));
            return;
        }
        let current = Arc::clone(&self.job.current);
        let mut older: BTreeMap<u64, Vec<Placement>> = BTreeMap::new();
        let mut of_current = work.place;
        if of_current.iter().any(|place| place.last_stable) {
            for place in std::mem::take(&mut of_current) {
                let stable = || self.last_stable(place.version_min);
                let older_than = place.last_stable.then(stable);
                match older_than.filter(|version| *version != current.version) {
                    Some(version) => older.entry(version).or_default().push(place),
                    None => of_current.push(place),
                }
            }
        }
        let wants_current = !of_current.is_empty() || !work.destructive.is_empty();
        let of_current = wants_current.then_some((current.version, of_current));
        let mut failed = 0;
        let mut at_end = None;
        for (number, places) in older.into_iter().chain(of_current) {
            let older = || self.state.jobs().version(&plan.job, number);
            let older = (number != current.version).then(older).flatten();
            let version = older.unwrap_or_else(|| Arc::clone(&current));
            let Some(group) = version.spec.group(&group.name) else {
                continue;
            };
            let destructive: &[AllocId] = if number == current.version {
                &work.destructive
            } else {
                &[]
            };
            let replaced = destructive
                .iter()
                .map(|id| (*id, work.renamed.get(id).copied()));
            let replaced: Vec<_> = replaced.collect();
            let (runs, missed, how) =
                self.place_version(&version, group, group_at, places, &replaced, plan);
            if placed.placements.is_empty() {
                placed.placements = runs;
            } else {
                placed.placements.extend(runs);
            }
            placed.metrics = Arc::new(how.at_start);
            if missed > 0 {
                failed += missed;
                at_end = Some(Arc::new(how.at_end));
            }
        }
        if failed > 0 {
            plan.failed.push(FailedGroup {
                group: group.name.clone(),
                count: failed,
                metrics: self.with_common_shortages(group, at_end.unwrap_or_default()),
            });
        }
        if placed.in_place || !placed.placements.is_empty() {
            plan.groups.push(placed);
        }
    }

    /// Lists all resources that every feasible node lacks, if there are any. The list replaces the resource that ran
    /// out first on each node, because a client of a one-off task reads it.
    fn with_common_shortages(
        &self,
        group: &TaskGroup,
        mut metrics: Arc<PlacementMetrics>,
    ) -> Arc<PlacementMetrics> {
        if !self.key.is_one_off() || metrics.dimension_exhausted.is_empty() {
            return metrics;
        }
        let spec = &self.job.current.spec;
        let common = unplaceable::common_shortages(&self.fleet, spec, group);
        if !common.is_empty() {
            Arc::make_mut(&mut metrics).dimension_exhausted = common;
        }
        metrics
    }

    /// Returns live instances of older versions that are not updated in place.
    fn left_behind(&self, group: &TaskGroup, work: &GroupWork) -> Vec<AllocId> {
        let moved: BTreeSet<AllocId> = work.in_place.iter().copied().collect();
        let current = &self.job.current;
        self.state
            .allocs()
            .of_job(self.key)
            .filter(|alloc| !alloc.is_terminal() && alloc.group().name == group.name)
            .filter(|alloc| !alloc.job().is_same(current))
            .map(AllocView::id)
            .filter(|alloc_id| !moved.contains(alloc_id))
            .collect()
    }

    /// Returns the newest stable version before the current one, or else `version_min`, the version that ran.
    fn last_stable(&self, version_min: u64) -> u64 {
        let current = self.job.current.version;
        self.state
            .jobs()
            .versions(self.key)
            .iter()
            .map(|version| version.version)
            .find(|version| *version < current && self.job.is_stable(*version))
            .unwrap_or(version_min)
    }

    /// Places instances of one version, and replaces the instances in `destructive` by that version.
    fn place_version(
        &mut self,
        version: &JobVersion,
        group: &TaskGroup,
        group_at: u16,
        places: Vec<Placement>,
        destructive: &[Replacement],
        plan: &mut Plan,
    ) -> (Vec<PlacementRun>, u32, Metrics) {
        let spec = &version.spec;
        let wanted = places.len() + destructive.len();
        self.fleet.reserve(wanted);
        let mut chooser = match self.scan(spec, group, group_at, wanted) {
            Some(scan) => NodeSelector::Scan(Box::new(scan)),
            None => NodeSelector::Ranking(Box::new(self.ranking(spec, group, group_at))),
        };
        let at_start = chooser.take_metrics(&self.fleet);
        let older = Some(version.version).filter(|number| *number != self.job.current.version);
        let mut placing = GroupPlacer {
            placer: self,
            chooser,
            spec,
            group,
            older,
            group_at,
            runs: Vec::new(),
            failed: 0,
        };
        placing.replace(destructive, plan);
        placing.place(places, plan);
        let at_end = if placing.failed > 0 {
            placing.rank();
            placing.chooser.take_metrics(&placing.placer.fleet)
        } else {
            PlacementMetrics::default()
        };
        let GroupPlacer { runs, failed, .. } = placing;
        (runs, failed, Metrics { at_start, at_end })
    }

    /// Returns the best nodes for instances of `group`, if only the node itself decides.
    fn scan<'j>(
        &mut self,
        spec: &'j JobSpec,
        group: &'j TaskGroup,
        group_at: u16,
        wanted: usize,
    ) -> Option<Scan<'j>> {
        let present = self.present();
        let planned = self.planned_nodes(group_at);
        Scan::new(
            &mut self.fleet,
            spec,
            group,
            wanted,
            present.into_iter(),
            planned.into_iter(),
        )
    }

    /// Returns the ranking, which serves every case.
    fn ranking<'j>(&self, spec: &'j JobSpec, group: &'j TaskGroup, group_at: u16) -> Ranking<'j> {
        Ranking::new(
            &self.fleet,
            spec,
            group,
            self.present().into_iter(),
            self.planned_nodes(group_at).into_iter(),
        )
    }

    /// Returns the instances of the job that stay.
    fn present(&self) -> Vec<AllocView<'s>> {
        if self.is_new {
            return Vec::new();
        }
        let all = self.state.allocs().of_job(self.key);
        all.filter(|alloc| !alloc.is_terminal() && !self.fleet.is_freed(*alloc))
            .collect()
    }

    /// Returns the nodes where the plan placed instances, each with whether the instance is of the group.
    fn planned_nodes(&self, group_at: u16) -> Vec<(usize, bool)> {
        let planned = self.planned.iter();
        planned.map(|(node, of)| (*node, *of == group_at)).collect()
    }
}

/// Finds the best node.
enum NodeSelector<'j> {
    Scan(Box<Scan<'j>>),
    Ranking(Box<Ranking<'j>>),
}

impl NodeSelector<'_> {
    /// Takes out the metrics. A scan has those from before the first placement, and returns them once.
    fn take_metrics(&mut self, fleet: &ProjectedNodes<'_>) -> PlacementMetrics {
        match self {
            Self::Scan(scan) => scan.take_metrics(),
            Self::Ranking(ranking) => ranking.metrics(fleet),
        }
    }

    fn record_stop(&mut self, fleet: &ProjectedNodes<'_>, number: usize, is_stopped: bool) {
        match self {
            Self::Scan(scan) => scan.record_stop(number, is_stopped),
            Self::Ranking(ranking) => ranking.record_stop(fleet, number, is_stopped),
        }
    }
}

/// An instance to replace, and the number of its replacement if that differs.
type Replacement = (AllocId, Option<u32>);

/// The metrics of the choice of places, and the metrics that explain why there were no more places.
struct Metrics {
    at_start: PlacementMetrics,
    at_end: PlacementMetrics,
}

/// The state of placing one group.
struct GroupPlacer<'p, 's, 'j> {
    placer: &'p mut Placer<'s>,
    chooser: NodeSelector<'j>,
    spec: &'j JobSpec,
    group: &'j TaskGroup,
    /// The number of the version, if it is not the current one.
    older: Option<u64>,
    group_at: u16,
    runs: Vec<PlacementRun>,
    failed: u32,
}

impl GroupPlacer<'_, '_, '_> {
    /// Switches to a ranking, which takes all earlier placements into account.
    fn rank(&mut self) {
        if let NodeSelector::Scan(_) = self.chooser {
            let ranking = self.placer.ranking(self.spec, self.group, self.group_at);
            self.chooser = NodeSelector::Ranking(Box::new(ranking));
        }
    }

    /// Stops each instance to make room for its own replacement. An instance that cannot be replaced runs on.
    fn replace(&mut self, destructive: &[Replacement], plan: &mut Plan) {
        // New name numbers whose old instances stay, by the number of the old instance.
        let mut unused: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (alloc_id, other_name) in destructive {
            let shares_name = other_name.is_some() || !unused.is_empty();
            let old = shares_name.then(|| self.placer.state.allocs().get(alloc_id));
            let old_name = old.flatten().map(AllocView::name_index);
            let name_index = other_name.or_else(|| unused.get_mut(&old_name?)?.pop());
            let stop = PlannedStop {
                alloc_id: *alloc_id,
                description: reconciler::UPDATING.to_owned(),
                client_status: None,
                follow_up: None,
            };
            let detail = PlacementDetail {
                previous: Some(*alloc_id),
                ..PlacementDetail::default()
            };
            let is_placed = self.place_instead(stop, name_index, detail, &[], plan);
            if let (false, Some(old_name), Some(name_index)) = (is_placed, old_name, name_index) {
                unused.entry(old_name).or_default().push(name_index);
            }
        }
    }

    /// Places one instance and stops the one it replaces. The new instance has the same name unless another is given.
    /// Returns whether there was room.
    fn place_instead(
        &mut self,
        stop: PlannedStop,
        name_index: Option<u32>,
        detail: PlacementDetail,
        avoid: &[NodeId],
        plan: &mut Plan,
    ) -> bool {
        let Some(old) = self.placer.state.allocs().get(&stop.alloc_id) else {
            self.failed += 1;
            return false;
        };
        let name_index = name_index.unwrap_or(old.name_index());
        let number = self.placer.fleet.give_back(old);
        if let Some(number) = number {
            self.chooser.record_stop(&self.placer.fleet, number, true);
        }
        let is_placed = self.place_one(name_index, detail, avoid);
        if is_placed {
            plan.stops.push(stop);
        } else if let Some(number) = number {
            self.placer.fleet.undo_give_back(number, old);
            self.chooser.record_stop(&self.placer.fleet, number, false);
        }
        is_placed
    }

    /// Places one instance, by preemption if no node has room and preemption is allowed.
    fn place_one(&mut self, name_index: u32, detail: PlacementDetail, avoid: &[NodeId]) -> bool {
        let preferred = self.preferred(detail.previous);
        let Some(place) = self.find(preferred, avoid) else {
            self.failed += 1;
            return false;
        };
        let RankedNode {
            node,
            score,
            holding,
            preempted,
        } = place;
        self.placer.planned.push((node.at(), self.group_at));
        let detail = PlacementDetail {
            holding,
            preempted,
            version: self.older,
            ..detail
        };
        let is_plain = detail == PlacementDetail::default();
        self.runs.push(PlacementRun {
            node,
            first_index: name_index,
            count: 1,
            score,
            detail: (!is_plain).then(|| Box::new(detail)),
        });
        true
    }

    /// Returns the node that has the data of the replaced instance, if the data are to be kept.
    fn preferred(&self, previous: Option<AllocId>) -> Option<usize> {
        let previous = previous.filter(|_| self.group.ephemeral_disk.sticky)?;
        let Placer { state, fleet, .. } = &*self.placer;
        fleet.number_of(state.allocs().get(&previous)?)
    }

    fn find(&mut self, preferred: Option<usize>, avoid: &[NodeId]) -> Option<RankedNode> {
        let place = preferred.and_then(|number| self.find_at(number));
        let place = place.or_else(|| self.find_room(avoid));
        if place.is_some() || !self.placer.may_preempt {
            return place;
        }
        self.rank();
        let Placer {
            fleet, job, key, ..
        } = &mut *self.placer;
        match &mut self.chooser {
            NodeSelector::Ranking(ranking) => {
                ranking.place_preempting(fleet, key, job.current.spec.priority)
            }
            NodeSelector::Scan(_) => None,
        }
    }

    /// Returns the place on node `number`, if that takes the instance and has room.
    fn find_at(&mut self, number: usize) -> Option<RankedNode> {
        self.rank();
        match &mut self.chooser {
            NodeSelector::Ranking(ranking) => {
                ranking.place_at(&mut self.placer.fleet, number, None).ok()
            }
            NodeSelector::Scan(_) => None,
        }
    }

    /// Returns the best place with room.
    fn find_room(&mut self, avoid: &[NodeId]) -> Option<RankedNode> {
        if let NodeSelector::Scan(scan) = &mut self.chooser {
            match scan.place(&mut self.placer.fleet, avoid) {
                ScanOutcome::Place(place) => return Some(place),
                ScanOutcome::Nothing => return None,
                ScanOutcome::Unsure => self.rank(),
            }
        }
        match &mut self.chooser {
            NodeSelector::Ranking(ranking) => ranking.place(&mut self.placer.fleet, avoid),
            NodeSelector::Scan(_) => None,
        }
    }

    fn place(&mut self, places: Vec<Placement>, plan: &mut Plan) {
        let has_extras = !ExclusiveRequests::of(self.group).is_empty();
        let is_special = |place: &Placement| {
            has_extras || place.previous.is_some() || place.canary || self.older.is_some()
        };
        if !places.iter().any(is_special) {
            self.place_interchangeable(&places);
            return;
        }
        let (special, fresh): (Vec<_>, Vec<_>) = places.into_iter().partition(is_special);
        for place in special {
            self.place_special(place, plan);
        }
        self.place_interchangeable(&fresh);
    }

    fn place_special(&mut self, place: Placement, plan: &mut Plan) {
        let previous = place
            .previous
            .and_then(|alloc_id| self.placer.state.allocs().get(&alloc_id));
        let mut detail = PlacementDetail {
            previous: place.previous,
            canary: place.canary,
            ..PlacementDetail::default()
        };
        let mut avoid = Vec::new();
        if let Some(previous) = previous.filter(|_| place.reschedule) {
            let instance = Instance::of(
                self.placer.state,
                Some(self.placer.job),
                previous,
                update::Change::None,
            );
            let policy = &previous.group().reschedule;
            detail.reschedule = Some(reconciler::next_delay(&instance, policy));
            avoid.push(previous.node_id());
            avoid.extend(
                previous
                    .reschedules()
                    .iter()
                    .map(|event| event.previous_node),
            );
        }
        let is_stopped_already =
            |alloc: AllocView<'_>| self.placer.fleet.is_freed(alloc) || alloc.server_terminal();
        match previous.filter(|alloc| !is_stopped_already(*alloc) && !place.lost) {
            Some(previous) if !is_unreachable(previous) && !place.keeps_previous => {
                let description = if place.reschedule {
                    RESCHEDULED
                } else {
                    MIGRATING
                };
                let stop = PlannedStop {
                    alloc_id: previous.id(),
                    description: description.to_owned(),
                    client_status: None,
                    follow_up: None,
                };
                self.place_instead(stop, Some(place.name_index), detail, &avoid, plan);
            }
            Some(_) | None => {
                self.place_one(place.name_index, detail, &avoid);
            }
        }
    }

    /// Places interchangeable instances. The number of instances of each node is chosen one by one. Then names are
    /// assigned node by node, so that the instances of a node are one run.
    fn place_interchangeable(&mut self, fresh: &[Placement]) {
        if let [alone] = fresh {
            self.place_one(alone.name_index, PlacementDetail::default(), &[]);
            return;
        }
        let mut order: Vec<(RankedNode, u32)> = Vec::new();
        let mut place_of: BTreeMap<NodeNumber, usize> = BTreeMap::new();
        let mut placed = 0;
        for _ in fresh {
            let Some(place) = self.find_room(&[]) else {
                break;
            };
            placed += 1;
            self.placer.planned.push((place.node.at(), self.group_at));
            let at = *place_of.entry(place.node).or_insert(order.len());
            match order.get_mut(at) {
                Some((_, count)) => *count += 1,
                None => order.push((place, 1)),
            }
        }
        // The order by node takes fewer bytes in the log.
        order.sort_unstable_by_key(|(place, _)| place.node);
        let mut names = fresh.iter().map(|place| place.name_index);
        for (place, count) in order {
            for name_index in names.by_ref().take(count as usize) {
                match self.runs.last_mut() {
                    Some(run) if continues(run, place.node, name_index) => run.count += 1,
                    Some(_) | None => self.runs.push(PlacementRun {
                        node: place.node,
                        first_index: name_index,
                        count: 1,
                        score: place.score,
                        detail: None,
                    }),
                }
            }
        }
        // Instances without room are placed by preemption, or not at all.
        for place in &fresh[placed..] {
            if !self.placer.may_preempt {
                let missing = fresh.len() - placed;
                self.failed += number::count(missing);
                break;
            }
            self.place_one(place.name_index, PlacementDetail::default(), &[]);
        }
    }
}

/// Returns whether an allocation runs on, out of reach, in addition to its replacement.
fn is_unreachable(alloc: AllocView<'_>) -> bool {
    alloc.unreachable_at().is_some() || alloc.client_status() == ClientStatus::Unknown
}

fn continues(run: &PlacementRun, node: NodeNumber, name_index: u32) -> bool {
    run.node == node && run.detail.is_none() && run.first_index + run.count == name_index
}

pub(super) fn could_help(state: &State, eval: &Evaluation, node_id: &NodeId) -> bool {
    let (Some(job), Some(node)) = (state.jobs().get(&eval.job), state.nodes().get(node_id)) else {
        // A removed job waits for nothing: its evaluation may end.
        return state.jobs().get(&eval.job).is_none();
    };
    let Some(number) = state.nodes().number(node_id) else {
        return false;
    };
    // While canaries wait, instances of older versions are placed, too: they may fit where no canary does.
    let deployment = state.deployments().latest(&eval.job);
    let has_canaries =
        deployment.is_some_and(|row| row.groups.iter().any(DeploymentGroup::awaits_promotion));
    let mut versions = vec![Arc::clone(&job.current)];
    if has_canaries {
        versions.extend(state.jobs().versions(&eval.job));
    }
    let names = || eval.queued.iter().map(|(name, _)| name);
    let mut waiting = versions.iter().flat_map(|version| {
        let spec = &version.spec;
        names().filter_map(move |name| Some((spec, spec.group(name)?)))
    });
    node.takes_work()
        && waiting.any(|(spec, group)| {
            let mut room = RemainingCapacity::new(state);
            give_back_replaced(state, job, node_id, &mut room);
            let mut has_room = || {
                room.take(number, state.applied(), group.ask(), None)
                    .is_ok()
            };
            (state.config().scheduler.preemption.allows(spec.job_type) || has_room())
                && feasible::judge(
                    &FeasibilityCheck::new(GroupConstraints::of(spec, group)),
                    &node.spec,
                ) == Feasibility::Feasible
        })
}

/// Adds the room of instances that would make room for their own replacement.
fn give_back_replaced(
    state: &State,
    job: &Job,
    node_id: &NodeId,
    room: &mut RemainingCapacity<'_>,
) {
    let current = &job.current;
    let key = job.key();
    for alloc in state.allocs_on(node_id) {
        let is_replaced = !alloc.job().is_same(current) || alloc.transition().migrate;
        if is_replaced && **alloc.job_key() == key {
            room.give_back(alloc);
        }
    }
}
