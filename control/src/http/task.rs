//! One-off tasks: desire, list, read, cancel, claim, delete; and their domains.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use axum::extract::{Path, State as Shared};
use axum::response::Response;
use axum::routing::{get, put};
use muster_control_core::fsm::{DesiredOneOff, OneOffRefusal, OneOffStep, Rejection};
use muster_control_core::state::State;
use muster_domain::fault::Fault;
use muster_domain::id::LogIndex;
use muster_domain::one_off::{OneOff, OneOffState, check_domain};
use muster_wire::api::task::{
    self as shapes, DesireResponse, Domain, ReadDesireError, Task, TaskResponse, kind,
};

use super::body::RawBody;
use super::handler::{Http, Table};
use super::query::Query;
use super::status::ApiError;

pub(super) fn routes(table: Table) -> Table {
    table
        .on("/v1/tasks", get(list).put(desire).post(desire))
        .on("/v1/tasks/{task_guid}", get(one).delete(delete))
        .on("/v1/tasks/{task_guid}/cancel", put(cancel).post(cancel))
        .on(
            "/v1/tasks/{task_guid}/resolving",
            put(resolving).post(resolving),
        )
        .on(
            "/v1/domains",
            get(domains).put(upsert_domain).post(upsert_domain),
        )
}

/// The filter of a list of tasks.
#[derive(Clone, Debug)]
struct TaskFilter {
    domain: Option<String>,
    cell_id: Option<String>,
    state: Option<OneOffState>,
    prefix: String,
}

impl TaskFilter {
    fn read(query: &Query) -> Result<Self, ApiError> {
        let text = |name| query.text(name).map(ToOwned::to_owned);
        let state = query.text("state").map(|word| {
            OneOffState::from_name(word).ok_or_else(|| {
                ApiError::Malformed(format!(
                    "Invalid state: `{word}` is none of Pending, Running, Completed, Resolving"
                ))
            })
        });
        Ok(Self {
            domain: text("domain"),
            cell_id: text("cell_id"),
            state: state.transpose()?,
            prefix: query.prefix().to_owned(),
        })
    }

    fn shows(&self, row: &OneOff) -> bool {
        let cell = |wanted: &String| row.node_id.is_some_and(|id| id.to_string() == *wanted);
        row.guid.starts_with(&self.prefix)
            && self.domain.as_ref().is_none_or(|it| *it == row.domain)
            && self.state.is_none_or(|state| state == row.state)
            && self.cell_id.as_ref().is_none_or(cell)
    }
}

async fn list(Shared(http): Shared<Http>, query: Query) -> Result<Response, ApiError> {
    let wanted = TaskFilter::read(&query)?;
    let index = |state: &State| state.one_offs().index();
    query
        .list_state(&http, index, move |state, mut page| {
            let mut take = |row: &OneOff| {
                if wanted.shows(row) {
                    page.push(&row.guid, || Task::from(row));
                }
            };
            match &wanted.domain {
                Some(domain) => state.one_offs().of_domain(domain).for_each(|row| take(row)),
                None => state.one_offs().iter().for_each(|row| take(row)),
            }
            page
        })
        .await
}

async fn one(
    Shared(http): Shared<Http>,
    Path(guid): Path<String>,
    query: Query,
) -> Result<Response, ApiError> {
    query
        .read_state(
            &http,
            |state| {
                let row = state.one_offs().get(&guid);
                row.map_or(state.one_offs().index(), |row| row.modify_index)
            },
            |state| {
                let row = state.one_offs().get(&guid);
                row.map(|row| Task::from(&**row))
                    .ok_or_else(|| unknown(&guid))
            },
        )
        .await
}

async fn domains(Shared(http): Shared<Http>, query: Query) -> Result<Response, ApiError> {
    let index = |state: &State| state.one_offs().index();
    let control = http.control.clone();
    query
        .list_state(&http, index, move |state, mut page| {
            // The time is read after the wait for a change, if there was one.
            let now = control.now();
            let tasks: BTreeMap<&str, usize> = state.one_offs().domains().collect();
            let fresh: BTreeMap<_, _> = state.one_offs().fresh(now).collect();
            let names: BTreeSet<&str> = tasks.keys().chain(fresh.keys()).copied().collect();
            for name in names {
                page.push(name, || Domain {
                    domain: name.to_owned(),
                    tasks: tasks.get(name).map_or(0, |tasks| *tasks as u64),
                    fresh: fresh.contains_key(name),
                    ttl: fresh
                        .get(name)
                        .and_then(|until| until.map(|until| until.since(now).as_secs())),
                });
            }
            page
        })
        .await
}

