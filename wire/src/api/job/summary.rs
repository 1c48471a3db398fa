//! Jobs in a list, and counts of their instances by status.

use std::collections::BTreeMap;

use muster_domain::id::LogIndex;
use muster_domain::job::Job;
use serde::{Deserialize, Serialize};

use crate::api::null::{self, Null};

/// A job in `GET /v1/jobs`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JobListStub {
    #[serde(rename = "ID")]
    pub id: String,
    #[serde(rename = "ParentID")]
    pub parent_id: String,
    pub name: String,
    pub namespace: String,
    #[serde(with = "null")]
    pub datacenters: Vec<String>,
    pub node_pool: String,
    pub multiregion: Null,
    #[serde(rename = "Type")]
    pub job_type: String,
    pub priority: u8,
    pub periodic: bool,
    pub parameterized_job: bool,
    pub stop: bool,
    pub status: String,
    pub status_description: String,
    pub job_summary: JobSummary,
    pub create_index: u64,
    pub modify_index: u64,
    pub job_modify_index: u64,
    /// Nanoseconds since the epoch.
    pub submit_time: u64,
    /// The metadata; only with the parameter `meta`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meta: Option<BTreeMap<String, String>>,
}

impl JobListStub {
    /// `job` with its summary.
    #[must_use]
    pub fn new(job: &Job, job_summary: JobSummary) -> Self {
        let spec = &job.current.spec;
        Self {
            id: spec.id.clone(),
            parent_id: spec
                .launched
                .as_ref()
                .map(|launched| launched.parent_id.clone())
                .unwrap_or_default(),
            periodic: spec.periodic.is_some(),
            parameterized_job: spec.parameterized.is_some(),
            name: spec.name.clone(),
            namespace: spec.namespace.clone(),
            datacenters: spec.datacenters.clone(),
            node_pool: spec.node_pool.clone(),
            job_type: spec.job_type.as_str().to_owned(),
            priority: spec.priority,
            stop: job.stop,
            status: job.status.as_str().to_owned(),
            job_summary,
            create_index: job.current.create_index.0,
            modify_index: job.modify_index.0,
            job_modify_index: job.current.job_modify_index.0,
            submit_time: job.current.submit_time.0,
            ..Self::default()
        }
    }
}

/// Counts of a job's instances by state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JobSummary {
    #[serde(rename = "JobID")]
    pub job_id: String,
    pub namespace: String,
    pub summary: BTreeMap<String, GroupSummary>,
    pub children: Children,
    pub create_index: u64,
    pub modify_index: u64,
}

impl JobSummary {
    /// The summary of `job`: instances by group and status, and the number of queued instances.
    #[must_use]
    pub fn new(
        job: &Job,
        counted: BTreeMap<String, GroupSummary>,
        queued: &[(String, u32)],
        modify_index: LogIndex,
    ) -> Self {
        let spec = &job.current.spec;
        let mut summary = counted;
        for group in &spec.groups {
            summary.entry(group.name.clone()).or_default();
        }
        for (group, waiting) in queued {
            summary.entry(group.clone()).or_default().queued = *waiting;
        }
        Self {
            job_id: spec.id.clone(),
            namespace: spec.namespace.clone(),
            summary,
            children: Children::default(),
            create_index: job.current.create_index.0,
            modify_index: modify_index.max(job.modify_index).0,
        }
    }
}

/// Counts of a group's instances by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct GroupSummary {
    pub queued: u32,
    pub complete: u32,
    pub failed: u32,
    pub running: u32,
    pub starting: u32,
    pub lost: u32,
    pub unknown: u32,
}

/// Counts of a job's dispatched or periodic children by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Children {
    pub pending: u32,
    pub running: u32,
    pub dead: u32,
}
