//! What every way to one-off tasks shares, be it JSON (`http/task.rs`) or Diego's own wire (`bbs`): how a request
//! gets into the log ([`gather`]), why a task waits, and which domains are fresh ([`domain`]).
//!
//! Deliberately absent: words for refusals. Each way has its clients' own.

pub(crate) mod domain;
pub(crate) mod gather;

use std::time::Duration;

use muster_control_core::fsm::{DesiredOneOff, NewOneOff, OneOffChange, OneOffStep};
use muster_control_core::state::State;
use muster_domain::eval::EvalStatus;
use muster_domain::fault::Fault;
use muster_domain::id::{LogIndex, WriteKey};
use muster_domain::one_off::{self, Definition, OneOff, OneOffState};

use crate::handle::Control;
use gather::Answer;

/// The task that a request means, with the cluster's times where `definition` names none.
///
/// # Errors
///
/// Everything that is wrong with it.
pub(crate) fn task(
    control: &Control,
    guid: String,
    domain: String,
    mut definition: Definition,
) -> Result<NewOneOff, Vec<Fault>> {
    let times = control.tasks_config();
    let fill = |given: &mut u64, default: Duration| {
        if *given == 0 {
            *given = u64::try_from(default.as_millis()).unwrap_or(u64::MAX);
        }
    };
    fill(&mut definition.start_timeout_ms, times.start_timeout);
    fill(&mut definition.retention_ms, times.retention);
    let faults = one_off::check(&guid, &domain, &definition);
    if !faults.is_empty() {
        return Err(faults);
    }
    Ok(NewOneOff {
        guid,
        domain,
        definition,
    })
}

/// Makes a task; once under `key`, if there is one.
pub(crate) async fn desire(
    control: &Control,
    key: Option<WriteKey>,
    task: NewOneOff,
) -> Answer<DesiredOneOff> {
    let lane = &control.one_offs().desires;
    lane.put(control, key, task).await
}

/// Changes one task, of whatever generation, if `generation` is `None`; once under `key`, if there is one.
pub(crate) async fn change(
    control: &Control,
    key: Option<WriteKey>,
    guid: String,
    generation: Option<LogIndex>,
    step: OneOffStep,
) -> Answer<()> {
    let change = OneOffChange {
        guid,
        generation,
        step,
    };
    let lane = &control.one_offs().changes;
    lane.put(control, key, change).await
}

/// A client's claim on the result of a task.
pub(crate) fn claim(control: &Control) -> OneOffStep {
    OneOffStep::Claim {
        until: control.now().plus(control.tasks_config().claim),
        for_callback: false,
    }
}

/// Why `row` waits for room, in Diego's words. Empty if it does not, or nobody has looked for room yet.
pub(crate) fn rejection_reason(state: &State, row: &OneOff) -> String {
    match row.state {
        OneOffState::Pending if row.alloc_id.is_none() => rejection(state, row),
        OneOffState::Pending
        | OneOffState::Running
        | OneOffState::Completed
        | OneOffState::Resolving => String::new(),
    }
}

fn rejection(state: &State, row: &OneOff) -> String {
    let key = row.job_key();
    let mut open = state.evals().open_of_job(&key);
    let blocked = open.find(|eval| eval.status == EvalStatus::Blocked);
    let Some(failed) = blocked.and_then(|eval| eval.failed_groups.first()) else {
        return String::new();
    };
    let metrics = &failed.metrics;
    let short: Vec<&str> = metrics
        .dimension_exhausted
        .iter()
        .map(|(dimension, _)| dimension.as_str())
        .collect();
    if !short.is_empty() {
        return format!("insufficient resources: {}", short.join(", "));
    }
    let filtered = &metrics.constraint_filtered;
    let fails = |part: &str| filtered.iter().any(|(check, _)| check.contains(part));
    if fails("meta.rootfs.") {
        "found no compatible cell for required rootfs".to_owned()
    } else if fails("meta.placement_tags") {
        let tags = &row.definition.placement_tags;
        let quoted: Vec<String> = tags.iter().map(|tag| format!("\"{tag}\"")).collect();
        if quoted.is_empty() {
            "found no compatible cell with no placement tags".to_owned()
        } else {
            let tags = quoted.join(", ");
            format!("found no compatible cell with placement tag(s) {tags}")
        }
    } else if filtered.is_empty() {
        "unable to communicate to compatible cells".to_owned()
    } else {
        let checks: Vec<&str> = filtered.iter().map(|(check, _)| check.as_str()).collect();
        format!("found no compatible cell: {}", checks.join(", "))
    }
}
