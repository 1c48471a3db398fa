//! Effects of time alone on one-off tasks. A task has not started in time, a claim on its result is over, or it was
//! kept long enough. Beside it, the failure of tasks that no node could ever hold.
//!
//! A function of the state and the time: it says what to propose now and when to look again. A task says itself when it
//! is due ([`due_at`](crate::state::due_at)), and the command looks once more when it is applied. So looking twice
//! changes nothing twice. This duty does not handle a node that is gone: its allocations are lost by their job's
//! evaluation. No set of nodes, even an empty one, fails a task by itself.

use muster_domain::id::{EvalId, Timestamp};
use muster_domain::one_off::{OneOff, OneOffState};

use crate::fsm::{OneOffChange, OneOffCommand, OneOffStep};
use crate::limits::ONE_OFF_CHANGES_MAX;
use crate::scheduler::is_unplaceable;
use crate::state::State;
use crate::watch::DueCommands;

/// The changes of one-off tasks that are due at the time `now`: one command for all, of a bounded size. If that does
/// not take all, it asks to look again at once.
#[must_use]
pub fn due(state: &State, now: Timestamp) -> DueCommands {
    let mut changes = Vec::new();
    let mut next = None;
    for (at, row) in state.one_offs().due() {
        if at > now || changes.len() >= ONE_OFF_CHANGES_MAX {
            next = Some(at.max(now));
            break;
        }
        changes.push(change(row, overdue(row)));
    }
    let some = (!changes.is_empty()).then_some(OneOffCommand::Change { changes }.at(now));
    DueCommands {
        commands: some.into_iter().collect(),
        next,
    }
}

/// The step of a task that is due: one that was rejected fails with that reason.
fn overdue(row: &OneOff) -> OneOffStep {
    if row.state == OneOffState::Pending && !row.rejection.is_empty() {
        return OneOffStep::FailUnplaced;
    }
    OneOffStep::Converge
}

/// The failure of the task whose evaluation is blocked, if no node could ever hold the task.
#[must_use]
pub fn unplaceable(state: &State, eval_id: &EvalId) -> Option<OneOffChange> {
    let eval = state.evals().get(eval_id)?;
    let row = eval.job.is_one_off().then_some(&eval.job.job_id);
    let row = state.one_offs().get(row?)?;
    is_unplaceable(state, row).then(|| change(row, OneOffStep::FailUnplaced))
}

/// The failures of waiting tasks that no node could ever hold: a leader looks at all of them when its term begins.
#[must_use]
pub fn all_unplaceable(state: &State) -> Vec<OneOffChange> {
    let rows = state.one_offs().iter();
    rows.filter(|row| is_unplaceable(state, row))
        .take(ONE_OFF_CHANGES_MAX)
        .map(|row| change(row, OneOffStep::FailUnplaced))
        .collect()
}

/// A step of this very task, and not of another one of its guid.
#[must_use]
pub fn change(row: &OneOff, step: OneOffStep) -> OneOffChange {
    OneOffChange {
        guid: row.guid.clone(),
        generation: Some(row.create_index),
        step,
    }
}
