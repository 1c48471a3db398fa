//! The result of evaluating a job: a plan, and an update of its evaluation.

use muster_domain::eval::{EvalStatus, Evaluation};
use muster_domain::id::LogIndex;
use muster_domain::job::Job;
use muster_domain::plan::Plan;

use super::reconciler::DesiredUpdates;
use crate::fsm::eval_update::{EvalUpdate, NextEval};
use crate::state::State;

/// The result of evaluating a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleOutcome {
    /// The changes to make; may be empty.
    pub plan: Plan,
    /// The update of the evaluation. `None`: it was blocked and still is, so nothing has to be written.
    pub update: Option<EvalUpdate>,
    /// Whether the plan is a slice: the evaluation is processed again after the plan is carried out.
    pub is_partial: bool,
    /// The number of instances of each group by action, for display.
    pub desired: Vec<(String, DesiredUpdates)>,
}

impl ScheduleOutcome {
    /// Returns whether an instance found no room, or found room only by eviction.
    pub(super) fn lacks_room(&self) -> bool {
        let failed = self.update.as_ref();
        let failed = failed.is_none_or(|update| !update.failed_groups.is_empty());
        let groups = self.plan.groups.iter();
        let mut runs = groups.flat_map(|group| &group.placements);
        failed || runs.any(|run| !run.preempted().is_empty())
    }
}

/// A plan that changes nothing.
pub(super) fn empty_plan(state: &State, job: Option<&Job>, eval: &Evaluation) -> Plan {
    let version = job.map_or(0, |job| job.current.version);
    Plan::empty(eval.id, eval.job.clone(), version, state.applied())
}

/// Returns the update of the evaluation. The failed groups move from the plan to it.
pub(super) fn outcome(state: &State, eval: &Evaluation, plan: &mut Plan) -> Option<EvalUpdate> {
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

/// Returns the update that ends `eval` without further details.
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
