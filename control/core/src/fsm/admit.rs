//! The part of a plan that still holds against the newest state.
//!
//! The check runs twice. The applier runs it, so that no log is spent on impossible placements. It runs again when the
//! entry is applied, because other entries may have come between. The second result decides.

use std::collections::BTreeSet;

use muster_domain::id::{AllocId, LogIndex};
use muster_domain::number;
use muster_domain::plan::{PlacementRun, Plan};
use muster_domain::resources::Amount;

use super::one_off_alloc::is_placed;
use crate::state::{AllocView, RemainingCapacity, State};

/// The part of a plan that is still valid.
#[derive(Debug)]
pub(crate) struct Admission {
    pub(crate) plan: Plan,
    pub(crate) placed: u32,
    /// The number of refused instances. It includes instances whose update in place was refused because their node
    /// lacks the additional room.
    pub(crate) dropped: u32,
}

/// Takes from `room` the amounts that `plan` asks for. Leaves out instances that do not fit and instances beyond
/// `placements_max`.
///
/// A plan is stale if its job is gone, stopped or of another version, or if the job was changed by a plan that this one
/// has not seen. No part of a stale plan is valid, not even its stops.
pub(crate) fn admit(
    state: &State,
    room: &mut RemainingCapacity<'_>,
    mut plan: Plan,
    placements_max: u32,
) -> Admission {
    if is_stale(state, &plan) {
        // Without a refused instance the evaluation would count as done.
        let dropped = plan.instances().max(1);
        plan.clear();
        return Admission {
            plan,
            placed: 0,
            dropped,
        };
    }
    admit_current(state, room, plan, placements_max)
}

/// Does the same for a plan that is not stale.
pub(super) fn admit_current(
    state: &State,
    room: &mut RemainingCapacity<'_>,
    mut plan: Plan,
    placements_max: u32,
) -> Admission {
    let wanted = plan.instances();
    for stop in &plan.stops {
        if let Some(alloc) = state.allocs().get(&stop.alloc_id) {
            room.give_back(alloc);
        }
    }
    let seen = plan.snapshot_index;
    let placements_max = if is_placed(state, &plan.job) {
        0
    } else {
        placements_max
    };
    let mut dropped = 0;
    let mut left = placements_max;
    let mut not_replaced = Vec::new();
    let row = state.jobs().row(&plan.job);
    let unmoved = resize(state, room, &mut plan);
    let ask_of = |group_at: u16, run: &PlacementRun| {
        let older = run.detail.as_ref().and_then(|detail| detail.version);
        let row = row?;
        let version = row.version(older.unwrap_or(row.job.current.version))?;
        // The groups of an older version may be in another order.
        let name = &row.job.current.spec.groups.get(usize::from(group_at))?.name;
        let mut ask = version.spec.group(name)?.ask();
        if let Some(holding) = run.holding() {
            ask.cpu_mhz = ask.cpu_mhz.saturating_add(holding.cores_mhz());
        }
        Some(ask)
    };
    for group in &mut plan.groups {
        let group_at = group.group_at;
        group.placements.retain_mut(|run| {
            let fits =
                ask_of(group_at, run).map_or(0, |ask| take_run(state, room, run, left, seen, ask));
            left -= fits;
            dropped += run.count - fits;
            if fits < run.count {
                not_replaced.extend(run.previous());
            }
            run.count = fits;
            fits > 0
        });
    }
    if plan.all_at_once && dropped + unmoved > 0 {
        plan.clear();
        return Admission {
            plan,
            placed: 0,
            dropped: wanted + unmoved,
        };
    }
    keep_running(state, room, &mut plan, &not_replaced);
    Admission {
        plan,
        placed: wanted - dropped,
        dropped: dropped + unmoved,
    }
}

/// Takes from `room` the additional amounts of instances that are updated in place to the plan's version. Leaves out
/// the instances whose additional amounts are not available, and returns their number.
fn resize(state: &State, room: &mut RemainingCapacity<'_>, plan: &mut Plan) -> u32 {
    let version = state.jobs().version(&plan.job, plan.job_version);
    let Some(version) = version.filter(|_| plan.groups.iter().any(|group| group.in_place)) else {
        return 0;
    };
    let mut unmoved = 0;
    for group in plan.groups.iter_mut().filter(|group| group.in_place) {
        let Some(new) = version.spec.groups.get(usize::from(group.group_at)) else {
            continue;
        };
        let of_group = new.ask();
        let behind: BTreeSet<AllocId> = group.left_behind.iter().copied().collect();
        let moved = state
            .allocs()
            .of_job(&plan.job)
            .filter(|alloc| !alloc.is_terminal() && alloc.group().name == new.name)
            .filter(|alloc| !alloc.job().is_same(&version) && !room.is_freed(*alloc))
            .filter(|alloc| !behind.contains(&alloc.id()));
        let moved: Vec<_> = moved.collect();
        let all = moved.len();
        let no_room = moved.into_iter().filter(|alloc| {
            let takes = alloc.ask_with(of_group);
            takes != alloc.ask() && !room.resize(*alloc, takes)
        });
        let no_room: Vec<AllocId> = no_room.map(AllocView::id).collect();
        unmoved += number::count(no_room.len());
        group.in_place = no_room.is_empty() || no_room.len() < all;
        group.left_behind.extend(no_room);
    }
    unmoved
}

fn is_stale(state: &State, plan: &Plan) -> bool {
    match state.jobs().row(&plan.job) {
        Some(row) => {
            plan.snapshot_index > state.applied()
                || plan.snapshot_index < row.plan_index
                || plan.snapshot_index < row.job.current.job_modify_index
                || (row.job.stop && plan.instances() > 0)
        }
        None => plan.instances() > 0,
    }
}

/// Returns how many instances of the run fit, at most `max`, and takes their amounts from `room`. The instances that
/// the run replaces make room first; if the run does not fit all the same, they keep their room.
fn take_run(
    state: &State,
    room: &mut RemainingCapacity<'_>,
    run: &PlacementRun,
    max: u32,
    seen: LogIndex,
    ask: Amount,
) -> u32 {
    let victims: Vec<_> = run
        .preempted()
        .iter()
        .filter_map(|alloc_id| state.allocs().get(alloc_id))
        .filter(|alloc| !alloc.is_terminal() && !room.is_freed(*alloc))
        .collect();
    for alloc in &victims {
        room.give_back(*alloc);
    }
    let mut fits = 0;
    while fits < run.count.min(max) && room.take(run.node, seen, ask, run.holding()).is_ok() {
        fits += 1;
    }
    if fits == 0 {
        for alloc in victims {
            room.undo_give_back(alloc);
        }
    }
    fits
}

/// Takes back the stops of instances whose replacement was refused, if their room is still free.
fn keep_running(
    state: &State,
    room: &mut RemainingCapacity<'_>,
    plan: &mut Plan,
    not_replaced: &[AllocId],
) {
    if not_replaced.is_empty() {
        return;
    }
    let mut kept_running = Vec::new();
    plan.stops.retain(|stop| {
        let kept = stop.client_status.is_none()
            && not_replaced.contains(&stop.alloc_id)
            && state
                .allocs()
                .get(&stop.alloc_id)
                .is_some_and(|alloc| !alloc.is_terminal() && room.undo_give_back(alloc));
        if kept {
            kept_running.push(stop.alloc_id);
        }
        !kept
    });
    for group in plan.groups.iter_mut().filter(|group| group.in_place) {
        group.left_behind.extend(&kept_running);
    }
}
