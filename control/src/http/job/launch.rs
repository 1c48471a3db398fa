//! Jobs created from other jobs on request: dispatched, or launched before their time.

use axum::response::Response;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use muster_control_core::fsm::{self, JobCommand};
use muster_domain::id::JobKey;
use muster_domain::limits::PRIORITY_MAX;
use muster_wire::api::job::{DispatchRequest, DispatchResponse};

use super::change::request;
use super::propose;
use crate::http::body::RawBody;
use crate::http::handler::Http;
use crate::http::query::Query;
use crate::http::status::ApiError;

pub(super) async fn dispatch(
    http: &Http,
    query: &Query,
    key: JobKey,
    body: RawBody,
) -> Result<Response, ApiError> {
    let DispatchRequest {
        payload,
        meta,
        id_prefix_template,
        idempotency_token,
        priority,
    } = request(&key, &body)?;
    if !id_prefix_template.is_empty() {
        return Err(ApiError::Unsupported {
            what: "IdPrefixTemplate".to_owned(),
        });
    }
    let payload = BASE64_STANDARD
        .decode(payload.unwrap_or_default())
        .map_err(|error| ApiError::Malformed(format!("Payload is not base64: {error}")))?;
    let token = query.text("idempotency_token").map(str::to_owned);
    let idempotency_token = token.unwrap_or(idempotency_token);
    let namespace = key.namespace.clone();
    let has_token = !idempotency_token.is_empty();
    let priority = u8::try_from(priority).map_err(|_outside| {
        ApiError::Malformed(format!(
            "Priority {priority} is outside 1 to {PRIORITY_MAX}: leave it out for the parent's"
        ))
    })?;
    let suffix = format!("{:08x}", rand::random::<u32>());
    let at = http.control.now();
    let command = JobCommand::Dispatch {
        key,
        suffix,
        payload,
        meta,
        idempotency_token,
        priority: (priority != 0).then_some(priority),
    }
    .at(at);
    // A token belongs to one job, and holds as long as its child job is kept; a key has neither bound.
    let command = if has_token {
        command
    } else {
        query.once(command)
    };
    let (index, response) = http.control.propose(command).await?;
    match response {
        fsm::Response::JobLaunched { job_id, eval_id: _ } => {
            let key = JobKey { namespace, job_id };
            query.json(&dispatched(http, key, index.0))
        }
        fsm::Response::Rejected(rejection) => Err(ApiError::Rejected(rejection)),
        other => Err(ApiError::Internal(format!(
            "a dispatch was answered with {other:?}"
        ))),
    }
}

/// The answer about a dispatched job, created at `index` or before.
fn dispatched(http: &Http, key: JobKey, index: u64) -> DispatchResponse {
    let state = http.control.state();
    let job = state.jobs().get(&key);
    let evals = state.evals().of_job(&key);
    let first = evals.min_by_key(|eval| eval.create_index);
    DispatchResponse {
        eval_id: first.map(|eval| eval.id.to_string()).unwrap_or_default(),
        eval_create_index: first.map_or(0, |eval| eval.create_index.0),
        job_create_index: job.map_or(index, |job| job.current.create_index.0),
        dispatched_job_id: key.job_id,
        index,
    }
}

pub(super) async fn force(http: &Http, query: &Query, key: JobKey) -> Result<Response, ApiError> {
    let now = http.control.now();
    let command = JobCommand::LaunchPeriodic {
        key,
        due: now,
        forced: true,
    }
    .at(now);
    query.json(&propose(http, query, command).await?)
}
