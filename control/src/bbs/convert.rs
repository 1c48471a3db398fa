//! Conversion between Diego's messages and Muster's types.
//!
//! A field that Muster does not support is refused by name. Three fields do not affect a task and are ignored;
//! newer versions of Diego ignore the first two as well. They are `nproc`, a time limit in nanoseconds next to the
//! one in milliseconds, and a download's cache key. Answers have zero for them.

mod action;
mod definition;

use muster_domain::id::NodeId;
use muster_domain::one_off::{OneOff, OneOffState};
use muster_domain::saturating;

use super::proto::{Task, task::State};

pub(super) use definition::definition;

/// Converts a task for Diego's clients.
pub(super) fn task(row: &OneOff) -> Task {
    let state = match row.state {
        OneOffState::Pending => State::Pending,
        OneOffState::Running => State::Running,
        OneOffState::Completed => State::Completed,
        OneOffState::Resolving => State::Resolving,
    };
    let cell = row.client_cell();
    let end = row.end.as_ref();
    Task {
        definition: Some(definition::message(&row.definition)),
        task_guid: row.guid.clone(),
        domain: row.domain.clone(),
        created_at: nanos(row.created_at.0),
        updated_at: nanos(row.updated_at.0),
        first_completed_at: nanos(row.first_completed_at.map_or(0, |at| at.0)),
        state: state.into(),
        cell_id: cell.as_ref().map(NodeId::to_string).unwrap_or_default(),
        result: row.client_result().to_owned(),
        failed: end.is_some_and(|end| end.failed),
        failure_reason: row.failure_reason().to_owned(),
        rejection_count: saturating::to_i32(row.rejections),
        rejection_reason: row.rejection.clone(),
    }
}

fn nanos(value: u64) -> i64 {
    saturating::to_i64(value)
}

#[cfg(test)]
mod tests;
