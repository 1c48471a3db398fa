//! One-off tasks: list, read, desire, cancel, claim, delete. Requests that only cells send are refused.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use futures::stream;
use muster_control_core::fsm::{OneOffRefusal, OneOffStep};
use muster_domain::fault::Fault;
use muster_domain::id::LogIndex;
use muster_domain::one_off::{HOST_ROOT, OneOff, OneOffState};
use prost::Message as _;

use super::proto::error::Kind;
use super::proto::{
    Anything, DesireTaskRequest, Error, StartTaskResponse, TaskDefinition, TaskGuidRequest,
    TaskLifecycleResponse, TaskResponse, TasksRequest, TasksResponse,
};
use super::{Context, Table, answer, convert, retry};
use crate::handle::{Consistency, Control};
use crate::limits;
use crate::one_off;

pub(super) fn routes(table: Table) -> Table {
    table
        .raw("/v1/tasks/list.r3", list)
        .raw("/v1/tasks/list.r2", list)
        .on("/v1/tasks/get_by_task_guid.r3", one)
        .on("/v1/tasks/get_by_task_guid.r2", one)
        .on("/v1/tasks/desire.r2", desire)
        .on("/v1/tasks/cancel", cancel)
        .on("/v1/tasks/resolving", resolving)
        .on("/v1/tasks/delete", delete)
        .on("/v1/tasks/start", start)
        .on("/v1/tasks/complete", of_cells)
        .on("/v1/tasks/reject", of_cells)
        .on("/v1/tasks/fail", of_cells)
}

/// Answers with all tasks of a domain and a cell, each as its definition and its result. The answer is encoded
/// while it is sent, because a list has no bound and its messages can be sent in pieces.
async fn list(context: Context, request: Request) -> Response {
    match rows(&context, request).await {
        Ok(rows) => answer::stream(Body::from_stream(stream::iter(pieces(rows)))),
        Err(error) => answer::reply::<TasksResponse>(Err(error)),
    }
}

async fn rows(context: &Context, request: Request) -> Result<Vec<Arc<OneOff>>, Error> {
    let TasksRequest { domain, cell_id } = answer::read(request).await?;
    let state = context.control.read(Consistency::Leader).await?.state;
    let on_cell = |row: &Arc<OneOff>| {
        let here = |id: muster_domain::id::NodeId| id.to_string() == cell_id;
        cell_id.is_empty() || row.client_cell().is_some_and(here)
    };
    let tasks = state.one_offs();
    let rows: Vec<_> = if domain.is_empty() {
        tasks
            .iter()
            .filter(|row| on_cell(row))
            .map(Arc::clone)
            .collect()
    } else {
        let tasks = tasks.of_domain(&domain);
        tasks.filter(|row| on_cell(row)).map(Arc::clone).collect()
    };
    Ok(rows)
}

fn pieces(rows: Vec<Arc<OneOff>>) -> impl Iterator<Item = Result<Bytes, Infallible>> {
    let mut rows = rows.into_iter();
    std::iter::from_fn(move || {
        let some = rows.by_ref().take(limits::BBS_TASKS_CHUNK);
        let tasks: Vec<_> = some.map(|row| convert::task(&row)).collect();
        let piece = TasksResponse { error: None, tasks };
        (!piece.tasks.is_empty()).then(|| Ok(Bytes::from(piece.encode_to_vec())))
    })
}

async fn one(context: Context, request: TaskGuidRequest) -> Result<TaskResponse, Error> {
    let guid = named(request)?;
    let state = context.control.read(Consistency::Leader).await?.state;
    let Some(row) = state.one_offs().get(&guid) else {
        return Err(OneOffRefusal::Unknown(guid).into());
    };
    Ok(TaskResponse {
        error: None,
        task: Some(convert::task(row)),
    })
}

async fn desire(
    context: Context,
    request: DesireTaskRequest,
) -> Result<TaskLifecycleResponse, Error> {
    let DesireTaskRequest {
        task_definition,
        task_guid: guid,
        domain,
    } = request;
    let mut faults = Vec::new();
    let definition = match task_definition {
        Some(message) => convert::definition(message, &mut faults),
        None => {
            faults.push(Fault::new("task_definition", "is missing"));
            let nothing = TaskDefinition {
                rootfs: HOST_ROOT.to_owned(),
                ..TaskDefinition::default()
            };
            convert::definition(nothing, &mut Vec::new())
        }
    };
    let control = &context.control;
    let task = match one_off::task(control, guid.clone(), domain, definition) {
        Ok(task) if faults.is_empty() => task,
        Ok(_) => return Err(Error::invalid(&faults)),
        Err(mut all) => {
            all.append(&mut faults);
            return Err(Error::invalid(&all));
        }
    };
    let begun = control.state().applied();
    let desired = retry::until_known(|| one_off::desire(control, None, task.clone())).await?;
    let (_, outcome) = desired.outcome;
    let outcome = outcome?;
    // An earlier attempt with a lost answer may have created the task.
    let is_ours = desired.repeated && outcome.generation > begun;
    if !outcome.created && !is_ours {
        // Diego refuses a second task with the same guid, even an identical one.
        return Err(OneOffRefusal::Exists(guid).into());
    }
    Ok(TaskLifecycleResponse::default())
}

