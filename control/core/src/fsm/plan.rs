//! Plans become allocations.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use muster_domain::alloc::{ClientStatus, DesiredStatus};
use muster_domain::eval::Trigger;
use muster_domain::id::{AllocId, DeploymentId, EvalId, JobKey, Timestamp};
use muster_domain::job::JobVersion;
use muster_domain::plan::{GroupPlacements, PlacementRun, Plan};
use serde::{Deserialize, Serialize};

use super::admit::{admit, admit_current};
use super::change::Change;
use super::eval_update::{self, EvalUpdate};
use super::response::{PlanOutcome, Response};
use super::{deployment, remote};
use crate::state::{AllocView, PlanShared, RemainingCapacity};

/// Places for all instances of a job that is not recorded yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobPlacement {
    /// A plan that only places the instances. Its evaluation is the one that the entry makes.
    pub plan: Plan,
    /// The update of the evaluation.
    pub update: EvalUpdate,
}

/// Carries out the valid part of each plan, then the updates of evaluations whose plan was valid as a whole.
pub(super) fn apply(change: &mut Change<'_>, plans: Vec<Plan>, evals: Vec<EvalUpdate>) -> Response {
    let mut outcomes = Vec::with_capacity(plans.len());
    let mut unfinished: BTreeSet<EvalId> = BTreeSet::new();
    for plan in plans {
        let room = &mut RemainingCapacity::new(change.state);
        let admission = admit(change.state, room, plan, change.placements_left());
        let eval_id = admission.plan.eval_id;
        if admission.dropped > 0 {
            unfinished.insert(eval_id);
        }
        outcomes.push(PlanOutcome {
            eval_id,
            placed: admission.placed,
            dropped: admission.dropped,
        });
        carry_out(change, &admission.plan);
    }
    for update in evals {
        if !unfinished.contains(&update.eval_id) {
            eval_update::update(change, update);
        }
    }
    Response::PlansApplied { outcomes }
}

/// Places all instances of a job that this command records, if each still has its place. Otherwise the evaluation
/// `eval_id` places them later.
pub(super) fn place_new(
    change: &mut Change<'_>,
    key: JobKey,
    eval_id: EvalId,
    places: JobPlacement,
) {
    let JobPlacement {
        mut plan,
        mut update,
    } = places;
    (plan.job, plan.job_version, plan.eval_id) = (key, 0, eval_id);
    update.eval_id = eval_id;
    // The places are refused if they were found in a later state, or if the plan does more than place.
    if plan.snapshot_index > change.index || !plan.only_places() {
        return;
    }
    let room = &mut RemainingCapacity::new(change.state);
    let admission = admit_current(change.state, room, plan, change.placements_left());
    if admission.dropped == 0 {
        carry_out(change, &admission.plan);
        eval_update::update(change, update);
    }
}

fn carry_out(change: &mut Change<'_>, plan: &Plan) {
    if plan.is_empty() {
        return;
    }
    let follow_ups = add_follow_ups(change, plan);
    for stop in &plan.stops {
        let alloc = change.state.allocs.get(&stop.alloc_id);
        let key = alloc
            .filter(|alloc| !alloc.server_terminal())
            .map(AllocView::key);
        if let Some(key) = key {
            let follow_up = stop
                .follow_up
                .and_then(|at| follow_ups.get(usize::from(at)).copied().flatten());
            let at = change.at;
            remote::release_remote_tasks(change, plan, key);
            change.stop(key, &stop.description, stop.client_status);
            if stop.client_status.is_some() || follow_up.is_some() {
                change.update_for_agent(key, |row| {
                    if stop.client_status == Some(ClientStatus::Lost) {
                        row.set_unreachable(Some(at));
                    }
                    if let Some(eval_id) = follow_up {
                        row.set_follow_up(eval_id);
                    }
                });
            }
        }
    }
    for alloc_id in &plan.unreachable {
        set_unreachable(change, plan, alloc_id);
    }
    change.state.jobs.set_plan_index(&plan.job, change.index);
    change.touch(&plan.job);
    if let Some(update) = &plan.deployment_update {
        deployment::update(change, update);
    }
    let Some(version) = change.state.jobs.version(&plan.job, plan.job_version) else {
        return;
    };
    if let Some(new) = &plan.new_deployment {
        deployment::begin(change, &version, new);
    }
    let deployment = deployment::under_way(change.state, &version);
    let mut victims: BTreeSet<Arc<JobKey>> = BTreeSet::new();
    for group in &plan.groups {
        if group.in_place {
            move_to_version(change, plan, group, &version, deployment);
        }
        place_group(change, plan, group, &version, deployment, &mut victims);
    }
    if let Some(id) = deployment {
        deployment::count_wanted(change, id, &version);
    }
    for key in victims {
        if let Some(job) = change.state.jobs.get(&key).map(Arc::clone) {
            change.add_eval(&job, Trigger::Preemption);
        }
    }
}

