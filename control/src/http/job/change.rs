//! Changes of a registered job: evaluate, scale, revert to an older version, mark as stable, tag its versions.

use std::collections::BTreeMap;

use axum::response::Response;
use muster_control_core::fsm::{self, GroupScaling, JobCommand, TagAssignment};
use muster_control_core::state::State;
use muster_domain::alloc::ClientStatus;
use muster_domain::id::{JobKey, LogIndex};
use muster_domain::job::Job;
use muster_domain::limits::SCALING_NOTE_BYTES_MAX;
use muster_domain::region;
use muster_wire::api::job::{
    EvalOptions, EvaluateRequest, GroupScaleStatus, RevertRequest, ScaleRequest, ScaleStatus,
    ScalingEvent, StableRequest, StableResponse, TagRequest, TagResponse,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{NOT_FOUND, modified, propose};
use crate::http::body::RawBody;
use crate::http::handler::Http;
use crate::http::query::Query;
use crate::http::status::ApiError;

/// Parses the request in `body` about the job `key`. An empty body is an empty request, because some requests need
/// only the job's name in the path.
///
/// Refuses a field that the request does not have, unless it is empty. Nomad may know the field, so ignoring it
/// could change the request's meaning.
pub(super) fn request<T>(key: &JobKey, body: &RawBody) -> Result<T, ApiError>
where
    T: DeserializeOwned + Serialize + Default,
{
    let bytes: &[u8] = if body.0.is_empty() { b"{}" } else { &body.0 };
    let malformed = |error| ApiError::Malformed(format!("the request body is malformed: {error}"));
    let mut value: Value = serde_json::from_slice(bytes).map_err(malformed)?;
    let mut known = serde_json::to_value(T::default()).unwrap_or_default();
    // Go writes a block of defaults as null.
    if let Some(options) = known.get_mut("EvalOptions") {
        *options = serde_json::to_value(EvalOptions::default()).unwrap_or_default();
    }
    normalize_field_names(&mut value, &known);
    if let Some(named) = value.get("JobID").and_then(Value::as_str)
        && !named.is_empty()
        && named != key.job_id
    {
        return Err(ApiError::Malformed(format!(
            "Job ID does not match: the body names `{named}`"
        )));
    }
    if let Some(field) = unsupported(&value, &known) {
        return Err(unsupported_field(field));
    }
    T::deserialize(value).map_err(malformed)
}

fn unsupported_field(field: &str) -> ApiError {
    ApiError::Unsupported {
        what: format!("the field `{field}` of this request"),
    }
}

/// Spells the fields of `given` as in `known`. Nomad's servers ignore the case of letters.
fn normalize_field_names(given: &mut Value, known: &Value) {
    let (Some(fields), Some(known)) = (given.as_object_mut(), known.as_object()) else {
        return;
    };
    let common = COMMON_FIELDS.iter().copied();
    let names: Vec<&str> = known.keys().map(String::as_str).chain(common).collect();
    for (field, mut value) in std::mem::take(fields) {
        let name = names.iter().find(|name| name.eq_ignore_ascii_case(&field));
        if let Some(inner) = name.and_then(|name| known.get(*name)) {
            normalize_field_names(&mut value, inner);
        }
        fields.insert(name.map_or(field, |name| (*name).to_owned()), value);
    }
}

/// Fields that every request of Nomad's clients may have.
const COMMON_FIELDS: [&str; 6] = [
    "JobID",
    "Job",
    "Region",
    "Namespace",
    "AuthToken",
    "SecretID",
];

/// Returns a field of `given` that has a value and is not in `known`.
fn unsupported<'a>(given: &'a Value, known: &Value) -> Option<&'a str> {
    let (given, known) = (given.as_object()?, known.as_object()?);
    let is_known = |field: &str| {
        let common = COMMON_FIELDS.iter().copied();
        let mut names = known.keys().map(String::as_str).chain(common);
        names.any(|name| name.eq_ignore_ascii_case(field))
    };
    let mut fields = given.iter();
    let own = fields
        .find(|(field, value)| !is_known(field) && !is_empty(value))
        .map(|(field, _)| field.as_str());
    // Objects without fields of their own, such as `Meta`, accept any field.
    let blocks = known.iter().filter(|(_, block)| !is_empty_object(block));
    let mut inner = blocks.filter_map(|(name, block)| unsupported(given.get(name)?, block));
    own.or_else(|| inner.next())
}

