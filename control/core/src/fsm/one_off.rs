//! One-off tasks: desired, followed, ended, claimed, removed.
//!
//! A task is placed as the only allocation of its own job. The state of that allocation alone determines the state of
//! the task. [`follow`] is called for every task whose job a command touched. A placed task is `Running`, because it
//! may have started. In Diego, too, a task is running from the moment a cell claims it. The id of an allocation names
//! the entry that placed it, so a report about an earlier task of the same guid finds no row.
//!
//! An entry costs a write to the disks of a quorum. Steps without a decision between them therefore share one entry. A
//! task is desired with its place if the leader found one ([`OneOffPlacement`]). The end of a task claims its callback,
//! and a claim may delete the task at once. Followers of tasks still receive the states in between
//! ([`Change::record_passed_state`]).

mod no_room;

use std::sync::Arc;
use std::time::Duration;

use muster_domain::alloc::{ClientStatus, DesiredStatus, PlacementMetrics, Score};
use muster_domain::eval::{EvalStatus, Evaluation, FailedGroup, Trigger};
use muster_domain::id::{AllocId, EvalId, JobKey, LogIndex, NodeId, NodeNumber, Timestamp};
use muster_domain::job::{Job, JobStatus};
use muster_domain::node::NodeStatus;
use muster_domain::one_off::{
    self, Callback, Definition, OneOff, OneOffState, OneOffTimings, Phase, WorkEnd, job_key,
};
use muster_domain::plan::{PlacementDetail, PlacementRun};
use muster_domain::resources::Holding;
use serde::{Deserialize, Serialize};

use super::change::Change;
use super::effect::Effect;
use super::job::version;
use super::one_off_alloc::alloc_of_one_off;
use super::rejection::{JobRejection, OneOffRefusal, Rejection};
use super::response::{DesiredOneOff, Response};
use crate::limits;
use crate::state::{AllocView, JobRow, PlanShared, RemainingCapacity, State, due_at};

/// A change of one-off tasks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OneOffCommand {
    /// Clients desire one-off tasks. A task without a valid place waits for its evaluation.
    Desire {
        /// The tasks, each with its place if one was found. A refused task does not hold back the others.
        tasks: Vec<(NewOneOff, Option<OneOffPlacement>)>,
        /// The state in which the places were found.
        seen: LogIndex,
    },
    /// Clients, and the duties of one-off tasks, change some of them.
    Change {
        /// The changes, each of one task. A refused change does not hold back the others.
        changes: Vec<OneOffChange>,
    },
    /// A client declares that its record of a domain is complete.
    FreshenDomain {
        domain: String,
        /// The end of the domain's freshness. `None`: it does not end.
        until: Option<Timestamp>,
    },
    /// The leader is configured with other times than the leader before it.
    SetTimes { times: OneOffTimings },
}

impl OneOffCommand {
    /// The kind of change, as Nomad's event type.
    pub(super) fn cause(&self) -> &'static str {
        match self {
            Self::Desire { .. } => "TaskDesired",
            Self::Change { .. } => "TaskUpdated",
            Self::FreshenDomain { .. } | Self::SetTimes { .. } => "TaskSettingsUpdated",
        }
    }

    /// Records one-off tasks for which no places were found.
    #[must_use]
    pub fn desire(tasks: Vec<NewOneOff>) -> Self {
        Self::Desire {
            tasks: tasks.into_iter().map(|task| (task, None)).collect(),
            seen: LogIndex(0),
        }
    }

    /// Returns the command without the values that a server adds to each try of a write; `None` if it has none.
    pub(super) fn without_added(&self) -> Option<Self> {
        match self {
            // The places are found anew for each try.
            Self::Desire { tasks, seen } if *seen != LogIndex(0) => {
                let tasks = tasks.iter().map(|(task, _)| task.clone());
                Some(Self::desire(tasks.collect()))
            }
            Self::Change { changes } if changes.iter().any(|change| change.step.ends_later()) => {
                let mut changes = changes.clone();
                for change in &mut changes {
                    change.step = change.step.without_end();
                }
                Some(Self::Change { changes })
            }
            Self::Desire { .. }
            | Self::Change { .. }
            | Self::FreshenDomain { .. }
            | Self::SetTimes { .. } => None,
        }
    }
}

