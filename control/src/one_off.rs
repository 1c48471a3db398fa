//! Common parts of all APIs for one-off tasks, JSON (`http/task.rs`) and Diego's own wire protocol (`bbs`):
//! writing a request to the log ([`batch`]), and fresh domains.
//!
//! Deliberately absent: the texts of refusals. Each API has its own.

pub(crate) mod batch;

use std::time::Duration;

use muster_control_core::fsm::{
    DesiredOneOff, NewOneOff, OneOffChange, OneOffCommand, OneOffStep, Response,
};
use muster_domain::fault::Fault;
use muster_domain::id::{LogIndex, WriteKey};
use muster_domain::one_off::{self, Definition};
use muster_domain::saturating;

use crate::handle::Control;
use batch::Answer;

/// Builds the task of a request, with the cluster's times where `definition` has none.
///
/// # Errors
///
/// All faults of the request.
pub(crate) fn task(
    control: &Control,
    guid: String,
    domain: String,
    mut definition: Definition,
) -> Result<NewOneOff, Vec<Fault>> {
    let times = control.tasks_config();
    let fill = |given: &mut u64, default: Duration| {
        if *given == 0 {
            *given = saturating::millis(default);
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

/// Creates a task. Applies it once under `key`, if there is one.
pub(crate) async fn desire(
    control: &Control,
    key: Option<WriteKey>,
    task: NewOneOff,
) -> Answer<DesiredOneOff> {
    let queue = &control.one_offs().desires;
    queue.put(control, key, task).await
}

/// Changes one task, of any generation if `generation` is `None`. Applies it once under `key`, if there is one.
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
    let queue = &control.one_offs().changes;
    queue.put(control, key, change).await
}

/// A client's claim on the result of a task.
pub(crate) fn claim(control: &Control) -> OneOffStep {
    OneOffStep::Claim {
        until: control.now().plus(control.tasks_config().claim),
        for_callback: false,
    }
}

/// Marks `domain` fresh for `ttl`, or for ever if that is zero. Applies it once under `key`, if there is one. In
/// Diego a fresh domain allows the removal of LRPs that are not desired. A fresh domain has no effect on tasks,
/// and so none here.
pub(crate) async fn upsert_domain(
    control: &Control,
    key: Option<WriteKey>,
    domain: String,
    ttl: Duration,
) -> Answer<()> {
    let at = control.now();
    let until = (!ttl.is_zero()).then(|| at.plus(ttl));
    let command = OneOffCommand::FreshenDomain { domain, until }.at(at);
    let (index, response) = match key {
        Some(key) => control.propose_keyed(key, command).await?,
        None => control.propose(command).await?,
    };
    let outcome = match response {
        Response::Rejected(rejection) => Err(rejection),
        _ => Ok(()),
    };
    Ok((index, outcome))
}
