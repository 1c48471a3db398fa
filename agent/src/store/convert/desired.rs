//! Desired allocations of formats 1 to 9. The jobs of formats 1 to 3 have no network policies, and those of format 4
//! none with rates. The logs of formats 1 to 5 are taken at any rate. No task of formats 1 to 7 has a hard limit of CPU
//! or limits of disks. In formats 1 to 9 no job says what it is answered as, no task has ports of its own, and no
//! network a host name. No volume there has a propagation mode, and servers of names are addresses.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use muster_domain::alloc::{ClientStatus, DesiredAlloc, DesiredStatus};
use muster_domain::id::{AllocId, DeploymentId, LogIndex, Timestamp};
use muster_domain::job::{
    Affinity, Constraint, DirectionPolicy, Disconnect, DnsConfig, EphemeralDisk, GroupNetwork,
    JobSpec, JobType, JobVersion, LaunchOrigin, Lifecycle, LogConfig, LogOverflow, MigrateStrategy,
    NetworkMode, NetworkPolicy, Parameterized, Periodic, PolicyAction, PolicyRule, PortAsk,
    Propagation, ReschedulePolicy, RestartPolicy, Scaling, Spread, Task, TaskGroup, UpdateStrategy,
    VolumeAsks, VolumeMount,
};
use muster_domain::resources::{CpuMhz, DeviceAsk, Holding, IoLimits, Mb, TaskResources};
use serde::Deserialize;

/// Of formats 1 to 3.
pub(in crate::store) type DesiredAllocOf3 =
    DesiredAllocWith<TaskGroupWith<GroupNetworkOf3, TaskOf3>>;

/// Of format 4.
pub(in crate::store) type DesiredAllocOf4 =
    DesiredAllocWith<TaskGroupWith<GroupNetworkOf4, TaskOf4>>;

/// Of format 5.
pub(in crate::store) type DesiredAllocOf5 =
    DesiredAllocWith<TaskGroupWith<GroupNetworkOf9, TaskOf5>>;

/// Of formats 6 and 7.
pub(in crate::store) type DesiredAllocOf7 =
    DesiredAllocWith<TaskGroupWith<GroupNetworkOf9, TaskOf7>>;

/// Of formats 8 and 9.
pub(in crate::store) type DesiredAllocOf9 =
    DesiredAllocWith<TaskGroupWith<GroupNetworkOf9, TaskOf9>>;

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

/// The specification of a job.
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
    launched: Option<LaunchOrigin>,
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
            stop: false,
            as_written: BTreeMap::new(),
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
            hostname: String::new(),
        }
    }
}

/// The same in formats 5 to 9.
#[derive(Debug, Deserialize)]
pub(in crate::store) struct GroupNetworkOf9 {
    before: GroupNetworkOf3,
    policy: Option<NetworkPolicy>,
    dns: Option<DnsConfigOf9>,
}

impl From<GroupNetworkOf9> for GroupNetwork {
    fn from(old: GroupNetworkOf9) -> Self {
        let GroupNetworkOf9 {
            before,
            policy,
            dns,
        } = old;
        Self {
            policy,
            dns: dns.map(DnsConfig::from),
            ..before.into()
        }
    }
}

/// Servers of names, up to format 9.
#[derive(Debug, Deserialize)]
struct DnsConfigOf9 {
    servers: Vec<IpAddr>,
    searches: Vec<String>,
    options: Vec<String>,
}

impl From<DnsConfigOf9> for DnsConfig {
    fn from(old: DnsConfigOf9) -> Self {
        let DnsConfigOf9 {
            servers,
            searches,
            options,
        } = old;
        Self {
            servers: servers.iter().map(IpAddr::to_string).collect(),
            searches,
            options,
        }
    }
}

/// A volume at a place of a task, up to format 9.
#[derive(Debug, Deserialize)]
struct VolumeMountOf9 {
    volume: String,
    destination: String,
    read_only: bool,
}

impl From<VolumeMountOf9> for VolumeMount {
    fn from(old: VolumeMountOf9) -> Self {
        let VolumeMountOf9 {
            volume,
            destination,
            read_only,
        } = old;
        Self {
            volume,
            destination,
            read_only,
            propagation: Propagation::Private,
            selinux_label: String::new(),
        }
    }
}

