//! Jobs: the JSON form of a job file, its versions, and the answers to registering one.
//!
//! [`request`] reads what users send; the structs here are what is answered. A job that was read can be
//! sent back unchanged: what the server derives is ignored on the way in.

#![expect(missing_docs, reason = "fields carry Nomad's names and meaning")]

mod change;
pub(super) mod constraint;
pub mod defaults;
mod group;
mod launch;
mod logs;
mod plan;
pub mod request;
mod restart;
pub mod schema;
pub(super) mod steps;
mod summary;
mod table;
mod task;
pub mod unsupported;
mod written;

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use muster_domain::job as domain;
use muster_domain::region;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::diff::JobDiff;
use crate::api::null::{self, Null};
use crate::api::policy::NetworkPolicy;
use crate::api::resources::{Cni, Dns, Network, asked_ports};
use crate::api::route::Route;

pub use change::{
    DispatchResponse, EvalOptions, EvaluateRequest, GroupScaleStatus, RevertRequest, ScaleRequest,
    ScaleStatus, ScalingEvent, StableRequest, StableResponse, TagRequest, TagResponse,
};
pub use constraint::Constraint;
pub use group::{EphemeralDisk, TaskGroup};
pub use launch::{
    DispatchPayload, DispatchRequest, Lifecycle, Parameterized, Periodic, Scaling, Volume,
    VolumeMount,
};
pub use logs::LogConfig;
pub use plan::{DesiredUpdates, PlanAnnotations, PlanResponse};
pub use restart::RestartPolicy;
pub use steps::{Affinity, Disconnect, Migrate, Reschedule, Spread, SpreadTarget, Update};
pub use summary::{Children, GroupSummary, JobListStub, JobSummary};
pub use task::Task;

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

/// A job as `GET /v1/job/:id` answers and `PUT /v1/jobs` takes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(clippy::struct_excessive_bools, reason = "the shape is Nomad's")]
pub struct Job {
    pub stop: bool,
    pub region: String,
    pub namespace: String,
    #[serde(rename = "ID")]
    pub id: String,
    #[serde(rename = "ParentID")]
    pub parent_id: String,
    pub name: String,
    #[serde(rename = "Type")]
    pub job_type: String,
    pub priority: u8,
    pub all_at_once: bool,
    #[serde(with = "null")]
    pub datacenters: Vec<String>,
    pub node_pool: String,
    #[serde(with = "null")]
    pub constraints: Vec<Constraint>,
    #[serde(with = "null")]
    pub affinities: Vec<Affinity>,
    #[serde(with = "null")]
    pub spreads: Vec<Spread>,
    #[serde(with = "null")]
    pub task_groups: Vec<TaskGroup>,
    /// The update block for groups that have none of their own; all zero without one.
    #[serde(deserialize_with = "null::deserialize")]
    pub update: Update,
    pub multiregion: Null,
    pub periodic: Option<Periodic>,
    pub parameterized_job: Option<Parameterized>,
    pub dispatched: bool,
    /// Base64.
    pub payload: Option<String>,
    #[serde(with = "null")]
    pub meta: BTreeMap<String, String>,
    pub consul_token: String,
    pub consul_namespace: String,
    pub vault_token: String,
    pub vault_namespace: String,
    #[serde(rename = "NomadTokenID")]
    pub nomad_token_id: String,
    pub status: String,
    pub status_description: String,
    pub stable: bool,
    pub version: u64,
    pub version_tag: Option<VersionTag>,
    /// Nanoseconds since the epoch.
    pub submit_time: u64,
    pub create_index: u64,
    pub modify_index: u64,
    pub job_modify_index: u64,
    #[serde(rename = "UI", skip_serializing_if = "Option::is_none")]
    pub ui: Option<Value>,
}

