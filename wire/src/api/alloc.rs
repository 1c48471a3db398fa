//! Allocations, whole and in lists.

mod metric;
mod signal;
mod task;

use std::collections::BTreeMap;

use muster_domain::alloc as domain;
use muster_domain::saturating;
use serde::{Deserialize, Serialize};

use crate::api::job::Job;
use crate::api::job::table::BlockForm;
use crate::api::null;
use crate::api::resources::{AllocatedResources, Dns, Resources};
use crate::api::route::Route;

pub use metric::{Metric, NodeScoreMeta};
pub use signal::{SignalRequest, read_signal, read_stop};
pub use task::{TaskEvent, TaskState};

/// Routes of allocations.
pub const ROUTES: &[Route] = &[
    Route::read("/v1/allocations"),
    Route::read("/v1/allocation/{alloc_id}"),
    Route::write("/v1/allocation/{alloc_id}/stop"),
    Route::read("/v1/client/allocation/{alloc_id}/checks"),
    Route::write("/v1/client/allocation/{alloc_id}/signal"),
];

/// The node of an allocation, as a response shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeRef {
    pub name: String,
    /// The address at which the allocation's ports are reachable.
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
    pub deployment_status: Option<DeploymentStatus>,
    #[serde(rename = "FollowupEvalID")]
    pub followup_eval_id: String,
    pub previous_allocation: String,
    pub next_allocation: String,
    pub reschedule_tracker: Option<RescheduleTracker>,
    /// The address of the allocation in its CNI network, once it has one.
    pub network_status: Option<NetworkStatus>,
    #[serde(with = "null")]
    pub preempted_allocations: Vec<String>,
    pub preempted_by_allocation: String,
    pub create_index: u64,
    pub modify_index: u64,
    pub alloc_modify_index: u64,
    /// Nanoseconds since the epoch.
    pub create_time: u64,
    /// Nanoseconds since the epoch.
    pub modify_time: u64,
    /// The garbage collection of the row by the servers. A Muster field, only in the response for a single allocation.
    pub garbage_collection: Option<GarbageCollection>,
}

/// Whether and when the servers forget an allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct GarbageCollection {
    /// Whether the next collection deletes the row.
    pub eligible: bool,
    /// The time from which the row can be deleted, if nothing else changes: nanoseconds since the epoch. 0: something
    /// else must change first.
    pub eligible_at: u64,
    /// The reason to keep the row until then, as in metrics; empty if it is eligible.
    pub kept: String,
    /// The reason as a sentence.
    pub reason: String,
}

impl Allocation {
    /// `alloc` on `node`.
    #[must_use]
    pub fn new(alloc: &domain::Allocation, node: &NodeRef) -> Self {
        let group = alloc.group();
        let ask = Resources::from(group.ask());
        let held = AllocatedResources::new(group, &alloc.holding, &node.ip);
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
                .map(|task| (task.name.clone(), Resources::write_block(&task.resources)))
                .collect(),
            allocated_resources: Some(held),
            metrics: Some(Metric::of_alloc(alloc)),
            desired_status: alloc.desired.as_str().to_owned(),
            desired_description: alloc.desired_description.clone(),
            client_status: alloc.client_status.as_str().to_owned(),
            client_description: alloc.client_description.clone(),
            task_states: states(alloc),
            network_status: NetworkStatus::of(alloc),
            deployment_id: text(alloc.deployment),
            previous_allocation: alloc.previous.map(|id| id.to_string()).unwrap_or_default(),
            desired_transition: DesiredTransition::from(alloc.transition),
            deployment_status: DeploymentStatus::of(alloc),
            followup_eval_id: text(alloc.follow_up),
            reschedule_tracker: RescheduleTracker::of(alloc),
            preempted_allocations: alloc.preempted.iter().map(ToString::to_string).collect(),
            preempted_by_allocation: text(alloc.preempted_by),
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
    /// The held resources; only with `?resources=true`.
    pub allocated_resources: Option<AllocatedResources>,
    pub desired_status: String,
    pub desired_description: String,
    pub client_status: String,
    pub client_description: String,
    pub desired_transition: DesiredTransition,
    pub task_states: BTreeMap<String, TaskState>,
    pub deployment_status: Option<DeploymentStatus>,
    #[serde(rename = "FollowupEvalID")]
    pub followup_eval_id: String,
    pub next_allocation: String,
    pub reschedule_tracker: Option<RescheduleTracker>,
    #[serde(with = "null")]
    pub preempted_allocations: Vec<String>,
    pub preempted_by_allocation: String,
    pub create_index: u64,
    pub modify_index: u64,
    /// Nanoseconds since the epoch.
    pub create_time: u64,
    /// Nanoseconds since the epoch.
    pub modify_time: u64,
}

impl AllocListStub {
    /// Converts `alloc` on `node`, with its resources if `resources` is set.
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
            job_type: alloc.job.spec.job_type.as_str().to_owned(),
            job_version: alloc.job.version,
            task_group: alloc.group().name.clone(),
            allocated_resources: resources
                .then(|| AllocatedResources::new(alloc.group(), &alloc.holding, &node.ip)),
            desired_status: alloc.desired.as_str().to_owned(),
            desired_description: alloc.desired_description.clone(),
            client_status: alloc.client_status.as_str().to_owned(),
            client_description: alloc.client_description.clone(),
            task_states: states(alloc),
            desired_transition: DesiredTransition::from(alloc.transition),
            deployment_status: DeploymentStatus::of(alloc),
            followup_eval_id: text(alloc.follow_up),
            reschedule_tracker: RescheduleTracker::of(alloc),
            preempted_allocations: alloc.preempted.iter().map(ToString::to_string).collect(),
            preempted_by_allocation: text(alloc.preempted_by),
            next_allocation: alloc.next.map(|id| id.to_string()).unwrap_or_default(),
            create_index: alloc.create_index.0,
            modify_index: alloc.modify_index.0,
            create_time: alloc.create_time.0,
            modify_time: alloc.modify_time.0,
        }
    }
}