/// The resources that a task asks for, in formats 8 and 9. The earlier fields come first.
#[derive(Debug, Deserialize)]
pub(in crate::store) struct TaskResourcesOf9 {
    before: TaskResourcesOf7,
    cpu_hard_limit: bool,
    io: IoLimits,
}

impl From<TaskResourcesOf9> for TaskResources {
    fn from(old: TaskResourcesOf9) -> Self {
        let TaskResourcesOf9 {
            before,
            cpu_hard_limit,
            io,
        } = old;
        Self {
            cpu_hard_limit,
            io,
            ..before.into()
        }
    }
}

/// The resources that a task asks for, up to format 7.
#[derive(Debug, Deserialize)]
pub(in crate::store) struct TaskResourcesOf7 {
    cpu: CpuMhz,
    cores: u16,
    memory: Mb,
    memory_max: Option<Mb>,
    devices: Vec<DeviceAsk>,
}

impl From<TaskResourcesOf7> for TaskResources {
    fn from(old: TaskResourcesOf7) -> Self {
        let TaskResourcesOf7 {
            cpu,
            cores,
            memory,
            memory_max,
            devices,
        } = old;
        Self {
            cpu,
            cores,
            memory,
            memory_max,
            devices,
            cpu_hard_limit: false,
            io: IoLimits::default(),
            ports: Vec::new(),
        }
    }
}

/// A task up to format 3.
pub(in crate::store) type TaskOf3 = TaskWithout<TaskResourcesOf7, LogConfigOf5>;

/// A task as it is in every format, but for a policy behind it.
#[derive(Debug, Deserialize)]
pub(in crate::store) struct TaskWithout<Resources, Logs> {
    name: String,
    driver: String,
    config_json: String,
    user: String,
    env: BTreeMap<String, String>,
    resources: Resources,
    constraints: Vec<Constraint>,
    affinities: Vec<Affinity>,
    restart: RestartPolicy,
    lifecycle: Option<Lifecycle>,
    leader: bool,
    payload_file: String,
    volume_mounts: Vec<VolumeMountOf9>,
    shutdown_delay: Duration,
    kill_timeout: Duration,
    kill_signal: String,
    logs: Logs,
    meta: BTreeMap<String, String>,
}

impl<Resources: Into<TaskResources>, Logs: Into<LogConfig>> From<TaskWithout<Resources, Logs>>
    for Task
{
    fn from(old: TaskWithout<Resources, Logs>) -> Self {
        let TaskWithout {
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
            resources: resources.into(),
            constraints,
            affinities,
            restart,
            lifecycle,
            leader,
            payload_file,
            volume_mounts: volume_mounts.into_iter().map(Into::into).collect(),
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
pub(in crate::store) struct LogConfigOf5 {
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
pub(in crate::store) type TaskOf4 = TaskWith<TaskResourcesOf7, LogConfigOf5, NetworkPolicyOf4>;

/// A task in format 5.
pub(in crate::store) type TaskOf5 = TaskWith<TaskResourcesOf7, LogConfigOf5, NetworkPolicy>;

/// A task in formats 6 and 7.
pub(in crate::store) type TaskOf7 = TaskWith<TaskResourcesOf7, LogConfig, NetworkPolicy>;

/// A task in formats 8 and 9.
pub(in crate::store) type TaskOf9 = TaskWith<TaskResourcesOf9, LogConfig, NetworkPolicy>;

/// A task in formats 4 to 9: what was there before comes first.
#[derive(Debug, Deserialize)]
pub(in crate::store) struct TaskWith<Resources, Logs, Policy> {
    before: TaskWithout<Resources, Logs>,
    policy: Option<Policy>,
}

impl<Resources, Logs, Policy> From<TaskWith<Resources, Logs, Policy>> for Task
where
    Resources: Into<TaskResources>,
    Logs: Into<LogConfig>,
    Policy: Into<NetworkPolicy>,
{
    fn from(old: TaskWith<Resources, Logs, Policy>) -> Self {
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
