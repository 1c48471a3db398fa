//! A snapshot and an evaluation in, a plan out.
//!
//! Every choice is the best of all feasible nodes: `feasible` says which nodes may be used (once per
//! class of nodes), `rank` scores them: a few instances by looking at the `kinds` of nodes, many by keeping the best on
//! top of a tournament, so that C instances on N nodes cost O(N + C log N). `reconciler` says what is missing and what
//! is too much; `generic` ties it together for service and batch jobs, `system` for those that have an instance on
//! every node. `preempt` says who makes room. `ahead` are plans that are not committed yet; system jobs neither see
//! them nor are among them. `newcomer` finds places for jobs and one-off tasks that are about to be recorded. The
//! same snapshot, evaluation, time and plans ahead give the same plan.
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

/// Looks at jobs one after the other, and keeps its knowledge of the nodes and of its plans under way.
///
/// Its results are a function of the state and of those plans.
#[derive(Debug, Default)]
pub struct Scheduler {
    kinds: NodeShapes,
    ahead: InFlightPlans,
    /// Jobs that were looked at before they were in the state.
    newcomers: u64,
}

impl Scheduler {
    /// Looks at the job of `eval` in `state` at the time `now`.
    ///
    /// An evaluation that waited for a time finds that it has come, even if the clock of the current leader says
    /// otherwise. Work that is due then would wait for ever otherwise.
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
        // The plans under way may come to nothing: a lack of room is reported only for the state without them.
        let others = std::mem::replace(&mut self.ahead, InFlightPlans::nothing(state));
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

    /// Whether plans are under way.
    #[must_use]
    pub fn is_ahead(&self) -> bool {
        !self.ahead.is_empty()
    }
}

/// Looks at the job of `eval` in `state` at the time `now`, alone.
#[must_use]
pub fn schedule(state: &State, eval: &Evaluation, now: Timestamp) -> ScheduleOutcome {
    Scheduler::default().schedule(state, eval, now)
}

/// Whether `node_id` could take an instance that `eval` waits for: feasible, and room for one.
#[must_use]
pub fn could_help(state: &State, eval: &Evaluation, node_id: &NodeId) -> bool {
    generic::could_help(state, eval, node_id)
}

/// The room below which no node can help `eval` without evicting somebody. `None`: room does not tell, such as where
/// an instance makes room for its own replacement.
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

/// Whether one-off tasks may take the place of less important work.
pub(crate) fn may_evict_for_one_offs(state: &State) -> bool {
    state.config().scheduler.preemption.allows(JobType::Batch)
}

/// Returns the most that all waiting instances of `eval` take of a node.
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

/// Whether the scheduler could choose `node_id` for one more instance of `group`, at nobody's cost.
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