fn is_empty_object(value: &Value) -> bool {
    value.as_object().is_none_or(serde_json::Map::is_empty)
}

/// Whether a value is the zero value of its type: Go writes unset fields in that way.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

pub(super) async fn evaluate(
    http: &Http,
    query: &Query,
    key: JobKey,
    body: RawBody,
) -> Result<Response, ApiError> {
    let asked: EvaluateRequest = request(&key, &body)?;
    let command = JobCommand::Evaluate {
        key,
        force_reschedule: asked.eval_options.force_reschedule,
    }
    .at(http.control.now());
    query.json(&propose(http, query, command).await?)
}

pub(super) async fn scale(
    http: &Http,
    query: &Query,
    key: JobKey,
    body: RawBody,
) -> Result<Response, ApiError> {
    let asked: ScaleRequest = request(&key, &body)?;
    check_target(&key, &asked.target)?;
    let Some(group) = asked.target.get("Group").cloned() else {
        return Err(ApiError::Malformed(
            "missing task group name for scaling action: write it as Target.Group".to_owned(),
        ));
    };
    let refuse = |why: &str| Err(ApiError::Malformed(why.to_owned()));
    let count = match asked.count.map(u32::try_from).transpose() {
        Ok(Some(_)) if asked.error => {
            return refuse("a scaling event with Error has no Count: leave one of them out");
        }
        Ok(count) => count,
        Err(_) => return refuse("Count is outside 0 to 4294967295: give the instances to run"),
    };
    let meta_json = match &asked.meta {
        meta if is_empty(meta) => String::new(),
        meta @ Value::Object(_) => meta.to_string(),
        _ => return refuse("Meta is not a JSON object: write it as {\"key\": \"value\"}"),
    };
    for (field, bytes) in [("Message", asked.message.len()), ("Meta", meta_json.len())] {
        if bytes > SCALING_NOTE_BYTES_MAX {
            return Err(ApiError::Malformed(format!(
                "{field} of a scaling event has {bytes} bytes, above {SCALING_NOTE_BYTES_MAX}"
            )));
        }
    }
    let command = JobCommand::ScaleGroup {
        key,
        scaling: Box::new(GroupScaling {
            group,
            count,
            error: asked.error,
            message: asked.message,
            meta_json,
        }),
        // Nomad's request has no `EnforceIndex` here: an index above 0 is enforced.
        check_index: (asked.enforce_index || asked.job_modify_index > 0)
            .then_some(LogIndex(asked.job_modify_index)),
    }
    .at(http.control.now());
    query.json(&propose(http, query, command).await?)
}

/// Refuses a target that is not a group of the job `key`.
fn check_target(key: &JobKey, target: &BTreeMap<String, String>) -> Result<(), ApiError> {
    for (name, value) in target.iter().filter(|(_, value)| !value.is_empty()) {
        let ours = match name.as_str() {
            "Group" => continue,
            "Job" => key.job_id.as_str(),
            "Namespace" => key.namespace.as_str(),
            "Region" => region::name(),
            _ => return Err(unsupported_field(&format!("Target.{name}"))),
        };
        if value != ours {
            return Err(ApiError::Malformed(format!(
                "Target.{name} does not match: it is `{value}`, the request is about `{ours}`"
            )));
        }
    }
    Ok(())
}

pub(super) async fn revert(
    http: &Http,
    query: &Query,
    key: JobKey,
    body: RawBody,
) -> Result<Response, ApiError> {
    let asked: RevertRequest = request(&key, &body)?;
    let command = JobCommand::Revert {
        key,
        version: asked.job_version,
        check_version: asked.enforce_prior_version,
    }
    .at(http.control.now());
    query.json(&propose(http, query, command).await?)
}

