//! The versions of a job and their changes.

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
    let diff_version = query.number("diff_version")?;
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
                        let tag = query.text("diff_tag").filter(|tag| !tag.is_empty());
                        let base = base(job, &versions, tag, diff_version)?;
                        diffs(&versions, base)?
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

/// The position of the version that the request compares with all others, if it names one.
fn base(
    job: &Job,
    versions: &[api::job::Job],
    tag: Option<&str>,
    number: Option<u64>,
) -> Result<Option<usize>, ApiError> {
    let number = match tag {
        Some(name) => {
            let tag = job.tags.iter().find(|tag| tag.name == name);
            Some(tag.ok_or(ApiError::NotFound { what: "tag" })?.version)
        }
        None => number,
    };
    let Some(number) = number else {
        return Ok(None);
    };
    let at = versions.iter().position(|it| it.version == number);
    at.map(Some).ok_or(ApiError::NotFound { what: "version" })
}

/// The changes of each version from the previous one, or from the one at `base`. `versions` are newest first.
fn diffs(versions: &[api::job::Job], base: Option<usize>) -> Result<Vec<JobDiff>, ApiError> {
    let values = versions.iter().map(serde_json::to_value);
    let values: Vec<Value> = values
        .collect::<Result<_, _>>()
        .map_err(|error| ApiError::Internal(error.to_string()))?;
    let compared = |(new, old): (&Value, &Value)| {
        diff::jobs(Some(old), Some(new), true)
            .map_err(|error| ApiError::Internal(error.to_string()))
    };
    match base.and_then(|at| values.get(at)) {
        Some(base) => values.iter().map(|new| compared((new, base))).collect(),
        None => values
            .iter()
            .zip(values.iter().skip(1))
            .map(compared)
            .collect(),
    }
}