async fn cancel(
    context: Context,
    request: TaskGuidRequest,
) -> Result<TaskLifecycleResponse, Error> {
    let guid = named(request)?;
    let state = context.control.read(Consistency::Leader).await?.state;
    let row = state.one_offs().get(&guid);
    // The command itself accepts a repetition, for clients of the JSON API.
    if let Some(row) = row.filter(|row| row.state == OneOffState::Completed) {
        let refusal = OneOffRefusal::Transition {
            from: row.state,
            to: OneOffState::Completed,
        };
        return Err(refusal.into());
    }
    drop(state);
    let done = change(&context, guid.clone(), OneOffStep::Cancel).await?;
    let ended = ended(&context, &guid);
    if tokio::time::timeout(limits::BBS_CANCEL_WAIT, ended)
        .await
        .is_err()
    {
        tracing::debug!(guid, "a cancelled task takes its time to end");
    }
    Ok(done)
}

/// Returns when no process of the task runs. Diego's clients treat a task as completed once its cancellation is
/// answered.
async fn ended(context: &Context, guid: &str) {
    let mut applied = context.control.applied();
    loop {
        applied.borrow_and_update();
        let state = context.control.state();
        let live = state
            .one_offs()
            .get(guid)
            .is_some_and(|row| match row.state {
                OneOffState::Pending | OneOffState::Running => true,
                OneOffState::Completed | OneOffState::Resolving => false,
            });
        drop(state);
        if !live || applied.changed().await.is_err() {
            return;
        }
    }
}

async fn resolving(
    context: Context,
    request: TaskGuidRequest,
) -> Result<TaskLifecycleResponse, Error> {
    let step = one_off::claim(&context.control);
    change(&context, named(request)?, step).await
}

async fn delete(
    context: Context,
    request: TaskGuidRequest,
) -> Result<TaskLifecycleResponse, Error> {
    // Diego's clients do not identify their claims.
    let step = OneOffStep::Delete { claim: None };
    change(&context, named(request)?, step).await
}

async fn change(
    context: &Context,
    guid: String,
    step: OneOffStep,
) -> Result<TaskLifecycleResponse, Error> {
    let control = &context.control;
    let begun = control.state().applied();
    let write = || one_off::change(control, None, guid.clone(), None, step);
    let changed = retry::until_known(write).await?;
    let (_, outcome) = changed.outcome;
    match outcome {
        Err(rejection) if !(changed.repeated && is_done(control, &guid, step, begun)) => {
            Err(rejection.into())
        }
        Ok(()) | Err(_) => Ok(TaskLifecycleResponse::default()),
    }
}

/// Whether an entry after `begun` has made the change of `step`: an earlier attempt with a lost answer did that.
fn is_done(control: &Control, guid: &str, step: OneOffStep, begun: LogIndex) -> bool {
    let state = control.state();
    let row = state.one_offs().get(guid);
    match step {
        OneOffStep::Claim { .. } => row
            .and_then(|row| row.claim())
            .is_some_and(|claim| claim > begun),
        OneOffStep::Delete { .. } => row.is_none(),
        // The command itself accepts a repetition.
        OneOffStep::Cancel
        | OneOffStep::Converge
        | OneOffStep::Resolve
        | OneOffStep::CallbackFailed { .. }
        | OneOffStep::FailUnplaced => false,
    }
}

async fn start(_: Context, _: Anything) -> Result<StartTaskResponse, Error> {
    Err(cells_only())
}

async fn of_cells(_: Context, _: Anything) -> Result<TaskLifecycleResponse, Error> {
    Err(cells_only())
}

fn cells_only() -> Error {
    let message = "cells are Muster's own agents: only they report results of tasks";
    Error::of(Kind::InvalidRequest, message)
}

/// Returns the guid of a request's task.
fn named(request: TaskGuidRequest) -> Result<String, Error> {
    let TaskGuidRequest { task_guid } = request;
    if task_guid.is_empty() {
        return Err(Error::invalid(&[Fault::new("task_guid", "is missing")]));
    }
    Ok(task_guid)
}
