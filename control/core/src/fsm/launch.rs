//! Jobs made from other jobs: dispatched jobs, and periodic launches.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_domain::eval::Trigger;
use muster_domain::id::{JobKey, Timestamp};
use muster_domain::job::{
    DISPATCH_LAUNCH_INFIX, Job, JobSpec, JobStatus, LaunchOrigin, PERIODIC_LAUNCH_INFIX,
    Parameterized, PayloadUse,
};
use muster_domain::limits::{PAYLOAD_BYTES_MAX, PRIORITY_MAX};

use super::change::Change;
use super::job::{check, version};
use super::rejection::{JobRejection, Rejection};
use super::response::Response;
use crate::limits;
use crate::state::JobRow;

const NS_PER_S: u64 = 1_000_000_000;

/// A run of a parameterized job.
pub(super) struct Dispatch {
    /// The end of the new job's id.
    pub(super) suffix: String,
    pub(super) payload: Vec<u8>,
    pub(super) meta: BTreeMap<String, String>,
    pub(super) idempotency_token: String,
    /// The priority of the run; `None` for the parent's.
    pub(super) priority: Option<u8>,
}

/// Runs a parameterized job with the data of the dispatch. A token that was used before returns the job that it made
/// then.
pub(super) fn dispatch(
    change: &mut Change<'_>,
    key: JobKey,
    dispatch: Dispatch,
) -> Result<Response, Rejection> {
    let Dispatch {
        suffix,
        payload,
        meta,
        idempotency_token,
        priority,
    } = dispatch;
    let row = check::known(change, &key)?;
    let refuse = |why: String| {
        Err(Rejection::Job(JobRejection::Request {
            key: key.clone(),
            why,
        }))
    };
    let spec = &row.job.current.spec;
    let Some(parameterized) = &spec.parameterized else {
        return refuse("it is not parameterized: run it instead of dispatching it".to_owned());
    };
    if row.job.stop {
        return refuse("it is stopped: run it again before you dispatch it".to_owned());
    }
    if let Err(why) = check_dispatch(parameterized, &payload, &meta) {
        return refuse(why);
    }
    let priority = priority.unwrap_or(spec.priority);
    if !(1..=PRIORITY_MAX).contains(&priority) {
        return refuse(format!(
            "priority {priority} of the dispatch is outside 1 to {PRIORITY_MAX}"
        ));
    }
    if let Some(job_id) = dispatched_before(change, &key, &idempotency_token) {
        return Ok(Response::JobLaunched {
            job_id,
            eval_id: None,
        });
    }
    let child_id = format!(
        "{}{DISPATCH_LAUNCH_INFIX}{}-{suffix}",
        key.job_id,
        change.at.0 / NS_PER_S
    );
    let mut child = JobSpec {
        id: child_id.clone(),
        name: child_id,
        priority,
        parameterized: None,
        launched: Some(LaunchOrigin {
            parent_id: key.job_id.clone(),
            dispatched: true,
            payload,
            idempotency_token,
        }),
        ..spec.clone()
    };
    child.meta.extend(meta);
    // A task may refer to optional metadata that the dispatch left out.
    for key in &parameterized.meta_optional {
        child.meta.entry(key.clone()).or_default();
    }
    check::check_instances(change.state, &child)?;
    Ok(launch(change, child))
}

/// Checks that a dispatch carries the data that the job requires, and no other data.
fn check_dispatch(
    parameterized: &Parameterized,
    payload: &[u8],
    meta: &BTreeMap<String, String>,
) -> Result<(), String> {
    let Parameterized {
        payload: wanted,
        meta_required,
        meta_optional,
    } = parameterized;
    match wanted {
        PayloadUse::Required if payload.is_empty() => {
            return Err("it wants a payload, and the dispatch has none".to_owned());
        }
        PayloadUse::Forbidden if !payload.is_empty() => {
            return Err("it takes no payload: dispatch it without".to_owned());
        }
        PayloadUse::Required | PayloadUse::Forbidden | PayloadUse::Optional => {}
    }
    if payload.len() > PAYLOAD_BYTES_MAX {
        return Err(format!(
            "the payload has {} bytes, above {PAYLOAD_BYTES_MAX}",
            payload.len()
        ));
    }
    let missing: Vec<&str> = meta_required
        .iter()
        .filter(|key| !meta.contains_key(*key))
        .map(String::as_str)
        .collect();
    if !missing.is_empty() {
        return Err(format!(
            "the dispatch lacks metadata that it wants: {}",
            missing.join(", ")
        ));
    }
    let unknown: Vec<&str> = meta
        .keys()
        .filter(|key| !meta_required.contains(*key) && !meta_optional.contains(*key))
        .map(String::as_str)
        .collect();
    if unknown.is_empty() {
        Ok(())
    } else {
        Err(format!(
            "the dispatch has metadata that it does not take: {}",
            unknown.join(", ")
        ))
    }
}

