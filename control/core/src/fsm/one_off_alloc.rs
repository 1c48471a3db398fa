//! The only allocation of a one-off task.

use muster_domain::id::JobKey;

use crate::state::{AllocView, State};

/// The allocation of the task whose job is `key`, if it has one.
pub(super) fn the_alloc<'a>(state: &'a State, key: &JobKey) -> Option<AllocView<'a>> {
    state.allocs.of_job(key).next()
}

/// Whether a job is a one-off task's and has been placed: nothing places it again.
pub(crate) fn is_placed(state: &State, key: &JobKey) -> bool {
    key.is_one_off() && the_alloc(state, key).is_some()
}
