//! The time at which an allocation that has ended is replaced.

use muster_domain::alloc::{ClientStatus, DesiredStatus};
use muster_domain::id::Timestamp;
use muster_domain::job::JobType;

use super::instances;
use super::reconciler::{self, Instance};
use crate::limits;
use crate::state::AllocView;

/// Returns whether an allocation that ended well counts as failed, because its job runs for ever.
fn runs_for_ever(alloc: AllocView<'_>) -> bool {
    instances::runs_for_ever(alloc.job().spec.job_type)
}

/// Returns the time at which an allocation that has ended by itself is replaced; `None`: it is not replaced.
pub(crate) fn replaced_at(alloc: AllocView<'_>) -> Option<Timestamp> {
    let is_system = alloc.job().spec.job_type == JobType::System;
    let is_over = match alloc.client_status() {
        ClientStatus::Failed => true,
        ClientStatus::Complete => is_system || runs_for_ever(alloc),
        ClientStatus::Lost
        | ClientStatus::Pending
        | ClientStatus::Running
        | ClientStatus::Unknown => false,
    };
    if !is_over || alloc.desired() != DesiredStatus::Run || alloc.next().is_some() {
        return None;
    }
    if is_system {
        return Some(instances::ended_at(alloc).plus(limits::SYSTEM_RESTART_DELAY));
    }
    let policy = &alloc.group().reschedule;
    reconciler::next_time(&Instance::ended(alloc), Some(policy))
}

/// Returns whether an unhealthy instance may still be replaced by a healthy one.
pub(crate) fn may_be_replaced(alloc: AllocView<'_>) -> bool {
    match alloc.client_status() {
        ClientStatus::Failed | ClientStatus::Complete if alloc.desired() == DesiredStatus::Run => {
            alloc.next().is_some() || replaced_at(alloc).is_some()
        }
        // The instance runs, and may still fail and be replaced then.
        ClientStatus::Pending | ClientStatus::Running => {
            let policy = &alloc.group().reschedule;
            let is_system = alloc.job().spec.job_type.is_on_every_node();
            is_system || policy.unlimited || policy.attempts > 0
        }
        ClientStatus::Failed
        | ClientStatus::Complete
        | ClientStatus::Lost
        | ClientStatus::Unknown => true,
    }
}
