//! The rules of garbage collection: which objects may be removed, and why others stay. They are Nomad's rules, checked
//! against its recorded decisions.
//!
//! - An evaluation is removed when it ended before the cutoff and all its allocations are removed with it. An
//!   evaluation of a batch job is removed only when the job is gone, or stopped and dead.
//! - An allocation is removed with its evaluation. It is removed alone when the evaluation stays, the allocation
//!   ended before the cutoff, it does not run any more, and its job is over or will not replace it.
//! - An allocation of an earlier job of the same name is removed when it is terminal and its evaluation ended before
//!   the cutoff.
//! - A job is removed when it is dead and stopped, or dead and batch, and was submitted before the cutoff. It must
//!   not make other jobs, none of its versions may be tagged, and all objects below it must be removable.
//! - A deployment is removed when it was over before the cutoff and has no live allocation.
//! - A node is removed when it has been down since before the cutoff and has no live allocation.
//! - A one-off task is removed here only by force. It is completed, its callback is made or given up, and no caller
//!   has claimed its result.
//!
//! There are three differences from Nomad. The allocation of a one-off task that has not ended stays, even if the task
//! was asked to stop before its node had started it. An allocation whose follow-up evaluation is still to come stays,
//! because otherwise its replacement would come at once, without the delay. A failed deployment of a job's current
//! version stays, because otherwise the job would begin it anew.

use muster_domain::alloc::{ClientStatus, DesiredStatus};
use muster_domain::deployment::{Deployment, DeploymentStatus};
use muster_domain::eval::Evaluation;
use muster_domain::id::{LogIndex, Timestamp};
use muster_domain::job::{Job, JobStatus, JobType};
use muster_domain::node::{Node, NodeStatus};
use muster_domain::one_off::{OneOff, OneOffState};

use super::keep_reason::KeepReason;
use crate::state::{AllocView, State, is_over};

/// The cutoffs: only objects that ended before are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cutoffs {
    /// Jobs with everything below them.
    pub jobs: Timestamp,
    /// Evaluations and their allocations.
    pub evals: Timestamp,
    /// Evaluations and allocations of batch jobs.
    pub batch_evals: Timestamp,
    pub deployments: Timestamp,
    pub nodes: Timestamp,
    /// One-off tasks. None is removed here by age: each task has its own time to be kept, and `converge` applies it.
    pub one_offs: Timestamp,
}

impl Cutoffs {
    /// Cutoffs that keep no object because of its age.
    pub const NONE: Self = {
        let ever = Timestamp(u64::MAX);
        Self {
            jobs: ever,
            evals: ever,
            batch_evals: ever,
            deployments: ever,
            nodes: ever,
            one_offs: ever,
        }
    };

    /// Returns the cutoff for evaluations of a job of this type.
    #[must_use]
    pub fn of_evals(&self, job_type: JobType) -> Timestamp {
        if job_type.is_batch() {
            self.batch_evals
        } else {
            self.evals
        }
    }
}

/// The part of an evaluation that may be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CollectableExtent {
    /// The evaluation and its allocations.
    All,
    /// Only allocations of an earlier job of the same name: the present job keeps its results.
    Earlier,
}

/// Checks whether an evaluation ended before the time `before`.
pub(super) fn ended(eval: &Evaluation, before: Timestamp) -> Result<(), KeepReason> {
    if !eval.status.is_terminal() {
        Err(KeepReason::Live)
    } else if eval.modify_time >= before {
        Err(KeepReason::Young)
    } else {
        Ok(())
    }
}

/// Returns the part of an evaluation that may be removed, leaving aside its allocations.
pub(super) fn eval(
    eval: &Evaluation,
    job: Option<&Job>,
    before: Timestamp,
) -> Result<CollectableExtent, KeepReason> {
    ended(eval, before)?;
    if eval.job_type.is_batch() && job.is_some_and(keeps_results) {
        Ok(CollectableExtent::Earlier)
    } else {
        Ok(CollectableExtent::All)
    }
}

/// Returns whether a batch job keeps its evaluations and their allocations.
fn keeps_results(job: &Job) -> bool {
    job.status != JobStatus::Dead || !job.stop
}

/// Returns whether a batch job keeps all its evaluations, of which the oldest was made by the entry `oldest`.
pub(super) fn keeps_all(job: Option<&Job>, oldest: LogIndex) -> bool {
    job.is_some_and(|job| keeps_results(job) && oldest >= job.current.create_index)
}

/// Returns whether a look at an evaluation's allocations can free any of them. If only allocations of an earlier job
/// may be removed, the evaluations of the present job have none.
pub(super) fn may_free(extent: CollectableExtent, eval: &Evaluation, job: Option<&Job>) -> bool {
    match extent {
        CollectableExtent::All => true,
        CollectableExtent::Earlier => {
            job.is_some_and(|job| eval.create_index < job.current.create_index)
        }
    }
}

/// Checks whether an allocation may be removed, with or without its evaluation, of which `extent` may be removed.
pub(super) fn alloc_of(
    extent: CollectableExtent,
    state: &State,
    view: AllocView<'_>,
    job: Option<&Job>,
    before: Timestamp,
    at: Timestamp,
) -> Result<(), KeepReason> {
    match extent {
        CollectableExtent::All => alloc(state, view, job, before, at),
        CollectableExtent::Earlier if !view.is_terminal() => Err(KeepReason::Live),
        CollectableExtent::Earlier => {
            let is_earlier =
                job.is_some_and(|job| view.job().create_index < job.current.create_index);
            if is_earlier {
                Ok(())
            } else {
                Err(KeepReason::Result)
            }
        }
    }
}

