//! Jobs: the JSON form of a job file, its versions, and the answers to registering one.
//!
//! [`request`] reads submitted jobs; the structs here are responses. A job from a response can be sent back unchanged.
//! Fields that the server derives are ignored in requests.

#![expect(missing_docs, reason = "fields carry Nomad's names and meaning")]

mod change;
pub mod defaults;
pub(super) mod group;
mod launch;
mod plan;
pub mod request;
pub mod schema;
pub(super) mod spec;
pub(super) mod steps;
mod summary;
pub(super) mod table;
pub(super) mod task;
pub mod unsupported;
mod written;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::api::diff::JobDiff;
use crate::api::null;
use crate::api::route::Route;

pub use change::{
    DispatchResponse, EvalOptions, EvaluateRequest, GroupScaleStatus, RevertRequest, ScaleRequest,
    ScaleStatus, ScalingEvent, StableRequest, StableResponse, TagRequest, TagResponse,
};
pub use group::{EphemeralDisk, GROUP, TaskGroup};
pub use launch::{
    DispatchPayload, DispatchRequest, Lifecycle, Parameterized, Periodic, Scaling, Volume,
    VolumeMount,
};
pub use plan::{DesiredUpdates, PlanAnnotations, PlanResponse};
pub use spec::{JOB, Job, VersionTag};
pub use steps::{
    Affinity, Constraint, Disconnect, Migrate, Reschedule, RestartPolicy, Spread, SpreadTarget,
    Update,
};
pub use summary::{Children, GroupSummary, JobListStub, JobSummary};
pub use task::{LogConfig, TASK, Task};

/// Routes of jobs.
pub const ROUTES: &[Route] = &[
    Route {
        path: "/v1/jobs",
        methods: &["GET", "PUT", "POST"],
    },
    Route {
        path: "/v1/job/{job_id}",
        methods: &["GET", "PUT", "POST", "DELETE"],
    },
    Route::read("/v1/job/{job_id}/actions"),
    Route::read("/v1/job/{job_id}/allocations"),
    Route::read("/v1/job/{job_id}/deployment"),
    Route::read("/v1/job/{job_id}/deployments"),
    Route::write("/v1/job/{job_id}/dispatch"),
    Route::write("/v1/job/{job_id}/evaluate"),
    Route::read("/v1/job/{job_id}/evaluations"),
    Route::write("/v1/job/{job_id}/periodic/force"),
    Route::write("/v1/job/{job_id}/plan"),
    Route::write("/v1/job/{job_id}/revert"),
    Route {
        path: "/v1/job/{job_id}/scale",
        methods: &["GET", "PUT", "POST"],
    },
    Route::read("/v1/job/{job_id}/services"),
    Route::write("/v1/job/{job_id}/stable"),
    Route::read("/v1/job/{job_id}/summary"),
    Route::read("/v1/job/{job_id}/versions"),
    Route {
        path: "/v1/job/{job_id}/versions/{tag}/tag",
        methods: &["PUT", "POST", "DELETE"],
    },
    Route::read("/v1/job/{job_id}/why"),
    Route::write("/v1/validate/job"),
];

/// The body of `PUT /v1/jobs`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RegisterRequest {
    pub job: Job,
    /// Whether to register only if the job is at `job_modify_index`; 0 means that the job must not exist.
    pub enforce_index: bool,
    pub job_modify_index: u64,
}

/// The answer to registering, stopping or evaluating a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RegisterResponse {
    #[serde(rename = "EvalID")]
    pub eval_id: String,
    pub eval_create_index: u64,
    pub job_modify_index: u64,
    /// Warnings as text, one a line; empty without any.
    pub warnings: String,
    /// Objects that a purge deleted immediately, by kind, including the job. Nomad has no such field.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub freed: BTreeMap<String, u64>,
    pub index: u64,
    pub last_contact: u64,
    pub known_leader: bool,
}

/// The answer to `PUT /v1/validate/job`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ValidateResponse {
    pub driver_config_validated: bool,
    #[serde(with = "null")]
    pub validation_errors: Vec<String>,
    pub error: String,
    pub warnings: String,
}

/// The answer to `GET /v1/job/:id/versions`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct VersionsResponse {
    pub versions: Vec<Job>,
    /// The differences between each version and the version before it, if requested.
    #[serde(with = "null")]
    pub diffs: Vec<JobDiff>,
    pub index: u64,
    pub last_contact: u64,
    pub known_leader: bool,
}

#[cfg(test)]
mod tests;
