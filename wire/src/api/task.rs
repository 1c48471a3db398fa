//! One-off tasks: requests and responses of `/v1/tasks`.
//!
//! Names are Diego's where Diego has them. The fields of a task's definition are next to those of its status.

use muster_domain::id::{AllocId, NodeId};
use muster_domain::one_off::{Callback, Definition, OneOff, OneOffState, Phase, WorkEnd};
use muster_domain::saturating;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::route::Route;

/// Routes of one-off tasks and their domains.
pub const ROUTES: &[Route] = &[
    Route {
        path: "/v1/tasks",
        methods: &["GET", "PUT", "POST"],
    },
    Route {
        path: "/v1/tasks/{task_guid}",
        methods: &["GET", "DELETE"],
    },
    Route::write("/v1/tasks/{task_guid}/cancel"),
    Route::write("/v1/tasks/{task_guid}/resolving"),
    Route {
        path: "/v1/domains",
        methods: &["GET", "PUT", "POST"],
    },
];

/// The body of `PUT /v1/tasks`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DesireRequest {
    /// The task's name: letters, digits, `-` and `_`.
    pub task_guid: String,
    /// The domain to which the client assigns it.
    pub domain: String,
    /// The work of the task.
    pub task_definition: Definition,
}

/// The answer to `PUT /v1/tasks`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DesireResponse {
    pub task_guid: String,
    /// Whether the task is new. If not, the same task was desired before.
    pub created: bool,
    /// The index of the entry that created the task. It distinguishes the task from an earlier task of that name.
    pub generation: u64,
    /// The index of the entry that this answer is of.
    pub index: u64,
}

/// The answer to every change of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskResponse {
    /// The index of the entry that changed the task.
    pub index: u64,
}

/// The reason why a request about tasks is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskError {
    /// Diego's name for the kind of error.
    #[serde(rename = "type")]
    pub kind: String,
    /// The message, as text.
    pub message: String,
}

/// The body of `PUT /v1/domains`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpsertDomainRequest {
    pub domain: String,
    /// Seconds for which the domain is fresh; 0: forever.
    #[serde(default)]
    pub ttl: u32,
}

/// A domain that has tasks or is fresh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Domain {
    pub domain: String,
    pub tasks: u64,
    /// Whether a client declared the domain fresh, and the declaration has not expired.
    pub fresh: bool,
    /// Whole seconds for which the domain is still fresh. Without a value, a fresh domain is fresh forever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<u64>,
}

/// A task: its definition and its status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// The definition of the task.
    #[serde(flatten)]
    pub definition: Definition,
    /// The status of the task.
    #[serde(flatten)]
    pub status: TaskStatus,
}

/// The status of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own, as JSON shows it"
)]
pub struct TaskStatus {
    pub task_guid: String,
    /// The domain to which the client assigns it.
    pub domain: String,
    /// `Pending`, `Running`, `Completed` or `Resolving`.
    pub state: String,
    /// The finer state: `placing`, `queued`, `preparing`, `running`, `cancelling`, `unreachable`, `completed`,
    /// `delivering`, `resolving`.
    pub phase: String,
    /// Time at which the task was desired. All times here are nanoseconds since 1970.
    pub created_at: u64,
    /// Time of the last change.
    pub updated_at: u64,
    /// Time at which the first process started; 0 if none has.
    pub started_at: u64,
    /// Time of the first completion; 0 if the task is not completed.
    pub first_completed_at: u64,
    /// The node that has or had the task; empty if none has.
    pub cell_id: String,
    /// The allocation of the task, for `muster alloc`; empty if there is none.
    pub alloc_id: String,
    /// The beginning of the result file.
    pub result: String,
    /// Whether the result file had more.
    pub result_truncated: bool,
    /// The reason for the absence of a requested result; otherwise empty.
    pub result_note: String,
    pub failed: bool,
    /// The reason for the failure.
    pub failure_reason: String,
    /// The action of the tree that failed, such as `serial[1].run`.
    pub failed_action: String,
    /// Number of times that the scheduler found no room.
    pub rejection_count: u32,
    /// The reason why there was none the last time; empty if that was never so.
    pub rejection_reason: String,
    /// Exit code of the process that decided, if one did.
    pub exit_code: Option<i32>,
    /// The signal that ended the process, if any.
    pub signal: Option<i32>,
    /// Whether the kernel killed the task for lack of memory.
    pub out_of_memory: bool,
    /// The memory limit in bytes, of an out-of-memory kill; 0 if unknown.
    pub memory_limit_bytes: u64,
    /// The most memory that was used, in bytes, of an out-of-memory kill; 0 if unknown.
    pub oom_peak_bytes: u64,
    /// The name of the process that was killed because memory ran out; empty if unknown.
    pub oom_process: String,
    /// Time of the end of the work, by the node's clock; 0 before the end. The task is completed when the log has the
    /// end.
    pub ended_at: u64,
    /// CPU time in nanoseconds, if measured.
    pub cpu_ns: Option<u64>,
    /// Peak memory in bytes, if measured.
    pub memory_peak_bytes: Option<u64>,
    /// Processes that the task forked, if counted.
    pub forks: Option<u64>,
    /// Bytes of received IP packets, if counted.
    pub net_rx_bytes: Option<u64>,
    pub net_rx_packets: Option<u64>,
    /// Bytes of sent IP packets, if counted.
    pub net_tx_bytes: Option<u64>,
    pub net_tx_packets: Option<u64>,
    /// Bytes that block devices read for the task, if counted.
    pub block_read_bytes: Option<u64>,
    /// Bytes that block devices wrote for the task, if counted.
    pub block_write_bytes: Option<u64>,
    /// Failed deliveries of the callback.
    pub callback_attempts: u32,
    /// Time of the next attempt of the callback; 0: at once, no callback, or given up.
    pub callback_next_at: u64,
    /// Whether the callback was given up because it failed too often.
    pub callback_given_up: bool,
    /// Time at which the callback was given up; 0 if it was not. From then on, the task is kept for its retention time.
    pub callback_given_up_at: u64,
    /// The entry that created the task. It distinguishes the task from an earlier task of that name.
    pub generation: u64,
    /// The last entry that changed the task.
    pub modify_index: u64,
}

