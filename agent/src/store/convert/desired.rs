//! Desired allocations of formats 1 to 3, whose jobs have no network policies.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_domain::alloc::{ClientStatus, DesiredAlloc, DesiredStatus};
use muster_domain::id::{AllocId, DeploymentId, LogIndex, Timestamp};
use muster_domain::job::{
    Affinity, Constraint, Disconnect, EphemeralDisk, GroupNetwork, JobSpec, JobType, JobVersion,
    Launched, Lifecycle, LogConfig, MigrateStrategy, NetworkMode, Parameterized, Periodic, PortAsk,
    ReschedulePolicy, RestartPolicy, Scaling, Spread, Task, TaskGroup, UpdateStrategy, VolumeAsks,
    VolumeMount,
};
use muster_domain::resources::{Holding, TaskResources};
use serde::Deserialize;

/// A desired allocation.
#[derive(Debug, Deserialize)]
pub(in crate::store) struct DesiredAllocOf3 {
    alloc_id: AllocId,
    alloc_modify_index: LogIndex,
    desired: DesiredStatus,
    name_index: u32,
    group_at: u16,
    holding: Holding,
    deployment: Option<DeploymentId>,
    canary: bool,
    previous: Option<AllocId>,
    client_status: ClientStatus,
    job: JobVersionOf3,
}

impl From<DesiredAllocOf3> for DesiredAlloc {
    fn from(old: DesiredAllocOf3) -> Self {
        let DesiredAllocOf3 {
            alloc_id,
            alloc_modify_index,
            desired,
            name_index,
            group_at,
            holding,
            deployment,
            canary,
            previous,
            client_status,
            job,
        } = old;
        Self {
            alloc_id,
            alloc_modify_index,
            desired,
            name_index,
            group_at,
            holding,
            deployment,
            canary,
            previous,
            client_status,
            job: Arc::new(job.into()),
        }
    }
}

/// Its job.
#[derive(Debug, Deserialize)]
struct JobVersionOf3 {
    spec: JobSpecOf3,
    version: u64,
    submit_time: Timestamp,
    create_index: LogIndex,
    job_modify_index: LogIndex,
}

impl From<JobVersionOf3> for JobVersion {
    fn from(old: JobVersionOf3) -> Self {
        let JobVersionOf3 {
            spec,
            version,
            submit_time,
            create_index,
            job_modify_index,
        } = old;
        Self {
            spec: spec.into(),
            version,
            submit_time,
            create_index,
            job_modify_index,
        }
    }
}

/// What the job is.
#[derive(Debug, Deserialize)]
struct JobSpecOf3 {
    namespace: String,
    id: String,
    name: String,
    job_type: JobType,
    priority: u8,
    datacenters: Vec<String>,
    node_pool: String,
    all_at_once: bool,
    constraints: Vec<Constraint>,
    affinities: Vec<Affinity>,
    spreads: Vec<Spread>,
    periodic: Option<Periodic>,
    parameterized: Option<Parameterized>,
    launched: Option<Launched>,
    meta: BTreeMap<String, String>,
    groups: Vec<TaskGroupOf3>,
}

impl From<JobSpecOf3> for JobSpec {
    fn from(old: JobSpecOf3) -> Self {
        let JobSpecOf3 {
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
        } = old;
        Self {
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
            groups: groups.into_iter().map(TaskGroup::from).collect(),
        }
    }
}

/// A group of it.
#[derive(Debug, Deserialize)]
struct TaskGroupOf3 {
    name: String,
    count: u32,
    constraints: Vec<Constraint>,
    affinities: Vec<Affinity>,
    spreads: Vec<Spread>,
    restart: RestartPolicy,
    reschedule: ReschedulePolicy,
    update: Option<UpdateStrategy>,
    migrate: Option<MigrateStrategy>,
    disconnect: Disconnect,
    scaling: Option<Scaling>,
    volumes: VolumeAsks,
    shutdown_delay: Duration,
    ephemeral_disk: EphemeralDisk,
    network: Option<GroupNetworkOf3>,
    meta: BTreeMap<String, String>,
    tasks: Vec<TaskOf3>,
}

impl From<TaskGroupOf3> for TaskGroup {
    fn from(old: TaskGroupOf3) -> Self {
        let TaskGroupOf3 {
            name,
            count,
            constraints,
            affinities,
            spreads,
            restart,
            reschedule,
            update,
            migrate,
            disconnect,
            scaling,
            volumes,
            shutdown_delay,
            ephemeral_disk,
            network,
            meta,
            tasks,
        } = old;
        Self {
            name,
            count,
            constraints,
            affinities,
            spreads,
            restart,
            reschedule,
            update,
            migrate,
            disconnect,
            scaling,
            volumes,
            shutdown_delay,
            ephemeral_disk,
            network: network.map(GroupNetwork::from),
            meta,
            tasks: tasks.into_iter().map(Task::from).collect(),
        }
    }
}

/// The group's network.
#[derive(Debug, Deserialize)]
struct GroupNetworkOf3 {
    mode: NetworkMode,
    ports: Vec<PortAsk>,
}

impl From<GroupNetworkOf3> for GroupNetwork {
    fn from(old: GroupNetworkOf3) -> Self {
        let GroupNetworkOf3 { mode, ports } = old;
        Self {
            mode,
            ports,
            policy: None,
        }
    }
}

/// A task of it.
#[derive(Debug, Deserialize)]
struct TaskOf3 {
    name: String,
    driver: String,
    config_json: String,
    user: String,
    env: BTreeMap<String, String>,
    resources: TaskResources,
    constraints: Vec<Constraint>,
    affinities: Vec<Affinity>,
    restart: RestartPolicy,
    lifecycle: Option<Lifecycle>,
    leader: bool,
    payload_file: String,
    volume_mounts: Vec<VolumeMount>,
    shutdown_delay: Duration,
    kill_timeout: Duration,
    kill_signal: String,
    logs: LogConfig,
    meta: BTreeMap<String, String>,
}

impl From<TaskOf3> for Task {
    fn from(old: TaskOf3) -> Self {
        let TaskOf3 {
            name,
            driver,
            config_json,
            user,
            env,
            resources,
            constraints,
            affinities,
            restart,
            lifecycle,
            leader,
            payload_file,
            volume_mounts,
            shutdown_delay,
            kill_timeout,
            kill_signal,
            logs,
            meta,
        } = old;
        Self {
            name,
            driver,
            config_json,
            user,
            env,
            resources,
            constraints,
            affinities,
            restart,
            lifecycle,
            leader,
            payload_file,
            volume_mounts,
            shutdown_delay,
            kill_timeout,
            kill_signal,
            logs,
            meta,
            policy: None,
        }
    }
}
