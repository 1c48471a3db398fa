//! The part of a plan that still holds against the newest state.
//!
//! Used twice: by the applier, so that no log is spent on what cannot be, and when the entry is
//! applied, because other entries may have come between. The second time decides.

use muster_domain::id::{AllocId, LogIndex};
use muster_domain::plan::{PlacementRun, Plan};
use muster_domain::resources::Amount;

use crate::state::{Room, State};

/// The part of a plan that holds.
#[derive(Debug)]
pub(crate) struct Admission {
    /// That part.
    pub(crate) plan: Plan,
    /// Instances it places.
    pub(crate) placed: u32,
    /// Instances refused.
    pub(crate) dropped: u32,
}

/// Takes from `room` what `plan` asks for, and leaves out what is not there and what exceeds
/// `placements_max` instances.
///
/// A plan for a job that is gone, stopped or of another version, or whose job was changed by a plan
/// that this one has not seen, is stale: nothing of it holds, not even its stops.
pub(crate) fn admit(
    state: &State,
    room: &mut Room<'_>,
    mut plan: Plan,
    placements_max: u32,
) -> Admission {
    let wanted: u32 = plan
        .groups
        .iter()
        .flat_map(|group| &group.placements)
        .fold(0, |sum: u32, run| sum.saturating_add(run.count));
    if is_stale(state, &plan, wanted) {
        plan.groups.clear();
        plan.stops.clear();
        // Without a refused instance the evaluation would count as done.
        return Admission {
            plan,
            placed: 0,
            dropped: wanted.max(1),
        };
    }
    for stop in &plan.stops {
        if let Some(alloc) = state.allocs().get(&stop.alloc_id) {
            room.give_back(alloc);
        }
    }
    let seen = plan.snapshot_index;
    let mut dropped = 0;
    let mut left = placements_max;
    let mut not_replaced = Vec::new();
    let spec = state.jobs().get(&plan.job).map(|job| &job.current.spec);
    for group in &mut plan.groups {
        let asked = spec.and_then(|spec| spec.groups.get(usize::from(group.group_at)));
        group.placements.retain_mut(|run| {
            let fits = asked.map_or(0, |asked| take_run(room, run, left, seen, asked.ask()));
            left -= fits;
            dropped += run.count - fits;
            if fits < run.count {
                not_replaced.extend(run.previous);
            }
            run.count = fits;
            fits > 0
        });
    }
    keep_running(state, room, &mut plan, &not_replaced);
    Admission {
        plan,
        placed: wanted - dropped,
        dropped,
    }
}

fn is_stale(state: &State, plan: &Plan, wanted: u32) -> bool {
    match state.jobs().row(&plan.job) {
        Some(row) => {
            plan.snapshot_index > state.applied()
                || plan.snapshot_index < row.plan_index
                || plan.snapshot_index < row.job.current.job_modify_index
                || (wanted > 0 && row.job.stop)
        }
        None => wanted > 0,
    }
}

/// How many of the run fit, at most `max`, taken from `room`.
fn take_run(room: &mut Room<'_>, run: &PlacementRun, max: u32, seen: LogIndex, ask: Amount) -> u32 {
    let mut fits = 0;
    while fits < run.count.min(max) && room.take(run.node, seen, ask, &run.ports).is_ok() {
        fits += 1;
    }
    fits
}

/// Takes back the stops of instances whose replacement was refused, where their room is still there.
fn keep_running(state: &State, room: &mut Room<'_>, plan: &mut Plan, not_replaced: &[AllocId]) {
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
                .is_some_and(|alloc| !alloc.is_terminal() && room.take_again(alloc));
        if kept {
            kept_running.push(stop.alloc_id);
        }
        !kept
    });
    for group in plan.groups.iter_mut().filter(|group| group.in_place) {
        group.left_behind.extend(&kept_running);
    }
}
