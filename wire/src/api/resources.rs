//! Requested and allocated amounts and ports. `table` in `job` explains the rows.

#![expect(missing_docs, reason = "fields carry Nomad's names and meaning")]

use std::collections::BTreeMap;

use muster_domain::job::{self, PortAsk, TaskGroup};
use muster_domain::limits;
use muster_domain::resources::{self, AllocatedPort, Amount, Holding, Mb, TaskResources};
use serde::{Deserialize, Serialize};

use crate::api::block::FieldNames;
use crate::api::job::request::resources as read;
use crate::api::job::schema::BlockShape::{Conditions, Many, One, Ports};
use crate::api::job::schema::FieldKind::{Block, Value};
use crate::api::job::schema::ValueKind::{Bool, Int, Text, Texts};
use crate::api::job::schema::{CNI, DYNAMIC_PORT, field};
use crate::api::job::steps::{AFFINITY, Affinity, CONSTRAINT, Constraint};
use crate::api::job::table::{BlockForm, job_block};
use crate::api::job::unsupported;
use crate::api::null::{self, Null};
use crate::api::policy::{NetworkPolicy, POLICY};

job_block! {
    /// The requested resources of a task, or a sum of them.
    #[derive(Eq)]
    Resources of resources::TaskResources;
    pub(super) RESOURCES { names: FieldNames::rows(unsupported::RESOURCES) }
    @reader read::read_resources;

    cpu: u64 = field("CPU", "cpu", Value(Int)) => cpu;
    cores: u32 = field("Cores", "cores", Value(Int)) => cores;
    memory_mb: u64 = field("MemoryMB", "memory", Value(Int)) => memory;
    memory_max_mb: i64 = field("MemoryMaxMB", "memory_max", Value(Int)) => memory_max;
    disk_mb: u64 = field("DiskMB", "disk", Value(Int));
    iops: u32 = field("IOPS", "iops", Value(Int));
    #[serde(with = "null")]
    networks: Vec<Network> = field("Networks", "network", Block(Many, &NETWORK)).plan("Network") => ports;
    #[serde(with = "null")]
    devices: Vec<Device> = field("Devices", "device", Block(Many, &DEVICE)).plan("Device") => devices;
    /// Whether `CPU` is an upper limit even if cores are idle. Nomad has this setting in its drivers' blocks.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    cpu_hard_limit: bool = field("CPUHardLimit", "cpu_hard_limit", Value(Bool)) => cpu_hard_limit;
    /// The limits on reads and writes of each disk. Nomad has no such field.
    #[serde(skip_serializing_if = "Option::is_none")]
    io: Option<Io> = field("IO", "io", Block(One, &IO)).plan("IO") => io;
}

job_block! {
    /// The limits on a task's reads and writes on each disk of its node. An absent limit means no limit.
    #[derive(Eq)]
    Io of resources::IoLimits;
    IO {}

    /// Bytes in a second, such as `10mb`: a number and kb, mb or gb, 1 024, 1 024² and 1 024³ bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    read_rate: Option<String> = field("ReadRate", "read_rate", Value(Text)) => read_rate;
    #[serde(skip_serializing_if = "Option::is_none")]
    write_rate: Option<String> = field("WriteRate", "write_rate", Value(Text)) => write_rate;
    /// Operations in a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    read_ops: Option<u32> = field("ReadOps", "read_ops", Value(Int)) => read_ops;
    #[serde(skip_serializing_if = "Option::is_none")]
    write_ops: Option<u32> = field("WriteOps", "write_ops", Value(Int)) => write_ops;
    /// The weight of the task on a busy disk, from 1 to 10 000.
    #[serde(skip_serializing_if = "Option::is_none")]
    weight: Option<u16> = field("Weight", "weight", Value(Int)) => weight;
}

job_block! {
    /// Devices that a task requests.
    #[derive(Eq)]
    Device of resources::DeviceAsk;
    DEVICE { label: &["Name"], list_max: limits::DEVICES_MAX }

    name: String = field("Name", "", Value(Text)) => name;
    count: u32 = field("Count", "count", Value(Int)) => count;
    #[serde(with = "null")]
    constraints: Vec<Constraint> = field("Constraints", "constraint", Block(Conditions, &CONSTRAINT)) => constraints;
    #[serde(with = "null")]
    affinities: Vec<Affinity> = field("Affinities", "affinity", Block(Conditions, &AFFINITY)) => affinities;
}

/// Converts the hard memory limit; Nomad uses -1 for "no limit".
pub(super) fn memory_max_json(max: Mb) -> i64 {
    if max == Mb::UNLIMITED {
        -1
    } else {
        i64::from(max.0)
    }
}

/// The network of a task with ports of its own.
pub(super) fn asked_network(ports: &[PortAsk]) -> Option<Network> {
    let (reserved_ports, dynamic_ports) = asked_ports(ports);
    (!ports.is_empty()).then(|| Network {
        mode: "host".to_owned(),
        reserved_ports,
        dynamic_ports,
        ..Network::default()
    })
}

