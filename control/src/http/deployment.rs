//! Deployments: list, read, and operators' changes.

use std::sync::Arc;

use axum::extract::{Path, State as Shared};
use axum::response::Response;
use axum::routing::{any, get, put};
use muster_control_core::fsm::{self, DeploymentChange, DeploymentCommand};
use muster_control_core::state::{Allocs, State};
use muster_domain::deployment::Deployment as Row;
use muster_domain::id::{DeploymentId, JobKey, LogIndex};
use muster_wire::api::deployment::{
    self as shapes, Deployment, DeploymentUpdateResponse, HealthRequest,
};

use super::alloc::{node_refs, stub};
use super::body::RawBody;
use super::handler::{Http, Table};
use super::path;
use super::query::Query;
use super::status::ApiError;

const WHAT: &str = "deployment";

pub(super) fn routes(table: Table) -> Table {
    let mut table = table
        .on("/v1/deployments", get(list))
        .on("/v1/deployment/{deployment_id}", get(one))
        .on(
            "/v1/deployment/allocations/{deployment_id}",
            get(allocations),
        )
        .on(
            "/v1/deployment/allocation-health/{deployment_id}",
            put(set_health).post(set_health),
        )
        .on("/v1/deployment/fail/{deployment_id}", put(fail).post(fail))
        .on(
            "/v1/deployment/pause/{deployment_id}",
            put(pause).post(pause),
        )
        .on(
            "/v1/deployment/promote/{deployment_id}",
            put(promote).post(promote),
        );
    // This route is registered only to be refused by name.
    table.router = table
        .router
        .route("/v1/deployment/unblock/{deployment_id}", any(unblock));
    table
}

/// With one region, no deployment can be blocked.
async fn unblock() -> ApiError {
    ApiError::Unsupported {
        what: "deployment unblock, for jobs of several regions,".to_owned(),
    }
}

async fn list(Shared(http): Shared<Http>, query: Query) -> Result<Response, ApiError> {
    let asked = query.clone();
    let index = |state: &State| state.deployments().index();
    query
        .list_state(&http, index, move |state, mut page| {
            let found = state.deployments().with_prefix(asked.prefix()).into_iter();
            for deployment in found.filter(|row| asked.shows(&row.job.namespace)) {
                page.push(&deployment.id.to_string(), || {
                    Deployment::from(&**deployment)
                });
            }
            page
        })
        .await
}

async fn one(
    Shared(http): Shared<Http>,
    Path(id): Path<String>,
    query: Query,
) -> Result<Response, ApiError> {
    let id: DeploymentId = path::id(&id, WHAT)?;
    query
        .read_state(
            &http,
            |state| modified(state, &id),
            |state| {
                let deployment = state.deployments().get(&id);
                deployment
                    .map(|deployment| Deployment::from(&**deployment))
                    .ok_or(ApiError::NotFound { what: WHAT })
            },
        )
        .await
}

fn modified(state: &State, id: &DeploymentId) -> LogIndex {
    let deployments = state.deployments();
    let deployment = deployments.get(id);
    deployment.map_or(deployments.index(), |deployment| deployment.modify_index)
}

async fn allocations(
    Shared(http): Shared<Http>,
    Path(id): Path<String>,
    query: Query,
) -> Result<Response, ApiError> {
    let id: DeploymentId = path::id(&id, WHAT)?;
    let index = |state: &State| state.allocs().index();
    query
        .list_state(&http, index, move |state, mut page| {
            let Some(deployment) = state.deployments().get(&id) else {
                return page;
            };
            let nodes = node_refs(state);
            let of_job = state.allocs().of_job(&deployment.job);
            let of_it = of_job.filter(|alloc| alloc.deployment() == Some(id));
            for alloc in Allocs::by_id(of_it) {
                page.push(&alloc.id().to_string(), || stub(alloc, &nodes, false));
            }
            page
        })
        .await
}

