//! Service and batch jobs: so many instances of each group, wherever they fit best.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_domain::alloc::ClientStatus;
use muster_domain::eval::{EvalStatus, Evaluation, FailedGroup};
use muster_domain::id::{AllocId, EvalId, NodeId, NodeNumber, Timestamp};
use muster_domain::job::{Job, TaskGroup};
use muster_domain::plan::{GroupPlacements, PlacementRun, Plan};

use super::feasible::{self, Needs, Verdict};
use super::fleet::Fleet;
use super::rank::{Place, Ranking};
use super::reconcile::{self, GroupWork, Replacement, Want};
use super::{ScheduleOutcome, empty_plan, ended};
use crate::fsm::{EvalUpdate, NextEval};
use crate::state::{AllocView, Room, State};

pub(super) fn schedule(state: &State, eval: &Evaluation, now: Timestamp) -> ScheduleOutcome {
    let job = state.jobs().get(&eval.job).map(|job| &**job);
    let work = reconcile::reconcile(state, job, state.allocs().of_job(&eval.job), now);
    let mut plan = empty_plan(state, eval.id, eval.job.clone());
    plan.stops = work.stops;
    let busy = |group: &GroupWork<'_>| {
        group.in_place || !group.place.is_empty() || !group.replace.is_empty()
    };
    if let Some(job) = job.filter(|_| work.groups.iter().any(busy)) {
        let mut fleet = Fleet::new(state, seed(&eval.id));
        for stop in &plan.stops {
            if let Some(alloc) = state.allocs().get(&stop.alloc_id) {
                fleet.give_back(alloc);
            }
        }
        for group in work.groups.into_iter().filter(busy) {
            place_group(&mut fleet, job, group, &mut plan);
        }
    }
    let update = outcome(state, eval, &mut plan);
    ScheduleOutcome { plan, update }
}

/// Which of equal nodes goes first, from the evaluation's id.
fn seed(eval_id: &EvalId) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&eval_id.0[8..]);
    u64::from_be_bytes(bytes)
}

/// Places what `work` asks for and writes it to `plan`.
fn place_group(fleet: &mut Fleet<'_>, job: &Job, work: GroupWork<'_>, plan: &mut Plan) {
    let GroupWork {
        group_at,
        keep,
        in_place,
        replace,
        place,
    } = work;
    let group = &job.current.spec.groups[usize::from(group_at)];
    if place.is_empty() && replace.is_empty() {
        plan.groups.push(GroupPlacements {
            group_at,
            in_place,
            left_behind: Vec::new(),
            metrics: Arc::default(),
            placements: Vec::new(),
        });
        return;
    }
    let running = keep
        .iter()
        .copied()
        .chain(replace.iter().map(|replacement| replacement.old));
    let mut ranking = Ranking::new(fleet, &job.current.spec, group, running);
    let metrics = ranking.metrics(fleet);
    let mut placing = Placing {
        fleet,
        ranking: &mut ranking,
        runs: Vec::new(),
        left_behind: Vec::new(),
        failed: 0,
    };
    placing.replace(replace, plan);
    placing.place(place, group);
    let Placing {
        fleet,
        ranking: _,
        runs,
        left_behind,
        failed,
    } = placing;
    if failed > 0 {
        plan.failed.push(FailedGroup {
            group: group.name.clone(),
            count: failed,
            metrics: Arc::new(ranking.metrics(fleet)),
        });
    }
    if in_place || !runs.is_empty() {
        plan.groups.push(GroupPlacements {
            group_at,
            in_place,
            // Without the rule there is nothing to be an exception of.
            left_behind: if in_place { left_behind } else { Vec::new() },
            metrics: Arc::new(metrics),
            placements: runs,
        });
    }
}

/// The placements of one group under way.
struct Placing<'f, 's, 'r, 'j> {
    fleet: &'f mut Fleet<'s>,
    ranking: &'r mut Ranking<'j>,
    runs: Vec<PlacementRun>,
    /// Instances that must be replaced and cannot be.
    left_behind: Vec<AllocId>,
    failed: u32,
}

impl Placing<'_, '_, '_, '_> {
    /// Each instance makes room for its own replacement; one that cannot be replaced goes on running.
    fn replace(&mut self, replace: Vec<Replacement<'_>>, plan: &mut Plan) {
        for Replacement { old, stop } in replace {
            let number = self.fleet.give_back(old);
            if let Some(number) = number {
                self.ranking.instances_changed(self.fleet, number, -1);
            }
            if let Some(place) = self.ranking.place(self.fleet, None) {
                self.runs
                    .push(single(place, old.name_index(), Some(old.id())));
                plan.stops.push(stop);
            } else {
                self.failed += 1;
                self.left_behind.push(old.id());
                if let Some(number) = number {
                    self.fleet.take(number, old.ask(), old.ports());
                    self.ranking.instances_changed(self.fleet, number, 1);
                }
            }
        }
    }

