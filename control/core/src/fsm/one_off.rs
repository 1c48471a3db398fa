//! One-off tasks: desired, followed, ended, claimed, forgotten.
//!
//! A task is placed as the only allocation of a job of its own. What its allocation is, and nothing else, says
//! where the task is ([`follow`]); it is called wherever a command touched that job. An allocation's id names the
//! entry that placed it, so a report about an earlier task of the same guid finds no row.

use std::sync::Arc;

use muster_domain::alloc::{ClientStatus, DesiredStatus};
use muster_domain::eval::{EvalStatus, Trigger};
use muster_domain::id::{EvalId, JobKey, LogIndex, Timestamp};
use muster_domain::job::Job;
use muster_domain::one_off::{
    self, Callback, Definition, End, OneOff, OneOffState, Phase, job_key,
};
use serde::{Deserialize, Serialize};

use super::{Change, Rejection, Response, job};
use crate::state::{AllocView, JobRow, State, due_at};

/// A task that a client wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewOneOff {
    /// Its name.
    pub guid: String,
    /// What the client counts it to.
    pub domain: String,
    /// What to do, with the cluster's times filled in.
    pub definition: Definition,
}

/// A task that is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredOneOff {
    /// Whether it was not there before.
    pub created: bool,
    /// The entry that made it.
    pub generation: LogIndex,
    /// The evaluation that will place it; none if it was there before.
    pub eval_id: Option<EvalId>,
}

/// A change of one task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OneOffChange {
    /// The task.
    pub guid: String,
    /// The entry that made it, where an earlier or later task of the guid is not meant.
    pub generation: Option<LogIndex>,
    /// What is to happen.
    pub step: OneOffStep,
}

/// What is to happen to a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OneOffStep {
    /// End it. One whose process may run is completed when nothing of it runs.
    Cancel,
    /// Claim its result: nobody else may until then.
    Claim {
        /// Until when.
        until: Timestamp,
        /// To deliver its callback.
        for_callback: bool,
    },
    /// Forget it; the claim's holder has what it wanted.
    Delete,
    /// Do what is due by time: expire it, end a claim, forget it.
    Converge,
    /// Its callback could not be delivered.
    CallbackFailed {
        /// Not to be tried again before; `None`: never.
        next_at: Option<Timestamp>,
    },
}

/// Why a change of a task is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum OneOffRefusal {
    /// There is another task of that guid.
    #[error("task {0} exists already, with another definition or domain")]
    Exists(String),
    /// There is no such task.
    #[error("there is no task {0}")]
    Unknown(String),
    /// It is not in a state from which that goes.
    #[error("Cannot transition from {from} to {to}")]
    Transition {
        /// Where it is.
        from: OneOffState,
        /// Where it was to go.
        to: OneOffState,
    },
}

/// Records several tasks, each on its own. Answers in their order.
pub(super) fn desire_all(change: &mut Change<'_>, tasks: Vec<NewOneOff>) -> Response {
    let outcomes = tasks.into_iter().map(|new| desire(change, new)).collect();
    Response::OneOffsDesired { outcomes }
}

/// Records a task, the job that runs it and the evaluation that places it. The same task again changes nothing.
fn desire(change: &mut Change<'_>, new: NewOneOff) -> Result<DesiredOneOff, Rejection> {
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
        return Err(Rejection::RegistrationOff);
    }
    let key = job_key(&guid);
    // Of an earlier task of that name nothing may be left, whoever left it.
    forget_job(change, &key);
    let spec = one_off::job(&guid, &domain, &definition);
    let row = job::first_version(change, spec);
    let job = Arc::clone(&row.job);
    change.put_job(row);
    let (index, at) = (change.index, change.at);
    change.put_one_off(OneOff::new(guid, domain, Arc::new(definition), index, at));
    let eval_id = change.add_eval(&job, Trigger::JobRegister);
    Ok(DesiredOneOff {
        created: true,
        generation: index,
        eval_id: Some(eval_id),
    })
}

/// Carries out changes of several tasks, each on its own. Answers in their order.
pub(super) fn change_all(change: &mut Change<'_>, changes: Vec<OneOffChange>) -> Response {
    let outcomes = changes
        .into_iter()
        .map(|wanted| apply(change, wanted).err())
        .collect();
    Response::OneOffsChanged { outcomes }
}

fn apply(change: &mut Change<'_>, wanted: OneOffChange) -> Result<(), OneOffRefusal> {
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
            end_early(change, &row, one_off::CANCELLED);
        }
        // The answer to an earlier one was lost.
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
            claim(change, &row, until, for_callback);
        }
        (
            OneOffStep::Claim { .. } | OneOffStep::Delete,
            OneOffState::Pending | OneOffState::Running,
        )
        | (OneOffStep::Claim { .. }, OneOffState::Resolving)
        | (OneOffStep::Delete, OneOffState::Completed) => {
            return Err(refused(OneOffState::Resolving));
        }
        (OneOffStep::Delete, OneOffState::Resolving) => forget(change, &row),
        (OneOffStep::Converge, _) => converge(change, &row),
        (OneOffStep::CallbackFailed { next_at }, OneOffState::Resolving) => {
            callback_failed(change, &row, next_at);
        }
        (
            OneOffStep::CallbackFailed { .. },
            OneOffState::Pending | OneOffState::Running | OneOffState::Completed,
        ) => return Err(refused(OneOffState::Completed)),
    }
    Ok(())
}