/// Splits ports into static and dynamic ones.
fn asked_ports(ports: &[PortAsk]) -> (Vec<Port>, Vec<Port>) {
    let (fixed, dynamic): (Vec<_>, Vec<_>) = ports.iter().partition(|port| port.fixed.is_some());
    let shape = |port: &PortAsk| Port {
        value: port.fixed.unwrap_or(0),
        ..Port::write_fields(port)
    };
    (
        fixed.into_iter().map(shape).collect(),
        dynamic.into_iter().map(shape).collect(),
    )
}

impl From<Amount> for Resources {
    fn from(amount: Amount) -> Self {
        let Amount {
            cpu_mhz,
            memory_mb,
            disk_mb,
            allocs: _,
        } = amount;
        Self {
            cpu: cpu_mhz,
            memory_mb,
            disk_mb,
            ..Self::default()
        }
    }
}

job_block! {
    /// A network of a group, or of a node.
    #[derive(Eq)]
    Network of job::GroupNetwork;
    pub(super) NETWORK {
        plan_order: &["DNS", "CNIConfig", "Static Port", "Dynamic Port", "Policy"],
        names: FieldNames { derived: &["IP"], rows: unsupported::NETWORK, ..FieldNames::NONE },
    }
    @by_hand [mode, ports]
    @also [field("", "port", Block(Ports, &PORT))]
    @reader read::read_group_network;
    @writer write_network;

    mode: String = field("Mode", "mode", Value(Text));
    device: String = field("Device", "", Value(Text)).hidden();
    cidr: String = field("CIDR", "", Value(Text)).hidden();
    ip: String = field("IP", "", Value(Text)).hidden();
    mbits: u32 = field("MBits", "mbits", Value(Int));
    dns: Option<Dns> = field("DNS", "dns", Block(One, &DNS)).plan("DNS") => dns;
    #[serde(skip_serializing_if = "Option::is_none")]
    cni: Option<Cni> = field("CNI", "cni", Block(One, &CNI)).plan("CNIConfig");
    #[serde(with = "null")]
    reserved_ports: Vec<Port> = field("ReservedPorts", "", Block(Many, &PORT)).plan("Static Port");
    #[serde(with = "null")]
    dynamic_ports: Vec<Port> = field("DynamicPorts", "", Block(Many, &DYNAMIC_PORT)).plan("Dynamic Port");
    #[serde(skip_serializing_if = "String::is_empty")]
    hostname: String = field("Hostname", "hostname", Value(Text)) => hostname;
    /// The network policy of a group's tasks. Nomad has no such field.
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<NetworkPolicy> = field("Policy", "policy", Block(One, &POLICY)).plan("Policy") => policy;
}

fn write_network(network: &job::GroupNetwork) -> Network {
    let (reserved_ports, dynamic_ports) = asked_ports(&network.ports);
    Network {
        mode: network.mode.as_str().into_owned(),
        cni: network.mode.cni().map(|network| Cni {
            args: network.args.clone(),
        }),
        reserved_ports,
        dynamic_ports,
        ..Network::write_fields(network)
    }
}

// The block has no table because the domain stores it in the mode.
/// Settings of a CNI network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Cni {
    /// Arguments for the plugins.
    pub args: BTreeMap<String, String>,
}

job_block! {
    /// A port of a network.
    #[derive(Eq)]
    Port of job::PortAsk;
    PORT { label: &["Label"], names: FieldNames::rows(unsupported::PORT) }
    @by_hand [fixed]

    label: String = field("Label", "", Value(Text)) => label;
    /// The port on the host; 0 where none is decided.
    value: u16 = field("Value", "static", Value(Int));
    /// The port inside; 0 or -1 means the same.
    to: i32 = field("To", "to", Value(Int)) => to;
    host_network: String = field("HostNetwork", "host_network", Value(Text)) => host_network;
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    ignore_collision: bool = field("IgnoreCollision", "ignore_collision", Value(Bool));
}

job_block! {
    /// The resolver configuration of the tasks of a group.
    #[derive(Eq)]
    Dns of job::DnsConfig;
    DNS {}

    #[serde(with = "null")]
    servers: Vec<String> = field("Servers", "servers", Value(Texts)).plan("Servers") => servers;
    #[serde(with = "null")]
    searches: Vec<String> = field("Searches", "searches", Value(Texts)).plan("Searches") => searches;
    #[serde(with = "null")]
    options: Vec<String> = field("Options", "options", Value(Texts)).plan("Options") => options;
}

/// The resources that an allocation holds on its node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(
    clippy::zero_sized_map_values,
    reason = "the shape is Nomad's: every task with null"
)]
pub struct AllocatedResources {
    pub tasks: BTreeMap<String, AllocatedTask>,
    /// By task; always `null`.
    pub task_lifecycles: BTreeMap<String, Null>,
    pub shared: SharedResources,
}

