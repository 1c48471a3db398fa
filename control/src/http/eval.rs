//! Evaluations: list and read.

use std::collections::{BTreeMap, BTreeSet};

use axum::extract::{Path, State as Shared};
use axum::response::Response;
use axum::routing::get;
use muster_control_core::state::{Allocs, State};
use muster_domain::eval::Evaluation;
use muster_domain::id::EvalId;
use muster_wire::api;

use super::alloc::{node_refs, stub};
use super::handler::{Http, Table};
use super::path;
use super::query::Query;
use super::status::ApiError;

const WHAT: &str = "eval";

pub(super) fn routes(table: Table) -> Table {
    table
        .on("/v1/evaluations", get(list))
        .on("/v1/evaluation/{eval_id}", get(one))
        .on("/v1/evaluation/{eval_id}/allocations", get(allocations))
}

async fn list(Shared(http): Shared<Http>, query: Query) -> Result<Response, ApiError> {
    let asked = query.clone();
    let index = |state: &State| state.evals().index();
    query
        .list_state(&http, index, move |state, mut page| {
            let shown = state
                .evals()
                .with_prefix(asked.prefix())
                .into_iter()
                .filter(|eval| {
                    asked.shows(&eval.job.namespace)
                        && asked
                            .text("job")
                            .is_none_or(|job_id| eval.job.job_id == job_id)
                        && asked
                            .text("status")
                            .is_none_or(|status| eval.status.as_str() == status)
                });
            for eval in shown {
                page.push(&eval.id.to_string(), || {
                    api::eval::Evaluation::from(&**eval)
                });
            }
            page
        })
        .await
}

async fn one(
    Shared(http): Shared<Http>,
    Path(eval_id): Path<String>,
    query: Query,
) -> Result<Response, ApiError> {
    let eval_id: EvalId = path::id(&eval_id, WHAT)?;
    let wants_related = query.flag("related")?;
    query
        .read_state(
            &http,
            |state| {
                state
                    .evals()
                    .get(&eval_id)
                    .map_or(state.evals().index(), |eval| eval.modify_index)
            },
            |state| {
                let eval = state
                    .evals()
                    .get(&eval_id)
                    .ok_or(ApiError::NotFound { what: WHAT })?;
                Ok(api::eval::Evaluation {
                    related_evals: wants_related.then(|| related(state, eval)),
                    ..api::eval::Evaluation::from(&**eval)
                })
            },
        )
        .await
}

/// The evaluations of a job that are linked to `eval`: its predecessors and its successors.
fn related(state: &State, eval: &Evaluation) -> Vec<api::eval::Evaluation> {
    let mut links: BTreeMap<EvalId, Vec<EvalId>> = BTreeMap::new();
    for other in state.evals().of_job(&eval.job) {
        for end in [other.previous, other.blocked].into_iter().flatten() {
            links.entry(other.id).or_default().push(end);
            links.entry(end).or_default().push(other.id);
        }
    }
    let mut linked = BTreeSet::from([eval.id]);
    let mut next = vec![eval.id];
    while let Some(id) = next.pop() {
        let ends = links.remove(&id).unwrap_or_default();
        next.extend(ends.into_iter().filter(|end| linked.insert(*end)));
    }
    let others = linked.into_iter().filter(|id| *id != eval.id);
    others
        .filter_map(|id| state.evals().get(&id))
        .map(|other| api::eval::Evaluation::from(&**other))
        .collect()
}

async fn allocations(
    Shared(http): Shared<Http>,
    Path(eval_id): Path<String>,
    query: Query,
) -> Result<Response, ApiError> {
    let eval_id: EvalId = path::id(&eval_id, WHAT)?;
    let index = |state: &State| state.allocs().index();
    query
        .list_state(&http, index, move |state, mut page| {
            let nodes = node_refs(state);
            for alloc in Allocs::by_id(state.allocs().of_eval(&eval_id)) {
                page.push(&alloc.id().to_string(), || stub(alloc, &nodes, false));
            }
            page
        })
        .await
}