/// Returns the evaluations to come, in the order of the plan; none if the job is gone or was stopped meanwhile.
///
/// A stopped job needs none of them to end. A one-off task that has ended is removed with all objects below its job.
fn add_follow_ups(change: &mut Change<'_>, plan: &Plan) -> Vec<Option<EvalId>> {
    let mut eval_ids = Vec::with_capacity(plan.follow_ups.len());
    for follow_up in &plan.follow_ups {
        let job = change.state.jobs.get(&plan.job).filter(|job| !job.stop);
        let Some(job) = job.map(Arc::clone) else {
            eval_ids.push(None);
            continue;
        };
        let mut eval = change.new_eval(&job, follow_up.trigger);
        eval.wait_until = follow_up.wait_until;
        eval.previous = Some(plan.eval_id);
        let eval_id = change.put_eval(eval);
        eval_ids.push(Some(eval_id));
        for alloc_id in &follow_up.allocs {
            let Some(key) = change.state.allocs.key_of(alloc_id) else {
                continue;
            };
            if change.state.allocs.at(key).is_some() {
                change.update_silently(key, |row| row.set_follow_up(eval_id));
            }
        }
    }
    eval_ids
}

fn set_unreachable(change: &mut Change<'_>, plan: &Plan, alloc_id: &AllocId) {
    let alloc = change.state.allocs.get(alloc_id);
    let alloc = alloc.filter(|alloc| !alloc.is_terminal());
    if let Some(alloc) = alloc {
        let (key, at) = (alloc.key(), unreachable_since(change, plan, alloc));
        change.update_for_agent(key, |row| {
            row.set_client(ClientStatus::Unknown, "its node is out of reach");
            row.set_unreachable(Some(at));
        });
    }
}

/// Returns the time from which an allocation that `plan` finds out of reach counts as such: the time when the plan was
/// made. One of the plan's follow-ups looks again when the allowed time is over. This entry is later than the plan. If
/// the allowed time began with the entry, it would not be over at that look, and there would be no further look.
fn unreachable_since(change: &Change<'_>, plan: &Plan, alloc: AllocView<'_>) -> Timestamp {
    let version = change.state.jobs.version(&plan.job, plan.job_version);
    let now = version.as_deref().and_then(|version| {
        let group = version.spec.group(&alloc.group().name)?;
        group.disconnect.lost_after
    });
    let waits = [now, alloc.group().disconnect.lost_after];
    let looks = plan.follow_ups.iter();
    let looks = looks.filter(|look| look.trigger == Trigger::MaxDisconnect);
    let made = looks.flat_map(|look| {
        let made = |wait: Duration| {
            let wait = u64::try_from(wait.as_nanos()).ok()?;
            Some(Timestamp(look.wait_until.0.checked_sub(wait)?))
        };
        waits.into_iter().flatten().filter_map(made)
    });
    let made = made.filter(|made| *made <= change.at).max();
    made.unwrap_or(change.at)
}

