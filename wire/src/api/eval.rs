//! Evaluations.

#![expect(missing_docs, reason = "fields carry Nomad's names and meaning")]

use std::collections::BTreeMap;

use muster_domain::eval as domain;
use serde::{Deserialize, Serialize};

use crate::api::alloc::Metric;
use crate::api::route::Route;
use crate::api::time::Rfc3339;

/// Routes of evaluations.
pub const ROUTES: &[Route] = &[
    Route::read("/v1/evaluations"),
    Route::read("/v1/evaluation/{eval_id}"),
    Route::read("/v1/evaluation/{eval_id}/allocations"),
];

/// An evaluation. Empty fields are left out, as in Nomad.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Evaluation {
    #[serde(rename = "ID")]
    pub id: String,
    pub namespace: String,
    pub priority: u8,
    #[serde(rename = "Type")]
    pub job_type: String,
    pub triggered_by: String,
    #[serde(rename = "JobID")]
    pub job_id: String,
    #[serde(skip_serializing_if = "is_zero")]
    pub job_modify_index: u64,
    #[serde(rename = "NodeID", skip_serializing_if = "String::is_empty")]
    pub node_id: String,
    #[serde(rename = "DeploymentID", skip_serializing_if = "String::is_empty")]
    pub deployment_id: String,
    pub status: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub status_description: String,
    /// The earliest time of processing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_until: Option<Rfc3339>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub next_eval: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub previous_eval: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub blocked_eval: String,
    /// Metrics of the instances that could not be placed, by group.
    #[serde(rename = "FailedTGAllocs", skip_serializing_if = "BTreeMap::is_empty")]
    pub failed_tg_allocs: BTreeMap<String, Metric>,
    /// Instances that wait, by group.
    pub queued_allocations: BTreeMap<String, u32>,
    pub snapshot_index: u64,
    pub create_index: u64,
    pub modify_index: u64,
    /// Nanoseconds since the epoch.
    pub create_time: u64,
    /// Nanoseconds since the epoch.
    pub modify_time: u64,
    /// Evaluations that led to this one or follow from it. Only with the parameter `related`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub related_evals: Option<Vec<Self>>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl From<&domain::Evaluation> for Evaluation {
    fn from(eval: &domain::Evaluation) -> Self {
        let domain::Evaluation {
            id,
            job,
            job_type,
            priority,
            trigger,
            node_id,
            deployment,
            wait_until,
            status,
            status_description,
            previous,
            blocked,
            failed_groups,
            queued,
            job_modify_index,
            snapshot_index,
            create_index,
            modify_index,
            create_time,
            modify_time,
        } = eval;
        let failed = failed_groups.iter().map(|failed| {
            let mut metric = Metric::from(&*failed.metrics);
            metric.coalesced_failures = failed.count.saturating_sub(1);
            (failed.group.clone(), metric)
        });
        Self {
            id: id.to_string(),
            namespace: job.namespace.clone(),
            priority: *priority,
            job_type: job_type.as_str().to_owned(),
            triggered_by: trigger.as_str().to_owned(),
            job_id: job.job_id.clone(),
            job_modify_index: job_modify_index.0,
            node_id: node_id.map(|id| id.to_string()).unwrap_or_default(),
            deployment_id: deployment.map(|id| id.to_string()).unwrap_or_default(),
            status: status.as_str().to_owned(),
            status_description: status_description.clone(),
            wait_until: Some(Rfc3339(*wait_until)).filter(|at| *at != Rfc3339::default()),
            next_eval: String::new(),
            previous_eval: previous.map(|id| id.to_string()).unwrap_or_default(),
            blocked_eval: blocked.map(|id| id.to_string()).unwrap_or_default(),
            failed_tg_allocs: failed.collect(),
            queued_allocations: queued.iter().cloned().collect(),
            snapshot_index: snapshot_index.0,
            create_index: create_index.0,
            modify_index: modify_index.0,
            create_time: create_time.0,
            modify_time: modify_time.0,
            related_evals: None,
        }
    }
}
