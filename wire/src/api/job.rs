//! Jobs: the JSON form of a job file, its versions, and the answers to registering one.
//!
//! [`request`] reads what users send; the structs here are what is answered. A job that was read can be
//! sent back unchanged: what the server derives is ignored on the way in.

#![expect(missing_docs, reason = "fields carry Nomad's names and meaning")]

pub mod request;
mod summary;

use std::collections::BTreeMap;

use muster_domain::job as domain;
use muster_domain::job::DEFAULT_REGION;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::duration::nanos;
use crate::api::null::{self, Null};
use crate::api::resources::{Network, Port, Resources};

pub use summary::{Children, GroupSummary, JobListStub, JobSummary};

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
    pub affinities: Null,
    pub spreads: Null,
    #[serde(with = "null")]
    pub task_groups: Vec<TaskGroup>,
    pub update: Null,
    pub multiregion: Null,
    pub periodic: Null,
    pub parameterized_job: Null,
    pub dispatched: bool,
    pub payload: Null,
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
    /// Nanoseconds since the epoch.
    pub submit_time: u64,
    pub create_index: u64,
    pub modify_index: u64,
    pub job_modify_index: u64,
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
            constraints,
            meta,
            groups,
        } = spec;
        Self {
            region: DEFAULT_REGION.to_owned(),
            namespace: namespace.clone(),
            id: id.clone(),
            name: name.clone(),
            job_type: job_type.word().to_owned(),
            priority: *priority,
            datacenters: datacenters.clone(),
            node_pool: node_pool.clone(),
            constraints: constraints.iter().map(Constraint::from).collect(),
            task_groups: groups.iter().map(TaskGroup::from).collect(),
            meta: meta.clone(),
            ..Self::default()
        }
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
            status: job.status.word().to_owned(),
            modify_index: job.modify_index.0,
            ..Self::from_version(&job.current)
        }
    }
}

/// A condition on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Constraint {
    #[serde(rename = "LTarget")]
    pub left: String,
    #[serde(rename = "RTarget")]
    pub right: String,
    pub operand: String,
}

impl From<&domain::Constraint> for Constraint {
    fn from(constraint: &domain::Constraint) -> Self {
        Self {
            left: constraint.left.clone(),
            right: constraint.right.clone(),
            operand: constraint.operand.word().to_owned(),
        }
    }
}

/// Tasks that are placed together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TaskGroup {
    pub name: String,
    pub count: u32,
    pub update: Null,
    pub migrate: Null,
    #[serde(with = "null")]
    pub constraints: Vec<Constraint>,
    pub scaling: Null,
    pub restart_policy: Option<RestartPolicy>,
    #[serde(with = "null")]
    pub tasks: Vec<Task>,
    pub ephemeral_disk: Option<EphemeralDisk>,
    #[serde(with = "null")]
    pub meta: BTreeMap<String, String>,
    pub reschedule_policy: Null,
    pub affinities: Null,
    pub spreads: Null,
    #[serde(with = "null")]
    pub networks: Vec<Network>,
    pub consul: Null,
    pub services: Null,
    pub volumes: Null,
    pub shutdown_delay: Null,
    pub stop_after_client_disconnect: Null,
}

impl From<&domain::TaskGroup> for TaskGroup {
    fn from(group: &domain::TaskGroup) -> Self {
        let domain::TaskGroup {
            name,
            count,
            constraints,
            restart,
            ephemeral_disk,
            network,
            meta,
            tasks,
        } = group;
        let restart = RestartPolicy::from(restart);
        Self {
            name: name.clone(),
            count: *count,
            constraints: constraints.iter().map(Constraint::from).collect(),
            tasks: tasks.iter().map(|task| Task::new(task, &restart)).collect(),
            restart_policy: Some(restart),
            ephemeral_disk: Some(EphemeralDisk {
                size_mb: ephemeral_disk.size.0,
                ..EphemeralDisk::default()
            }),
            meta: meta.clone(),
            networks: network.iter().map(asked_network).collect(),
            ..Self::default()
        }
    }
}

