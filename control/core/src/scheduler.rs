//! A snapshot and an evaluation in, a plan out.
//!
//! Every choice is the best of all feasible nodes. `feasible` decides which nodes may be used, once per class of nodes.
//! `rank` scores them. It places a few instances by looking at nodes by kind (`node_shapes`), and many by keeping the
//! best node on top of a tournament. So C instances on N nodes cost O(N + C log N). `reconciler` decides which
//! instances are missing and which are too many. `generic` uses it for service and batch jobs, `system` for jobs that
//! have an instance on every node. `preempt` chooses the allocations that make room. `in_flight` holds plans that are
//! not committed yet; system jobs neither see these plans nor are among them. `preplace` finds places for jobs and
//! one-off tasks that are about to be recorded. The same snapshot, evaluation, time and plans in flight give the same
//! plan.
//!
//! Deliberately absent: writing. A plan is checked against the newest state by `applier` and again when
//! its entry is applied.

mod affinities;
mod feasible;
mod fleet;
mod generic;
mod in_flight;
mod instances;
mod node_shapes;
mod obstacle;
mod outcome;
mod preempt;
mod preplace;
mod rank;
mod reconciler;
mod replacement;
mod system;
mod unplaceable;
mod update;
mod why;

use muster_domain::eval::Evaluation;
use muster_domain::id::{NodeId, Timestamp};
use muster_domain::job::{JobType, TaskGroup};
use muster_domain::resources::Amount;

use crate::state::State;
use in_flight::InFlightPlans;
use instances::job_type;
use node_shapes::NodeShapes;
pub use obstacle::Obstacle;
pub use outcome::ScheduleOutcome;
pub use reconciler::DesiredUpdates;
pub(crate) use replacement::{may_be_replaced, replaced_at};
pub(crate) use system::awaited_nodes;
pub use unplaceable::is_unplaceable;
pub use why::{Why, WhyNode, why};

/// Evaluates jobs one after the other, and keeps its record of the nodes and of its plans in flight.
///
/// Its results are a function of the state and of those plans.
#[derive(Debug, Default)]
pub struct Scheduler {
    kinds: NodeShapes,
    ahead: InFlightPlans,
    /// The number of jobs that were evaluated before they were in the state.
    unrecorded_job_count: u64,
}

impl Scheduler {
    /// Evaluates the job of `eval` in `state` at the time `now`.
    ///
    /// A delayed evaluation takes its time as reached, even if the clock of the current leader is behind. Otherwise the
    /// work that is due then would wait for ever.
    #[must_use]
    pub fn schedule(
        &mut self,
        state: &State,
        eval: &Evaluation,
        now: Timestamp,
    ) -> ScheduleOutcome {
        let now = now.max(eval.wait_until);
        self.ahead.begin(state, &eval.id, now);
        let outcome = self.evaluate(state, eval, now);
        if self.ahead.is_alone(&eval.id) || !outcome.lacks_room() {
            return outcome;
        }
        // The plans in flight may not be committed: a lack of room is reported only for the state without them.
        let others = std::mem::replace(&mut self.ahead, InFlightPlans::without_plans(state));
        let outcome = self.evaluate(state, eval, now);
        let alone = std::mem::replace(&mut self.ahead, others);
        self.ahead.replace(state, &eval.id, now, alone);
        outcome
    }

    fn evaluate(&mut self, state: &State, eval: &Evaluation, now: Timestamp) -> ScheduleOutcome {
        let Self { kinds, ahead, .. } = self;
        let job = state.jobs().get(&eval.job).map(|job| &**job);
        match job_type(job, eval) {
            JobType::Service | JobType::Batch => {
                generic::schedule(state, job, eval, now, kinds, ahead)
            }
            JobType::System | JobType::SysBatch => system::schedule(state, job, eval, now),
        }
    }

    /// Returns whether plans are in flight.
    #[must_use]
    pub fn is_ahead(&self) -> bool {
        !self.ahead.is_empty()
    }
}

/// Evaluates the job of `eval` in `state` at the time `now`, without plans in flight.
#[must_use]
pub fn schedule(state: &State, eval: &Evaluation, now: Timestamp) -> ScheduleOutcome {
    Scheduler::default().schedule(state, eval, now)
}

/// Returns whether `node_id` could take an instance that `eval` waits for: the node is feasible and has room for one.
#[must_use]
pub fn could_help(state: &State, eval: &Evaluation, node_id: &NodeId) -> bool {
    generic::could_help(state, eval, node_id)
}

/// Returns the room below which no node can help `eval` without an eviction. `None`: the amount of room does not
/// decide, such as when an instance makes room for its own replacement.
pub(crate) fn needs_room(state: &State, eval: &Evaluation) -> Option<Amount> {
    // A one-off task has no instance while it waits.
    if !eval.job.is_one_off() {
        return None;
    }
    let job = state.jobs().get(&eval.job)?;
    let queued = eval.queued.iter();
    let groups = queued.filter_map(|(name, _)| job.current.spec.group(name));
    groups.map(TaskGroup::ask).reduce(Amount::min)
}

/// Returns whether one-off tasks may evict less important allocations.
pub(crate) fn may_evict_for_one_offs(state: &State) -> bool {
    state.config().scheduler.preemption.allows(JobType::Batch)
}

/// Returns the largest amount that all waiting instances of `eval` together take of a node.
#[must_use]
pub fn waits_for(state: &State, eval: &Evaluation) -> Amount {
    let job = state.jobs().get(&eval.job);
    let queued = eval.queued.iter();
    let asks = queued.filter_map(|(name, count)| {
        let group = job?.current.spec.group(name)?;
        Some(group.ask().times(*count))
    });
    asks.fold(Amount::default(), Amount::plus)
}

/// Returns whether the scheduler could choose `node_id` for one more instance of `group`, without an eviction.
#[cfg(test)]
fn fits_on(
    state: &State,
    spec: &muster_domain::job::JobSpec,
    group: &TaskGroup,
    node_id: &NodeId,
) -> bool {
    let mut fleet = fleet::ProjectedNodes::new(state, 0);
    let key = spec.key();
    let live = state.allocs().of_job(&key);
    let live = live.filter(|alloc| !alloc.is_terminal());
    let mut ranking = rank::Ranking::new(&fleet, spec, group, live, std::iter::empty());
    let number = fleet.number(node_id);
    number.is_some_and(|number| ranking.place_at(&mut fleet, number, None).is_ok())
}

#[cfg(test)]
mod tests;
