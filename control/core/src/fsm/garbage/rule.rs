//! The rules of garbage collection: which objects may be forgotten, and why others stay. They are Nomad's rules,
//! checked against its recorded decisions.
//!
//! - An evaluation goes when it ended before the cutoff and all its allocations go with it.
//!   One of a batch job goes only when the job is gone, or stopped and dead.
//! - An allocation goes with its evaluation.
//!   It goes alone when the evaluation stays, it ended before the cutoff, it does not run any more, and its job is
//!   over or will not replace it.
//! - An allocation of an earlier job of the name goes when it is terminal and its evaluation ended before the cutoff.
//! - A job goes when it is dead and stopped, or dead and batch, and was submitted before the cutoff.
//!   It must not make other jobs, none of its versions may be tagged, and all objects below it must go.
//! - A deployment goes when it was over before the cutoff and nothing of it is live.
//! - A node goes when it has been down since before the cutoff and nothing on it is live.
//! - A one-off task goes only by force.
//!   It is completed, its callback is made or given up, and nobody has claimed its result.
//!
//! Different from Nomad: the allocation of a one-off task that has not ended stays, also if it was told to stop before
//! its node had started it; one whose follow-up evaluation is still to come stays, because its replacement would
//! come at once, without a delay; and a failed deployment of a job's current version stays, because the job
//! would begin it anew.

use muster_domain::alloc::{ClientStatus, DesiredStatus};
use muster_domain::deployment::{Deployment, DeploymentStatus};
use muster_domain::eval::Evaluation;
use muster_domain::id::{LogIndex, Timestamp};
use muster_domain::job::{Job, JobStatus, JobType};
use muster_domain::node::{Node, NodeStatus};
use muster_domain::one_off::{OneOff, OneOffState};

use super::keep_reason::KeepReason;
use crate::state::{AllocView, State, is_over};

/// Only what ended before goes.
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
    /// One-off tasks. By age none goes here: how long each is kept is its own, and `converge` sees to it.
    pub one_offs: Timestamp,
}

impl Cutoffs {
    /// Cutoffs that keep no object for its age.
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

/// The part of an evaluation that may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CollectableExtent {
    /// It and its allocations.
    All,
    /// Only allocations of an earlier job of the same name: its job is there and keeps its results.
    Earlier,
}

/// Whether an evaluation ended before.
pub(super) fn ended(eval: &Evaluation, before: Timestamp) -> Result<(), KeepReason> {
    if !eval.status.is_terminal() {
        Err(KeepReason::Live)
    } else if eval.modify_time >= before {
        Err(KeepReason::Young)
    } else {
        Ok(())
    }
}

/// Returns the part of an evaluation that may go, leaving aside its allocations.
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

/// Whether a batch job keeps its evaluations and their allocations.
fn keeps_results(job: &Job) -> bool {
    job.status != JobStatus::Dead || !job.stop
}

/// Whether none of a batch job's evaluations can go, of which the oldest was made by the entry `oldest`.
pub(super) fn keeps_all(job: Option<&Job>, oldest: LogIndex) -> bool {
    job.is_some_and(|job| keeps_results(job) && oldest >= job.current.create_index)
}

/// Whether looking at an evaluation's allocations can free any: those of a job's own evaluations are its own.
pub(super) fn may_free(extent: CollectableExtent, eval: &Evaluation, job: Option<&Job>) -> bool {
    match extent {
        CollectableExtent::All => true,
        CollectableExtent::Earlier => {
            job.is_some_and(|job| eval.create_index < job.current.create_index)
        }
    }
}

/// Whether an allocation goes with, or without, its evaluation, of which `extent` may go.
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

/// Whether an allocation may go. `at` is the time of the collection, for rescheduling.
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
    // One that was told to stop may run until its agent says otherwise. Without the node nobody will.
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

/// Whether the allocation is that of a one-off task that has not ended and that ends only with this allocation. This
/// includes a task that was told to stop before its node had started it.
fn runs_task(state: &State, alloc: AllocView<'_>) -> bool {
    let key = alloc.job_key();
    let row = Some(key).filter(|key| key.is_one_off());
    let row = row.and_then(|key| state.one_offs.get(&key.job_id));
    row.is_some_and(|row| {
        row.alloc_id == Some(alloc.id())
            && matches!(row.state, OneOffState::Pending | OneOffState::Running)
    })
}

/// Returns the last moment at which a job may still replace an allocation that has ended. It is the end of time if
/// nothing says when that is over, and `None` if the job does not look at it any more.
pub(super) fn replaceable_until(
    state: &State,
    alloc: AllocView<'_>,
    job: &Job,
) -> Option<Timestamp> {
    const EVER: Option<Timestamp> = Some(Timestamp(u64::MAX));
    if job.stop || job.status == JobStatus::Dead || alloc.desired() == DesiredStatus::Stop {
        return None;
    }
    let follow_up = alloc
        .follow_up()
        .and_then(|eval_id| state.evals.get(&eval_id));
    if follow_up.is_some_and(|eval| !eval.status.is_terminal()) && alloc.next().is_none() {
        return EVER;
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
    // Its attempts count again when the last of them is an interval ago.
    match alloc.reschedules().last() {
        Some(last) if !policy.unlimited => Some(last.at.plus(policy.interval)),
        Some(_) | None => EVER,
    }
}

/// Whether a job may go, if all below it does.
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

/// Whether a deployment may go.
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

/// Whether a node may go.
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

/// Whether a one-off task may go.
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