pub(super) fn apply(
    change: &mut Change<'_>,
    command: OneOffCommand,
) -> Result<Response, Rejection> {
    match command {
        OneOffCommand::Desire { tasks, seen } => Ok(desire_all(change, tasks, seen)),
        OneOffCommand::Change { changes } => Ok(change_all(change, changes)),
        OneOffCommand::FreshenDomain { domain, until } => freshen(change, &domain, until),
        OneOffCommand::SetTimes { times } => {
            set_times(change, times);
            Ok(Response::Done)
        }
    }
}

/// A task that a client wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewOneOff {
    pub guid: String,
    /// The domain to which the client assigns the task.
    pub domain: String,
    /// The definition of the task, with the cluster's times filled in.
    pub definition: Definition,
}

/// The place for a task, found before the task is recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OneOffPlacement {
    /// The node that had this number in the state in which the place was found.
    pub node: NodeNumber,
    pub score: Score,
    /// The ports, cores and devices that the task takes of the node.
    pub holding: Holding,
    /// The metrics of the choice.
    pub metrics: Arc<PlacementMetrics>,
}

/// A change of one task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OneOffChange {
    pub guid: String,
    /// The entry that made the task, if the change must not apply to an earlier or later task of the same guid.
    pub generation: Option<LogIndex>,
    /// The step to carry out.
    pub step: OneOffStep,
}

/// A step to carry out on a one-off task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OneOffStep {
    /// End the task. A task whose process may run is completed when no process of it runs.
    Cancel,
    /// Claim its result: no other caller can claim it until the claim ends.
    Claim {
        /// The end of the claim.
        until: Timestamp,
        /// Whether the claim is for the delivery of its callback.
        for_callback: bool,
    },
    /// Do the work that is due by time: expire the task, end a claim, remove the task.
    Converge,
    /// Claim its result and remove it: the caller has received all that it asked for.
    Resolve,
    /// Remove it; the holder of the claim has received the result.
    Delete {
        /// The holder's claim ([`OneOff::claim`]). `None`: any claim of a client.
        claim: Option<LogIndex>,
    },
    /// Its callback could not be delivered.
    CallbackFailed {
        /// The claim under which the callback was made.
        claim: LogIndex,
        /// The earliest time of the next try; `None`: never.
        next_at: Option<Timestamp>,
    },
    /// Fail it because it has no place. The reason is that of its last rejection.
    FailUnplaced,
}

impl OneOffStep {
    /// Returns whether the step has an end that a server adds.
    pub(super) fn ends_later(self) -> bool {
        self != self.without_end()
    }

    /// Returns the step without the end that a server adds, so that equal requests give equal steps.
    pub(super) fn without_end(self) -> Self {
        match self {
            Self::Claim {
                until: _,
                for_callback,
            } => Self::Claim {
                until: Timestamp(0),
                for_callback,
            },
            Self::Cancel
            | Self::Converge
            | Self::Resolve
            | Self::Delete { .. }
            | Self::CallbackFailed { .. }
            | Self::FailUnplaced => self,
        }
    }
}

/// Records several tasks, each independently of the others, with the places that were found for them in the state
/// `seen`. Returns the outcomes in the order of the tasks.
fn desire_all(
    change: &mut Change<'_>,
    tasks: impl IntoIterator<Item = (NewOneOff, Option<OneOffPlacement>)>,
    seen: LogIndex,
) -> Response {
    let tasks = tasks.into_iter();
    let outcomes = tasks.map(|(new, place)| desire(change, new, place, seen));
    Response::OneOffsDesired {
        outcomes: outcomes.collect(),
    }
}

