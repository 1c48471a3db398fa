//! Plans become allocations.

use std::collections::BTreeSet;
use std::sync::Arc;

use muster_domain::alloc::{Allocation, ClientStatus, DesiredStatus};
use muster_domain::id::{AllocId, EvalId};
use muster_domain::job::JobVersion;
use muster_domain::plan::{GroupPlacements, PlacementRun, Plan};

use super::{Change, EvalUpdate, PlanOutcome, Response, admit, eval};
use crate::state::Room;

/// Carries out what still holds of each plan, then the updates of evaluations whose plan held whole.
pub(super) fn apply(change: &mut Change<'_>, plans: Vec<Plan>, evals: Vec<EvalUpdate>) -> Response {
    let mut outcomes = Vec::with_capacity(plans.len());
    let mut unfinished: BTreeSet<EvalId> = BTreeSet::new();
    for plan in plans {
        let admission = admit(change.state, &mut Room::new(change.state), plan);
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
        let Some(alloc) = change.state.allocs.get(&stop.alloc_id).map(Arc::clone) else {
            continue;
        };
        if !alloc.server_terminal() {
            change.stop(&alloc, &stop.description, stop.client_status);
        }
    }
    if plan.is_empty() {
        return;
    }
    change.state.jobs.set_plan_index(&plan.job, change.index);
    let Some(version) = change.state.jobs.version(&plan.job, plan.job_version) else {
        return;
    };
    for group in &plan.groups {
        if group.in_place {
            move_to_version(change, plan, group, &version);
        }
        for run in &group.placements {
            place_run(change, plan.eval_id, group, run, &version);
        }
    }
}

/// Live instances of older versions go over to `version` where they are.
fn move_to_version(
    change: &mut Change<'_>,
    plan: &Plan,
    group: &GroupPlacements,
    version: &Arc<JobVersion>,
) {
    let Some(name) = version
        .spec
        .groups
        .get(usize::from(group.group_at))
        .map(|group| &group.name)
    else {
        return;
    };
    let older: Vec<Arc<Allocation>> = change
        .state
        .allocs
        .of_job(&plan.job)
        .filter(|alloc| !alloc.is_terminal() && alloc.group().name == *name)
        .filter(|alloc| alloc.job.version != version.version)
        .filter(|alloc| !group.left_behind.contains(&alloc.id))
        .map(Arc::clone)
        .collect();
    for alloc in older {
        let mut alloc = (*alloc).clone();
        alloc.job = Arc::clone(version);
        alloc.group_at = group.group_at;
        change.put_decided(alloc);
    }
}

fn place_run(
    change: &mut Change<'_>,
    eval_id: EvalId,
    group: &GroupPlacements,
    run: &PlacementRun,
    version: &Arc<JobVersion>,
) {
    for name_index in run.first_index..run.first_index + run.count {
        let alloc_id = change.next_alloc_id();
        change.put_decided(Allocation {
            id: alloc_id,
            eval_id,
            node_id: run.node_id,
            job: Arc::clone(version),
            group_at: group.group_at,
            name_index,
            ports: run.ports.clone(),
            metrics: Arc::clone(&group.metrics),
            score: run.score,
            desired: DesiredStatus::Run,
            desired_description: String::new(),
            client_status: ClientStatus::Pending,
            client_description: String::new(),
            task_states: Vec::new(),
            previous: run.previous,
            next: None,
            create_index: change.index,
            modify_index: change.index,
            alloc_modify_index: change.index,
            create_time: change.at,
            modify_time: change.at,
        });
        if let Some(previous) = run.previous {
            link_next(change, previous, alloc_id);
        }
    }
}

/// Records what replaces an allocation. Its agent need not know.
fn link_next(change: &mut Change<'_>, previous: AllocId, next: AllocId) {
    if let Some(old) = change.state.allocs.get(&previous).map(Arc::clone) {
        let mut old = (*old).clone();
        old.next = Some(next);
        old.modify_index = change.index;
        change.put_unseen(old);
    }
}
