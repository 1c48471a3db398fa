//! The cluster: configuration, namespaces, deployments (none yet), garbage collection.

use axum::extract::{Path, State as Shared};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use muster_domain::id::LogIndex;
use muster_domain::job::DEFAULT_NAMESPACE;
use muster_wire::api::operator::{Namespace, PreemptionConfig, SchedulerConfig, SchedulerResponse};

use super::query::Query;
use super::status::ApiError;
use super::{Http, Table, answer, check, metrics, snapshot};

pub(super) fn routes(table: Table) -> Table {
    table
        .on("/v1/namespaces", get(namespaces))
        .on("/v1/namespace/{name}", get(namespace))
        .on("/v1/deployments", get(deployments))
        .on("/v1/deployment/{deployment_id}", get(deployment))
        .on("/v1/system/gc", put(collect_garbage).post(collect_garbage))
        .on(
            "/v1/system/reconcile/summaries",
            put(reconcile).post(reconcile),
        )
        .on("/v1/metrics", get(metrics::read))
        .on("/v1/operator/autopilot/health", get(check::health))
        .on("/v1/operator/check", get(check::states))
        .on(
            snapshot::PATH,
            get(snapshot::save)
                .put(snapshot::take_in)
                .post(snapshot::take_in),
        )
        .on("/v1/operator/scheduler/configuration", get(scheduler))
}

fn default_namespace() -> Namespace {
    Namespace {
        name: DEFAULT_NAMESPACE.to_owned(),
        description: "Default shared namespace".to_owned(),
        create_index: 1,
        modify_index: 1,
        ..Namespace::default()
    }
}

async fn namespaces(Shared(http): Shared<Http>, query: Query) -> Result<Response, ApiError> {
    let shown: Vec<Namespace> = Some(default_namespace())
        .filter(|namespace| namespace.name.starts_with(query.prefix()))
        .into_iter()
        .collect();
    Ok(answer::stamp(
        query.json(&shown)?,
        &query.state(&http).await?,
        LogIndex(1),
    ))
}

async fn namespace(
    Shared(http): Shared<Http>,
    Path(name): Path<String>,
    query: Query,
) -> Result<Response, ApiError> {
    if name != DEFAULT_NAMESPACE {
        return Err(ApiError::NotFound { what: "namespace" });
    }
    Ok(answer::stamp(
        query.json(&default_namespace())?,
        &query.state(&http).await?,
        LogIndex(1),
    ))
}

async fn deployments(Shared(http): Shared<Http>, query: Query) -> Result<Response, ApiError> {
    let none: [(); 0] = [];
    Ok(answer::stamp(
        query.json(&none)?,
        &query.state(&http).await?,
        LogIndex(1),
    ))
}

async fn deployment() -> ApiError {
    ApiError::NotFound { what: "deployment" }
}

async fn collect_garbage(Shared(http): Shared<Http>) -> Result<StatusCode, ApiError> {
    http.control.collect_garbage().await?;
    Ok(StatusCode::OK)
}

/// Summaries are counted with every change, so there is nothing to reconcile.
async fn reconcile() -> Response {
    StatusCode::OK.into_response()
}

async fn scheduler(Shared(http): Shared<Http>, query: Query) -> Result<Response, ApiError> {
    let config = SchedulerConfig {
        scheduler_algorithm: "binpack".to_owned(),
        preemption_config: PreemptionConfig::default(),
        create_index: 1,
        modify_index: 1,
        ..SchedulerConfig::default()
    };
    let response = SchedulerResponse {
        scheduler_config: config,
        index: 1,
        last_contact: 0,
        known_leader: http.control.leader().is_some(),
    };
    Ok(answer::stamp(
        query.json(&response)?,
        &query.state(&http).await?,
        LogIndex(1),
    ))
}