/// The body of the call to a completed task's callback, in Diego's fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CallbackBody {
    pub task_guid: String,
    pub failed: bool,
    /// The reason for the failure.
    pub failure_reason: String,
    /// The beginning of the result file.
    pub result: String,
    /// The client's annotation of the task.
    pub annotation: String,
    /// Time at which the task was desired, in nanoseconds since 1970.
    pub created_at: u64,
}

impl From<&OneOff> for CallbackBody {
    fn from(row: &OneOff) -> Self {
        let end = row.end.as_ref();
        Self {
            task_guid: row.guid.clone(),
            failed: end.is_some_and(|end| end.failed),
            failure_reason: row.failure_reason().to_owned(),
            result: row.client_result().to_owned(),
            annotation: row.definition.annotation.clone(),
            created_at: row.created_at.0,
        }
    }
}

impl TaskStatus {
    /// Converts a row.
    #[must_use]
    pub fn new(row: &OneOff) -> Self {
        let OneOff {
            guid,
            domain,
            definition: _,
            state,
            phase,
            ending: _,
            alloc_id,
            node_id,
            started_at,
            end,
            first_completed_at,
            until: _,
            callback,
            created_at,
            updated_at,
            create_index,
            modify_index,
            rejections,
            rejection,
        } = row;
        let callback = callback.unwrap_or(Callback {
            attempts: 0,
            next_at: muster_domain::id::Timestamp(0),
            given_up: false,
        });
        let given_up_at = callback.given_up_at();
        let status = Self {
            task_guid: guid.clone(),
            domain: domain.clone(),
            state: state.as_str().to_owned(),
            phase: Phase::as_str(*phase).to_owned(),
            created_at: created_at.0,
            updated_at: updated_at.0,
            started_at: started_at.map_or(0, |at| at.0),
            first_completed_at: first_completed_at.map_or(0, |at| at.0),
            cell_id: node_id.as_ref().map(NodeId::to_string).unwrap_or_default(),
            alloc_id: alloc_id
                .as_ref()
                .map(AllocId::to_string)
                .unwrap_or_default(),
            callback_attempts: callback.attempts,
            rejection_count: *rejections,
            rejection_reason: rejection.clone(),
            callback_next_at: given_up_at.map_or(callback.next_at.0, |_| 0),
            callback_given_up: callback.given_up,
            callback_given_up_at: given_up_at.map_or(0, |at| at.0),
            generation: create_index.0,
            modify_index: modify_index.0,
            ..Self::default()
        };
        match end {
            Some(end) => status.ended(end),
            None => status,
        }
    }

    /// The reason why the task waits for room; empty if it does not wait, or was not considered yet.
    #[must_use]
    pub fn waits_for(&self) -> &str {
        if self.state == OneOffState::Pending.as_str() {
            &self.rejection_reason
        } else {
            ""
        }
    }

