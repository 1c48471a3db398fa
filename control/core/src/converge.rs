//! Changes of one-off tasks that only time causes. A task has not started in time, a claim on its result is over, or it
//! was kept long enough. In addition, this duty fails tasks that no node could ever hold.
//!
//! The module is a function of the state and the time. It returns the commands to propose now, and when to look again.
//! The row of a task has the time at which it is due ([`due_at`](crate::state::due_at)), and the command checks that
//! time again when it is applied. So looking twice changes nothing twice. This duty does not handle a node that is
//! gone: the evaluation of the job marks its allocations as lost. No set of nodes, not even an empty one, fails a task
//! by itself.

use muster_domain::id::{EvalId, Timestamp};
use muster_domain::one_off::{OneOff, OneOffState};

use crate::fsm::{OneOffChange, OneOffCommand, OneOffStep};
use crate::limits::ONE_OFF_CHANGES_MAX;
use crate::scheduler::is_unplaceable;
use crate::state::State;
use crate::watch::DueCommands;

/// Returns the changes of one-off tasks that are due at the time `now`: one command of bounded size. If the command
/// does not hold all changes, the next look is due at once.
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

/// Returns the step of a task that is due: a task that was rejected fails with the reason of the rejection.
fn overdue(row: &OneOff) -> OneOffStep {
    if row.state == OneOffState::Pending && !row.rejection.is_empty() {
        return OneOffStep::FailUnplaced;
    }
    OneOffStep::Converge
}

/// Returns the failure of the task whose evaluation is blocked, if no node could ever hold the task.
#[must_use]
pub fn unplaceable(state: &State, eval_id: &EvalId) -> Option<OneOffChange> {
    let eval = state.evals().get(eval_id)?;
    let row = eval.job.is_one_off().then_some(&eval.job.job_id);
    let row = state.one_offs().get(row?)?;
    is_unplaceable(state, row).then(|| change(row, OneOffStep::FailUnplaced))
}

/// Returns the failures of waiting tasks that no node could ever hold. A leader looks at all tasks when its term
/// begins.
#[must_use]
pub fn all_unplaceable(state: &State) -> Vec<OneOffChange> {
    let rows = state.one_offs().iter();
    rows.filter(|row| is_unplaceable(state, row))
        .take(ONE_OFF_CHANGES_MAX)
        .map(|row| change(row, OneOffStep::FailUnplaced))
        .collect()
}

/// Returns a change of exactly this task, not of another task with the same guid.
#[must_use]
pub fn change(row: &OneOff, step: OneOffStep) -> OneOffChange {
    OneOffChange {
        guid: row.guid.clone(),
        generation: Some(row.create_index),
        step,
    }
}