fn asked_network(network: &domain::GroupNetwork) -> Network {
    let domain::GroupNetwork { mode, ports } = network;
    let mode = match mode {
        domain::NetworkMode::Host => "host",
    };
    let (fixed, dynamic): (Vec<_>, Vec<_>) = ports.iter().partition(|port| port.fixed.is_some());
    let shape = |port: &domain::PortAsk| Port {
        label: port.label.clone(),
        value: port.fixed.unwrap_or(0),
        to: i32::from(port.to),
        host_network: String::new(),
    };
    Network {
        mode: mode.to_owned(),
        reserved_ports: fixed.into_iter().map(shape).collect(),
        dynamic_ports: dynamic.into_iter().map(shape).collect(),
        ..Network::default()
    }
}

/// What happens when a task ends by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RestartPolicy {
    pub attempts: u32,
    /// Nanoseconds.
    pub interval: i64,
    /// Nanoseconds.
    pub delay: i64,
    pub mode: String,
}

impl From<&domain::RestartPolicy> for RestartPolicy {
    fn from(policy: &domain::RestartPolicy) -> Self {
        Self {
            attempts: policy.attempts,
            interval: nanos(policy.interval),
            delay: nanos(policy.delay),
            mode: policy.mode.word().to_owned(),
        }
    }
}

/// Disk shared by a group's tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct EphemeralDisk {
    pub sticky: bool,
    #[serde(rename = "SizeMB")]
    pub size_mb: u32,
    pub migrate: bool,
}

/// One process tree.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Task {
    pub name: String,
    pub driver: String,
    pub user: String,
    pub config: Value,
    #[serde(with = "null")]
    pub env: BTreeMap<String, String>,
    pub services: Null,
    pub vault: Null,
    pub templates: Null,
    #[serde(with = "null")]
    pub constraints: Vec<Constraint>,
    pub affinities: Null,
    pub resources: Option<Resources>,
    pub restart_policy: Option<RestartPolicy>,
    pub dispatch_payload: Null,
    pub lifecycle: Null,
    #[serde(with = "null")]
    pub meta: BTreeMap<String, String>,
    /// Nanoseconds.
    pub kill_timeout: i64,
    pub log_config: Option<LogConfig>,
    pub artifacts: Null,
    pub leader: bool,
    pub shutdown_delay: i64,
    pub volume_mounts: Null,
    pub scaling_policies: Null,
    pub kill_signal: String,
    pub kind: String,
    #[serde(rename = "CSIPluginConfig")]
    pub csi_plugin_config: Null,
}

impl Task {
    fn new(task: &domain::Task, restart: &RestartPolicy) -> Self {
        let domain::Task {
            name,
            driver,
            config_json,
            user,
            env,
            resources,
            constraints,
            kill_timeout,
            kill_signal,
            logs,
            meta,
        } = task;
        Self {
            name: name.clone(),
            driver: driver.clone(),
            user: user.clone(),
            config: serde_json::from_str(config_json).unwrap_or_default(),
            env: env.clone(),
            constraints: constraints.iter().map(Constraint::from).collect(),
            resources: Some(Resources::from(resources)),
            restart_policy: Some(restart.clone()),
            meta: meta.clone(),
            kill_timeout: nanos(*kill_timeout),
            log_config: Some(LogConfig {
                max_files: logs.max_files,
                max_file_size_mb: logs.max_file_size.0,
            }),
            kill_signal: kill_signal.clone(),
            ..Self::default()
        }
    }
}

/// Rotation of a task's output.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct LogConfig {
    pub max_files: u32,
    #[serde(rename = "MaxFileSizeMB")]
    pub max_file_size_mb: u32,
}

/// What `PUT /v1/jobs` takes.
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
    /// For people, one a line; empty if there is nothing to say.
    pub warnings: String,
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
    /// Newest first.
    pub versions: Vec<Job>,
    pub diffs: Null,
    pub index: u64,
    pub last_contact: u64,
    pub known_leader: bool,
}

#[cfg(test)]
mod tests;
