//! Forgetting what has ended.
//!
//! A command says a rule and a range of time; what falls under it follows from the state, so that every
//! replica forgets the same and the log carries no ids. A command looks at a bounded slice and answers
//! where the next one begins. One evaluation or job is never cut: with its allocations it may exceed
//! the bound alone.
//!
//! | object | goes when |
//! |---|---|
//! | evaluation | it ended before the cutoff and all its allocations go with it; one of a batch job only when the job is gone, or stopped and dead |
//! | allocation | it ended before the cutoff, and will not be replaced; also alone, when its evaluation stays |
//! | job | dead and stopped, or dead and batch; submitted before the cutoff, and all below it goes |
//! | deployment | it ended before the cutoff, and nothing of it runs |
//! | node | down since before the cutoff, nothing live on it |

use std::sync::Arc;

use muster_domain::eval::Evaluation;
use muster_domain::id::{DeploymentId, EvalId, JobKey, NodeId, Timestamp};
use muster_domain::job::{Job, JobStatus, JobType};
use muster_domain::node::{Node, NodeStatus};
use serde::{Deserialize, Serialize};

use super::{Change, Effect, Response, deployment};
use crate::limits;
use crate::scheduler;
use crate::state::{AllocView, State};

/// What to forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum GcRule {
    /// Evaluations and their allocations.
    Evals,
    /// Jobs with everything below them.
    Jobs,
    /// Nodes.
    Nodes,
    /// Deployments that are over.
    Deployments,
}

/// Where a slice ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GcCursor {
    /// After this evaluation, in the order of their end.
    Eval {
        /// When it ended.
        at: Timestamp,
        /// Its id.
        eval_id: EvalId,
    },
    /// After this job, by key.
    Job(JobKey),
    /// After this node, by id.
    Node(NodeId),
    /// After this deployment, in the order of their end.
    Deployment {
        /// When it ended.
        at: Timestamp,
        /// Its id.
        id: DeploymentId,
    },
}

/// What a slice forgot, and how much it looked at.
#[derive(Debug, Default)]
struct Slice {
    looked_at: usize,
    evals: u32,
    allocs: u32,
    jobs: u32,
    nodes: u32,
    deployments: u32,
    next: Option<GcCursor>,
}

impl Slice {
    fn is_full(&self) -> bool {
        self.looked_at >= limits::GC_SLICE_MAX
    }
}

/// Forgets one slice.
pub(super) fn collect(
    change: &mut Change<'_>,
    rule: GcRule,
    before: Timestamp,
    batch_before: Timestamp,
    after: Option<GcCursor>,
) -> Response {
    let slice = match rule {
        GcRule::Evals => collect_evals(change, before, batch_before, after),
        GcRule::Jobs => collect_jobs(change, before, after),
        GcRule::Nodes => collect_nodes(change, before, after),
        GcRule::Deployments => collect_deployments(change, before, after),
    };
    let Slice {
        looked_at: _,
        evals,
        allocs,
        jobs,
        nodes,
        deployments,
        next,
    } = slice;
    Response::Collected {
        evals,
        allocs,
        jobs,
        nodes,
        deployments,
        next,
    }
}

fn collect_evals(
    change: &mut Change<'_>,
    before: Timestamp,
    batch_before: Timestamp,
    after: Option<GcCursor>,
) -> Slice {
    let after = match after {
        Some(GcCursor::Eval { at, eval_id }) => Some((at, eval_id)),
        Some(GcCursor::Job(_) | GcCursor::Node(_) | GcCursor::Deployment { .. }) | None => None,
    };
    let mut slice = Slice::default();
    let snapshot = change.state.clone();
    for (at, eval_id) in snapshot.evals.terminal_after(after) {
        if at >= before.max(batch_before) {
            break;
        }
        if let Some(eval) = snapshot.evals.get(&eval_id) {
            collect_eval(change, &snapshot, eval, before, batch_before, &mut slice);
        }
        if slice.is_full() {
            slice.next = Some(GcCursor::Eval { at, eval_id });
            break;
        }
    }
    slice
}

fn collect_eval(
    change: &mut Change<'_>,
    snapshot: &State,
    eval: &Evaluation,
    before: Timestamp,
    batch_before: Timestamp,
    slice: &mut Slice,
) {
    let is_batch = match eval.job_type {
        JobType::Batch | JobType::SysBatch => true,
        JobType::Service | JobType::System => false,
    };
    let job = snapshot.jobs.get(&eval.job).map(|job| &**job);
    // The results of a batch job stay while the job does; those of an earlier job of its name do not.
    let may_go = match job {
        Some(job) if is_batch => job.status == JobStatus::Dead && job.stop,
        Some(_) | None => true,
    };
    let before = if is_batch { batch_before } else { before };
    let (mut going, mut staying) = (Vec::new(), 0_usize);
    for alloc in snapshot.allocs.of_eval(&eval.id) {
        let earlier = job.is_some_and(|job| alloc.job().create_index < job.current.create_index);
        let goes = if may_go {
            alloc_may_go(snapshot, alloc, job, before)
        } else {
            earlier && has_ended(snapshot, alloc)
        };
        if goes {
            going.push(alloc.key());
        } else {
            staying += 1;
        }
    }
    slice.looked_at += 1 + going.len() + staying;
    if may_go && staying == 0 && eval.modify_time < before {
        remove(change, &going, &[eval.id], slice);
    } else {
        remove(change, &going, &[], slice);
    }
}

