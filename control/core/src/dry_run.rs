//! The effects of registering a job, computed without registering it.
//!
//! The state is persistent, so a copy costs nothing. The copy applies the command as the log would, the real scheduler
//! schedules it, and the copy applies the plan. Nothing is proposed, and the given state does not change.

use std::sync::Arc;

use muster_domain::eval::{Evaluation, FailedGroup};
use muster_domain::id::{AllocId, EvalId, JobKey, LogIndex, Timestamp};
use muster_domain::job::{Job, JobSpec};
use muster_domain::plan::Plan;

use crate::fsm::{self, Entry, EvalCommand, JobCommand, Rejection, Response};
use crate::scheduler::{self, DesiredUpdates, ScheduleOutcome};
use crate::state::State;

/// The effects of registering a job.
#[derive(Clone, Debug)]
pub struct DryRun {
    /// The job before the change. `None`: the job would be new.
    pub before: Option<Arc<Job>>,
    /// The job after the change.
    pub after: Arc<Job>,
    /// The index to pass to make sure that the job did not change since. It is the entry that last registered the job,
    /// or 0 if there is no job.
    pub job_modify_index: LogIndex,
    /// The changes. Empty for a job that only makes other jobs.
    pub plan: Plan,
    /// The number of instances of each group by action.
    pub desired: Vec<(String, DesiredUpdates)>,
    /// Groups with instances that would not be placed, each with the reason.
    pub failed: Vec<FailedGroup>,
    /// Allocations of less important jobs that would be evicted.
    pub preempted: Vec<AllocId>,
    /// Evaluations to come, for instances that wait for room or for a time.
    pub created: Vec<Arc<Evaluation>>,
}

/// Registers `spec` in a copy of `state` at the time `now`, and schedules it there.
///
/// # Errors
///
/// The [`Rejection`] with which the command would be refused.
///
/// # Panics
///
/// If a job that was registered is not there, which would be an error of this crate.
pub fn dry_run(state: &State, spec: JobSpec, now: Timestamp) -> Result<DryRun, Rejection> {
    let mut state = state.clone();
    let key = spec.key();
    let before = state.jobs().get(&key).map(Arc::clone);
    let job_modify_index = before
        .as_ref()
        .map_or(LogIndex(0), |job| job.current.job_modify_index);
    let register = JobCommand::Register {
        spec: Box::new(spec),
        check_index: None,
        places: None,
    }
    .at(now);
    if let Response::Rejected(rejection) = next(&mut state, register) {
        return Err(rejection);
    }
    let after = state.jobs().get(&key).map(Arc::clone);
    let after = after.expect("a job that was registered is in the state");
    let eval = created_last(&state, &key).pop();
    let Some(eval) = eval else {
        let nobody = EvalId::at(state.applied(), 0);
        return Ok(DryRun {
            before,
            plan: Plan::empty(nobody, key, after.current.version, state.applied()),
            after,
            job_modify_index,
            desired: Vec::new(),
            failed: Vec::new(),
            preempted: Vec::new(),
            created: Vec::new(),
        });
    };
    let ScheduleOutcome {
        plan,
        update,
        desired,
        is_partial: _,
    } = scheduler::schedule(&state, &eval, now);
    let failed = update
        .as_ref()
        .map(|update| update.failed_groups.clone())
        .unwrap_or_default();
    let applied = EvalCommand::ApplyPlans {
        plans: vec![plan.clone()],
        evals: update.into_iter().collect(),
    }
    .at(now);
    next(&mut state, applied);
    Ok(DryRun {
        before,
        after,
        job_modify_index,
        preempted: preempted(&plan),
        plan,
        desired,
        failed,
        created: created_last(&state, &key),
    })
}

/// Applies `command` as the entry after the last one.
fn next(state: &mut State, entry: Entry) -> Response {
    let index = LogIndex(state.applied().0 + 1);
    fsm::apply(state, index, entry).response
}

fn preempted(plan: &Plan) -> Vec<AllocId> {
    let placements = plan.groups.iter().flat_map(|group| &group.placements);
    let mut preempted: Vec<AllocId> = placements
        .flat_map(|run| run.preempted().iter().copied())
        .collect();
    preempted.sort_unstable();
    preempted.dedup();
    preempted
}

/// Returns evaluations of the job that the last entry made.
fn created_last(state: &State, key: &JobKey) -> Vec<Arc<Evaluation>> {
    let evals = state.evals().of_job(key);
    let newest = evals.filter(|eval| eval.create_index == state.applied());
    newest.map(Arc::clone).collect()
}

#[cfg(test)]
mod tests;
