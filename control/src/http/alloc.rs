//! Allocations: list, read, stop.

use std::collections::BTreeMap;

use axum::extract::{Path, State as Shared};
use axum::response::Response;
use axum::routing::{get, put};
use muster_control_core::fsm::{self, AllocCommand, GcKept, GcOutlook};
use muster_control_core::state::{AllocView, State};
use muster_domain::eval::Trigger;
use muster_domain::id::{AllocId, NodeId, Timestamp};
use muster_wire::api::alloc::{
    self as shapes, AllocListStub, AllocStopResponse, GarbageCollection, NodeRef,
};

use super::body::RawBody;
use super::handler::{Http, Table};
use super::path;
use super::query::Query;
use super::status::ApiError;

pub(super) const WHAT: &str = "alloc";

pub(super) fn routes(table: Table) -> Table {
    table
        .on("/v1/allocations", get(list))
        .on("/v1/allocation/{alloc_id}", get(one))
        .on("/v1/allocation/{alloc_id}/stop", put(stop).post(stop))
}

/// The nodes by id, as lists of allocations show them.
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
    // A node that was removed before its allocations has no name.
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
                let now = http.control.now();
                let outlook = GcOutlook::of(state, alloc, &http.control.gc_config(), now);
                Ok(shapes::Allocation {
                    garbage_collection: Some(garbage_collection(outlook, now)),
                    ..shapes::Allocation::new(&alloc.unpack(), &node.unwrap_or_default())
                })
            },
        )
        .await
}

fn garbage_collection(outlook: GcOutlook, now: Timestamp) -> GarbageCollection {
    let kept = |why: GcKept, eligible_at| GarbageCollection {
        eligible: false,
        eligible_at,
        kept: why.as_str().to_owned(),
        reason: why.text().to_owned(),
    };
    match outlook {
        GcOutlook::From {
            from,
            until_then: _,
        } if from <= now => GarbageCollection {
            eligible: true,
            eligible_at: from.0,
            ..GarbageCollection::default()
        },
        GcOutlook::From { from, until_then } => kept(until_then, from.0),
        GcOutlook::Kept(why) => kept(why, 0),
    }
}

/// Replaces an allocation, on the best node for it.
async fn stop(
    Shared(http): Shared<Http>,
    Path(alloc_id): Path<String>,
    query: Query,
    body: RawBody,
) -> Result<Response, ApiError> {
    shapes::read_stop(&body.0, &alloc_id)?;
    let alloc_id: AllocId = path::id(&alloc_id, WHAT)?;
    let command = AllocCommand::Migrate {
        alloc_ids: vec![alloc_id],
        trigger: Trigger::AllocStop,
    }
    .at(http.control.now());
    let (index, response) = http.control.propose(query.once(command)).await?;
    let fsm::Response::EvalsCreated { eval_ids } = response else {
        return Err(ApiError::other_than_done(response));
    };
    let Some(eval_id) = eval_ids.first() else {
        return Err(ApiError::Malformed(format!(
            "allocation {alloc_id} has ended or is being stopped: there is nothing to stop"
        )));
    };
    query.json(&AllocStopResponse {
        eval_id: eval_id.to_string(),
        index: index.0,
    })
}
