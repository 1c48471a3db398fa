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
mod preempt;
mod preplace;
mod rank;
mod reconciler;
mod system;
mod unplaceable;
mod update;
mod why;

use muster_domain::alloc::{ClientStatus, DesiredStatus};
use muster_domain::eval::{EvalStatus, Evaluation};
use muster_domain::id::{EvalId, LogIndex, NodeId, Timestamp};
use muster_domain::job::{Job, JobType, TaskGroup};
use muster_domain::plan::Plan;
use muster_domain::resources::Amount;

use crate::fsm::eval_update::{EvalUpdate, NextEval};
use crate::limits;
use crate::state::{AllocView, State};
use in_flight::InFlightPlans;
use node_shapes::NodeShapes;
pub use obstacle::Obstacle;
use reconciler::Instance;
pub(crate) use system::awaited_nodes;
pub use unplaceable::is_unplaceable;
pub use why::{Why, WhyNode, why};

/// The result of looking at a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleOutcome {
    /// The changes to make; may be empty.
    pub plan: Plan,
    /// The update of the evaluation. `None`: it was blocked and still is, and nothing need be written.
    pub update: Option<EvalUpdate>,
    /// The plan is a slice of what is to be done: the evaluation is looked at again when it is carried out.
    pub is_partial: bool,
    /// The number of instances of each group by action, for display.
    pub desired: Vec<(String, DesiredUpdates)>,
}

impl ScheduleOutcome {
    /// Whether there was no room for somebody, or only at the cost of others.
    fn lacks_room(&self) -> bool {
        let failed = self.update.as_ref();
        let failed = failed.is_none_or(|update| !update.failed_groups.is_empty());
        let groups = self.plan.groups.iter();
        let mut runs = groups.flat_map(|group| &group.placements);
        failed || runs.any(|run| !run.preempted().is_empty())
    }
}

/// The number of instances of a group by action. A placement counts whether or not there is room for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DesiredUpdates {
    /// Left as they are.
    pub ignore: u32,
    pub place: u32,
    /// Moved to another node.
    pub migrate: u32,
    pub stop: u32,
    /// Taken over by the new version as they are.
    pub in_place: u32,
    /// Replaced by the new version.
    pub destructive: u32,
    /// Placed beside the older ones until somebody promotes them.
    pub canary: u32,
}

impl From<reconciler::Counts> for DesiredUpdates {
    fn from(counts: reconciler::Counts) -> Self {
        let reconciler::Counts {
            ignore,
            place,
            migrate,
            stop,
            in_place,
            destructive,
            canary,
        } = counts;
        Self {
            ignore,
            place,
            migrate,
            stop,
            in_place,
            destructive,
            canary,
        }
    }
}

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

/// The type of the job that is to be looked at. An evaluation may be older than its job: one that was removed
/// can come again as another type before anybody has looked.
fn job_type(job: Option<&Job>, eval: &Evaluation) -> JobType {
    job.map_or(eval.job_type, |job| job.current.spec.job_type)
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
    may_preempt(state, JobType::Batch)
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

/// Whether an allocation that ended well counts as one that failed, because its job runs for ever.
pub(crate) fn runs_for_ever(alloc: AllocView<'_>) -> bool {
    instances::runs_for_ever(alloc.job().spec.job_type)
}

/// Returns the time at which an allocation that has ended by itself is replaced; `None`: it is not.
pub(crate) fn replaced_at(alloc: AllocView<'_>) -> Option<Timestamp> {
    let is_system = alloc.job().spec.job_type == JobType::System;
    let is_over = match alloc.client_status() {
        ClientStatus::Failed => true,
        ClientStatus::Complete => is_system || runs_for_ever(alloc),
        ClientStatus::Lost
        | ClientStatus::Pending
        | ClientStatus::Running
        | ClientStatus::Unknown => false,
    };
    if !is_over || alloc.desired() != DesiredStatus::Run || alloc.next().is_some() {
        return None;
    }
    if is_system {
        return Some(instances::ended_at(alloc).plus(limits::SYSTEM_RESTART_DELAY));
    }
    let policy = &alloc.group().reschedule;
    reconciler::next_time(&Instance::ended(alloc), Some(policy))
}

/// Whether an unhealthy instance may still be replaced by one that becomes healthy.
pub(crate) fn may_be_replaced(alloc: AllocView<'_>) -> bool {
    match alloc.client_status() {
        ClientStatus::Failed | ClientStatus::Complete if alloc.desired() == DesiredStatus::Run => {
            alloc.next().is_some() || replaced_at(alloc).is_some()
        }
        // It runs, and may still fail and be replaced then.
        ClientStatus::Pending | ClientStatus::Running => {
            let policy = &alloc.group().reschedule;
            let is_system = alloc.job().spec.job_type.is_on_every_node();
            is_system || policy.unlimited || policy.attempts > 0
        }
        ClientStatus::Failed
        | ClientStatus::Complete
        | ClientStatus::Lost
        | ClientStatus::Unknown => true,
    }
}

/// Whether jobs of this type may take the place of less important ones.
fn may_preempt(state: &State, job_type: JobType) -> bool {
    let preemption = state.config().scheduler.preemption;
    match job_type {
        JobType::System => preemption.system,
        JobType::SysBatch => preemption.sysbatch,
        JobType::Batch => preemption.batch,
        JobType::Service => preemption.service,
    }
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

/// Returns the seed that says which of equal nodes goes first, from the evaluation's id.
fn seed(eval_id: &EvalId) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&eval_id.0[8..]);
    u64::from_be_bytes(bytes)
}

/// A plan that changes nothing.
fn empty_plan(state: &State, job: Option<&Job>, eval: &Evaluation) -> Plan {
    let version = job.map_or(0, |job| job.current.version);
    Plan::empty(eval.id, eval.job.clone(), version, state.applied())
}

/// Returns the update of the evaluation. The failed groups move from the plan to it.
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

/// An end of `eval` without more to say.
fn ended(
    eval: &Evaluation,
    status: EvalStatus,
    description: &str,
    snapshot: LogIndex,
) -> EvalUpdate {
    EvalUpdate {
        eval_id: eval.id,
        status,
        description: description.to_owned(),
        snapshot_index: snapshot,
        failed_groups: Vec::new(),
        queued: Vec::new(),
        next: NextEval::Nothing,
    }
}

#[cfg(test)]
mod tests;
