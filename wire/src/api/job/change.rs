//! Requests that change a registered job, and their answers.

use std::collections::BTreeMap;

use muster_domain::job as domain;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::null;

/// The body of `PUT /v1/job/:id/evaluate`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct EvaluateRequest {
    #[serde(with = "null")]
    pub eval_options: EvalOptions,
}

/// Options of a new evaluation of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct EvalOptions {
    /// Replace instances that failed at once.
    pub force_reschedule: bool,
}

/// The body of `PUT /v1/job/:id/scale`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ScaleRequest {
    /// `None`: only an event is recorded.
    pub count: Option<i64>,
    /// `Group`, and perhaps `Job`.
    #[serde(with = "null")]
    pub target: BTreeMap<String, String>,
    pub message: String,
    pub error: bool,
    pub meta: Value,
    /// Whether to change the job only if it is at `job_modify_index`. An index above 0 implies it.
    pub enforce_index: bool,
    pub job_modify_index: u64,
    pub policy_override: bool,
}

/// The body of `PUT /v1/job/:id/revert`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RevertRequest {
    pub job_version: u64,
    /// The version that must be the current one.
    pub enforce_prior_version: Option<u64>,
}

/// The body of `PUT /v1/job/:id/stable`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct StableRequest {
    pub job_version: u64,
    pub stable: bool,
}

/// The answer to `PUT /v1/job/:id/stable`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct StableResponse {
    pub index: u64,
    pub job_modify_index: u64,
}

/// The body of `PUT /v1/job/:id/versions/:tag/tag`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TagRequest {
    /// `None` for the current one.
    pub version: Option<u64>,
    pub description: String,
}

/// The answer to `PUT` and `DELETE /v1/job/:id/versions/:tag/tag`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TagResponse {
    pub name: String,
    pub description: String,
    /// Time of the tag in nanoseconds since the epoch; 0 for a removed tag.
    pub tagged_time: u64,
    pub index: u64,
    pub job_modify_index: u64,
}

/// The answer to `GET /v1/job/:id/scale`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ScaleStatus {
    #[serde(rename = "JobID")]
    pub job_id: String,
    pub namespace: String,
    pub job_create_index: u64,
    pub job_modify_index: u64,
    pub job_stopped: bool,
    pub task_groups: BTreeMap<String, GroupScaleStatus>,
}

/// The counts of a group's instances.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct GroupScaleStatus {
    pub desired: u32,
    pub placed: u32,
    pub running: u32,
    pub healthy: u32,
    pub unhealthy: u32,
    pub events: Vec<ScalingEvent>,
}

/// A scaling action on a group, or an event that a client reported.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ScalingEvent {
    /// Nanoseconds since the epoch.
    pub time: u64,
    /// `None` if the count was not changed.
    pub count: Option<u32>,
    pub previous_count: u32,
    pub message: String,
    pub error: bool,
    /// A JSON object, or null.
    pub meta: Value,
    #[serde(rename = "EvalID")]
    pub eval_id: Option<String>,
    pub create_index: u64,
}

impl From<&domain::ScalingEvent> for ScalingEvent {
    fn from(event: &domain::ScalingEvent) -> Self {
        let domain::ScalingEvent {
            at,
            count,
            previous_count,
            error,
            message,
            meta_json,
            eval_id,
            create_index,
        } = event;
        Self {
            time: at.0,
            count: *count,
            previous_count: *previous_count,
            message: message.clone(),
            error: *error,
            meta: serde_json::from_str(meta_json).unwrap_or_default(),
            eval_id: eval_id.map(|id| id.to_string()),
            create_index: create_index.0,
        }
    }
}

/// The answer to `PUT /v1/job/:id/dispatch`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DispatchResponse {
    #[serde(rename = "DispatchedJobID")]
    pub dispatched_job_id: String,
    #[serde(rename = "EvalID")]
    pub eval_id: String,
    pub eval_create_index: u64,
    pub job_create_index: u64,
    pub index: u64,
}
