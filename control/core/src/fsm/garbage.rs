//! Garbage collection: removes objects that have ended.
//!
//! A command has a rule and a range of time. The objects to remove follow from the state, so that every replica removes
//! the same objects and the log carries no ids. A command does a bounded slice of the collection and returns the
//! position at which the next slice begins. `rule` decides which objects are removed and why the others stay. `dry_run`
//! counts both for a whole state without changing it, and `forecast` computes from when on an allocation may be
//! removed.
//!
//! Slices walk indexes of the removable objects, in the order of their end, so a slice costs as much as it frees. An
//! evaluation with more allocations than a slice frees is cut between two of them. A job is first looked at whole, over
//! several slices if necessary. Then its row is removed, and the objects below it follow. Until the last of them is
//! removed, the job looks as if it had been purged. An active deployment is removed with the row, because no evaluation
//! would end it; the other deployments follow.
//!
//! The allocations of a slice are removed together at its end, so that each index is touched once for all siblings.
//! Until then a slice reads them from the state at its beginning.

pub(super) mod cursor;
pub(super) mod dry_run;
pub(super) mod forecast;
pub(super) mod keep_reason;
pub(crate) mod rule;
pub(super) mod slice_limits;

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_domain::eval::Evaluation;
use muster_domain::id::{DeploymentId, EvalId, JobKey, LogIndex, NodeId, Timestamp};
use muster_domain::number;
use muster_domain::one_off::OneOff;
use serde::{Deserialize, Serialize};

use super::change::Change;
use super::effect::Effect;
use super::response::Response;
use crate::limits;
use crate::state::{Digest, JobRow, State};

use cursor::{GcCursor, GcJobStep};
use keep_reason::KeepReason;
use slice_limits::SliceLimits;

/// A collection of objects that have ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GcCommand {
    /// Remove objects that have ended: a rule and a range of time, never a list of ids.
    Collect {
        /// The kind of objects to remove.
        rule: GcRule,
        /// Only objects that ended before this time are removed.
        before: Timestamp,
        /// The same bound for evaluations of batch jobs.
        batch_before: Timestamp,
        /// The position at which the slice before this one ended.
        after: Option<GcCursor>,
    },
}

impl GcCommand {
    /// The kind of change, as Nomad's event type.
    pub(super) fn cause(&self) -> &'static str {
        match self {
            Self::Collect { .. } => "GarbageCollected",
        }
    }
}

pub(super) fn apply(change: &mut Change<'_>, command: GcCommand) -> Response {
    match command {
        GcCommand::Collect {
            rule,
            before,
            batch_before,
            after,
        } => collect(change, rule, before, batch_before, after),
    }
}

/// The kind of objects to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum GcRule {
    /// Evaluations and their allocations.
    Evals,
    /// Jobs with everything below them.
    Jobs,
    Nodes,
    /// Deployments that are over.
    Deployments,
    /// One-off tasks that are completed, with their jobs, evaluations and allocations.
    OneOffs,
}

/// A position below a job: an evaluation, and the key of an allocation of that evaluation.
type JobCursor = (EvalId, u64);
const FIRST_BELOW: JobCursor = (FIRST_EVAL, 0);

impl GcJobStep {
    /// The first position below a job whose row is removed.
    pub(crate) const REMOVE: Self = Self::remove_from(FIRST_BELOW);

    const fn remove_from((eval_id, alloc): JobCursor) -> Self {
        Self::RemoveFrom { eval_id, alloc }
    }
}

/// Counts of the objects that a slice removed, kept and looked at.
#[derive(Debug, Default)]
struct SliceProgress {
    bounds: SliceLimits,
    looked_at: usize,
    /// The cost of the removed objects, in the unit of its bound.
    freed: usize,
    evals: u32,
    allocs: u32,
    jobs: u32,
    nodes: u32,
    deployments: u32,
    one_offs: u32,
    /// The size of the removed objects.
    bytes: u64,
    kept: BTreeMap<KeepReason, u32>,
    next: Option<GcCursor>,
    /// Keys of the allocations that are removed together at the end of the slice.
    going: Vec<u64>,
    /// The objects below the current job that this slice has seen and that are removed with the job.
    seen: JobRows,
}

/// Objects below a job that may be removed with it.
#[derive(Debug, Default)]
struct JobRows {
    evals: Vec<EvalId>,
    allocs: Vec<u64>,
}

