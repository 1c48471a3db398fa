//! The versions of a job, and what each changed.

use axum::response::Response;
use muster_domain::id::JobKey;
use muster_domain::job::{Job, JobVersion};
use muster_wire::api;
use muster_wire::api::diff::{self, JobDiff};
use muster_wire::api::job::VersionsResponse;
use serde_json::Value;

use super::{NOT_FOUND, modified};
use crate::http::handler::Http;
use crate::http::query::Query;
use crate::http::status::ApiError;

pub(super) async fn versions(
    http: &Http,
    query: &Query,
    key: JobKey,
) -> Result<Response, ApiError> {
    let wants_diffs = query.flag("diffs")?;
    query
        .read_state(
            http,
            |state| modified(state, &key),
            |state| {
                let job = state.jobs().get(&key).ok_or(NOT_FOUND)?;
                let versions = state.jobs().versions(&key);
                let versions: Vec<api::job::Job> =
                    versions.iter().map(|version| shape(job, version)).collect();
                Ok(VersionsResponse {
                    diffs: if wants_diffs {
                        diffs(&versions)?
                    } else {
                        Vec::new()
                    },
                    versions,
                    index: modified(state, &key).0,
                    known_leader: true,
                    ..VersionsResponse::default()
                })
            },
        )
        .await
}

fn shape(job: &Job, version: &JobVersion) -> api::job::Job {
    if version.version == job.current.version {
        api::job::Job::from_job(job)
    } else {
        api::job::Job::from_version_of(job, version)
    }
}

/// The changes of each version from the one before; `versions` are newest first.
fn diffs(versions: &[api::job::Job]) -> Result<Vec<JobDiff>, ApiError> {
    let values = versions.iter().map(serde_json::to_value);
    let values: Vec<Value> = values
        .collect::<Result<_, _>>()
        .map_err(|error| ApiError::Internal(error.to_string()))?;
    let pairs = values.iter().zip(values.iter().skip(1));
    pairs
        .map(|(new, old)| {
            diff::jobs(Some(old), Some(new), true)
                .map_err(|error| ApiError::Internal(error.to_string()))
        })
        .collect()
}