/// Moves live instances of older versions to `version` in place.
fn move_to_version(
    change: &mut Change<'_>,
    plan: &Plan,
    group: &GroupPlacements,
    version: &Arc<JobVersion>,
    deployment: Option<DeploymentId>,
) {
    let groups = &version.spec.groups;
    let Some(name) = groups
        .get(usize::from(group.group_at))
        .map(|group| &group.name)
    else {
        return;
    };
    let left_behind: BTreeSet<AllocId> = group.left_behind.iter().copied().collect();
    let older = change
        .state
        .allocs
        .of_job(&plan.job)
        .filter(|alloc| !alloc.is_terminal() && alloc.group().name == *name)
        .filter(|alloc| !alloc.job().is_same(version))
        .filter(|alloc| !left_behind.contains(&alloc.id()));
    // Instances that shared a cohort share one again.
    let mut cohorts: BTreeMap<usize, Arc<PlanShared>> = BTreeMap::new();
    let mut moved: Vec<(u64, Arc<PlanShared>)> = Vec::new();
    for alloc in older {
        let old = alloc.cohort();
        let cohort = match cohorts.entry(Arc::as_ptr(old).addr()) {
            Entry::Occupied(entry) => Arc::clone(entry.get()),
            Entry::Vacant(entry) => {
                let moved = old.of_version(Arc::clone(version), group.group_at, deployment);
                let Some(cohort) = moved else {
                    return;
                };
                Arc::clone(entry.insert(cohort))
            }
        };
        moved.push((alloc.key(), cohort));
    }
    let count = moved.len();
    for (key, cohort) in moved {
        change.update_for_agent(key, |row| row.set_cohort(cohort));
    }
    if let Some(id) = deployment {
        deployment::count_placed(change, id, name, count, Vec::new());
    }
}

/// Places the instances of the plan. The jobs of the evicted instances are added to `victims`.
fn place_group(
    change: &mut Change<'_>,
    plan: &Plan,
    group: &GroupPlacements,
    version: &Arc<JobVersion>,
    deployment: Option<DeploymentId>,
    victims: &mut BTreeSet<Arc<JobKey>>,
) {
    let Some(spec) = version.spec.groups.get(usize::from(group.group_at)) else {
        return;
    };
    let mut placed = 0_usize;
    let mut canaries = Vec::new();
    let mut cohorts: BTreeMap<u64, Arc<PlanShared>> = BTreeMap::new();
    // Most instances need only room: consecutive ones are written together.
    let is_plain = |run: &PlacementRun| run.detail.is_none();
    let alike = group
        .placements
        .chunk_by(|one, next| is_plain(one) && is_plain(next));
    for runs in alike {
        let [run, ..] = runs else { continue };
        let older = run.detail.as_ref().and_then(|detail| detail.version);
        let number = older.unwrap_or(version.version);
        let cohort = match cohorts.get(&number) {
            Some(cohort) => Arc::clone(cohort),
            None => {
                let made = cohort(change, plan, group, &spec.name, number, deployment);
                let Some(cohort) = made else { continue };
                cohorts.insert(number, Arc::clone(&cohort));
                cohort
            }
        };
        let Some(detail) = &run.detail else {
            placed += change.place_plain(&cohort, runs);
            continue;
        };
        for name_index in run.name_indexes() {
            let Some(alloc_id) = change.place(&cohort, run, name_index) else {
                break;
            };
            placed += usize::from(older.is_none());
            if let Some(previous) = &detail.previous {
                change.link_next(previous, alloc_id);
            }
            if detail.canary {
                canaries.push(alloc_id);
            }
            evict(change, &detail.preempted, alloc_id, victims);
        }
    }
    if let Some(id) = deployment {
        deployment::count_placed(change, id, &spec.name, placed, canaries);
    }
}

/// Returns the data that the instances of one version share.
fn cohort(
    change: &Change<'_>,
    plan: &Plan,
    group: &GroupPlacements,
    name: &str,
    number: u64,
    deployment: Option<DeploymentId>,
) -> Option<Arc<PlanShared>> {
    let version = change.state.jobs.version(&plan.job, number)?;
    // An older version may have its groups in another order.
    let groups = &version.spec.groups;
    let group_at = groups.iter().position(|group| group.name == name)?;
    let deployment = deployment.filter(|_| number == plan.job_version);
    PlanShared::new(
        Arc::clone(&version),
        u16::try_from(group_at).ok()?,
        plan.eval_id,
        Arc::clone(&group.metrics),
        change.at,
        deployment,
    )
}

fn evict(
    change: &mut Change<'_>,
    preempted: &[AllocId],
    by: AllocId,
    victims: &mut BTreeSet<Arc<JobKey>>,
) {
    for alloc_id in preempted {
        let Some(alloc) = change.state.allocs.get(alloc_id) else {
            continue;
        };
        let key = alloc.key();
        if alloc.desired() == DesiredStatus::Run {
            victims.insert(Arc::clone(alloc.job_key()));
            change.evict(key, by);
        }
    }
}