pub(super) async fn set_stable(
    http: &Http,
    query: &Query,
    key: JobKey,
    body: RawBody,
) -> Result<Response, ApiError> {
    let asked: StableRequest = request(&key, &body)?;
    let command = JobCommand::SetStable {
        key,
        version: asked.job_version,
        stable: asked.stable,
    }
    .at(http.control.now());
    let (index, response) = http.control.propose(query.once(command)).await?;
    if let fsm::Response::Rejected(rejection) = response {
        return Err(ApiError::Rejected(rejection));
    }
    query.json(&StableResponse {
        index: index.0,
        job_modify_index: index.0,
    })
}

/// Longest name of a version, and longest description: one line, and a few lines.
const TAG_NAME_MAX: usize = 128;
const TAG_DESCRIPTION_MAX: usize = 1_000;

/// Gives a version the name `name`.
pub(super) async fn tag(
    http: &Http,
    query: &Query,
    key: JobKey,
    name: String,
    body: RawBody,
) -> Result<Response, ApiError> {
    let TagRequest {
        version,
        description,
    } = request(&key, &body)?;
    if name.is_empty() || name.len() > TAG_NAME_MAX {
        return Err(ApiError::Malformed(format!(
            "a tag has a name of 1 to {TAG_NAME_MAX} bytes, this one {}",
            name.len()
        )));
    }
    if description.len() > TAG_DESCRIPTION_MAX {
        return Err(ApiError::Malformed(format!(
            "the description of a tag has at most {TAG_DESCRIPTION_MAX} bytes, this one {}",
            description.len()
        )));
    }
    let given = TagAssignment {
        version,
        description,
    };
    set_tag(http, query, key, name, Some(given)).await
}

/// Removes the name `name` from its version.
pub(super) async fn untag(
    http: &Http,
    query: &Query,
    key: JobKey,
    name: String,
) -> Result<Response, ApiError> {
    set_tag(http, query, key, name, None).await
}

async fn set_tag(
    http: &Http,
    query: &Query,
    key: JobKey,
    name: String,
    given: Option<TagAssignment>,
) -> Result<Response, ApiError> {
    let at = http.control.now();
    let description = given.as_ref().map(|given| given.description.clone());
    let command = JobCommand::TagVersion {
        key,
        name: name.clone(),
        given,
    }
    .at(at);
    let (index, response) = http.control.propose(query.once(command)).await?;
    if let fsm::Response::Rejected(rejection) = response {
        return Err(ApiError::Rejected(rejection));
    }
    query.json(&TagResponse {
        name,
        tagged_time: description.as_ref().map_or(0, |_given| at.0),
        description: description.unwrap_or_default(),
        index: index.0,
        job_modify_index: index.0,
    })
}

pub(super) async fn read_scale(
    http: &Http,
    query: &Query,
    key: JobKey,
) -> Result<Response, ApiError> {
    query
        .read_state(
            http,
            |state| modified(state, &key).max(state.allocs().index()),
            |state| {
                let job = state.jobs().get(&key).ok_or(NOT_FOUND)?;
                Ok(scale_status(state, job))
            },
        )
        .await
}

fn scale_status(state: &State, job: &Job) -> ScaleStatus {
    let spec = &job.current.spec;
    let mut status = ScaleStatus {
        job_id: spec.id.clone(),
        namespace: spec.namespace.clone(),
        job_create_index: job.current.create_index.0,
        job_modify_index: job.current.job_modify_index.0,
        job_stopped: job.stop,
        task_groups: spec
            .groups
            .iter()
            .map(|group| {
                let events = job.scaling_events.get(&group.name);
                let status = GroupScaleStatus {
                    desired: group.count,
                    events: events
                        .into_iter()
                        .flatten()
                        .map(ScalingEvent::from)
                        .collect(),
                    ..GroupScaleStatus::default()
                };
                (group.name.clone(), status)
            })
            .collect(),
    };
    let live = state.allocs().of_job(&job.key());
    for alloc in live.filter(|alloc| !alloc.is_terminal()) {
        let Some(group) = status.task_groups.get_mut(&alloc.group().name) else {
            continue;
        };
        group.placed += 1;
        group.running += u32::from(alloc.client_status() == ClientStatus::Running);
        group.healthy += u32::from(alloc.healthy() == Some(true));
        group.unhealthy += u32::from(alloc.healthy() == Some(false));
    }
    status
}