impl AllocatedResources {
    /// The resources that one instance of `group` holds on the node with address `ip`.
    #[must_use]
    pub fn new(group: &TaskGroup, holding: &Holding, ip: &str) -> Self {
        let ports = &holding.ports;
        let tasks = group.tasks.iter().enumerate().map(|(at, task)| {
            let TaskResources {
                cpu,
                cores: _,
                memory,
                memory_max,
                devices: _,
                cpu_hard_limit: _,
                io: _,
                ports: _,
            } = &task.resources;
            let cores = holding
                .cores
                .iter()
                .find(|cores| usize::from(cores.task_at) == at);
            let devices = holding
                .devices
                .iter()
                .filter(|devices| usize::from(devices.task_at) == at);
            let held = AllocatedTask {
                cpu: AllocatedCpu {
                    cpu_shares: cores.map_or(u64::from(cpu.0), |cores| cores.mhz),
                    reserved_cores: cores.map(|cores| cores.ids.clone()).unwrap_or_default(),
                },
                devices: devices
                    .map(|held| AllocatedDevices::new(&held.group, &held.ids))
                    .collect(),
                memory: AllocatedMemory {
                    memory_mb: u64::from(memory.0),
                    memory_max_mb: memory_max.map_or(0, memory_max_json),
                },
                networks: reserved_network(group, holding, Some(at), ip)
                    .into_iter()
                    .collect(),
            };
            (task.name.clone(), held)
        });
        Self {
            tasks: tasks.collect(),
            task_lifecycles: group
                .tasks
                .iter()
                .map(|task| (task.name.clone(), Null))
                .collect(),
            shared: SharedResources {
                networks: reserved_network(group, holding, None, ip)
                    .into_iter()
                    .collect(),
                disk_mb: u64::from(group.ephemeral_disk.size.0),
                ports: ports.iter().map(|port| HeldPort::new(port, ip)).collect(),
            },
        }
    }
}

/// The network of an instance of `group` for its task `owner`, or for all tasks; `None` if no network was requested.
fn reserved_network(
    group: &TaskGroup,
    holding: &Holding,
    owner: Option<usize>,
    ip: &str,
) -> Option<Network> {
    let mut asks = group.ports().filter(|(of, _)| *of == owner).peekable();
    if asks.peek().is_none() && (owner.is_some() || group.network.is_none()) {
        return None;
    }
    let held = holding.ports_of(group).filter(|(of, _)| *of == owner);
    let pairs = asks.zip(held).map(|((_, ask), (_, port))| (ask, port));
    let shape = |(_, port): (&PortAsk, &AllocatedPort)| Port {
        label: port.label.clone(),
        value: port.value,
        to: i32::from(port.to),
        host_network: "default".to_owned(),
        ..Port::default()
    };
    let (fixed, dynamic): (Vec<_>, Vec<_>) = pairs.partition(|(ask, _)| ask.fixed.is_some());
    Some(Network {
        mode: "host".to_owned(),
        ip: ip.to_owned(),
        reserved_ports: fixed.into_iter().map(shape).collect(),
        dynamic_ports: dynamic.into_iter().map(shape).collect(),
        ..Network::default()
    })
}

/// The resources that one task holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AllocatedTask {
    pub cpu: AllocatedCpu,
    pub memory: AllocatedMemory,
    #[serde(with = "null")]
    pub networks: Vec<Network>,
    #[serde(with = "null")]
    pub devices: Vec<AllocatedDevices>,
}

/// Devices of one kind that a task holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AllocatedDevices {
    pub vendor: String,
    #[serde(rename = "Type")]
    pub kind: String,
    pub name: String,
    #[serde(rename = "DeviceIDs")]
    pub device_ids: Vec<String>,
}

impl AllocatedDevices {
    /// The devices of the group called `vendor/type/name`.
    fn new(group: &str, ids: &[String]) -> Self {
        let mut parts = group.splitn(3, '/').map(str::to_owned);
        let mut next = || parts.next().unwrap_or_default();
        Self {
            vendor: next(),
            kind: next(),
            name: next(),
            device_ids: ids.to_vec(),
        }
    }
}

/// CPU a task holds, in MHz.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AllocatedCpu {
    pub cpu_shares: u64,
    /// Cores that the task has for itself.
    #[serde(with = "null")]
    pub reserved_cores: Vec<u16>,
}

/// Memory a task holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AllocatedMemory {
    #[serde(rename = "MemoryMB")]
    pub memory_mb: u64,
    #[serde(rename = "MemoryMaxMB")]
    pub memory_max_mb: i64,
}

/// The resources that the tasks of a group hold together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct SharedResources {
    #[serde(with = "null")]
    pub networks: Vec<Network>,
    #[serde(rename = "DiskMB")]
    pub disk_mb: u64,
    #[serde(with = "null")]
    pub ports: Vec<HeldPort>,
}

/// A port that an allocation holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct HeldPort {
    pub label: String,
    pub value: u16,
    pub to: u16,
    #[serde(rename = "HostIP")]
    pub host_ip: String,
}

impl HeldPort {
    fn new(port: &AllocatedPort, ip: &str) -> Self {
        Self {
            label: port.label.clone(),
            value: port.value,
            to: port.to,
            host_ip: if port.host_ip.is_empty() {
                ip.to_owned()
            } else {
                port.host_ip.clone()
            },
        }
    }
}