/// The answer to `PUT /v1/allocation/:id/stop`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AllocStopResponse {
    /// The evaluation of the replacement.
    #[serde(rename = "EvalID")]
    pub eval_id: String,
    pub index: u64,
}

/// The address of an allocation in a network of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NetworkStatus {
    pub interface_name: String,
    pub address: String,
    /// The DNS settings from the job.
    #[serde(rename = "DNS")]
    pub dns: Option<Dns>,
}

impl NetworkStatus {
    fn of(alloc: &domain::Allocation) -> Option<Self> {
        let network = alloc.group().network.as_ref()?;
        network.mode.cni()?;
        let mut networks = alloc.task_states.iter().flat_map(|task| &task.network);
        Some(Self {
            interface_name: "eth0".to_owned(),
            address: networks.next()?.address.clone(),
            dns: network.dns.as_ref().map(Dns::write_block),
        })
    }
}

/// An id, or nothing.
fn text(id: Option<impl ToString>) -> String {
    id.map(|id| id.to_string()).unwrap_or_default()
}

/// The requested transitions of an allocation; `null` for each that was not requested.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DesiredTransition {
    pub migrate: Option<bool>,
    pub reschedule: Option<bool>,
    pub force_reschedule: Option<bool>,
}

impl From<domain::Transition> for DesiredTransition {
    fn from(transition: domain::Transition) -> Self {
        let domain::Transition {
            migrate,
            reschedule,
            force_reschedule,
        } = transition;
        let asked = |asked: bool| asked.then_some(true);
        Self {
            migrate: asked(migrate),
            reschedule: asked(reschedule),
            force_reschedule: asked(force_reschedule),
        }
    }
}

/// An allocation's part in its deployment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DeploymentStatus {
    /// `null`: not known yet.
    pub healthy: Option<bool>,
    pub canary: bool,
    pub modify_index: u64,
}

impl DeploymentStatus {
    fn of(alloc: &domain::Allocation) -> Option<Self> {
        (alloc.healthy.is_some() || alloc.canary).then_some(Self {
            healthy: alloc.healthy,
            canary: alloc.canary,
            modify_index: alloc.modify_index.0,
        })
    }
}

/// Earlier replacements in the same row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RescheduleTracker {
    pub events: Vec<RescheduleEvent>,
}

/// A replacement of an instance that failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RescheduleEvent {
    /// Nanoseconds since the epoch.
    pub reschedule_time: u64,
    #[serde(rename = "PrevAllocID")]
    pub prev_alloc_id: String,
    #[serde(rename = "PrevNodeID")]
    pub prev_node_id: String,
    /// Nanoseconds.
    pub delay: u64,
}

impl RescheduleTracker {
    fn of(alloc: &domain::Allocation) -> Option<Self> {
        let events: Vec<RescheduleEvent> = alloc
            .reschedules
            .iter()
            .map(|event| RescheduleEvent {
                reschedule_time: event.at.0,
                prev_alloc_id: event.previous.to_string(),
                prev_node_id: event.previous_node.to_string(),
                delay: saturating::nanos(event.delay),
            })
            .collect();
        (!events.is_empty()).then_some(Self { events })
    }
}
