//! Deployments, and requests that change one.

#![expect(missing_docs, reason = "fields carry Nomad's names and meaning")]

use std::collections::BTreeMap;

use muster_domain::deployment as domain;
use muster_domain::id::AllocId;
use serde::{Deserialize, Serialize};

use crate::api::block::{self, Block, FieldNames};
use crate::api::null;
use crate::api::read_error::ReadJobError;
use crate::api::route::Route;
use crate::api::time::Rfc3339;

/// Routes of deployments.
pub const ROUTES: &[Route] = &[
    Route::read("/v1/deployments"),
    Route::read("/v1/deployment/{deployment_id}"),
    Route::read("/v1/deployment/allocations/{deployment_id}"),
    Route::write("/v1/deployment/allocation-health/{deployment_id}"),
    Route::write("/v1/deployment/fail/{deployment_id}"),
    Route::write("/v1/deployment/pause/{deployment_id}"),
    Route::write("/v1/deployment/promote/{deployment_id}"),
];

/// A deployment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Deployment {
    #[serde(rename = "ID")]
    pub id: String,
    pub namespace: String,
    #[serde(rename = "JobID")]
    pub job_id: String,
    pub job_version: u64,
    pub job_modify_index: u64,
    pub job_spec_modify_index: u64,
    pub job_create_index: u64,
    /// Always false: there is one region.
    pub is_multiregion: bool,
    pub task_groups: BTreeMap<String, DeploymentState>,
    pub status: String,
    pub status_description: String,
    pub create_index: u64,
    pub modify_index: u64,
    /// Nanoseconds since the epoch.
    pub create_time: u64,
    /// Nanoseconds since the epoch.
    pub modify_time: u64,
}

/// A group within a deployment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DeploymentState {
    pub auto_revert: bool,
    pub auto_promote: bool,
    /// Nanoseconds.
    pub progress_deadline: u64,
    pub require_progress_by: Option<Rfc3339>,
    pub promoted: bool,
    #[serde(with = "null")]
    pub placed_canaries: Vec<String>,
    pub desired_canaries: u32,
    pub desired_total: u32,
    pub placed_allocs: u32,
    pub healthy_allocs: u32,
    pub unhealthy_allocs: u32,
}

impl From<&domain::Deployment> for Deployment {
    fn from(deployment: &domain::Deployment) -> Self {
        let domain::Deployment {
            id,
            job,
            job_version,
            job_modify_index,
            job_create_index,
            status,
            status_description,
            groups,
            create_index,
            modify_index,
            create_time,
            modify_time,
        } = deployment;
        let groups = groups
            .iter()
            .map(|group| (group.name.clone(), DeploymentState::from(group)));
        Self {
            id: id.to_string(),
            namespace: job.namespace.clone(),
            job_id: job.job_id.clone(),
            job_version: *job_version,
            job_modify_index: job_modify_index.0,
            job_spec_modify_index: job_modify_index.0,
            job_create_index: job_create_index.0,
            is_multiregion: false,
            task_groups: groups.collect(),
            status: status.as_str().to_owned(),
            status_description: status_description.clone(),
            create_index: create_index.0,
            modify_index: modify_index.0,
            create_time: create_time.0,
            modify_time: modify_time.0,
        }
    }
}

impl From<&domain::DeploymentGroup> for DeploymentState {
    fn from(group: &domain::DeploymentGroup) -> Self {
        let domain::DeploymentGroup {
            name: _,
            auto_revert,
            auto_promote,
            progress_deadline_ns,
            require_progress_by,
            promoted,
            placed_canaries,
            desired_canaries,
            desired_total,
            placed,
            healthy,
            unhealthy,
        } = group;
        Self {
            auto_revert: *auto_revert,
            auto_promote: *auto_promote,
            progress_deadline: *progress_deadline_ns,
            require_progress_by: Some(Rfc3339(*require_progress_by))
                .filter(|at| *at != Rfc3339::default()),
            promoted: *promoted,
            placed_canaries: placed_canaries.iter().map(ToString::to_string).collect(),
            desired_canaries: *desired_canaries,
            desired_total: *desired_total,
            placed_allocs: *placed,
            healthy_allocs: *healthy,
            unhealthy_allocs: *unhealthy,
        }
    }
}

/// The body of `PUT /v1/deployment/promote/:id`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PromoteRequest {
    #[serde(rename = "DeploymentID")]
    pub deployment_id: String,
    /// Whether all groups are meant; otherwise those in `groups`.
    pub all: bool,
    #[serde(with = "null")]
    pub groups: Vec<String>,
}

/// The body of `PUT /v1/deployment/pause/:id`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PauseRequest {
    #[serde(rename = "DeploymentID")]
    pub deployment_id: String,
    /// Whether the deployment is paused; otherwise it is resumed.
    pub pause: bool,
}

/// The body of `PUT /v1/deployment/allocation-health/:id`, with its ids parsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HealthRequest {
    pub healthy: Vec<AllocId>,
    pub unhealthy: Vec<AllocId>,
}

/// The response to each request that changes a deployment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DeploymentUpdateResponse {
    /// The evaluation that continues the deployment; empty if there is nothing to do.
    #[serde(rename = "EvalID")]
    pub eval_id: String,
    pub eval_create_index: u64,
    pub deployment_modify_index: u64,
    /// The version to which the job is reverted.
    pub reverted_job_version: Option<u64>,
    pub index: u64,
}