impl SliceProgress {
    fn is_full(&self) -> bool {
        self.freed >= self.bounds.freed_max || self.looked_at >= self.bounds.looked_at_max
    }

    fn count_visited(&mut self) {
        self.looked_at += 1;
    }

    fn keep(&mut self, why: KeepReason) {
        self.keep_many(why, 1);
    }

    fn keep_many(&mut self, why: KeepReason, count: usize) {
        let count = number::count(count);
        let kept = self.kept.entry(why).or_default();
        *kept = kept.saturating_add(count);
    }

    fn remove_alloc(&mut self, key: u64) {
        self.going.push(key);
        self.freed += 1;
        self.allocs += 1;
    }

    fn remove_allocs(&mut self, change: &mut Change<'_>) {
        self.bytes += change.remove_allocs(std::mem::take(&mut self.going));
    }

    /// Removes all objects seen below a job, if the slice has room for them. Returns whether it had.
    fn remove_seen(&mut self, change: &mut Change<'_>) -> bool {
        let JobRows { evals, mut allocs } = std::mem::take(&mut self.seen);
        let cost = evals.len() * limits::GC_COST_EVAL + allocs.len();
        if self.freed + cost > self.bounds.freed_max {
            return false;
        }
        self.freed += allocs.len();
        self.allocs += number::count(allocs.len());
        self.going.append(&mut allocs);
        for eval_id in &evals {
            self.remove_eval(change, eval_id);
        }
        true
    }

    fn remove_eval(&mut self, change: &mut Change<'_>, eval_id: &EvalId) {
        let eval = change.state.evals.get(eval_id);
        self.bytes += eval.map_or(0, |eval| Digest::bytes_of(&**eval));
        change.remove_eval(eval_id);
        self.freed += limits::GC_COST_EVAL;
        self.evals += 1;
    }

    /// Removes a job with its active deployment, because no evaluation would end that.
    fn remove_job(&mut self, change: &mut Change<'_>, row: &JobRow) {
        let key = row.job.key();
        let latest = change.state.deployments.latest(&key);
        let active = latest.filter(|latest| latest.status.is_active());
        if let Some(id) = active.map(|active| active.id) {
            self.remove_deployment(change, &id);
        }
        let versions = std::iter::once(&row.job.current).chain(&row.older);
        let sizes = versions.map(|version| Digest::bytes_of(&**version));
        self.bytes += sizes.sum::<u64>();
        change.remove_job(&key);
        self.freed += limits::GC_COST_JOB;
        self.jobs += 1;
    }

    /// Removes a task with its job and all objects below the job: an evaluation or two, and one allocation at most.
    fn remove_one_off(&mut self, change: &mut Change<'_>, snapshot: &State, row: &OneOff) {
        let key = row.job_key();
        for alloc in snapshot.allocs.of_job(&key) {
            self.remove_alloc(alloc.key());
        }
        for eval in snapshot.evals.of_job(&key) {
            self.remove_eval(change, &eval.id);
        }
        if let Some(job) = snapshot.jobs.row(&key) {
            self.remove_job(change, job);
        }
        self.bytes += Digest::bytes_of(row);
        change.remove_one_off(&row.guid);
        self.freed += limits::GC_COST_ONE_OFF;
        self.one_offs += 1;
    }

    fn remove_deployment(&mut self, change: &mut Change<'_>, id: &DeploymentId) {
        let deployment = change.state.deployments.get(id);
        self.bytes += deployment.map_or(0, |row| Digest::bytes_of(&**row));
        change.remove_deployment(id);
        self.freed += limits::GC_COST_DEPLOYMENT;
        self.deployments += 1;
    }
}

/// Removes the objects of one slice.
fn collect(
    change: &mut Change<'_>,
    rule: GcRule,
    before: Timestamp,
    batch_before: Timestamp,
    after: Option<GcCursor>,
) -> Response {
    let mut slice = SliceProgress {
        bounds: change.bounds,
        ..SliceProgress::default()
    };
    slice.next = match rule {
        GcRule::Evals => collect_evals(change, before, batch_before, after, &mut slice),
        GcRule::Jobs => collect_jobs(change, before, after, &mut slice),
        GcRule::Nodes => collect_nodes(change, before, after, &mut slice),
        GcRule::Deployments => collect_deployments(change, before, after, &mut slice),
        GcRule::OneOffs => collect_one_offs(change, before, after, &mut slice),
    };
    slice.remove_allocs(change);
    let SliceProgress {
        bounds: _,
        going: _,
        seen: _,
        looked_at: _,
        freed: _,
        evals,
        allocs,
        jobs,
        nodes,
        deployments,
        one_offs,
        bytes,
        kept,
        next,
    } = slice;
    Response::Collected {
        evals,
        allocs,
        jobs,
        nodes,
        deployments,
        next,
        one_offs,
        kept,
        bytes,
    }
}