    fn ended(self, end: &WorkEnd) -> Self {
        let WorkEnd {
            failed,
            failure_reason,
            failed_action,
            result,
            result_truncated,
            result_note,
            exit,
            oom,
            usage,
            at,
        } = end;
        let known = exit.filter(|exit| !exit.unknown);
        let counted = usage.counted.as_ref();
        let block = counted.and_then(|counted| counted.block.as_ref());
        let nanos = saturating::nanos;
        Self {
            failed: *failed,
            failure_reason: failure_reason.clone(),
            failed_action: failed_action.clone(),
            result: result.clone(),
            result_truncated: *result_truncated,
            result_note: result_note.clone(),
            exit_code: known.filter(|exit| exit.signal == 0).map(|exit| exit.code),
            signal: known
                .filter(|exit| exit.signal != 0)
                .map(|exit| exit.signal),
            out_of_memory: oom.is_some() || exit.is_some_and(|exit| exit.oom_killed),
            memory_limit_bytes: oom.as_ref().map_or(0, |oom| oom.limit_bytes),
            oom_peak_bytes: oom.as_ref().map_or(0, |oom| oom.peak_bytes),
            oom_process: oom
                .as_ref()
                .map_or_else(String::new, |oom| oom.process.clone()),
            ended_at: at.0,
            cpu_ns: usage.cpu.map(nanos),
            memory_peak_bytes: usage.memory_peak_bytes,
            forks: counted.map(|counted| counted.forks),
            net_rx_bytes: counted.map(|counted| counted.net_rx_bytes),
            net_rx_packets: counted.map(|counted| counted.net_rx_packets),
            net_tx_bytes: counted.map(|counted| counted.net_tx_bytes),
            net_tx_packets: counted.map(|counted| counted.net_tx_packets),
            block_read_bytes: block.map(|block| block.read),
            block_write_bytes: block.map(|block| block.written),
            ..self
        }
    }
}

impl From<&OneOff> for Task {
    fn from(row: &OneOff) -> Self {
        Self {
            definition: (*row.definition).clone(),
            status: TaskStatus::new(row),
        }
    }
}

/// Reads the body of `PUT /v1/tasks`. Fields that are `null` count as left out, as clients in Go write them.
///
/// # Errors
///
/// [`ReadDesireError`].
pub fn read_desire(body: &[u8]) -> Result<DesireRequest, ReadDesireError> {
    let value = value(body).map_err(ReadDesireError::Json)?;
    if let Some(at) = empty_action(&value["task_definition"]["action"]) {
        return Err(ReadDesireError::Action { at });
    }
    named(value).map_err(ReadDesireError::Json)
}

/// The reason why a body could not be read as a task.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadDesireError {
    /// The body is not JSON, or has the wrong shape.
    #[error("{0}")]
    Json(String),
    /// An action has no kind, or more than one. Diego treats this mistake as a crash.
    #[error("must have one of {ACTION_KINDS}: {at} has none or several")]
    Action {
        /// The place, such as `action.serial.actions[1]`.
        at: String,
    },
}

/// The kinds of actions, for error messages.
const ACTION_KINDS: &str =
    "download, upload, run, timeout, emit_progress, try, parallel, serial, codependent";

/// The place of the first action that is an object without exactly one field. Other faults are not checked.
fn empty_action(action: &Value) -> Option<String> {
    let mut all = vec![("action".to_owned(), action)];
    while let Some((at, action)) = all.pop() {
        let Value::Object(kinds) = action else {
            continue;
        };
        if kinds.len() != 1 {
            return Some(at);
        }
        for (kind, fields) in kinds {
            if let Some(child) = fields.get("action") {
                all.push((format!("{at}.{kind}.action"), child));
            }
            let children = fields.get("actions").and_then(Value::as_array);
            let numbered = children.into_iter().flatten().enumerate();
            let named = numbered.map(|(n, it)| (format!("{at}.{kind}.actions[{n}]"), it));
            all.extend(named);
        }
    }
    None
}

/// The body of `PUT /v1/domains`. `null` counts as left out.
///
/// # Errors
///
/// The fault of the body, as text.
pub fn read_upsert_domain(body: &[u8]) -> Result<UpsertDomainRequest, String> {
    read(body)
}

fn read<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    named(value(body)?)
}

/// Decodes `value`. An error names the field, since a JSON value has no lines.
fn named<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, String> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        match path.as_str() {
            // The whole body.
            "." => error.into_inner().to_string(),
            path => format!("{path}: {}", error.inner()),
        }
    })
}

fn value(body: &[u8]) -> Result<Value, String> {
    let mut value: Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    drop_nulls(&mut value);
    Ok(value)
}

fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Diego's message for faulty fields: `Invalid field: rootfs, Invalid field: annotation`.
#[must_use]
pub fn invalid_fields<'a>(fields: impl Iterator<Item = &'a str>) -> String {
    let each: Vec<String> = fields
        .map(|field| format!("Invalid field: {field}"))
        .collect();
    each.join(", ")
}

/// Kinds of errors, by Diego's names.
pub mod kind {
    /// The request is not valid.
    pub const INVALID_REQUEST: &str = "InvalidRequest";
    /// The body cannot be read.
    pub const INVALID_JSON: &str = "InvalidJSON";
    /// The task's state does not allow the change.
    pub const INVALID_STATE_TRANSITION: &str = "InvalidStateTransition";
    /// A task with that guid exists already.
    pub const RESOURCE_EXISTS: &str = "ResourceExists";
    /// The task does not exist.
    pub const RESOURCE_NOT_FOUND: &str = "ResourceNotFound";
}

#[cfg(test)]
mod tests;