/// Fields that clients of Nomad send along.
const KNOWN: FieldNames = FieldNames {
    derived: &["Region", "Namespace", "SecretID", "AuthToken"],
    harmless: &[],
    unsupported: &[],
    rows: &[],
};

/// Reads `body` with `fields`. The body may name a deployment only if the path names the same one.
fn read<T>(
    body: &[u8],
    id: &str,
    fields: impl FnOnce(&mut Block<'_>) -> T,
) -> Result<T, ReadJobError> {
    block::read(body, &KNOWN, |block| {
        block.id_of_path("DeploymentID", id);
        Some(fields(block))
    })
}

/// The groups that the body of `PUT /v1/deployment/promote/:id` names; `None` for all.
///
/// # Errors
///
/// [`ReadJobError`] for malformed bodies, and for a body that names neither groups nor all of them.
pub fn read_promote(body: &[u8], id: &str) -> Result<Option<Vec<String>>, ReadJobError> {
    read(body, id, |block| {
        let all = block.boolean("All").unwrap_or_default();
        let groups = block.strings("Groups");
        match (all, groups.is_empty()) {
            (true, true) | (false, false) => {}
            (false, true) => block.fault("Groups", "is empty: name groups, or set All"),
            (true, false) => block.fault("Groups", "goes with All unset: name groups, or all"),
        }
        (!all).then_some(groups)
    })
}

/// Whether the body of `PUT /v1/deployment/pause/:id` requests a pause or its end.
///
/// # Errors
///
/// [`ReadJobError`] for malformed bodies.
pub fn read_pause(body: &[u8], id: &str) -> Result<bool, ReadJobError> {
    read(body, id, |block| {
        let pause = block.boolean("Pause");
        if pause.is_none() {
            block.fault("Pause", "is missing: true to pause, false to go on");
        }
        pause.unwrap_or_default()
    })
}

/// Checks that the body of `PUT /v1/deployment/fail/:id` is empty or names the deployment of its path.
///
/// # Errors
///
/// [`ReadJobError`] for malformed bodies.
pub fn read_fail(body: &[u8], id: &str) -> Result<(), ReadJobError> {
    if body.is_empty() {
        return Ok(());
    }
    read(body, id, |_| ())
}

/// The allocations that the body of `PUT /v1/deployment/allocation-health/:id` names.
///
/// # Errors
///
/// [`ReadJobError`] for malformed bodies and ids, and for a body that names no allocation.
pub fn read_health(body: &[u8], id: &str) -> Result<HealthRequest, ReadJobError> {
    const HEALTHY: &str = "HealthyAllocationIDs";
    const UNHEALTHY: &str = "UnhealthyAllocationIDs";
    read(body, id, |block| {
        let mut ids = |name| {
            let mut ids: Vec<AllocId> = Vec::new();
            for text in block.strings(name) {
                match text.parse() {
                    Ok(id) => ids.push(id),
                    Err(_) => block.fault(name, format!("`{text}` is not an allocation's id")),
                }
            }
            ids
        };
        let (healthy, unhealthy) = (ids(HEALTHY), ids(UNHEALTHY));
        if healthy.is_empty() && unhealthy.is_empty() {
            block.fault(HEALTHY, format!("names none, and {UNHEALTHY} neither"));
        }
        HealthRequest { healthy, unhealthy }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "18cc7616-1332-eafd-15e1-faa12301dd3e";

    #[test]
    fn a_promotion_is_of_all_or_of_some() {
        let groups = |body: &str| read_promote(body.as_bytes(), ID);

        assert_eq!(groups(r#"{"All":true}"#).unwrap(), None);
        assert_eq!(
            groups(r#"{"Groups":["g"],"DeploymentID":"18cc7616-1332-eafd-15e1-faa12301dd3e"}"#)
                .unwrap(),
            Some(vec!["g".to_owned()])
        );
        assert!(groups("{}").is_err());
        assert!(groups(r#"{"All":true,"Groups":["g"]}"#).is_err());
    }

    #[test]
    fn a_body_may_not_name_another_deployment() {
        let error = read_fail(br#"{"DeploymentID":"other"}"#, ID).unwrap_err();

        assert!(error.to_string().contains("does not match"), "{error}");
        assert!(read_fail(b"", ID).is_ok());
        assert!(read_fail(b"{}", ID).is_ok());
    }

    #[test]
    fn health_is_about_allocations() {
        let read = |body: &str| read_health(body.as_bytes(), ID);
        let both = format!(r#"{{"HealthyAllocationIDs":["{ID}"],"UnhealthyAllocationIDs":null}}"#);

        assert_eq!(read(&both).unwrap().healthy.len(), 1);
        assert!(read("{}").is_err());
        assert!(
            read(r#"{"UnhealthyAllocationIDs":["web"]}"#)
                .unwrap_err()
                .to_string()
                .contains("`web`")
        );
    }

    #[test]
    fn pause_must_be_true_or_false() {
        assert!(read_pause(br#"{"Pause":true}"#, ID).unwrap());
        assert!(!read_pause(br#"{"Pause":false}"#, ID).unwrap());
        assert!(read_pause(b"{}", ID).is_err());
    }
}