/// Ends a task before it ends by itself. Without an allocation it is over at once.
fn end_early(change: &mut Change<'_>, row: &OneOff, why: &str) {
    let key = row.job_key();
    stop_job(change, &key);
    if row.ending.is_some() {
        return;
    }
    let alloc = the_alloc(change.state, &key).filter(|alloc| !alloc.client_status().is_terminal());
    let Some(alloc) = alloc.map(AllocView::key) else {
        let end = End::failure(why, change.at);
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

fn claim(change: &mut Change<'_>, row: &OneOff, until: Timestamp, for_callback: bool) {
    change.put_one_off(OneOff {
        state: OneOffState::Resolving,
        phase: if for_callback {
            Phase::Delivering
        } else {
            Phase::Resolving
        },
        claimed_until: Some(until),
        ..row.clone()
    });
}

fn callback_failed(change: &mut Change<'_>, row: &OneOff, next_at: Option<Timestamp>) {
    let callback = row.callback.map(|callback| Callback {
        attempts: callback.attempts.saturating_add(1),
        next_at: next_at.unwrap_or(callback.next_at),
        given_up: next_at.is_none(),
    });
    change.put_one_off(OneOff {
        state: OneOffState::Completed,
        phase: Phase::Completed,
        claimed_until: None,
        callback,
        ..row.clone()
    });
}

/// Does what is due by time, if it is: a server that is late proposes it twice.
fn converge(change: &mut Change<'_>, row: &OneOff) {
    if due_at(row).is_none_or(|at| at > change.at) {
        return;
    }
    match row.state {
        OneOffState::Pending | OneOffState::Running => {
            end_early(change, row, one_off::NOT_STARTED);
        }
        OneOffState::Completed => forget(change, row),
        OneOffState::Resolving => change.put_one_off(OneOff {
            state: OneOffState::Completed,
            phase: Phase::Completed,
            claimed_until: None,
            ..row.clone()
        }),
    }
}

fn forget(change: &mut Change<'_>, row: &OneOff) {
    forget_job(change, &row.job_key());
    change.remove_one_off(&row.guid);
}

/// Forgets the job of a task with all below it.
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

/// Sees to it that nothing more of the job is placed.
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
        let job = Job {
            stop: true,
            modify_index: change.index,
            ..(*row.job).clone()
        };
        change.put_job(JobRow {
            job: Arc::new(job),
            ..(*row).clone()
        });
    }
}

fn the_alloc<'a>(state: &'a State, key: &JobKey) -> Option<AllocView<'a>> {
    state.allocs.of_job(key).next()
}

/// Whether a job is a one-off task's and has been placed: nothing places it again.
pub(crate) fn is_placed(state: &State, key: &JobKey) -> bool {
    key.is_one_off() && the_alloc(state, key).is_some()
}

/// Brings a task in line with its allocation. `end` is what the node said of its end, in this command.
pub(super) fn follow(change: &mut Change<'_>, key: &JobKey, end: Option<End>) {
    let Some(row) = change.state.one_offs.get(&key.job_id).map(Arc::clone) else {
        return;
    };
    match row.state {
        OneOffState::Pending | OneOffState::Running => {}
        OneOffState::Completed | OneOffState::Resolving => return,
    }
    let Some(alloc) = the_alloc(change.state, key) else {
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
        ClientStatus::Pending => (row.state, Phase::Preparing),
        ClientStatus::Unknown => (OneOffState::Running, Phase::Unreachable),
        ClientStatus::Running
        | ClientStatus::Complete
        | ClientStatus::Failed
        | ClientStatus::Lost => (OneOffState::Running, Phase::Running),
    };
    if next.ending.is_some() && next.phase != Phase::Unreachable {
        next.phase = Phase::Cancelling;
    }
    if next != *row {
        change.put_one_off(next);
    }
}

/// What is known of the end of an allocation of which the node did not say more.
fn end_of(at: Timestamp, alloc: AllocView<'_>) -> End {
    match alloc.client_status() {
        ClientStatus::Lost => End::failure(one_off::NODE_GONE, at),
        ClientStatus::Complete => End {
            at,
            ..End::default()
        },
        ClientStatus::Failed
        | ClientStatus::Pending
        | ClientStatus::Running
        | ClientStatus::Unknown => End::failure(alloc.client_description(), at),
    }
}

fn complete(change: &mut Change<'_>, row: OneOff, mut end: End) {
    if let Some(why) = &row.ending
        && end.failure_reason != one_off::NODE_GONE
    {
        end.failed = true;
        end.failure_reason = one_off::reason(why);
    }
    let at = change.at;
    change.put_one_off(OneOff {
        state: OneOffState::Completed,
        phase: Phase::Completed,
        end: Some(end),
        first_completed_at: row.first_completed_at.or(Some(at)),
        ..row
    });
}