/// Records a task, its job and the evaluation that places the job. Places the task if `place` is still valid. Recording
/// the same task again changes nothing.
fn desire(
    change: &mut Change<'_>,
    new: NewOneOff,
    place: Option<OneOffPlacement>,
    seen: LogIndex,
) -> Result<DesiredOneOff, Rejection> {
    let NewOneOff {
        guid,
        domain,
        definition,
    } = new;
    if let Some(row) = change.state.one_offs.get(&guid) {
        if row.domain != domain || *row.definition != definition {
            return Err(Rejection::OneOff(OneOffRefusal::Exists(guid)));
        }
        return Ok(DesiredOneOff {
            created: false,
            generation: row.create_index,
            eval_id: None,
        });
    }
    if change.state.config.scheduler.reject_job_registration {
        return Err(Rejection::Job(JobRejection::RegistrationOff));
    }
    let key = job_key(&guid);
    // No object of an earlier task of the same guid may be left.
    forget_job(change, &key);
    let spec = one_off::job(&guid, &domain, &definition, change.state.one_offs.times());
    let row = version::first_version(change, spec);
    let (index, at) = (change.index, change.at);
    let task = OneOff::new(guid, domain, Arc::new(definition), index, at);
    let eval = change.new_eval(&row.job, Trigger::JobRegister);
    let eval_id = eval.id;
    match place.and_then(|place| ValidPlacement::of(change, &row, place, seen, eval_id)) {
        Some(place) => place_new(change, task, row, eval, &place),
        None => {
            change.put_job(row);
            change.put_one_off(task);
            change.put_eval(eval);
        }
    }
    Ok(DesiredOneOff {
        created: true,
        generation: index,
        eval_id: Some(eval_id),
    })
}

/// A place that is still free.
struct ValidPlacement {
    run: PlacementRun,
    cohort: Arc<PlanShared>,
    seen: LogIndex,
}

impl ValidPlacement {
    /// Returns the place, if its number still belongs to the node of the state `seen` and that node has the room.
    fn of(
        change: &Change<'_>,
        row: &JobRow,
        place: OneOffPlacement,
        seen: LogIndex,
        eval_id: EvalId,
    ) -> Option<Self> {
        if seen > change.index || change.placements_left() == 0 {
            return None;
        }
        let OneOffPlacement {
            node,
            score,
            holding,
            metrics,
        } = place;
        let version = &row.job.current;
        let mut ask = version.spec.group(one_off::GROUP)?.ask();
        ask.cpu_mhz = ask.cpu_mhz.saturating_add(holding.cores_mhz());
        let held = Some(&holding).filter(|holding| !holding.is_empty());
        let mut room = RemainingCapacity::new(change.state);
        room.take(node, seen, ask, held).ok()?;
        let cohort = PlanShared::new(Arc::clone(version), 0, eval_id, metrics, change.at, None)?;
        let detail = held.is_some().then(|| {
            Box::new(PlacementDetail {
                holding,
                ..PlacementDetail::default()
            })
        });
        let run = PlacementRun {
            node,
            first_index: 0,
            count: 1,
            score,
            detail,
        };
        Some(Self { run, cohort, seen })
    }
}

/// Records a task that has its place. Only followers of tasks see it as `Pending`.
fn place_new(
    change: &mut Change<'_>,
    task: OneOff,
    mut row: JobRow,
    mut eval: Evaluation,
    place: &ValidPlacement,
) {
    row.plan_index = change.index;
    let mut job = Job::clone(&row.job);
    job.status = JobStatus::Running;
    row.job = Arc::new(job);
    change.put_job(row);
    let alloc_id = change.place(&place.cohort, &place.run, 0);
    let alloc = alloc_id.and_then(|alloc_id| change.state.allocs.get(&alloc_id));
    let node_id = alloc.map(AllocView::node_id);
    eval.status = EvalStatus::Complete;
    eval.snapshot_index = place.seen;
    change.put_eval(eval);
    change.record_passed_state(task.clone());
    change.put_one_off(OneOff {
        state: OneOffState::Running,
        phase: Phase::Preparing,
        alloc_id,
        node_id,
        ..task
    });
}