const FIRST_EVAL: EvalId = EvalId([0; 16]);

/// The position of an evaluation in the order of their ends.
type EvalByEndTime = (Timestamp, EvalId);
const FIRST_EVAL_AT: EvalByEndTime = (Timestamp(0), FIRST_EVAL);

/// Returns the key that sorts before all jobs.
const fn no_job() -> JobKey {
    JobKey {
        namespace: String::new(),
        job_id: String::new(),
    }
}

/// Collects evaluations by the time of their end; those of batch jobs follow, job by job.
fn collect_evals(
    change: &mut Change<'_>,
    before: Timestamp,
    batch_before: Timestamp,
    after: Option<GcCursor>,
    slice: &mut SliceProgress,
) -> Option<GcCursor> {
    let snapshot = change.state.clone();
    let (from, alloc) = match after {
        Some(GcCursor::BatchEval {
            key,
            at,
            eval_id,
            alloc,
        }) => {
            let from = (at, eval_id);
            return collect_of_batch_jobs(
                change,
                &snapshot,
                batch_before,
                (key, from, alloc),
                slice,
            );
        }
        Some(GcCursor::Eval { at, eval_id, alloc }) => ((at, eval_id), alloc),
        Some(_) | None => (FIRST_EVAL_AT, 0),
    };
    let due = snapshot.evals.due_from(from);
    match collect_each(change, &snapshot, due, before, (from, alloc), slice) {
        Some(((at, eval_id), alloc)) => Some(GcCursor::Eval { at, eval_id, alloc }),
        None => {
            let first = (no_job(), FIRST_EVAL_AT, 0);
            collect_of_batch_jobs(change, &snapshot, batch_before, first, slice)
        }
    }
}

/// Collects evaluations of batch jobs. A job that keeps all its evaluations counts as one look.
fn collect_of_batch_jobs(
    change: &mut Change<'_>,
    snapshot: &State,
    before: Timestamp,
    (first, at_first, alloc_at_first): (JobKey, EvalByEndTime, u64),
    slice: &mut SliceProgress,
) -> Option<GcCursor> {
    for (key, due) in snapshot.evals.due_of_batch_jobs_from(&first) {
        let (from, alloc) = if **key == first {
            (at_first, alloc_at_first)
        } else {
            (FIRST_EVAL_AT, 0)
        };
        let stopped_at = |((at, eval_id), alloc)| GcCursor::BatchEval {
            key: (**key).clone(),
            at,
            eval_id,
            alloc,
        };
        if slice.is_full() {
            return Some(stopped_at((from, alloc)));
        }
        slice.count_visited();
        let job = snapshot.jobs.get(key).map(|job| &**job);
        if due
            .oldest()
            .is_some_and(|oldest| rule::keeps_all(job, oldest))
        {
            slice.keep_many(KeepReason::Result, due.len());
            continue;
        }
        let each = due.from(from);
        if let Some(cut) = collect_each(change, snapshot, each, before, (from, alloc), slice) {
            return Some(stopped_at(cut));
        }
    }
    None
}

/// Removes the removable parts of evaluations that ended before. Returns the evaluation, and the allocation, before
/// which the slice was full.
fn collect_each(
    change: &mut Change<'_>,
    snapshot: &State,
    due: impl Iterator<Item = EvalByEndTime>,
    before: Timestamp,
    (from, alloc): (EvalByEndTime, u64),
    slice: &mut SliceProgress,
) -> Option<(EvalByEndTime, u64)> {
    for place in due.take_while(|(at, _)| *at < before) {
        let first = if place == from { alloc } else { 0 };
        if slice.is_full() {
            return Some((place, first));
        }
        if let Some(eval) = snapshot.evals.get(&place.1)
            && let Err(cut) = collect_eval(change, snapshot, eval, before, first, slice)
        {
            return Some((place, cut));
        }
    }
    None
}

