//! The cluster: configuration, namespaces, garbage collection.

use axum::extract::{Path, State as Shared};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use muster_domain::id::LogIndex;
use muster_domain::job::DEFAULT_NAMESPACE;
use muster_wire::api::operator::Namespace;

use super::handler::{Http, Table};
use super::query::Query;
use super::status::ApiError;
use super::{answer, check, garbage, metrics, network, scheduler, snapshot};

pub(super) fn routes(table: Table) -> Table {
    table
        .on("/v1/namespaces", get(namespaces))
        .on("/v1/namespace/{name}", get(namespace))
        .on(
            "/v1/system/gc",
            put(garbage::collect).post(garbage::collect),
        )
        .on(
            "/v1/system/reconcile/summaries",
            put(reconcile).post(reconcile),
        )
        .on("/v1/metrics", get(metrics::read))
        .on("/v1/operator/autopilot/health", get(check::server_health))
        .on("/v1/operator/check", get(check::states))
        .on(
            "/v1/operator/clock/confirm",
            put(check::confirm_clock).post(check::confirm_clock),
        )
        .on(
            snapshot::PATH,
            get(snapshot::save)
                .put(snapshot::restore_upload)
                .post(snapshot::restore_upload),
        )
        .on(
            "/v1/operator/network/policy",
            get(network::read).put(network::write).post(network::write),
        )
        .on(
            "/v1/operator/scheduler/configuration",
            get(scheduler::read)
                .put(scheduler::write)
                .post(scheduler::write),
        )
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

/// Summaries are counted with every change, so there is nothing to reconcile.
async fn reconcile() -> Response {
    StatusCode::OK.into_response()
}
