//! Amounts and ports, as asked for and as allocated.

#![expect(missing_docs, reason = "fields carry Nomad's names and meaning")]

use std::collections::BTreeMap;

use muster_domain::job::{self, DnsConfig, PortAsk, TaskGroup};
use muster_domain::resources::{
    AllocatedPort, Amount, DeviceAsk, Holding, IoLimits, Mb, TaskResources,
};
use serde::{Deserialize, Serialize};

use crate::api::job::constraint::Constraint;
use crate::api::job::steps::Affinity;
use crate::api::null::{self, Null};
use crate::api::policy::NetworkPolicy;

/// The resources that a task asks for, or a sum of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Resources {
    #[serde(rename = "CPU")]
    pub cpu: u64,
    pub cores: u32,
    #[serde(rename = "MemoryMB")]
    pub memory_mb: u64,
    #[serde(rename = "MemoryMaxMB")]
    pub memory_max_mb: i64,
    #[serde(rename = "DiskMB")]
    pub disk_mb: u64,
    #[serde(rename = "IOPS")]
    pub iops: u32,
    #[serde(with = "null")]
    pub networks: Vec<Network>,
    #[serde(with = "null")]
    pub devices: Vec<Device>,
    /// Whether the task gets no more than `CPU` where cores are idle. Nomad has it in its drivers' blocks.
    #[serde(rename = "CPUHardLimit", skip_serializing_if = "std::ops::Not::not")]
    pub cpu_hard_limit: bool,
    /// How fast a task may read and write each disk. Nomad has no such field.
    #[serde(rename = "IO", skip_serializing_if = "Option::is_none")]
    pub io: Option<Io>,
}

/// How fast a task may read and write each disk of its node; absent is as fast as the disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Io {
    /// Bytes in a second, such as `10mb`: a number and kb, mb or gb, 1 024, 1 024² and 1 024³ bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_rate: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_rate: Option<String>,
    /// Operations in a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_ops: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_ops: Option<u32>,
    /// Its share where a disk is busy, from 1 to 10 000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
}

impl From<IoLimits> for Io {
    fn from(io: IoLimits) -> Self {
        let IoLimits {
            read_rate,
            write_rate,
            read_ops,
            write_ops,
            weight,
        } = io;
        Self {
            read_rate: read_rate.map(|rate| rate.to_string()),
            write_rate: write_rate.map(|rate| rate.to_string()),
            read_ops,
            write_ops,
            weight,
        }
    }
}

/// Devices that a task asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Device {
    pub name: String,
    pub count: u32,
    #[serde(with = "null")]
    pub constraints: Vec<Constraint>,
    #[serde(with = "null")]
    pub affinities: Vec<Affinity>,
}

impl From<&DeviceAsk> for Device {
    fn from(device: &DeviceAsk) -> Self {
        Self {
            name: device.name.clone(),
            count: device.count,
            constraints: device.constraints.iter().map(Constraint::from).collect(),
            affinities: device.affinities.iter().map(Affinity::from).collect(),
        }
    }
}

impl From<&TaskResources> for Resources {
    fn from(resources: &TaskResources) -> Self {
        let TaskResources {
            cpu,
            cores,
            memory,
            memory_max,
            devices,
            cpu_hard_limit,
            io,
            ports,
        } = resources;
        Self {
            cpu: u64::from(cpu.0),
            cores: u32::from(*cores),
            devices: devices.iter().map(Device::from).collect(),
            memory_mb: u64::from(memory.0),
            memory_max_mb: memory_max.map_or(0, told_memory_max),
            networks: asked_network(ports).into_iter().collect(),
            cpu_hard_limit: *cpu_hard_limit,
            io: (!io.is_none()).then(|| Io::from(*io)),
            ..Self::default()
        }
    }
}

/// -1 is Nomad's way to say "no limit".
fn told_memory_max(max: Mb) -> i64 {
    if max == Mb::UNLIMITED {
        -1
    } else {
        i64::from(max.0)
    }
}

/// The network of a task with ports of its own.
fn asked_network(ports: &[PortAsk]) -> Option<Network> {
    let (reserved_ports, dynamic_ports) = asked_ports(ports);
    (!ports.is_empty()).then(|| Network {
        mode: "host".to_owned(),
        reserved_ports,
        dynamic_ports,
        ..Network::default()
    })
}

/// Static ports, and dynamic ones.
pub(super) fn asked_ports(ports: &[PortAsk]) -> (Vec<Port>, Vec<Port>) {
    let (fixed, dynamic): (Vec<_>, Vec<_>) = ports.iter().partition(|port| port.fixed.is_some());
    let shape = |port: &PortAsk| Port {
        label: port.label.clone(),
        value: port.fixed.unwrap_or(0),
        to: i32::from(port.to),
        host_network: port.host_network.clone(),
        ..Port::default()
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

/// A network of a group, or of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Network {
    pub mode: String,
    pub device: String,
    #[serde(rename = "CIDR")]
    pub cidr: String,
    #[serde(rename = "IP")]
    pub ip: String,
    #[serde(rename = "MBits")]
    pub mbits: u32,
    #[serde(rename = "DNS")]
    pub dns: Option<Dns>,
    #[serde(rename = "CNI", skip_serializing_if = "Option::is_none")]
    pub cni: Option<Cni>,
    #[serde(with = "null")]
    pub reserved_ports: Vec<Port>,
    #[serde(with = "null")]
    pub dynamic_ports: Vec<Port>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub hostname: String,
    /// The network policy of a group's tasks. Nomad has no such field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<NetworkPolicy>,
}

/// Settings of a CNI network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Cni {
    /// Arguments for the plugins.
    pub args: BTreeMap<String, String>,
}

impl From<&job::CniNetwork> for Cni {
    fn from(network: &job::CniNetwork) -> Self {
        let job::CniNetwork { name: _, args } = network;
        Self { args: args.clone() }
    }
}

/// A port of a network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Port {
    pub label: String,
    /// The port on the host; 0 where none is decided.
    pub value: u16,
    /// The port inside; 0 or -1 means the same.
    pub to: i32,
    pub host_network: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ignore_collision: bool,
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
                    memory_max_mb: memory_max.map_or(0, told_memory_max),
                },
                networks: held_network(group, holding, Some(at), ip)
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
                networks: held_network(group, holding, None, ip).into_iter().collect(),
                disk_mb: u64::from(group.ephemeral_disk.size.0),
                ports: ports.iter().map(|port| HeldPort::new(port, ip)).collect(),
            },
        }
    }
}

/// The network of an instance of `group` for its task `owner`, or for all of them; `None` if nothing was asked for.
fn held_network(
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
    /// Those of the group called `vendor/type/name`.
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

/// Whom the tasks of a group ask for addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Dns {
    #[serde(with = "null")]
    pub servers: Vec<String>,
    #[serde(with = "null")]
    pub searches: Vec<String>,
    #[serde(with = "null")]
    pub options: Vec<String>,
}

impl From<&DnsConfig> for Dns {
    fn from(dns: &DnsConfig) -> Self {
        let DnsConfig {
            servers,
            searches,
            options,
        } = dns;
        Self {
            servers: servers.clone(),
            searches: searches.clone(),
            options: options.clone(),
        }
    }
}