fn dispatched_before(change: &Change<'_>, key: &JobKey, token: &str) -> Option<String> {
    if token.is_empty() {
        return None;
    }
    let has_token = |job: &&Arc<Job>| {
        let launched = job.current.spec.launched.as_ref();
        launched.is_some_and(|launched| launched.idempotency_token == token)
    };
    change
        .state
        .jobs
        .children(key)
        .take(limits::DISPATCHES_LOOKED_AT)
        .find(has_token)
        .map(|job| job.current.spec.id.clone())
}

/// Launches a periodic job for the time `due`, once. Without `forced` the launch is skipped while an earlier launch
/// runs, if the job prohibits overlap.
pub(super) fn periodic(
    change: &mut Change<'_>,
    key: JobKey,
    due: Timestamp,
    forced: bool,
) -> Result<Response, Rejection> {
    let row = check::known(change, &key)?;
    let refuse = |why: &str| {
        Err(Rejection::Job(JobRejection::Request {
            key: key.clone(),
            why: why.to_owned(),
        }))
    };
    let spec = &row.job.current.spec;
    let Some(periodic) = &spec.periodic else {
        return refuse("it is not periodic: run it instead");
    };
    if row.job.stop {
        return refuse("it is stopped: run it again before you launch it");
    }
    let Some(child_id) = free_launch_id(change, &key, due) else {
        return refuse("too many launches are of this second: wait a moment and force it again");
    };
    let nothing = Response::JobLaunched {
        job_id: child_id.clone(),
        eval_id: None,
    };
    let was_launched = row.job.launched_at.is_some_and(|last| last >= due);
    if !forced && was_launched {
        return Ok(nothing);
    }
    // A forced launch may run beside an earlier launch, even if the job prohibits overlap.
    let runs = !forced
        && periodic.prohibit_overlap
        && change
            .state
            .jobs
            .children(&key)
            .any(|child| child.status != JobStatus::Dead);
    let launched_at = row.job.launched_at.max(Some(due));
    change.put_job(JobRow {
        job: Arc::new(Job {
            launched_at,
            modify_index: change.index,
            ..(*row.job).clone()
        }),
        ..(*row).clone()
    });
    if runs {
        return Ok(nothing);
    }
    let child = JobSpec {
        id: child_id.clone(),
        name: child_id,
        periodic: None,
        launched: Some(LaunchOrigin {
            parent_id: key.job_id.clone(),
            dispatched: false,
            payload: Vec::new(),
            idempotency_token: String::new(),
        }),
        ..spec.clone()
    };
    match check::check_instances(change.state, &child) {
        Err(rejection) if forced => Err(rejection),
        // A launch that would exceed the bound of instances is skipped like an overlapping launch; the next launch
        // follows in time.
        Err(_) => Ok(nothing),
        Ok(()) => Ok(launch(change, child)),
    }
}

/// Returns the id of a launch at `due`. Further launches of the same second get the ids of the seconds after it.
fn free_launch_id(change: &Change<'_>, key: &JobKey, due: Timestamp) -> Option<String> {
    let first = due.0 / NS_PER_S;
    let mut ids = (first..first + limits::LAUNCHES_PER_SECOND_MAX)
        .map(|second| format!("{}{PERIODIC_LAUNCH_INFIX}{second}", key.job_id));
    ids.find(|id| {
        let key = JobKey {
            namespace: key.namespace.clone(),
            job_id: id.clone(),
        };
        change.state.jobs.get(&key).is_none()
    })
}

fn launch(change: &mut Change<'_>, spec: JobSpec) -> Response {
    let (key, trigger) = (spec.key(), trigger(&spec));
    let job_id = spec.id.clone();
    if change.state.jobs.get(&key).is_some() {
        return Response::JobLaunched {
            job_id,
            eval_id: None,
        };
    }
    let row = version::first_version(change, spec);
    let job = Arc::clone(&row.job);
    change.put_job(row);
    let eval_id = change.add_job_eval(&job, trigger);
    Response::JobLaunched { job_id, eval_id }
}

fn trigger(spec: &JobSpec) -> Trigger {
    match &spec.launched {
        Some(launched) if !launched.dispatched => Trigger::PeriodicJob,
        Some(_) | None => Trigger::JobRegister,
    }
}
