//! The effect of registering a job, without proposing it.

use std::collections::BTreeMap;

use axum::response::Response;
use muster_control_core::dry_run::{DryRun, dry_run};
use muster_control_core::periodic;
use muster_control_core::scheduler;
use muster_control_core::state::State;
use muster_domain::id::{AllocId, Timestamp};
use muster_domain::job::{Job, JobSpec};
use muster_wire::api;
use muster_wire::api::alloc::{AllocListStub, Metric};
use muster_wire::api::diff::{self, JobDiff};
use muster_wire::api::job::request::ReadJob;
use muster_wire::api::job::{DesiredUpdates, PlanAnnotations, PlanResponse};
use muster_wire::api::time::Rfc3339;

use super::{admit, ineffective, join_warnings, preserve, read};
use crate::http::alloc::{node_refs, stub};
use crate::http::body::RawBody;
use crate::http::handler::Http;
use crate::http::query::Query;
use crate::http::status::ApiError;

pub(super) async fn plan(
    http: &Http,
    query: &Query,
    id: &str,
    body: RawBody,
) -> Result<Response, ApiError> {
    let ReadJob {
        spec,
        mut warnings,
        enforce_index: _,
        wants_diff,
        preserve_counts,
        preserve_resources,
    } = read(body).await?;
    let mut spec = admit(query, spec, Some(id))?;
    let state = query.state(http).await?.state;
    if let Some(old) = state.jobs().get(&spec.key()) {
        let old = &old.current.spec;
        preserve(&mut spec, old, preserve_counts, preserve_resources);
    }
    warnings.extend(ineffective(&state, &spec));
    let now = http.control.now();
    // The scheduler may need long for a large job.
    let planning = tokio::task::spawn_blocking(move || answer(&state, spec, wants_diff, now));
    let planned = planning
        .await
        .map_err(|error| ApiError::Internal(error.to_string()))??;
    query.json(&PlanResponse {
        warnings: join_warnings(&warnings),
        ..planned
    })
}

fn answer(
    state: &State,
    spec: JobSpec,
    wants_diff: bool,
    now: Timestamp,
) -> Result<PlanResponse, ApiError> {
    let run = dry_run(state, spec, now).map_err(ApiError::Rejected)?;
    let desired: BTreeMap<String, DesiredUpdates> = run
        .desired
        .iter()
        .map(|(group, updates)| (group.clone(), counts(*updates)))
        .collect();
    let failed = run.failed.iter().map(|failed| {
        let mut metric = Metric::from(&*failed.metrics);
        metric.coalesced_failures = failed.count.saturating_sub(1);
        (failed.group.clone(), metric)
    });
    let spec = &run.after.current.spec;
    let periodic = spec.periodic.as_ref().filter(|periodic| periodic.enabled);
    Ok(PlanResponse {
        failed_tg_allocs: failed.collect(),
        job_modify_index: run.job_modify_index.0,
        created_evals: run
            .created
            .iter()
            .map(|eval| api::eval::Evaluation::from(&**eval))
            .collect(),
        diff: if wants_diff {
            Some(annotated(&run, &desired)?)
        } else {
            None
        },
        next_periodic_launch: periodic
            .and_then(|periodic| periodic::next_launch(periodic, now))
            .map(Rfc3339),
        annotations: PlanAnnotations {
            desired_tg_updates: desired,
            preempted_allocs: stubs(state, &run.preempted),
        },
        warnings: String::new(),
        index: state.applied().0,
    })
}

fn counts(updates: scheduler::DesiredUpdates) -> DesiredUpdates {
    let scheduler::DesiredUpdates {
        ignore,
        place,
        migrate,
        stop,
        in_place,
        destructive,
        canary,
    } = updates;
    DesiredUpdates {
        ignore: u64::from(ignore),
        place: u64::from(place),
        migrate: u64::from(migrate),
        stop: u64::from(stop),
        in_place_update: u64::from(in_place),
        destructive_update: u64::from(destructive),
        canary: u64::from(canary),
        preemptions: 0,
    }
}

/// The differences between the jobs, with their effect on instances.
fn annotated(
    run: &DryRun,
    desired: &BTreeMap<String, DesiredUpdates>,
) -> Result<JobDiff, ApiError> {
    let internal = |error: &dyn std::fmt::Display| ApiError::Internal(error.to_string());
    let shape = |job: &Job| {
        serde_json::to_value(api::job::Job::from_job(job)).map_err(|error| internal(&error))
    };
    let before = run.before.as_deref().map(shape).transpose()?;
    let after = shape(&run.after)?;
    let mut diff =
        diff::jobs(before.as_ref(), Some(&after), true).map_err(|error| internal(&error))?;
    diff::annotate(&mut diff);
    let updates = desired
        .iter()
        .map(|(group, counts)| (group.clone(), counts.to_map()));
    diff::annotate_updates(&mut diff, updates.collect());
    Ok(diff)
}

fn stubs(state: &State, ids: &[AllocId]) -> Vec<AllocListStub> {
    if ids.is_empty() {
        return Vec::new();
    }
    let nodes = node_refs(state);
    ids.iter()
        .filter_map(|id| Some(stub(state.allocs().get(id)?, &nodes, false)))
        .collect()
}
