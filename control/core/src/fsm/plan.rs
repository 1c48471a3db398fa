//! Plans become allocations.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_domain::id::{AllocId, EvalId};
use muster_domain::job::JobVersion;
use muster_domain::plan::{GroupPlacements, Plan};

use super::{Change, EvalUpdate, PlanOutcome, Response, admit, eval};
use crate::state::{AllocView, Cohort, Room};

/// Carries out what still holds of each plan, then the updates of evaluations whose plan held whole.
pub(super) fn apply(change: &mut Change<'_>, plans: Vec<Plan>, evals: Vec<EvalUpdate>) -> Response {
    let mut outcomes = Vec::with_capacity(plans.len());
    let mut unfinished: BTreeSet<EvalId> = BTreeSet::new();
    for plan in plans {
        let room = &mut Room::new(change.state);
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
            eval::update(change, update);
        }
    }
    Response::PlansApplied { outcomes }
}

fn carry_out(change: &mut Change<'_>, plan: &Plan) {
    for stop in &plan.stops {
        let alloc = change.state.allocs.get(&stop.alloc_id);
        if let Some(key) = alloc
            .filter(|alloc| !alloc.server_terminal())
            .map(AllocView::key)
        {
            change.stop(key, &stop.description, stop.client_status);
        }
    }
    if plan.is_empty() {
        return;
    }
    change.state.jobs.set_plan_index(&plan.job, change.index);
    change.touch(&plan.job);
    let Some(version) = change.state.jobs.version(&plan.job, plan.job_version) else {
        return;
    };
    for group in &plan.groups {
        if group.in_place {
            move_to_version(change, plan, group, &version);
        }
        place_group(change, plan.eval_id, group, &version);
    }
}

/// Live instances of older versions go over to `version` where they are.
fn move_to_version(
    change: &mut Change<'_>,
    plan: &Plan,
    group: &GroupPlacements,
    version: &Arc<JobVersion>,
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
        .filter(|alloc| alloc.job().version != version.version)
        .filter(|alloc| !left_behind.contains(&alloc.id()));
    // Instances that shared a cohort go on sharing one.
    let mut cohorts: BTreeMap<usize, Arc<Cohort>> = BTreeMap::new();
    let mut moved: Vec<(u64, Arc<Cohort>)> = Vec::new();
    for alloc in older {
        let old = alloc.cohort();
        let cohort = match cohorts.entry(Arc::as_ptr(old).addr()) {
            Entry::Occupied(entry) => Arc::clone(entry.get()),
            Entry::Vacant(entry) => {
                let Some(cohort) = old.of_version(Arc::clone(version), group.group_at) else {
                    return;
                };
                Arc::clone(entry.insert(cohort))
            }
        };
        moved.push((alloc.key(), cohort));
    }
    for (key, cohort) in moved {
        change.decide(key, |row| row.set_cohort(cohort));
    }
}

fn place_group(
    change: &mut Change<'_>,
    eval_id: EvalId,
    group: &GroupPlacements,
    version: &Arc<JobVersion>,
) {
    if group.placements.is_empty() {
        return;
    }
    let metrics = Arc::clone(&group.metrics);
    let version = Arc::clone(version);
    let Some(cohort) = Cohort::new(version, group.group_at, eval_id, metrics, change.at) else {
        return;
    };
    for run in &group.placements {
        for name_index in run.first_index..run.first_index.saturating_add(run.count) {
            let placed = change.place(&cohort, run, name_index);
            if let (Some(alloc_id), Some(previous)) = (placed, &run.previous) {
                change.link_next(previous, alloc_id);
            }
        }
    }
}
