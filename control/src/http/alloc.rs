//! Allocations: list and read.

use std::collections::BTreeMap;

use axum::extract::{Path, State as Shared};
use axum::response::Response;
use axum::routing::get;
use muster_control_core::state::{AllocView, State};
use muster_domain::id::{AllocId, NodeId};
use muster_wire::api::alloc::{self as shapes, AllocListStub, NodeRef};

use super::query::Query;
use super::status::ApiError;
use super::{Http, Table, path};

pub(super) const WHAT: &str = "alloc";

pub(super) fn routes(table: Table) -> Table {
    table
        .on("/v1/allocations", get(list))
        .on("/v1/allocation/{alloc_id}", get(one))
}

/// What lists of allocations say of nodes.
pub(super) fn node_refs(state: &State) -> BTreeMap<NodeId, NodeRef> {
    state
        .nodes()
        .iter()
        .map(|node| (node.spec.id, NodeRef::from(&**node)))
        .collect()
}

/// A row of a list.
pub(super) fn stub(
    alloc: AllocView<'_>,
    nodes: &BTreeMap<NodeId, NodeRef>,
    resources: bool,
) -> AllocListStub {
    // A node that was forgotten before its allocations has no name.
    let forgotten = NodeRef::default();
    AllocListStub::new(
        &alloc.unpack(),
        nodes.get(&alloc.node_id()).unwrap_or(&forgotten),
        resources,
    )
}

async fn list(Shared(http): Shared<Http>, query: Query) -> Result<Response, ApiError> {
    let asked = query.clone();
    let resources = query.flag("resources")?;
    let index = |state: &State| state.allocs().index();
    query
        .list_state(&http, index, move |state, mut page| {
            let nodes = node_refs(state);
            let found = state.allocs().with_prefix(asked.prefix()).into_iter();
            for alloc in found.filter(|alloc| asked.shows(&alloc.job().spec.namespace)) {
                page.push(&alloc.id().to_string(), || stub(alloc, &nodes, resources));
            }
            page
        })
        .await
}

async fn one(
    Shared(http): Shared<Http>,
    Path(alloc_id): Path<String>,
    query: Query,
) -> Result<Response, ApiError> {
    let alloc_id: AllocId = path::id(&alloc_id, WHAT)?;
    query
        .read_state(
            &http,
            |state| {
                state
                    .allocs()
                    .get(&alloc_id)
                    .map_or(state.allocs().index(), AllocView::modify_index)
            },
            |state| {
                let alloc = state
                    .allocs()
                    .get(&alloc_id)
                    .ok_or(ApiError::NotFound { what: WHAT })?;
                let node = state
                    .nodes()
                    .get(&alloc.node_id())
                    .map(|node| NodeRef::from(&**node));
                Ok(shapes::Allocation::new(
                    &alloc.unpack(),
                    &node.unwrap_or_default(),
                ))
            },
        )
        .await
}
