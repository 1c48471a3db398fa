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
use crate::state::{AllocView, Lineage};

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
pub(crate) fn due(alloc: AllocView<'_>) -> Due {
    let is_batch = match alloc.job().spec.job_type {
        JobType::Batch | JobType::SysBatch => true,
        JobType::Service | JobType::System => false,
    };
    match alloc.client_status() {
        ClientStatus::Pending | ClientStatus::Running | ClientStatus::Unknown => Due::Never,
        ClientStatus::Lost => Due::Now,
        ClientStatus::Complete if is_batch => Due::Never,
        ClientStatus::Failed if is_batch => batch_due(alloc),
        ClientStatus::Complete | ClientStatus::Failed => Due::At(
            alloc
                .modify_time()
                .plus(service_delay(alloc.lineage().failures)),
        ),
    }
}

fn batch_due(alloc: AllocView<'_>) -> Due {
    let ran = alloc.modify_time().since(alloc.create_time());
    if alloc.lineage().after_failure && ran < limits::RESCHEDULE_BATCH_INTERVAL {
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

/// What the replacement of `previous` must remember, as things stand when it is placed: later `previous`
/// may end, if it was stopped, or be forgotten, and neither changes when its replacement is due. An
/// instance that ran long enough ends a row of failures.
pub(crate) fn lineage_after(previous: AllocView<'_>) -> Lineage {
    let ended_by_itself = match previous.client_status() {
        ClientStatus::Failed | ClientStatus::Complete => true,
        ClientStatus::Pending
        | ClientStatus::Running
        | ClientStatus::Lost
        | ClientStatus::Unknown => false,
    };
    let ran = previous.modify_time().since(previous.create_time());
    let failures = if ended_by_itself && ran < limits::RESCHEDULE_DELAY_MAX {
        let before = previous.lineage().failures;
        (before + 1).min(limits::RESCHEDULE_CHAIN_MAX)
    } else {
        0
    };
    Lineage {
        failures,
        after_failure: previous.client_status() == ClientStatus::Failed,
    }
}