impl Job {
    /// The job to submit: nothing that the server derives is filled in.
    #[must_use]
    pub fn from_spec(spec: &domain::JobSpec) -> Self {
        let domain::JobSpec {
            namespace,
            id,
            name,
            job_type,
            priority,
            datacenters,
            node_pool,
            all_at_once,
            constraints,
            affinities,
            spreads,
            periodic,
            parameterized,
            launched,
            meta,
            groups,
            stop: _,
            as_written,
        } = spec;
        let job = Self {
            region: region::name().to_owned(),
            namespace: namespace.clone(),
            id: id.clone(),
            name: name.clone(),
            job_type: job_type.as_str().to_owned(),
            priority: *priority,
            datacenters: datacenters.clone(),
            node_pool: node_pool.clone(),
            all_at_once: *all_at_once,
            update: Update::common(groups),
            constraints: constraints.iter().map(Constraint::from).collect(),
            affinities: affinities.iter().map(Affinity::from).collect(),
            spreads: spreads.iter().map(Spread::from).collect(),
            task_groups: groups
                .iter()
                .map(|group| TaskGroup::of(group, *job_type))
                .collect(),
            periodic: periodic.as_ref().map(Periodic::from),
            parameterized_job: parameterized.as_ref().map(Parameterized::from),
            parent_id: launched
                .as_ref()
                .map(|launched| launched.parent_id.clone())
                .unwrap_or_default(),
            dispatched: launched
                .as_ref()
                .is_some_and(|launched| launched.dispatched),
            payload: launched
                .as_ref()
                .filter(|launched| !launched.payload.is_empty())
                .map(|launched| BASE64_STANDARD.encode(&launched.payload)),
            meta: meta.clone(),
            ..Self::default()
        };
        written::overlay(job, as_written)
    }

    /// One version of a job, without what became of the job.
    #[must_use]
    pub fn from_version(version: &domain::JobVersion) -> Self {
        Self {
            version: version.version,
            submit_time: version.submit_time.0,
            create_index: version.create_index.0,
            modify_index: version.job_modify_index.0,
            job_modify_index: version.job_modify_index.0,
            ..Self::from_spec(&version.spec)
        }
    }

    /// A job with what became of it.
    #[must_use]
    pub fn from_job(job: &domain::Job) -> Self {
        Self {
            stop: job.stop,
            status: job.status.as_str().to_owned(),
            modify_index: job.modify_index.0,
            ..Self::from_version_of(job, &job.current)
        }
    }

    /// An older version of `job`.
    #[must_use]
    pub fn from_version_of(job: &domain::Job, version: &domain::JobVersion) -> Self {
        Self {
            stable: job.is_stable(version.version),
            version_tag: job.tag_of(version.version).map(VersionTag::from),
            ..Self::from_version(version)
        }
    }
}

/// The name of a version of a job, which is kept for as long as it has one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct VersionTag {
    pub name: String,
    pub description: String,
    /// Nanoseconds since the epoch.
    pub tagged_time: u64,
}

impl From<&domain::VersionTag> for VersionTag {
    fn from(tag: &domain::VersionTag) -> Self {
        Self {
            name: tag.name.clone(),
            description: tag.description.clone(),
            tagged_time: tag.at.0,
        }
    }
}

fn asked_network(network: &domain::GroupNetwork) -> Network {
    let domain::GroupNetwork {
        mode,
        ports,
        policy,
        dns,
        hostname,
    } = network;
    let (reserved_ports, dynamic_ports) = asked_ports(ports);
    Network {
        mode: mode.as_str().into_owned(),
        cni: mode.cni().map(Cni::from),
        reserved_ports,
        dynamic_ports,
        hostname: hostname.clone(),
        policy: policy.as_ref().map(NetworkPolicy::from),
        dns: dns.as_ref().map(Dns::from),
        ..Network::default()
    }
}

/// The body of `PUT /v1/jobs`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RegisterRequest {
    pub job: Job,
    /// Only register if the job is at `job_modify_index`; 0 means that it must not exist.
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
    /// Objects that a purge removed at once, by kind, the job among them. Nomad has no such field.
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
    /// The changes of each version against the one before it, if they were asked for.
    #[serde(with = "null")]
    pub diffs: Vec<JobDiff>,
    pub index: u64,
    pub last_contact: u64,
    pub known_leader: bool,
}

#[cfg(test)]
mod tests;