/// Removes the removable part of an evaluation, from the allocation `first` on. Returns the allocation before which the
/// slice was full. The slice that reaches the end of the evaluation counts the evaluation itself.
fn collect_eval(
    change: &mut Change<'_>,
    snapshot: &State,
    eval: &Evaluation,
    before: Timestamp,
    first: u64,
    slice: &mut SliceProgress,
) -> Result<(), u64> {
    slice.count_visited();
    let job = snapshot.jobs.get(&eval.job).map(|job| &**job);
    let extent = match rule::eval(eval, job, before) {
        Ok(extent) if rule::may_free(extent, eval, job) => extent,
        Ok(_) => {
            slice.keep(KeepReason::Result);
            return Ok(());
        }
        Err(why) => {
            slice.keep(why);
            return Ok(());
        }
    };
    let at = change.at;
    let went_before = slice.going.len();
    for alloc in snapshot.allocs.of_eval_from(&eval.id, first) {
        if slice.is_full() {
            return Err(alloc.key());
        }
        slice.count_visited();
        match rule::alloc_of(extent, snapshot, alloc, job, before, at) {
            Ok(()) => slice.remove_alloc(alloc.key()),
            Err(why) => slice.keep(why),
        }
    }
    let goes = slice.going.len() - went_before;
    let is_empty = snapshot.allocs.count_of_eval(&eval.id) == goes;
    match extent {
        rule::CollectableExtent::All if is_empty => slice.remove_eval(change, &eval.id),
        rule::CollectableExtent::All => slice.keep(KeepReason::Needed),
        rule::CollectableExtent::Earlier => slice.keep(KeepReason::Result),
    }
    Ok(())
}

fn collect_jobs(
    change: &mut Change<'_>,
    before: Timestamp,
    after: Option<GcCursor>,
    slice: &mut SliceProgress,
) -> Option<GcCursor> {
    let (from, mut step) = if let Some(GcCursor::Job { at, key, step }) = after {
        ((at, key), step)
    } else {
        ((Timestamp(0), no_job()), GcJobStep::Begin)
    };
    let left = match step {
        GcJobStep::Begin | GcJobStep::Look { .. } => None,
        GcJobStep::Remove => Some(FIRST_BELOW),
        GcJobStep::RemoveFrom { eval_id, alloc } => Some((eval_id, alloc)),
    };
    if let Some(left) = left {
        let snapshot = change.state.clone();
        let cut = remove_below(change, &snapshot, &from.1, before, left, slice);
        if let Some(cut) = cut {
            let (at, key) = from;
            let step = GcJobStep::remove_from(cut);
            return Some(GcCursor::Job { at, key, step });
        }
        // They are removed first, so that a later job of the same name is looked at without them.
        slice.remove_allocs(change);
    }
    let snapshot = change.state.clone();
    for (at, key) in snapshot.jobs.over_from(from.clone()) {
        if at >= before {
            break;
        }
        let step = if (at, key) == (from.0, &from.1) {
            std::mem::replace(&mut step, GcJobStep::Begin)
        } else {
            GcJobStep::Begin
        };
        let next = if slice.is_full() {
            Some(step)
        } else {
            collect_job(change, &snapshot, key, before, step, slice)
        };
        if let Some(step) = next {
            return Some(GcCursor::Job {
                at,
                key: key.clone(),
                step,
            });
        }
    }
    None
}

/// Removes a job if everything below it may be removed. Returns the progress if the slice was full before.
fn collect_job(
    change: &mut Change<'_>,
    snapshot: &State,
    key: &JobKey,
    before: Timestamp,
    step: GcJobStep,
    slice: &mut SliceProgress,
) -> Option<GcJobStep> {
    slice.count_visited();
    let row = snapshot.jobs.row(key)?;
    let (from, index) = match step {
        GcJobStep::Begin | GcJobStep::Remove | GcJobStep::RemoveFrom { .. } => {
            (FIRST_BELOW, snapshot.applied)
        }
        GcJobStep::Look {
            eval_id,
            alloc,
            index,
        } => ((eval_id, alloc), index),
    };
    match check_below_job(snapshot, row, before, from, index, change.at, slice) {
        JobSweep::Stays(why) => {
            slice.keep(why);
            None
        }
        JobSweep::Cut { eval_id, alloc } => Some(GcJobStep::Look {
            eval_id,
            alloc,
            index,
        }),
        JobSweep::Goes => {
            slice.remove_job(change, row);
            if !remove_deployments(change, key, slice) {
                return Some(GcJobStep::REMOVE);
            }
            // The objects that this slice saw do not include those that an earlier slice saw.
            if from == FIRST_BELOW && slice.remove_seen(change) {
                return None;
            }
            let cut = remove_below(change, snapshot, key, before, FIRST_BELOW, slice);
            cut.map(GcJobStep::remove_from)
        }
    }
}

