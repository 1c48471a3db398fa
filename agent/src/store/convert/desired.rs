//! Desired allocations of formats 1 to 5: the jobs of the first three have no network policies, those of the fourth
//! none with rates, and the logs of all of them are taken at any rate.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_domain::alloc::{ClientStatus, DesiredAlloc, DesiredStatus};
use muster_domain::id::{AllocId, DeploymentId, LogIndex, Timestamp};
use muster_domain::job::{
    Affinity, Constraint, DirectionPolicy, Disconnect, EphemeralDisk, GroupNetwork, JobSpec,
    JobType, JobVersion, Launched, Lifecycle, LogConfig, LogOverflow, MigrateStrategy, NetworkMode,
    NetworkPolicy, Parameterized, Periodic, PolicyAction, PolicyRule, PortAsk, ReschedulePolicy,
    RestartPolicy, Scaling, Spread, Task, TaskGroup, UpdateStrategy, VolumeAsks, VolumeMount,
};
use muster_domain::resources::{Holding, Mb, TaskResources};
use serde::Deserialize;

/// Of formats 1 to 3.
pub(in crate::store) type DesiredAllocOf3 =
    DesiredAllocWith<TaskGroupWith<GroupNetworkOf3, TaskOf3>>;

/// Of format 4.
pub(in crate::store) type DesiredAllocOf4 =
    DesiredAllocWith<TaskGroupWith<GroupNetworkOf4, TaskOf4>>;

/// Of format 5.
pub(in crate::store) type DesiredAllocOf5 = DesiredAllocWith<TaskGroupWith<GroupNetwork, TaskOf5>>;

/// A desired allocation.
#[derive(Debug, Deserialize)]
pub(in crate::store) struct DesiredAllocWith<Group> {
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
    job: JobVersionWith<Group>,
}

impl<Group: Into<TaskGroup>> From<DesiredAllocWith<Group>> for DesiredAlloc {
    fn from(old: DesiredAllocWith<Group>) -> Self {
        let DesiredAllocWith {
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
struct JobVersionWith<Group> {
    spec: JobSpecWith<Group>,
    version: u64,
    submit_time: Timestamp,
    create_index: LogIndex,
    job_modify_index: LogIndex,
}

impl<Group: Into<TaskGroup>> From<JobVersionWith<Group>> for JobVersion {
    fn from(old: JobVersionWith<Group>) -> Self {
        let JobVersionWith {
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
struct JobSpecWith<Group> {
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
    groups: Vec<Group>,
}

impl<Group: Into<TaskGroup>> From<JobSpecWith<Group>> for JobSpec {
    fn from(old: JobSpecWith<Group>) -> Self {
        let JobSpecWith {
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
            groups: groups.into_iter().map(Into::into).collect(),
        }
    }
}

/// A group of it.
#[derive(Debug, Deserialize)]
pub(in crate::store) struct TaskGroupWith<Network, Member> {
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
    network: Option<Network>,
    meta: BTreeMap<String, String>,
    tasks: Vec<Member>,
}

impl<Network: Into<GroupNetwork>, Member: Into<Task>> From<TaskGroupWith<Network, Member>>
    for TaskGroup
{
    fn from(old: TaskGroupWith<Network, Member>) -> Self {
        let TaskGroupWith {
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
            network: network.map(Into::into),
            meta,
            tasks: tasks.into_iter().map(Into::into).collect(),
        }
    }
}

/// The group's network.
#[derive(Debug, Deserialize)]
pub(in crate::store) struct GroupNetworkOf3 {
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
            dns: None,
        }
    }
}

/// A task of it.
#[derive(Debug, Deserialize)]
pub(in crate::store) struct TaskOf3 {
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
    logs: LogConfigOf5,
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
            logs: logs.into(),
            meta,
            policy: None,
        }
    }
}

/// The group's network in format 4: what was there before comes first.
#[derive(Debug, Deserialize)]
pub(in crate::store) struct GroupNetworkOf4 {
    before: GroupNetworkOf3,
    policy: Option<NetworkPolicyOf4>,
}

impl From<GroupNetworkOf4> for GroupNetwork {
    fn from(old: GroupNetworkOf4) -> Self {
        let GroupNetworkOf4 { before, policy } = old;
        Self {
            policy: policy.map(NetworkPolicy::from),
            ..before.into()
        }
    }
}

/// How its output is taken, up to format 5.
#[derive(Debug, Deserialize)]
struct LogConfigOf5 {
    max_files: u32,
    max_file_size: Mb,
}

impl From<LogConfigOf5> for LogConfig {
    fn from(old: LogConfigOf5) -> Self {
        let LogConfigOf5 {
            max_files,
            max_file_size,
        } = old;
        Self {
            max_files,
            max_file_size,
            rate: None,
            on_limit: LogOverflow::Block,
            on_full: LogOverflow::Block,
        }
    }
}

/// A task in format 4.
pub(in crate::store) type TaskOf4 = TaskWith<NetworkPolicyOf4>;

/// A task in format 5.
pub(in crate::store) type TaskOf5 = TaskWith<NetworkPolicy>;

/// A task in formats 4 and 5: what was there before comes first.
#[derive(Debug, Deserialize)]
pub(in crate::store) struct TaskWith<Policy> {
    before: TaskOf3,
    policy: Option<Policy>,
}

impl<Policy: Into<NetworkPolicy>> From<TaskWith<Policy>> for Task {
    fn from(old: TaskWith<Policy>) -> Self {
        let TaskWith { before, policy } = old;
        Self {
            policy: policy.map(Into::into),
            ..before.into()
        }
    }
}

/// A network policy in format 4.
#[derive(Debug, Deserialize)]
pub(in crate::store) struct NetworkPolicyOf4 {
    egress: DirectionPolicyOf4,
    ingress: DirectionPolicyOf4,
}

impl From<NetworkPolicyOf4> for NetworkPolicy {
    fn from(old: NetworkPolicyOf4) -> Self {
        let NetworkPolicyOf4 { egress, ingress } = old;
        Self {
            egress: egress.into(),
            ingress: ingress.into(),
        }
    }
}

/// One direction of it.
#[derive(Debug, Deserialize)]
struct DirectionPolicyOf4 {
    default: Option<PolicyAction>,
    rules: Vec<PolicyRule>,
}

impl From<DirectionPolicyOf4> for DirectionPolicy {
    fn from(old: DirectionPolicyOf4) -> Self {
        let DirectionPolicyOf4 { default, rules } = old;
        Self {
            default,
            rules,
            rate: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_domain::job::{PolicyProtocol, PortRange};
    use muster_wire::codec;

    use super::*;

    #[test]
    fn policies_of_format_4_have_no_rates() {
        let rule = PolicyRule {
            name: "web".to_owned(),
            action: PolicyAction::Allow,
            protocol: PolicyProtocol::Tcp,
            peers: Vec::new(),
            ports: vec![PortRange {
                first: 443,
                last: 443,
            }],
            icmp_type: None,
            icmp_code: None,
            log: false,
        };
        // Egress and ingress, as that format wrote them one after the other.
        let old = (
            (Some(PolicyAction::Deny), vec![rule.clone()]),
            (None::<PolicyAction>, Vec::<PolicyRule>::new()),
        );

        let read: NetworkPolicyOf4 = codec::decode(&codec::encode(&old).unwrap()).unwrap();

        let egress = DirectionPolicy {
            default: Some(PolicyAction::Deny),
            rules: vec![rule],
            rate: None,
        };
        let expected = NetworkPolicy {
            egress,
            ingress: DirectionPolicy::default(),
        };
        assert_eq!(NetworkPolicy::from(read), expected);
    }
}