    fn place(&mut self, place: Vec<Want<'_>>, group: &TaskGroup) {
        let has_ports = group
            .network
            .as_ref()
            .is_some_and(|network| !network.ports.is_empty());
        let (followers, fresh): (Vec<_>, Vec<_>) = place
            .into_iter()
            .partition(|want| has_ports || want.previous.is_some());
        for want in followers {
            let avoid = want
                .previous
                .as_ref()
                .filter(|previous| previous.client_status() == ClientStatus::Failed)
                .map(|previous| previous.node_id());
            match self.ranking.place(self.fleet, avoid) {
                Some(place) => {
                    let previous = want.previous.map(AllocView::id);
                    self.runs.push(single(place, want.name_index, previous));
                }
                None => self.failed += 1,
            }
        }
        self.place_fresh(&fresh);
    }

    /// Instances that nothing tells apart: how many each node gets is chosen one by one, then names are
    /// dealt out node by node, so that a node's share is one run.
    fn place_fresh(&mut self, fresh: &[Want<'_>]) {
        let mut order: Vec<(Place, u32)> = Vec::new();
        let mut place_of: BTreeMap<NodeNumber, usize> = BTreeMap::new();
        let mut placed = 0;
        for _ in fresh {
            let Some(place) = self.ranking.place(self.fleet, None) else {
                break;
            };
            placed += 1;
            let at = *place_of.entry(place.node).or_insert(order.len());
            match order.get_mut(at) {
                Some((_, count)) => *count += 1,
                None => order.push((place, 1)),
            }
        }
        self.failed += u32::try_from(fresh.len() - placed).unwrap_or(u32::MAX);
        // In the order of the nodes, which the log takes fewer bytes for.
        order.sort_unstable_by_key(|(place, _)| place.node);
        let mut names = fresh.iter().map(|want| want.name_index);
        for (place, count) in order {
            for name_index in names.by_ref().take(count as usize) {
                match self.runs.last_mut() {
                    Some(run) if continues(run, place.node, name_index) => run.count += 1,
                    Some(_) | None => self.runs.push(PlacementRun {
                        node: place.node,
                        first_index: name_index,
                        count: 1,
                        score: place.score,
                        ports: Vec::new(),
                        previous: None,
                    }),
                }
            }
        }
    }
}

fn continues(run: &PlacementRun, node: NodeNumber, name_index: u32) -> bool {
    run.node == node
        && run.previous.is_none()
        && run.ports.is_empty()
        && run.first_index + run.count == name_index
}

fn single(place: Place, name_index: u32, previous: Option<AllocId>) -> PlacementRun {
    PlacementRun {
        node: place.node,
        first_index: name_index,
        count: 1,
        score: place.score,
        ports: place.ports,
        previous,
    }
}

/// What becomes of the evaluation. What failed moves from the plan to it.
fn outcome(state: &State, eval: &Evaluation, plan: &mut Plan) -> Option<EvalUpdate> {
    let failed = std::mem::take(&mut plan.failed);
    let snapshot = state.applied();
    if failed.is_empty() {
        return Some(ended(eval, EvalStatus::Complete, "", snapshot));
    }
    let queued: Vec<(String, u32)> = failed
        .iter()
        .map(|group| (group.group.clone(), group.count))
        .collect();
    let was_blocked = eval.status == EvalStatus::Blocked;
    if was_blocked && plan.is_empty() && queued == eval.queued {
        return None;
    }
    let (status, description, next) = if was_blocked {
        (EvalStatus::Blocked, "waits for room", NextEval::Nothing)
    } else {
        (EvalStatus::Complete, "", NextEval::Blocked)
    };
    let update = ended(eval, status, description, snapshot);
    Some(EvalUpdate {
        failed_groups: failed,
        queued,
        next,
        ..update
    })
}

pub(super) fn could_help(state: &State, eval: &Evaluation, node_id: &NodeId) -> bool {
    let (Some(job), Some(node)) = (state.jobs().get(&eval.job), state.nodes().get(node_id)) else {
        // A job that is gone has nothing to wait for: let its evaluation end.
        return state.jobs().get(&eval.job).is_none();
    };
    let Some(number) = state.nodes().number(node_id) else {
        return false;
    };
    let spec = &job.current.spec;
    let mut waiting = eval.queued.iter().filter_map(|(name, _)| spec.group(name));
    node.takes_work()
        && waiting.any(|group| {
            let mut room = Room::new(state);
            make_way(state, job, node_id, &mut room);
            room.take(number, state.applied(), group.ask(), &[]).is_ok()
                && feasible::judge(&Needs::new(spec, group), &node.spec) == Verdict::Feasible
        })
}

/// An instance that waits for its replacement would make room for it.
fn make_way(state: &State, job: &Job, node_id: &NodeId, room: &mut Room<'_>) {
    let current = &job.current;
    if current.version == 0 {
        return;
    }
    let key = job.key();
    for alloc in state.allocs_on(node_id) {
        if alloc.job().version != current.version && **alloc.job_key() == key {
            room.give_back(alloc);
        }
    }
}
