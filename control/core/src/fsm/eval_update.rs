//! Updates of evaluations: complete or failed, blocked, cancelled, continued by another evaluation.

use std::sync::Arc;

use muster_domain::eval::{EvalStatus, Evaluation, FailedGroup, Trigger};
use muster_domain::id::{EvalId, JobKey, LogIndex, Timestamp};
use serde::{Deserialize, Serialize};

use super::change::Change;
use super::one_off;

/// A change of an evaluation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvalUpdate {
    pub eval_id: EvalId,
    pub status: EvalStatus,
    /// The reason for the status, as a sentence for the user.
    pub description: String,
    /// The snapshot from which the plan was made; 0 keeps the value of the evaluation.
    pub snapshot_index: LogIndex,
    /// The groups that could not be placed, each with the reason.
    pub failed_groups: Vec<FailedGroup>,
    /// Instances that wait, by group.
    pub queued: Vec<(String, u32)>,
    /// The evaluation that continues this one.
    pub next: NextEval,
}

/// The evaluation that continues an evaluation that ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NextEval {
    Nothing,
    /// A blocked evaluation, for instances that could not be placed.
    Blocked,
    /// A delayed evaluation, because this one failed too often.
    FailedFollowUp {
        /// The earliest time to look at it.
        wait_until: Timestamp,
    },
}

/// Records `update`, unless the evaluation is gone or has ended.
///
/// A complete evaluation has looked at the whole job, so the job's older blocked evaluations are cancelled. At most one
/// evaluation of a job is ever blocked.
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

/// Returns the evaluation that continues `eval`; `None` if the job is gone.
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
