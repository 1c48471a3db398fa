//! Commands of schedulers: plans, and updates of evaluations.

use std::sync::Arc;

use muster_domain::eval::{EvalStatus, Evaluation, Trigger};
use muster_domain::id::{EvalId, JobKey, LogIndex};
use muster_domain::plan::Plan;
use serde::{Deserialize, Serialize};

use super::change::Change;
use super::eval_update::{EvalUpdate, NextEval};
use super::response::Response;
use super::{one_off, plan};

/// The outcome of evaluations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EvalCommand {
    /// Workers have plans, and updates of their evaluations.
    ///
    /// Placements are runs of instances on one node, about 25 bytes each with the node's 16-byte id;
    /// ids, names and the rest are derived.
    ApplyPlans {
        /// Plans, each of one evaluation.
        plans: Vec<Plan>,
        /// Updates of evaluations. Left undone where a part of the plan is refused.
        evals: Vec<EvalUpdate>,
    },
    /// Updates of evaluations that have no plan.
    Update { evals: Vec<EvalUpdate> },
}

impl EvalCommand {
    /// The cause of entries that carry out a scheduler's decisions.
    pub const PLANNED: &str = "PlanResult";

    /// The kind of change, as Nomad's event type.
    pub(super) fn cause(&self) -> &'static str {
        match self {
            Self::ApplyPlans { .. } => Self::PLANNED,
            Self::Update { .. } => "EvaluationUpdated",
        }
    }
}

pub(super) fn apply(change: &mut Change<'_>, command: EvalCommand) -> Response {
    match command {
        EvalCommand::ApplyPlans { plans, evals } => plan::apply(change, plans, evals),
        EvalCommand::Update { evals } => {
            for one in evals {
                update(change, one);
            }
            Response::Done
        }
    }
}

/// Records `update`, unless the evaluation is gone or has ended.
///
/// An evaluation that is complete has looked at the whole job, so the job's older blocked ones are
/// cancelled: at most one is ever blocked.
pub(super) fn update(change: &mut Change<'_>, update: EvalUpdate) {
    let EvalUpdate {
        eval_id,
        status,
        description,
        snapshot_index,
        failed_groups,
        queued,
        next,
    } = update;
    let Some(old) = change.state.evals.get(&eval_id).map(Arc::clone) else {
        return;
    };
    if old.status.is_terminal() {
        return;
    }
    if status == EvalStatus::Complete || status == EvalStatus::Blocked {
        cancel_blocked(change, &old);
    }
    let mut eval = Evaluation {
        status,
        status_description: description,
        snapshot_index: if snapshot_index == LogIndex(0) {
            old.snapshot_index
        } else {
            snapshot_index
        },
        failed_groups,
        queued,
        ..(*old).clone()
    };
    if let Some(deployment) = change.state.deployments.latest(&eval.job)
        && deployment.create_index == change.index
    {
        eval.deployment = Some(deployment.id);
    }
    let waits = status == EvalStatus::Blocked || next == NextEval::Blocked;
    if waits && eval.job.is_one_off() {
        one_off::rejected(change, &eval.job, &eval.failed_groups);
    }
    let follow_up = follow_up(change, &eval, next);
    if next == NextEval::Blocked {
        eval.blocked = follow_up.as_ref().map(|next| next.id);
    }
    change.put_eval(eval);
    if let Some(next) = follow_up {
        change.put_eval(next);
    }
}

fn cancel_blocked(change: &mut Change<'_>, keep: &Evaluation) {
    let why = "a newer evaluation of the job has ended";
    cancel(change, &keep.job, why, |eval| {
        eval.status == EvalStatus::Blocked && eval.id != keep.id
    });
}

/// Cancels the evaluations that wait for room or time. A later job of the same name has evaluations of its own.
pub(super) fn cancel_waiting(change: &mut Change<'_>, key: &JobKey) {
    let now = change.at;
    cancel(change, key, "the job was purged", |eval| {
        eval.status == EvalStatus::Blocked || eval.wait_until > now
    });
}

fn cancel(
    change: &mut Change<'_>,
    key: &JobKey,
    why: &str,
    is_meant: impl Fn(&Evaluation) -> bool,
) {
    let meant: Vec<Arc<Evaluation>> = change
        .state
        .evals
        .open_of_job(key)
        .filter(|eval| is_meant(eval))
        .map(Arc::clone)
        .collect();
    for eval in meant {
        let cancelled = Evaluation {
            status: EvalStatus::Canceled,
            status_description: why.to_owned(),
            ..(*eval).clone()
        };
        change.put_eval(cancelled);
    }
}

/// The evaluation that goes on from `eval`; none if the job is gone.
fn follow_up(change: &mut Change<'_>, eval: &Evaluation, next: NextEval) -> Option<Evaluation> {
    let previous: EvalId = eval.id;
    let job = change.state.jobs.get(&eval.job).map(Arc::clone)?;
    match next {
        NextEval::Nothing => None,
        NextEval::Blocked => {
            let mut blocked = change.new_eval(&job, Trigger::QueuedAllocs);
            blocked.status = EvalStatus::Blocked;
            "waits for room".clone_into(&mut blocked.status_description);
            blocked.previous = Some(previous);
            blocked.snapshot_index = eval.snapshot_index;
            blocked.failed_groups.clone_from(&eval.failed_groups);
            blocked.queued.clone_from(&eval.queued);
            Some(blocked)
        }
        NextEval::FailedFollowUp { wait_until } => {
            let mut later = change.new_eval(&job, Trigger::FailedFollowUp);
            later.previous = Some(previous);
            later.wait_until = wait_until;
            Some(later)
        }
    }
}
