//! Allocations, whole and in lists.

#![expect(missing_docs, reason = "fields carry Nomad's names and meaning")]

mod metric;
mod task;

use std::collections::BTreeMap;

use muster_domain::alloc as domain;
use serde::{Deserialize, Serialize};

use crate::api::job::Job;
use crate::api::null::Null;
use crate::api::resources::{AllocatedResources, Resources};

pub use metric::{Metric, NodeScoreMeta};
pub use task::{TaskEvent, TaskState};

/// What of an allocation is about its node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeRef {
    /// The node's name.
    pub name: String,
    /// The address on which its ports are reached.
    pub ip: String,
}

/// An allocation as `GET /v1/allocation/:id` answers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Allocation {
    #[serde(rename = "ID")]
    pub id: String,
    pub namespace: String,
    #[serde(rename = "EvalID")]
    pub eval_id: String,
    pub name: String,
    #[serde(rename = "NodeID")]
    pub node_id: String,
    pub node_name: String,
    #[serde(rename = "JobID")]
    pub job_id: String,
    pub job: Option<Job>,
    pub task_group: String,
    pub resources: Resources,
    pub shared_resources: Resources,
    pub task_resources: BTreeMap<String, Resources>,
    pub allocated_resources: Option<AllocatedResources>,
    pub metrics: Option<Metric>,
    pub desired_status: String,
    pub desired_description: String,
    pub desired_transition: DesiredTransition,
    pub client_status: String,
    pub client_description: String,
    pub task_states: BTreeMap<String, TaskState>,
    #[serde(rename = "DeploymentID")]
    pub deployment_id: String,
    pub deployment_status: Null,
    #[serde(rename = "FollowupEvalID")]
    pub followup_eval_id: String,
    pub previous_allocation: String,
    pub next_allocation: String,
    pub reschedule_tracker: Null,
    pub network_status: Null,
    pub preempted_allocations: Null,
    pub preempted_by_allocation: String,
    pub create_index: u64,
    pub modify_index: u64,
    pub alloc_modify_index: u64,
    /// Nanoseconds since the epoch.
    pub create_time: u64,
    /// Nanoseconds since the epoch.
    pub modify_time: u64,
}

impl Allocation {
    /// `alloc` on `node`.
    #[must_use]
    pub fn new(alloc: &domain::Allocation, node: &NodeRef) -> Self {
        let group = alloc.group();
        let ask = Resources::from(group.ask());
        let held = AllocatedResources::new(group, &alloc.ports, &node.ip);
        Self {
            id: alloc.id.to_string(),
            namespace: alloc.job.spec.namespace.clone(),
            eval_id: alloc.eval_id.to_string(),
            name: alloc.name(),
            node_id: alloc.node_id.to_string(),
            node_name: node.name.clone(),
            job_id: alloc.job.spec.id.clone(),
            job: Some(Job::from_version(&alloc.job)),
            task_group: group.name.clone(),
            shared_resources: Resources {
                disk_mb: ask.disk_mb,
                ..Resources::default()
            },
            resources: Resources {
                networks: held.shared.networks.clone(),
                ..ask
            },
            task_resources: group
                .tasks
                .iter()
                .map(|task| (task.name.clone(), Resources::from(&task.resources)))
                .collect(),
            allocated_resources: Some(held),
            metrics: Some(Metric::of_alloc(alloc)),
            desired_status: alloc.desired.word().to_owned(),
            desired_description: alloc.desired_description.clone(),
            client_status: alloc.client_status.word().to_owned(),
            client_description: alloc.client_description.clone(),
            task_states: states(alloc),
            previous_allocation: alloc.previous.map(|id| id.to_string()).unwrap_or_default(),
            next_allocation: alloc.next.map(|id| id.to_string()).unwrap_or_default(),
            create_index: alloc.create_index.0,
            modify_index: alloc.modify_index.0,
            alloc_modify_index: alloc.alloc_modify_index.0,
            create_time: alloc.create_time.0,
            modify_time: alloc.modify_time.0,
            ..Self::default()
        }
    }
}

fn states(alloc: &domain::Allocation) -> BTreeMap<String, TaskState> {
    alloc
        .task_states
        .iter()
        .map(|state| (state.name.clone(), TaskState::from(state)))
        .collect()
}

/// An allocation in a list.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AllocListStub {
    #[serde(rename = "ID")]
    pub id: String,
    #[serde(rename = "EvalID")]
    pub eval_id: String,
    pub name: String,
    pub namespace: String,
    #[serde(rename = "NodeID")]
    pub node_id: String,
    pub node_name: String,
    #[serde(rename = "JobID")]
    pub job_id: String,
    pub job_type: String,
    pub job_version: u64,
    pub task_group: String,
    /// Only with `?resources=true`.
    pub allocated_resources: Option<AllocatedResources>,
    pub desired_status: String,
    pub desired_description: String,
    pub client_status: String,
    pub client_description: String,
    pub desired_transition: DesiredTransition,
    pub task_states: BTreeMap<String, TaskState>,
    pub deployment_status: Null,
    #[serde(rename = "FollowupEvalID")]
    pub followup_eval_id: String,
    pub next_allocation: String,
    pub reschedule_tracker: Null,
    pub preempted_allocations: Null,
    pub preempted_by_allocation: String,
    pub create_index: u64,
    pub modify_index: u64,
    /// Nanoseconds since the epoch.
    pub create_time: u64,
    /// Nanoseconds since the epoch.
    pub modify_time: u64,
}

impl AllocListStub {
    /// `alloc` on `node`, with what it holds if `resources`.
    #[must_use]
    pub fn new(alloc: &domain::Allocation, node: &NodeRef, resources: bool) -> Self {
        Self {
            id: alloc.id.to_string(),
            eval_id: alloc.eval_id.to_string(),
            name: alloc.name(),
            namespace: alloc.job.spec.namespace.clone(),
            node_id: alloc.node_id.to_string(),
            node_name: node.name.clone(),
            job_id: alloc.job.spec.id.clone(),
            job_type: alloc.job.spec.job_type.word().to_owned(),
            job_version: alloc.job.version,
            task_group: alloc.group().name.clone(),
            allocated_resources: resources
                .then(|| AllocatedResources::new(alloc.group(), &alloc.ports, &node.ip)),
            desired_status: alloc.desired.word().to_owned(),
            desired_description: alloc.desired_description.clone(),
            client_status: alloc.client_status.word().to_owned(),
            client_description: alloc.client_description.clone(),
            task_states: states(alloc),
            next_allocation: alloc.next.map(|id| id.to_string()).unwrap_or_default(),
            create_index: alloc.create_index.0,
            modify_index: alloc.modify_index.0,
            create_time: alloc.create_time.0,
            modify_time: alloc.modify_time.0,
            ..Self::default()
        }
    }
}

/// What an operator asked of an allocation. Nothing can be asked yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DesiredTransition {
    pub migrate: Null,
    pub reschedule: Null,
    pub force_reschedule: Null,
}