/// Carries out changes of several tasks, each independently of the others. Returns the outcomes in the order of the
/// changes.
fn change_all(change: &mut Change<'_>, changes: Vec<OneOffChange>) -> Response {
    let outcomes = changes
        .into_iter()
        .map(|wanted| carry_out(change, wanted).err())
        .collect();
    Response::OneOffsChanged { outcomes }
}

fn carry_out(change: &mut Change<'_>, wanted: OneOffChange) -> Result<(), OneOffRefusal> {
    let OneOffChange {
        guid,
        generation,
        step,
    } = wanted;
    let row = change.state.one_offs.get(&guid).map(Arc::clone);
    let row = row.filter(|row| generation.is_none_or(|wanted| wanted == row.create_index));
    let Some(row) = row else {
        return Err(OneOffRefusal::Unknown(guid));
    };
    let refused = |to| OneOffRefusal::Transition {
        from: row.state,
        to,
    };
    match (step, row.state) {
        (OneOffStep::Cancel, OneOffState::Pending | OneOffState::Running) => {
            abort_task(change, &row, one_off::CANCELLED);
        }
        (OneOffStep::FailUnplaced, OneOffState::Pending) => fail_unplaced(change, &row),
        // The client repeats the step because the earlier answer was lost.
        (OneOffStep::Cancel, OneOffState::Completed)
            if row.failure_reason() == one_off::CANCELLED => {}
        (OneOffStep::Cancel, OneOffState::Completed | OneOffState::Resolving) => {
            return Err(refused(OneOffState::Completed));
        }
        (
            OneOffStep::Claim {
                until,
                for_callback,
            },
            OneOffState::Completed,
        ) => {
            change.put_one_off(claimed(&row, until, for_callback));
        }
        (OneOffStep::Resolve, OneOffState::Completed) => {
            change.record_passed_state(claimed(&row, change.at, false));
            forget(change, &row);
        }
        (
            OneOffStep::Claim { .. } | OneOffStep::Delete { .. } | OneOffStep::Resolve,
            OneOffState::Pending | OneOffState::Running,
        )
        | (OneOffStep::Claim { .. } | OneOffStep::Resolve, OneOffState::Resolving)
        | (OneOffStep::Delete { .. }, OneOffState::Completed) => {
            return Err(refused(OneOffState::Resolving));
        }
        (OneOffStep::Delete { claim }, OneOffState::Resolving) => {
            held(&row, claim)?;
            forget(change, &row);
        }
        (OneOffStep::Converge, _) => converge(change, &row),
        (OneOffStep::CallbackFailed { claim, next_at }, OneOffState::Resolving) => {
            held(&row, Some(claim))?;
            callback_failed(change, &row, next_at);
        }
        (
            OneOffStep::CallbackFailed { .. },
            OneOffState::Pending | OneOffState::Running | OneOffState::Completed,
        )
        | (
            OneOffStep::FailUnplaced,
            OneOffState::Running | OneOffState::Completed | OneOffState::Resolving,
        ) => return Err(refused(OneOffState::Completed)),
    }
    Ok(())
}

/// Ends a task before it ends by itself. A task without an allocation is over at once.
fn abort_task(change: &mut Change<'_>, row: &OneOff, why: &str) {
    let key = row.job_key();
    stop_job(change, &key);
    if row.ending.is_some() {
        return;
    }
    let alloc =
        alloc_of_one_off(change.state, &key).filter(|alloc| !alloc.client_status().is_terminal());
    let Some(alloc) = alloc.map(AllocView::key) else {
        let end = WorkEnd::failure(why, change.at);
        complete(change, row.clone(), end);
        return;
    };
    change.put_one_off(OneOff {
        ending: Some(why.to_owned()),
        phase: Phase::Cancelling,
        ..row.clone()
    });
    change.stop(alloc, why, None);
}