/// Checks whether an allocation may be removed. `at` is the time of the collection, for rescheduling.
pub(super) fn alloc(
    state: &State,
    alloc: AllocView<'_>,
    job: Option<&Job>,
    before: Timestamp,
    at: Timestamp,
) -> Result<(), KeepReason> {
    if !alloc.is_terminal() || runs_task(state, alloc) {
        return Err(KeepReason::Live);
    }
    // An allocation that was asked to stop may run until its agent reports its end. Without the node no such report
    // will come.
    let may_run = match alloc.client_status() {
        ClientStatus::Running | ClientStatus::Unknown => {
            state.nodes.get(&alloc.node_id()).is_some()
        }
        ClientStatus::Pending
        | ClientStatus::Complete
        | ClientStatus::Failed
        | ClientStatus::Lost => false,
    };
    if may_run {
        return Err(KeepReason::Running);
    }
    if alloc.modify_time() >= before {
        return Err(KeepReason::Young);
    }
    match job {
        Some(job) if replaceable_until(state, alloc, job).is_some_and(|until| at <= until) => {
            Err(KeepReason::Replaceable)
        }
        Some(_) | None => Ok(()),
    }
}

/// Returns whether this is the allocation of a one-off task that has not ended and that ends only with this allocation.
/// This includes a task that was asked to stop before its node had started it.
fn runs_task(state: &State, alloc: AllocView<'_>) -> bool {
    let key = alloc.job_key();
    let row = Some(key).filter(|key| key.is_one_off());
    let row = row.and_then(|key| state.one_offs.get(&key.job_id));
    row.is_some_and(|row| {
        row.alloc_id == Some(alloc.id())
            && matches!(row.state, OneOffState::Pending | OneOffState::Running)
    })
}

/// Returns the last moment at which a job may still replace an allocation that has ended. It is the end of time if no
/// value bounds that moment. It is `None` if the job does not look at the allocation any more.
pub(super) fn replaceable_until(
    state: &State,
    alloc: AllocView<'_>,
    job: &Job,
) -> Option<Timestamp> {
    const UNBOUNDED: Option<Timestamp> = Some(Timestamp(u64::MAX));
    if job.stop || job.status == JobStatus::Dead || alloc.desired() == DesiredStatus::Stop {
        return None;
    }
    let follow_up = alloc
        .follow_up()
        .and_then(|eval_id| state.evals.get(&eval_id));
    if follow_up.is_some_and(|eval| !eval.status.is_terminal()) && alloc.next().is_none() {
        return UNBOUNDED;
    }
    if alloc.client_status() != ClientStatus::Failed {
        return None;
    }
    let name = &alloc.group().name;
    let mut groups = job.current.spec.groups.iter();
    let group = groups.find(|group| group.name == *name)?;
    let policy = &group.reschedule;
    if (policy.attempts == 0 && !policy.unlimited) || alloc.next().is_some() {
        return None;
    }
    // The attempts count again when the last of them is an interval ago.
    match alloc.reschedules().last() {
        Some(last) if !policy.unlimited => Some(last.at.plus(policy.interval)),
        Some(_) | None => UNBOUNDED,
    }
}

/// Checks whether a job may be removed, if all objects below it may.
pub(super) fn job(job: &Job, before: Timestamp) -> Result<(), KeepReason> {
    if !is_over(job) {
        Err(KeepReason::Live)
    } else if !job.tags.is_empty() {
        Err(KeepReason::Tagged)
    } else if job.current.submit_time >= before {
        Err(KeepReason::Young)
    } else {
        Ok(())
    }
}

/// Checks whether a deployment may be removed.
pub(super) fn deployment(
    state: &State,
    deployment: &Deployment,
    before: Timestamp,
) -> Result<(), KeepReason> {
    let is_failure = || {
        let job = state.jobs.get(&deployment.job);
        job.is_some_and(|job| {
            !job.stop
                && deployment.status == DeploymentStatus::Failed
                && job.current.version == deployment.job_version
        })
    };
    if deployment.status.is_active() {
        Err(KeepReason::Live)
    } else if deployment.modify_time >= before {
        Err(KeepReason::Young)
    } else if state.allocs.is_deployed(&deployment.id) {
        Err(KeepReason::Needed)
    } else if is_failure() {
        Err(KeepReason::Failure)
    } else {
        Ok(())
    }
}

/// Checks whether a node may be removed.
pub(super) fn node(state: &State, node: &Node, before: Timestamp) -> Result<(), KeepReason> {
    if node.status != NodeStatus::Down {
        Err(KeepReason::Live)
    } else if node.status_at >= before {
        Err(KeepReason::Young)
    } else if state.live_on(&node.spec.id) == 0 {
        Ok(())
    } else {
        Err(KeepReason::Needed)
    }
}

/// Checks whether a one-off task may be removed.
pub(super) fn one_off(row: &OneOff, before: Timestamp) -> Result<(), KeepReason> {
    match row.state {
        OneOffState::Pending | OneOffState::Running => Err(KeepReason::Live),
        OneOffState::Resolving => Err(KeepReason::Claimed),
        OneOffState::Completed if row.owes_callback() => Err(KeepReason::Owed),
        OneOffState::Completed => match row.first_completed_at {
            Some(at) if at < before => Ok(()),
            Some(_) | None => Err(KeepReason::Young),
        },
    }
}
