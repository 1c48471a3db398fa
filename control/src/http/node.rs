//! Nodes: list, read, eligibility, drain.

use axum::extract::{Path, State as Shared};
use axum::response::Response;
use axum::routing::{any, get, put};
use muster_control_core::fsm::{self, Entry, NodeCommand};
use muster_control_core::state::{Allocs, State};
use muster_domain::id::NodeId;
use muster_wire::api;
use muster_wire::api::alloc::NodeRef;
use muster_wire::api::node::{
    DrainUpdate, NodeListStub, NodeUpdateResponse, read_drain, read_eligibility,
};

use super::body::RawBody;
use super::handler::{Http, Table};
use super::path;
use super::query::Query;
use super::status::ApiError;

const WHAT: &str = "node";

pub(super) fn routes(table: Table) -> Table {
    let mut table = table
        .on("/v1/nodes", get(list))
        .on("/v1/node/{node_id}", get(one))
        .on("/v1/node/{node_id}/allocations", get(allocations))
        .on("/v1/node/{node_id}/drain", put(drain).post(drain))
        .on(
            "/v1/node/{node_id}/eligibility",
            put(set_eligibility).post(set_eligibility),
        );
    // This route is registered only to be refused by name.
    table.router = table.router.route("/v1/node/{node_id}/purge", any(purge));
    table
}

/// Garbage collection removes nodes, so purging is refused.
async fn purge() -> ApiError {
    ApiError::Unsupported {
        what: "a purge of nodes".to_owned(),
    }
}

async fn list(Shared(http): Shared<Http>, query: Query) -> Result<Response, ApiError> {
    let asked = query.clone();
    let (resources, os) = (query.flag("resources")?, query.flag("os")?);
    let index = |state: &State| state.nodes().index();
    query
        .list_state(&http, index, move |state, mut page| {
            for node in state.nodes().with_prefix(asked.prefix()) {
                page.push(&node.spec.id.to_string(), || {
                    NodeListStub::new(node, resources, os)
                });
            }
            page
        })
        .await
}

async fn one(
    Shared(http): Shared<Http>,
    Path(node_id): Path<String>,
    query: Query,
) -> Result<Response, ApiError> {
    let node_id: NodeId = path::id(&node_id, WHAT)?;
    query
        .read_state(
            &http,
            |state| {
                state
                    .nodes()
                    .get(&node_id)
                    .map_or(state.nodes().index(), |node| node.modify_index)
            },
            |state| {
                let node = state
                    .nodes()
                    .get(&node_id)
                    .ok_or(ApiError::NotFound { what: WHAT })?;
                Ok(api::node::Node::from(&**node))
            },
        )
        .await
}

/// Answers with a node's allocations in full, because clients need their contents.
async fn allocations(
    Shared(http): Shared<Http>,
    Path(node_id): Path<String>,
    query: Query,
) -> Result<Response, ApiError> {
    let node_id: NodeId = path::id(&node_id, WHAT)?;
    let index = |state: &State| state.allocs().index();
    query
        .list_state(&http, index, move |state, mut page| {
            let node = state
                .nodes()
                .get(&node_id)
                .map(|node| NodeRef::from(&**node))
                .unwrap_or_default();
            for alloc in Allocs::by_id(state.allocs_on(&node_id)) {
                page.push(&alloc.id().to_string(), || {
                    api::alloc::Allocation::new(&alloc.unpack(), &node)
                });
            }
            page
        })
        .await
}

async fn set_eligibility(
    Shared(http): Shared<Http>,
    Path(node_id): Path<String>,
    query: Query,
    body: RawBody,
) -> Result<Response, ApiError> {
    let eligibility = read_eligibility(&body.0, &node_id)?;
    let node_id: NodeId = path::id(&node_id, WHAT)?;
    let command = NodeCommand::SetEligibility {
        node_id,
        eligibility,
    }
    .at(http.control.now());
    update(&http, &query, command, &[]).await
}

async fn drain(
    Shared(http): Shared<Http>,
    Path(node_id): Path<String>,
    query: Query,
    body: RawBody,
) -> Result<Response, ApiError> {
    let DrainUpdate {
        spec,
        mark_eligible,
        warnings,
    } = read_drain(&body.0, &node_id)?;
    let node_id: NodeId = path::id(&node_id, WHAT)?;
    let command = NodeCommand::Drain {
        node_id,
        drain: spec,
        mark_eligible,
    }
    .at(http.control.now());
    update(&http, &query, command, &warnings).await
}

async fn update(
    http: &Http,
    query: &Query,
    entry: Entry,
    warnings: &[String],
) -> Result<Response, ApiError> {
    let (index, response) = http.control.propose(query.once(entry)).await?;
    if let fsm::Response::Rejected(rejection) = response {
        return Err(ApiError::Rejected(rejection));
    }
    query.json(&NodeUpdateResponse {
        node_modify_index: index.0,
        index: index.0,
        warnings: warnings.join("\n"),
        ..NodeUpdateResponse::default()
    })
}