/// The result of a look at the objects below a job.
enum JobSweep {
    Goes,
    Stays(KeepReason),
    /// The slice was full before this allocation.
    Cut {
        eval_id: EvalId,
        alloc: u64,
    },
}

/// Checks whether everything below a job may be removed, from an evaluation and its allocation on. The objects before
/// that position may still be removed if the job is as it was at `index`: no instance can be placed without a change of
/// the job.
fn check_below_job(
    state: &State,
    row: &JobRow,
    before: Timestamp,
    from: JobCursor,
    index: LogIndex,
    at: Timestamp,
    slice: &mut SliceProgress,
) -> JobSweep {
    let job = &*row.job;
    let is_as_it_was = job.modify_index <= index && row.plan_index <= index;
    match rule::job(job, before) {
        Err(why) => return JobSweep::Stays(why),
        Ok(()) if !is_as_it_was => return JobSweep::Stays(KeepReason::Needed),
        Ok(()) => {}
    }
    slice.seen = JobRows::default();
    for (eval, alloc_from) in evals_from(state, &job.key(), from) {
        if slice.is_full() {
            return JobSweep::Cut {
                eval_id: eval.id,
                alloc: alloc_from,
            };
        }
        slice.count_visited();
        if rule::ended(eval, before).is_err() {
            return JobSweep::Stays(KeepReason::Needed);
        }
        slice.seen.evals.push(eval.id);
        for alloc in state.allocs.of_eval_from(&eval.id, alloc_from) {
            if slice.is_full() {
                return JobSweep::Cut {
                    eval_id: eval.id,
                    alloc: alloc.key(),
                };
            }
            slice.count_visited();
            if rule::alloc(state, alloc, Some(job), before, at).is_err() {
                return JobSweep::Stays(KeepReason::Needed);
            }
            slice.seen.allocs.push(alloc.key());
        }
    }
    JobSweep::Goes
}

