//! Ids by prefix.

use std::collections::BTreeMap;

use axum::extract::State as Shared;
use axum::response::Response;
use axum::routing::put;
use muster_control_core::state::State;
use muster_domain::job::DEFAULT_NAMESPACE;
use muster_domain::saturating;
use muster_wire::api::search::{SearchRequest, SearchResponse};

use super::answer;
use super::body::RawBody;
use super::handler::{Http, Table};
use super::query::Query;
use super::status::ApiError;
use crate::limits;

pub(super) fn routes(table: Table) -> Table {
    table.on("/v1/search", put(search).post(search))
}

async fn search(
    Shared(http): Shared<Http>,
    query: Query,
    body: RawBody,
) -> Result<Response, ApiError> {
    let SearchRequest { prefix, context } = SearchRequest::read(&body.0)?;
    let seen = query.state(&http).await?;
    let state = &seen.state;
    let mut matches = BTreeMap::new();
    let mut truncations = BTreeMap::new();
    let all = SearchRequest::CONTEXTS
        .into_iter()
        .chain(SearchRequest::EMPTY_CONTEXTS);
    for kind in all.filter(|kind| context == "all" || context == *kind) {
        // One more id than shown is requested, to detect further ids.
        let mut ids: Vec<String> = find(state, &query, kind, &prefix);
        truncations.insert(kind.to_owned(), ids.len() > limits::SEARCH_MATCHES_MAX);
        ids.truncate(limits::SEARCH_MATCHES_MAX);
        matches.insert(kind.to_owned(), (!ids.is_empty()).then_some(ids));
    }
    let index = state.applied();
    let response = SearchResponse {
        matches,
        truncations,
        index: index.0,
        last_contact: saturating::millis(seen.last_contact),
        known_leader: seen.leader_known,
    };
    Ok(answer::stamp(query.json(&response)?, &seen, index))
}

fn find(state: &State, query: &Query, kind: &str, prefix: &str) -> Vec<String> {
    let bound = limits::SEARCH_MATCHES_MAX + 1;
    match kind {
        "allocs" => {
            let found = state.allocs().with_prefix(prefix).into_iter();
            let shown = found.filter(|alloc| query.shows(&alloc.job().spec.namespace));
            shown
                .take(bound)
                .map(|alloc| alloc.id().to_string())
                .collect()
        }
        "deployment" => {
            let found = state.deployments().with_prefix(prefix).into_iter();
            let shown = found.filter(|row| query.shows(&row.job.namespace));
            shown.take(bound).map(|row| row.id.to_string()).collect()
        }
        "evals" => {
            let found = state.evals().with_prefix(prefix).into_iter();
            let shown = found.filter(|eval| query.shows(&eval.job.namespace));
            shown.take(bound).map(|eval| eval.id.to_string()).collect()
        }
        "jobs" => {
            let shown = state
                .jobs()
                .iter()
                .filter(|job| query.shows(&job.current.spec.namespace));
            let ids = shown
                .map(|job| &job.current.spec.id)
                .filter(|id| id.starts_with(prefix));
            ids.take(bound).cloned().collect()
        }
        "nodes" => {
            let found = state.nodes().with_prefix(prefix).into_iter();
            found
                .take(bound)
                .map(|node| node.spec.id.to_string())
                .collect()
        }
        "namespaces" if DEFAULT_NAMESPACE.starts_with(prefix) => vec![DEFAULT_NAMESPACE.to_owned()],
        _ => Vec::new(),
    }
}
