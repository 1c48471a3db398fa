//! What time alone does to one-off tasks: they have not started in time, a claim on their result is over, or
//! they were kept long enough.
//!
//! A function of the state and the time: it says what to propose now and when to look again. A task says itself
//! when it is due ([`due_at`](crate::state::due_at)), and the command looks once more when it is applied; so looking
//! twice changes nothing twice. A node that is gone is no matter of this duty: its allocations are lost by their
//! job's evaluation, and no set of nodes, however empty, fails a task by itself.

use muster_domain::id::Timestamp;
use muster_domain::one_off::OneOff;

use crate::fsm::{Command, OneOffChange, OneOffStep};
use crate::limits::ONE_OFF_CHANGES_MAX;
use crate::state::State;
use crate::watch::Due;

/// What of one-off tasks is due at the time `now`: one command for all, of a bounded size. Looks again at once where
/// that does not take all.
#[must_use]
pub fn due(state: &State, now: Timestamp) -> Due {
    let mut changes = Vec::new();
    let mut next = None;
    for (at, row) in state.one_offs().due() {
        if at > now || changes.len() >= ONE_OFF_CHANGES_MAX {
            next = Some(at.max(now));
            break;
        }
        changes.push(change(row, OneOffStep::Converge));
    }
    let some = (!changes.is_empty()).then_some(Command::ChangeOneOffs { changes, at: now });
    Due {
        commands: some.into_iter().collect(),
        next,
    }
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