/// Ends a task that has no place. If the task was never rejected, the reason is that it has not started in time.
fn fail_unplaced(change: &mut Change<'_>, row: &OneOff) {
    let reason = match row.rejection.as_str() {
        "" => one_off::NOT_STARTED,
        rejection => rejection,
    };
    abort_task(change, row, reason);
}

/// Returns the completed task `row` with a claim on its result.
fn claimed(row: &OneOff, until: Timestamp, for_callback: bool) -> OneOff {
    OneOff {
        state: OneOffState::Resolving,
        phase: if for_callback {
            Phase::Delivering
        } else {
            Phase::Resolving
        },
        until: Some(until),
        ..row.clone()
    }
}

/// Checks whether `claim` is the current claim on the result of `row`: a caller whose claim is over cannot change the
/// result under another claim. A client that names no claim, as a Diego client, may mean the claim of any client.
fn held(row: &OneOff, claim: Option<LogIndex>) -> Result<(), OneOffRefusal> {
    let by_callback = row.phase == Phase::Delivering;
    let is_held = match claim {
        Some(_) => row.claim() == claim,
        None => !by_callback,
    };
    if is_held {
        return Ok(());
    }
    Err(OneOffRefusal::Claimed {
        guid: row.guid.clone(),
        by_callback,
    })
}

fn callback_failed(change: &mut Change<'_>, row: &OneOff, next_at: Option<Timestamp>) {
    let callback = row.callback.map(|callback| Callback {
        attempts: callback.attempts.saturating_add(1),
        next_at: next_at.unwrap_or(change.at),
        given_up: next_at.is_none(),
    });
    change.put_one_off(OneOff {
        state: OneOffState::Completed,
        phase: Phase::Completed,
        until: None,
        callback,
        ..row.clone()
    });
}

/// Does the work that is due by time, if it is still due: a server that is behind proposes it twice.
fn converge(change: &mut Change<'_>, row: &OneOff) {
    if due_at(row).is_none_or(|at| at > change.at) {
        return;
    }
    match row.state {
        OneOffState::Running if row.phase == Phase::Unreachable => {
            end_unreachable_task(change, row);
        }
        OneOffState::Pending | OneOffState::Running => {
            abort_task(change, row, one_off::NOT_STARTED);
        }
        OneOffState::Completed => forget(change, row),
        OneOffState::Resolving => change.put_one_off(OneOff {
            state: OneOffState::Completed,
            phase: Phase::Completed,
            until: None,
            ..row.clone()
        }),
    }
}

/// Treats a task that was asked to end as ended, because its node is gone. If the node is back, its agent has a record
/// of the end and will report it.
fn end_unreachable_task(change: &mut Change<'_>, row: &OneOff) {
    let Some(alloc) = alloc_of_one_off(change.state, &row.job_key()) else {
        return;
    };
    if !row.node_id.is_some_and(|id| is_gone(change.state, &id)) {
        let until = Some(change.at.plus(lost_after(alloc)));
        change.put_one_off(OneOff {
            until,
            ..row.clone()
        });
        return;
    }
    let key = alloc.key();
    change.stop(key, "its node is down", Some(ClientStatus::Lost));
}

/// Returns the time from the loss of a node until its task's allocation counts as lost. The time was set when the task
/// was desired.
/// desired.
fn lost_after(alloc: AllocView<'_>) -> Duration {
    let configured = alloc.group().disconnect.lost_after;
    configured.unwrap_or(one_off::LOST_AFTER)
}

/// Returns whether a node is gone, down or disconnected, so that no report of it is expected.
fn is_gone(state: &State, node_id: &NodeId) -> bool {
    state
        .nodes
        .get(node_id)
        .is_none_or(|node| match node.status {
            NodeStatus::Down | NodeStatus::Disconnected => true,
            NodeStatus::Ready | NodeStatus::Initializing => false,
        })
}

