//! Whether and when an allocation that ended by itself is replaced.
//!
//! Nomad's defaults, as there is no `reschedule` block yet: an instance of a service is replaced for
//! ever, after 30 s and twice as long after each failure in a row, up to an hour; a failed instance of a
//! batch job after 5 s, once in 24 hours. An instance that was lost with its node is replaced at once.
//! An instance of a service that ended well is treated as one that failed: its restarts in place are
//! used up, and without the delay it would start without end.

use std::time::Duration;

use muster_domain::alloc::ClientStatus;
use muster_domain::id::Timestamp;
use muster_domain::job::JobType;

use crate::limits;
use crate::state::{AllocView, State};

/// When to replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Not at all: it runs, it is done, or its attempts are used up.
    Never,
    /// At once.
    Now,
    /// Not before.
    At(Timestamp),
}

/// When to replace `alloc`, if its control plane still wants it.
pub(crate) fn due(state: &State, alloc: AllocView<'_>) -> Due {
    let is_batch = match alloc.job().spec.job_type {
        JobType::Batch | JobType::SysBatch => true,
        JobType::Service | JobType::System => false,
    };
    match alloc.client_status() {
        ClientStatus::Pending | ClientStatus::Running | ClientStatus::Unknown => Due::Never,
        ClientStatus::Lost => Due::Now,
        ClientStatus::Complete if is_batch => Due::Never,
        ClientStatus::Failed if is_batch => batch_due(state, alloc),
        ClientStatus::Complete | ClientStatus::Failed => Due::At(
            alloc
                .modify_time()
                .plus(service_delay(failures_before(state, alloc))),
        ),
    }
}

fn batch_due(state: &State, alloc: AllocView<'_>) -> Due {
    let replaced_recently = alloc
        .previous()
        .and_then(|previous| state.allocs().get(&previous))
        .is_some_and(|previous| {
            previous.client_status() == ClientStatus::Failed
                && alloc.modify_time().since(alloc.create_time())
                    < limits::RESCHEDULE_BATCH_INTERVAL
        });
    if replaced_recently {
        Due::Never
    } else {
        Due::At(alloc.modify_time().plus(limits::RESCHEDULE_BATCH_DELAY))
    }
}

fn service_delay(failures: u32) -> Duration {
    limits::RESCHEDULE_DELAY_MIN
        .saturating_mul(1 << failures.min(limits::RESCHEDULE_CHAIN_MAX))
        .min(limits::RESCHEDULE_DELAY_MAX)
}

/// Failures in a row that led to `alloc`; one that ran long enough ends the row. An instance that ended
/// after it was replaced was stopped, and is no failure: else the answer would differ from one look to the
/// next, and an evaluation that waited for the first would find nothing due.
fn failures_before(state: &State, alloc: AllocView<'_>) -> u32 {
    let mut failures = 0;
    let mut replaced_at = alloc.create_index();
    let mut previous = alloc.previous();
    while let Some(alloc) = previous.and_then(|alloc_id| state.allocs().get(&alloc_id)) {
        let ended_by_itself = match alloc.client_status() {
            ClientStatus::Failed | ClientStatus::Complete => alloc.modify_index() <= replaced_at,
            ClientStatus::Pending
            | ClientStatus::Running
            | ClientStatus::Lost
            | ClientStatus::Unknown => false,
        };
        let ran_long =
            alloc.modify_time().since(alloc.create_time()) >= limits::RESCHEDULE_DELAY_MAX;
        if !ended_by_itself || ran_long || failures == limits::RESCHEDULE_CHAIN_MAX {
            break;
        }
        failures += 1;
        replaced_at = alloc.create_index();
        previous = alloc.previous();
    }
    failures
}
