//! Deployments.

#![expect(missing_docs, reason = "fields carry Nomad's names and meaning")]

use std::collections::BTreeMap;

use muster_domain::deployment as domain;
use serde::{Deserialize, Serialize};

use crate::api::null;
use crate::api::time::Rfc3339;

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
    /// By name.
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
            status: status.word().to_owned(),
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