fn forget(change: &mut Change<'_>, row: &OneOff) {
    forget_job(change, &row.job_key());
    change.remove_one_off(&row.guid);
}

/// Removes the job of a task with all objects below it.
fn forget_job(change: &mut Change<'_>, key: &JobKey) {
    let allocs: Vec<u64> = change
        .state
        .allocs
        .of_job(key)
        .map(AllocView::key)
        .collect();
    change.remove_allocs(allocs);
    let evals: Vec<EvalId> = change.state.evals.of_job(key).map(|eval| eval.id).collect();
    for eval in evals {
        change.remove_eval(&eval);
    }
    if change.state.jobs.row(key).is_some() {
        change.remove_job(key);
    }
}

/// Stops the job, so that no further instance of it is placed.
fn stop_job(change: &mut Change<'_>, key: &JobKey) {
    let open: Vec<_> = change
        .state
        .evals
        .open_of_job(key)
        .map(Arc::clone)
        .collect();
    for eval in open {
        let mut eval = (*eval).clone();
        eval.status = EvalStatus::Canceled;
        "the task has ended".clone_into(&mut eval.status_description);
        change.put_eval(eval);
    }
    let row = change.state.jobs.row(key).map(Arc::clone);
    if let Some(row) = row.filter(|row| !row.job.stop) {
        // The row gets its final status here, because each write hashes the whole row.
        let job = Job {
            stop: true,
            status: change.status_of(key, &row.job),
            modify_index: change.index,
            ..(*row.job).clone()
        };
        change.put_job(JobRow {
            job: Arc::new(job),
            ..(*row).clone()
        });
    }
}

/// Counts a rejection of the task of `key`, for which no node has room, and records the reason in Diego's words.
pub(super) fn rejected(change: &mut Change<'_>, key: &JobKey, failed: &[FailedGroup]) {
    let Some(row) = change.state.one_offs.get(&key.job_id).map(Arc::clone) else {
        return;
    };
    if row.state != OneOffState::Pending || row.ending.is_some() {
        return;
    }
    let tags = &row.definition.placement_tags;
    let why = failed.first().map(|it| no_room::reason(&it.metrics, tags));
    change.put_one_off(OneOff {
        phase: Phase::Queued,
        rejections: row.rejections.saturating_add(1),
        rejection: why.unwrap_or_default(),
        ..(*row).clone()
    });
}

/// Marks a domain as fresh.
fn freshen(
    change: &mut Change<'_>,
    domain: &str,
    until: Option<Timestamp>,
) -> Result<Response, Rejection> {
    let one_offs = &mut change.state.one_offs;
    let others = one_offs
        .fresh(change.at)
        .filter(|(name, _)| *name != domain);
    if others.count() >= limits::DOMAINS_MAX {
        return Err(Rejection::OneOff(OneOffRefusal::Domains));
    }
    one_offs.forget_stale(change.at);
    one_offs.freshen(domain, until);
    one_offs.set_index(change.index);
    Ok(Response::Done)
}

/// Sets the times that apply to tasks desired, and callbacks claimed, from here on.
fn set_times(change: &mut Change<'_>, times: OneOffTimings) {
    change.state.one_offs.set_times(times);
    change.state.one_offs.set_index(change.index);
}

/// Updates the tasks whose allocations the command changed.
pub(super) fn follow_all(change: &mut Change<'_>) {
    for key in change.touched_one_offs() {
        let end = change.take_end(&key);
        follow(change, &key, end);
    }
}