/// Whether an allocation may be forgotten although its job may be there.
fn alloc_may_go(state: &State, alloc: AllocView<'_>, job: Option<&Job>, before: Timestamp) -> bool {
    if !has_ended(state, alloc) || alloc.modify_time() >= before {
        return false;
    }
    let job_is_over = job.is_none_or(|job| job.stop || job.status == JobStatus::Dead);
    job_is_over
        || alloc.server_terminal()
        || alloc.next().is_some()
        || scheduler::replaced_at(alloc).is_none()
}

/// Whether nothing of it runs. One that was told to stop may still run until its agent says otherwise.
fn has_ended(state: &State, alloc: AllocView<'_>) -> bool {
    alloc.client_status().is_terminal()
        || (alloc.server_terminal() && state.nodes.get(&alloc.node_id()).is_none())
}

fn remove(change: &mut Change<'_>, allocs: &[u64], evals: &[EvalId], slice: &mut Slice) {
    for key in allocs {
        change.remove_alloc(*key);
        slice.allocs += 1;
    }
    for eval_id in evals {
        change.remove_eval(eval_id);
        slice.evals += 1;
    }
}

fn collect_jobs(change: &mut Change<'_>, before: Timestamp, after: Option<GcCursor>) -> Slice {
    let after = match after {
        Some(GcCursor::Job(key)) => Some(key),
        Some(GcCursor::Eval { .. } | GcCursor::Node(_) | GcCursor::Deployment { .. }) | None => {
            None
        }
    };
    let mut slice = Slice::default();
    let snapshot = change.state.clone();
    let later = snapshot
        .jobs
        .rows()
        .filter(|(key, _)| after.as_ref().is_none_or(|after| *key > after));
    for (key, row) in later {
        slice.looked_at += 1;
        if job_may_go(&row.job, before) {
            collect_job(change, &snapshot, key, before, &mut slice);
        }
        if slice.is_full() {
            slice.next = Some(GcCursor::Job(key.clone()));
            break;
        }
    }
    slice
}

fn job_may_go(job: &Job, before: Timestamp) -> bool {
    let runs_to_completion = match job.current.spec.job_type {
        JobType::Batch | JobType::SysBatch => true,
        JobType::Service | JobType::System => false,
    };
    job.status == JobStatus::Dead
        && (job.stop || runs_to_completion)
        && job.current.submit_time < before
}

fn collect_job(
    change: &mut Change<'_>,
    snapshot: &State,
    key: &JobKey,
    before: Timestamp,
    slice: &mut Slice,
) {
    let evals: Vec<&Arc<Evaluation>> = snapshot.evals.of_job(key).collect();
    let allocs: Vec<AllocView<'_>> = snapshot.allocs.of_job(key).collect();
    slice.looked_at += evals.len() + allocs.len();
    let all_go = evals
        .iter()
        .all(|eval| eval.status.is_terminal() && eval.modify_time < before)
        && allocs
            .iter()
            .all(|alloc| has_ended(snapshot, *alloc) && alloc.modify_time() < before);
    if all_go {
        let allocs: Vec<u64> = allocs.iter().map(|alloc| alloc.key()).collect();
        let evals: Vec<EvalId> = evals.iter().map(|eval| eval.id).collect();
        remove(change, &allocs, &evals, slice);
        for deployment in snapshot.deployments.of_job(key) {
            change.remove_deployment(&deployment.id);
            slice.deployments += 1;
        }
        change.remove_job(key);
        slice.jobs += 1;
    }
}

fn collect_deployments(
    change: &mut Change<'_>,
    before: Timestamp,
    after: Option<GcCursor>,
) -> Slice {
    let after = match after {
        Some(GcCursor::Deployment { at, id }) => Some((at, id)),
        Some(GcCursor::Eval { .. } | GcCursor::Job(_) | GcCursor::Node(_)) | None => None,
    };
    let mut slice = Slice::default();
    let snapshot = change.state.clone();
    for (at, id) in snapshot.deployments.terminal_after(after) {
        if at >= before {
            break;
        }
        slice.looked_at += 1;
        let goes = snapshot
            .deployments
            .get(&id)
            .is_some_and(|row| deployment::may_be_forgotten(&snapshot, row, before));
        if goes {
            change.remove_deployment(&id);
            slice.deployments += 1;
        }
        if slice.is_full() {
            slice.next = Some(GcCursor::Deployment { at, id });
            break;
        }
    }
    slice
}

fn collect_nodes(change: &mut Change<'_>, before: Timestamp, after: Option<GcCursor>) -> Slice {
    let after = match after {
        Some(GcCursor::Node(node_id)) => Some(node_id),
        Some(GcCursor::Eval { .. } | GcCursor::Job(_) | GcCursor::Deployment { .. }) | None => None,
    };
    let mut slice = Slice::default();
    let snapshot = change.state.clone();
    for node in snapshot
        .nodes
        .iter()
        .filter(|node| after.is_none_or(|after| node.spec.id > after))
    {
        slice.looked_at += 1;
        if node_may_go(&snapshot, node, before) {
            change.remove_node(&node.spec.id);
            change.effect(Effect::NodeGone(node.spec.id));
            slice.nodes += 1;
        }
        if slice.is_full() {
            slice.next = Some(GcCursor::Node(node.spec.id));
            break;
        }
    }
    slice
}

fn node_may_go(state: &State, node: &Node, before: Timestamp) -> bool {
    node.status == NodeStatus::Down
        && node.status_at < before
        && state.allocs_on(&node.spec.id).all(AllocView::is_terminal)
}