/// Answers with the deployments of a job. With `all` it includes those of earlier jobs with the same name.
pub(super) async fn of_job(http: &Http, query: &Query, key: JobKey) -> Result<Response, ApiError> {
    let all = query.flag("all")?;
    let index = |state: &State| state.deployments().index();
    query
        .list_state(http, index, move |state, mut page| {
            let created = state.jobs().get(&key).map(|job| job.current.create_index);
            let shown = state.deployments().of_job(&key);
            let shown = shown
                .filter(|row| all || created.is_none_or(|index| row.job_create_index == index));
            let mut shown: Vec<_> = shown.collect();
            shown.sort_by_key(|deployment| deployment.id);
            for deployment in shown {
                page.push(&deployment.id.to_string(), || {
                    Deployment::from(&**deployment)
                });
            }
            page
        })
        .await
}

/// Deployments of an earlier job with the same name do not count.
fn newest<'a>(state: &'a State, key: &JobKey) -> Option<&'a Arc<Row>> {
    let created = state.jobs().get(key).map(|job| job.current.create_index);
    let latest = state.deployments().latest(key);
    latest.filter(|row| created.is_none_or(|index| row.job_create_index == index))
}

/// The newest deployment of a job; `null` if it has none.
pub(super) async fn latest(http: &Http, query: &Query, key: JobKey) -> Result<Response, ApiError> {
    query
        .read_state(
            http,
            |state| {
                let latest = newest(state, &key);
                latest.map_or(state.deployments().index(), |latest| latest.modify_index)
            },
            |state| {
                let latest = newest(state, &key);
                Ok(latest.map(|latest| Deployment::from(&**latest)))
            },
        )
        .await
}

async fn promote(
    Shared(http): Shared<Http>,
    Path(id): Path<String>,
    query: Query,
    body: RawBody,
) -> Result<Response, ApiError> {
    let groups = shapes::read_promote(&body.0, &id)?;
    change(&http, &query, &id, DeploymentChange::Promote(groups)).await
}

async fn fail(
    Shared(http): Shared<Http>,
    Path(id): Path<String>,
    query: Query,
    body: RawBody,
) -> Result<Response, ApiError> {
    shapes::read_fail(&body.0, &id)?;
    change(&http, &query, &id, DeploymentChange::Fail).await
}

async fn pause(
    Shared(http): Shared<Http>,
    Path(id): Path<String>,
    query: Query,
    body: RawBody,
) -> Result<Response, ApiError> {
    let wanted = if shapes::read_pause(&body.0, &id)? {
        DeploymentChange::Pause
    } else {
        DeploymentChange::Resume
    };
    change(&http, &query, &id, wanted).await
}

async fn set_health(
    Shared(http): Shared<Http>,
    Path(id): Path<String>,
    query: Query,
    body: RawBody,
) -> Result<Response, ApiError> {
    let HealthRequest { healthy, unhealthy } = shapes::read_health(&body.0, &id)?;
    let wanted = DeploymentChange::SetHealth { healthy, unhealthy };
    change(&http, &query, &id, wanted).await
}

async fn change(
    http: &Http,
    query: &Query,
    id: &str,
    change: DeploymentChange,
) -> Result<Response, ApiError> {
    let id: DeploymentId = path::id(id, WHAT)?;
    let command = DeploymentCommand::Change { id, change }.at(http.control.now());
    let (index, response) = http.control.propose(query.once(command)).await?;
    let fsm::Response::DeploymentChanged {
        eval_id,
        reverted_to,
    } = response
    else {
        return Err(ApiError::other_than_done(response));
    };
    // A repeated request gets the first answer: its evaluation is older than its entry.
    let state = http.control.state();
    let made = eval_id.and_then(|eval_id| state.evals().get(&eval_id));
    query.json(&DeploymentUpdateResponse {
        eval_id: eval_id.map(|id| id.to_string()).unwrap_or_default(),
        eval_create_index: made.map_or(0, |eval| eval.create_index.0),
        deployment_modify_index: modified(&state, &id).0,
        reverted_job_version: reverted_to,
        index: index.0,
    })
}
