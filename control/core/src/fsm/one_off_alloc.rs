//! The only allocation of a one-off task.

use muster_domain::id::JobKey;

use crate::state::{AllocView, State};

/// Returns the allocation of the task whose job is `key`, if there is one.
pub(super) fn alloc_of_one_off<'a>(state: &'a State, key: &JobKey) -> Option<AllocView<'a>> {
    state.allocs.of_job(key).next()
}

/// Returns whether a job belongs to a one-off task and has been placed. Such a job is never placed again.
pub(crate) fn is_placed(state: &State, key: &JobKey) -> bool {
    key.is_one_off() && alloc_of_one_off(state, key).is_some()
}