/// Updates a task from its allocation. `end` is the end that the node reported in this command.
fn follow(change: &mut Change<'_>, key: &JobKey, end: Option<WorkEnd>) {
    let Some(row) = change.state.one_offs.get(&key.job_id).map(Arc::clone) else {
        return;
    };
    match row.state {
        OneOffState::Pending | OneOffState::Running => {}
        OneOffState::Completed | OneOffState::Resolving => return,
    }
    let Some(alloc) = alloc_of_one_off(change.state, key) else {
        return;
    };
    let mut next = (*row).clone();
    next.alloc_id = Some(alloc.id());
    next.node_id = Some(alloc.node_id());
    next.started_at = row.started_at.or_else(|| {
        let states = alloc.task_states();
        states.iter().filter_map(|task| task.started_at).min()
    });
    if next.ending.is_none() {
        next.ending = match alloc.desired() {
            DesiredStatus::Run => None,
            DesiredStatus::Stop => Some(alloc.desired_description().to_owned()),
            DesiredStatus::Evict => Some("preempted by a more important job".to_owned()),
        };
    }
    let status = alloc.client_status();
    if status.is_terminal() {
        let end = end.unwrap_or_else(|| end_of(change.at, alloc));
        stop_job(change, key);
        complete(change, next, end);
        return;
    }
    (next.state, next.phase) = match status {
        ClientStatus::Pending => (OneOffState::Running, Phase::Preparing),
        ClientStatus::Unknown => (OneOffState::Running, Phase::Unreachable),
        ClientStatus::Running
        | ClientStatus::Complete
        | ClientStatus::Failed
        | ClientStatus::Lost => (OneOffState::Running, Phase::Running),
    };
    next.until = None;
    if next.ending.is_some() {
        match next.phase {
            // The evaluation that would give the task up is over with its job.
            Phase::Unreachable => {
                let from = alloc.unreachable_at().unwrap_or(change.at);
                next.until = row.until.max(Some(from.plus(lost_after(alloc))));
            }
            Phase::Placing
            | Phase::Queued
            | Phase::Preparing
            | Phase::Running
            | Phase::Cancelling
            | Phase::Completed
            | Phase::Delivering
            | Phase::Resolving => next.phase = Phase::Cancelling,
        }
    }
    if next != *row {
        change.put_one_off(next);
    }
}

/// Returns the known end of an allocation about whose end the node reported nothing more.
fn end_of(at: Timestamp, alloc: AllocView<'_>) -> WorkEnd {
    match alloc.client_status() {
        ClientStatus::Lost => WorkEnd::failure(one_off::NODE_GONE, at),
        ClientStatus::Complete => WorkEnd {
            at,
            ..WorkEnd::default()
        },
        ClientStatus::Failed
        | ClientStatus::Pending
        | ClientStatus::Running
        | ClientStatus::Unknown => WorkEnd::failure(alloc.client_description(), at),
    }
}

fn complete(change: &mut Change<'_>, row: OneOff, mut end: WorkEnd) {
    if let Some(why) = &row.ending
        && end.failure_reason != one_off::NODE_GONE
    {
        end.failed = true;
        end.failure_reason = one_off::reason(why);
    }
    let at = change.at;
    let completed = OneOff {
        state: OneOffState::Completed,
        phase: Phase::Completed,
        until: None,
        end: Some(end),
        first_completed_at: row.first_completed_at.or(Some(at)),
        ..row
    };
    match calls_back_at_once(change.state, &completed) {
        Some(alloc_id) => {
            let until = at.plus(change.state.one_offs.times().callback_claim);
            change.put_one_off(claimed(&completed, until, true));
            change.record_passed_state(completed);
            change.effect(Effect::CallbackClaimed(alloc_id));
        }
        None => change.put_one_off(completed),
    }
}

/// Returns the allocation of a task whose end claims its callback. If as many callbacks are claimed as can be made at a
/// time, the callback waits for its turn instead.
fn calls_back_at_once(state: &State, row: &OneOff) -> Option<AllocId> {
    let alloc_id = row.alloc_id.filter(|_| row.owes_callback())?;
    let url = &row.definition.completion_callback_url;
    let is_free = state.one_offs.delivering(url) < limits::CALLBACKS_PER_PLACE_MAX as u64;
    is_free.then_some(alloc_id)
}