async fn upsert_domain(
    Shared(http): Shared<Http>,
    query: Query,
    body: RawBody,
) -> Result<Response, ApiError> {
    let request = shapes::read_upsert_domain(&body.0).map_err(not_json)?;
    let shapes::UpsertDomainRequest { domain, ttl } = request;
    if let Some(fault) = check_domain(&domain) {
        return Err(invalid(&[fault]));
    }
    let ttl = Duration::from_secs(u64::from(ttl));
    let answer = crate::one_off::upsert_domain(&http.control, query.key(), domain, ttl).await?;
    let (index, outcome) = answer;
    outcome?;
    query.json(&TaskResponse { index: index.0 })
}

async fn desire(
    Shared(http): Shared<Http>,
    query: Query,
    body: RawBody,
) -> Result<Response, ApiError> {
    let request = shapes::read_desire(&body.0).map_err(|error| match error {
        ReadDesireError::Json(message) => not_json(message),
        ReadDesireError::Action { .. } => invalid(&[Fault::new("action", error.to_string())]),
    })?;
    let shapes::DesireRequest {
        task_guid: guid,
        domain,
        task_definition: definition,
    } = request;
    let task = crate::one_off::task(&http.control, guid.clone(), domain, definition);
    let task = task.map_err(|faults| invalid(&faults))?;
    let (index, desired) = crate::one_off::desire(&http.control, query.key(), task).await?;
    let DesiredOneOff {
        created,
        generation,
        eval_id: _,
    } = desired?;
    query.json(&DesireResponse {
        task_guid: guid,
        created,
        generation: generation.0,
        index: index.0,
    })
}

async fn cancel(
    Shared(http): Shared<Http>,
    Path(guid): Path<String>,
    query: Query,
) -> Result<Response, ApiError> {
    change(&http, &query, guid, OneOffStep::Cancel).await
}

async fn resolving(
    Shared(http): Shared<Http>,
    Path(guid): Path<String>,
    query: Query,
) -> Result<Response, ApiError> {
    let step = crate::one_off::claim(&http.control);
    change(&http, &query, guid, step).await
}

async fn delete(
    Shared(http): Shared<Http>,
    Path(guid): Path<String>,
    query: Query,
) -> Result<Response, ApiError> {
    // A client that has the result claims the task and deletes it with one request.
    let step = if query.flag("resolve")? {
        OneOffStep::Resolve
    } else {
        let claim = query.number("claim")?.map(LogIndex);
        OneOffStep::Delete { claim }
    };
    change(&http, &query, guid, step).await
}

async fn change(
    http: &Http,
    query: &Query,
    guid: String,
    step: OneOffStep,
) -> Result<Response, ApiError> {
    let generation = query.number("generation")?.map(LogIndex);
    let key = query.key();
    let (index, changed) =
        crate::one_off::change(&http.control, key, guid, generation, step).await?;
    changed?;
    query.json(&TaskResponse { index: index.0 })
}

fn not_json(message: String) -> ApiError {
    ApiError::Task {
        kind: kind::INVALID_JSON,
        message,
    }
}

fn invalid(faults: &[Fault]) -> ApiError {
    let fields = shapes::invalid_fields(faults.iter().map(|fault| fault.path.as_str()));
    // Diego's error text already names the field of a single fault.
    let why = match faults {
        [fault] => fault.reason.clone(),
        many => {
            let each: Vec<String> = many.iter().map(ToString::to_string).collect();
            each.join("; ")
        }
    };
    ApiError::Task {
        kind: kind::INVALID_REQUEST,
        message: format!("{fields}: {why}"),
    }
}

fn unknown(guid: &str) -> ApiError {
    Rejection::OneOff(OneOffRefusal::Unknown(guid.to_owned())).into()
}
