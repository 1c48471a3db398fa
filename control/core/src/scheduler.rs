//! A snapshot and an evaluation in, a plan out.
//!
//! Every choice is the best of all feasible nodes: `feasible` says which nodes may be used (once per
//! class of nodes), `rank` scores them and keeps the best on top of a tournament, so that C instances on
//! N nodes cost O(N + C log N). `reconcile` says what is missing and what is too much; `generic` ties
//! it together for service and batch jobs. The same snapshot, evaluation and time give the same plan.
//!
//! Deliberately absent: writing. A plan is checked against the newest state by `applier` and again when
//! its entry is applied.

mod feasible;
mod fleet;
mod generic;
mod names;
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "decided and tested; the scheduler asks it next")
)]
mod preempt;
mod rank;
mod reconcile;
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "decided and tested; the scheduler asks it next")
)]
mod reconciler;
pub(crate) mod reschedule;
mod update;

use muster_domain::eval::{EvalStatus, Evaluation};
use muster_domain::id::{EvalId, JobKey, LogIndex, NodeId, Timestamp};
use muster_domain::job::JobType;
use muster_domain::plan::Plan;

use crate::fsm::{EvalUpdate, NextEval};
use crate::state::State;

/// What came of looking at a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleOutcome {
    /// What to change; may be empty.
    pub plan: Plan,
    /// What becomes of the evaluation. `None`: it was blocked, still is, and nothing need be written.
    pub update: Option<EvalUpdate>,
}

/// Looks at the job of `eval` in `state` at the time `now`.
///
/// An evaluation that waited for a time finds that it has come, whatever the clock of the server that
/// leads meanwhile says: what is due then would wait for ever otherwise.
#[must_use]
pub fn schedule(state: &State, eval: &Evaluation, now: Timestamp) -> ScheduleOutcome {
    let now = now.max(eval.wait_until);
    match eval.job_type {
        JobType::Service | JobType::Batch => generic::schedule(state, eval, now),
        JobType::System | JobType::SysBatch => unsupported(state, eval),
    }
}

/// Whether `node_id` could take an instance that `eval` waits for: feasible, and room for one.
#[must_use]
pub fn could_help(state: &State, eval: &Evaluation, node_id: &NodeId) -> bool {
    generic::could_help(state, eval, node_id)
}

/// A plan that changes nothing.
fn empty_plan(state: &State, eval_id: EvalId, job: JobKey) -> Plan {
    Plan {
        eval_id,
        job_version: state.jobs().get(&job).map_or(0, |job| job.current.version),
        job,
        snapshot_index: state.applied(),
        groups: Vec::new(),
        stops: Vec::new(),
        failed: Vec::new(),
    }
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

/// Validation refuses these types; a job that came past it fails by name.
fn unsupported(state: &State, eval: &Evaluation) -> ScheduleOutcome {
    let why = format!(
        "jobs of type {} are not supported by this version",
        eval.job_type
    );
    ScheduleOutcome {
        plan: empty_plan(state, eval.id, eval.job.clone()),
        update: Some(ended(eval, EvalStatus::Failed, &why, state.applied())),
    }
}

#[cfg(test)]
mod tests;
