//! Evaluations: list and read.

use axum::extract::{Path, State as Shared};
use axum::response::Response;
use axum::routing::get;
use muster_control_core::state::{Allocs, State};
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
                Ok(api::eval::Evaluation::from(&**eval))
            },
        )
        .await
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