/// Returns evaluations of a job from a position below it on, each with the key at which its allocations begin. The
/// evaluation that was cut may be removed already.
fn evals_from<'a>(
    state: &'a State,
    key: &JobKey,
    (first, alloc): JobCursor,
) -> impl Iterator<Item = (&'a Arc<Evaluation>, u64)> + use<'a> {
    let evals = state.evals.of_job_from(key, first);
    evals.map(move |eval| (eval, if eval.id == first { alloc } else { 0 }))
}

/// Removes, from a position on, the remaining objects below a job whose row is removed, if they ended before. Returns
/// the position at which the slice was full.
fn remove_below(
    change: &mut Change<'_>,
    snapshot: &State,
    key: &JobKey,
    before: Timestamp,
    from: JobCursor,
    slice: &mut SliceProgress,
) -> Option<JobCursor> {
    let at = change.at;
    if !remove_deployments(change, key, slice) {
        return Some(from);
    }
    let again = registered_again(change, key);
    for (eval, alloc_from) in evals_from(snapshot, key, from) {
        if slice.is_full() {
            return Some((eval.id, alloc_from));
        }
        slice.count_visited();
        // Nothing is removed of a job that was registered under the same name meanwhile.
        let is_left = again.is_none_or(|again| eval.create_index < again);
        if !is_left || rule::ended(eval, before).is_err() {
            continue;
        }
        let went_before = slice.going.len();
        for alloc in snapshot.allocs.of_eval_from(&eval.id, alloc_from) {
            if slice.is_full() {
                return Some((eval.id, alloc.key()));
            }
            slice.count_visited();
            if rule::alloc(snapshot, alloc, None, before, at).is_ok() {
                slice.remove_alloc(alloc.key());
            }
        }
        let goes = slice.going.len() - went_before;
        if snapshot.allocs.count_of_eval(&eval.id) == goes {
            slice.remove_eval(change, &eval.id);
        }
    }
    None
}

/// Returns the entry that registered a job with the name of the removed job.
fn registered_again(change: &Change<'_>, key: &JobKey) -> Option<LogIndex> {
    let job = change.state.jobs.get(key);
    job.map(|job| job.current.create_index)
}

/// Removes deployments of a job whose row is removed, oldest first. Returns whether none is left.
fn remove_deployments(change: &mut Change<'_>, key: &JobKey, slice: &mut SliceProgress) -> bool {
    let again = registered_again(change, key);
    let of_job = change.state.deployments.of_job(key);
    let left = of_job.take_while(|row| again.is_none_or(|again| row.job_create_index < again));
    // If the job has one deployment more than the slice has room for, the slice is full.
    let most = slice.bounds.freed_max / limits::GC_COST_DEPLOYMENT + 2;
    let left: Vec<DeploymentId> = left.take(most).map(|row| row.id).collect();
    for id in left {
        if slice.is_full() {
            return false;
        }
        slice.count_visited();
        slice.remove_deployment(change, &id);
    }
    true
}

/// Removes the row of a purged job, its active deployment, and as many other deployments as a slice may. The rest is
/// removed like the rest of any removed job. Returns the number of removed deployments.
pub(super) fn purge(change: &mut Change<'_>, row: &JobRow) -> u32 {
    let mut slice = SliceProgress {
        bounds: change.bounds,
        ..SliceProgress::default()
    };
    slice.remove_job(change, row);
    remove_deployments(change, &row.job.key(), &mut slice);
    slice.deployments
}

fn collect_deployments(
    change: &mut Change<'_>,
    before: Timestamp,
    after: Option<GcCursor>,
    slice: &mut SliceProgress,
) -> Option<GcCursor> {
    let from = if let Some(GcCursor::Deployment { at, id }) = after {
        (at, id)
    } else {
        (Timestamp(0), DeploymentId([0; 16]))
    };
    let snapshot = change.state.clone();
    let places = snapshot.deployments.due_from(from);
    let cut = visit_ended(places, before, slice, |id, slice| {
        let row = snapshot.deployments.get(&id);
        match row.map(|row| rule::deployment(&snapshot, row, before)) {
            Some(Ok(())) => slice.remove_deployment(change, &id),
            Some(Err(why)) => slice.keep(why),
            None => {}
        }
    });
    cut.map(|(at, id)| GcCursor::Deployment { at, id })
}

fn collect_nodes(
    change: &mut Change<'_>,
    before: Timestamp,
    after: Option<GcCursor>,
    slice: &mut SliceProgress,
) -> Option<GcCursor> {
    let from = if let Some(GcCursor::Node { at, node_id }) = after {
        (at, node_id)
    } else {
        (Timestamp(0), NodeId([0; 16]))
    };
    let snapshot = change.state.clone();
    let places = snapshot.nodes.down_from(from);
    let cut = visit_ended(places, before, slice, |node_id, slice| {
        let node = snapshot.nodes.get(&node_id);
        match node.map(|node| rule::node(&snapshot, node, before)) {
            Some(Ok(())) => {
                slice.bytes += node.map_or(0, |node| Digest::bytes_of(&node.spec));
                change.remove_node(&node_id);
                change.effect(Effect::NodeGone(node_id));
                slice.freed += limits::GC_COST_NODE;
                slice.nodes += 1;
            }
            Some(Err(why)) => slice.keep(why),
            None => {}
        }
    });
    cut.map(|(at, node_id)| GcCursor::Node { at, node_id })
}

/// Collects one-off tasks. Tasks that owe a callback are not due for anything, so they are not even looked at.
fn collect_one_offs(
    change: &mut Change<'_>,
    before: Timestamp,
    after: Option<GcCursor>,
    slice: &mut SliceProgress,
) -> Option<GcCursor> {
    let (first, guid) = if let Some(GcCursor::OneOff { due, guid }) = after {
        (due, guid)
    } else {
        (Timestamp(0), String::new())
    };
    let snapshot = change.state.clone();
    for (due, row) in snapshot.one_offs.due_from(first, &guid) {
        if slice.is_full() {
            let guid = row.guid.clone();
            return Some(GcCursor::OneOff { due, guid });
        }
        slice.count_visited();
        match rule::one_off(row, before) {
            Ok(()) => slice.remove_one_off(change, &snapshot, row),
            Err(why) => slice.keep(why),
        }
    }
    None
}

/// Looks, in the order of their ends, at objects that ended before. Returns the object at which the slice was full.
fn visit_ended<Id>(
    places: impl Iterator<Item = (Timestamp, Id)>,
    before: Timestamp,
    slice: &mut SliceProgress,
    mut each: impl FnMut(Id, &mut SliceProgress),
) -> Option<(Timestamp, Id)> {
    for (at, id) in places.take_while(|(at, _)| *at < before) {
        if slice.is_full() {
            return Some((at, id));
        }
        slice.count_visited();
        each(id, slice);
    }
    None
}
