//! Amounts and ports, as asked for and as allocated.

#![expect(missing_docs, reason = "fields carry Nomad's names and meaning")]

use std::collections::BTreeMap;

use muster_domain::job::TaskGroup;
use muster_domain::resources::{AllocatedPort, Amount, DeviceAsk, TaskResources};
use serde::{Deserialize, Serialize};

use crate::api::job::{Affinity, Constraint};
use crate::api::null::{self, Null};

/// What a task asks for, or a sum of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Resources {
    #[serde(rename = "CPU")]
    pub cpu: u64,
    pub cores: u32,
    #[serde(rename = "MemoryMB")]
    pub memory_mb: u64,
    #[serde(rename = "MemoryMaxMB")]
    pub memory_max_mb: u64,
    #[serde(rename = "DiskMB")]
    pub disk_mb: u64,
    #[serde(rename = "IOPS")]
    pub iops: u32,
    #[serde(with = "null")]
    pub networks: Vec<Network>,
    #[serde(with = "null")]
    pub devices: Vec<Device>,
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
        } = resources;
        Self {
            cpu: u64::from(cpu.0),
            cores: u32::from(*cores),
            devices: devices.iter().map(Device::from).collect(),
            memory_mb: u64::from(memory.0),
            memory_max_mb: memory_max.map_or(0, |max| u64::from(max.0)),
            ..Self::default()
        }
    }
}

impl From<Amount> for Resources {
    fn from(amount: Amount) -> Self {
        let Amount {
            cpu_mhz,
            memory_mb,
            disk_mb,
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
    pub dns: Null,
    #[serde(with = "null")]
    pub reserved_ports: Vec<Port>,
    #[serde(with = "null")]
    pub dynamic_ports: Vec<Port>,
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
}

/// What an allocation holds on its node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(
    clippy::zero_sized_map_values,
    reason = "the shape is Nomad's: every task with null"
)]
pub struct AllocatedResources {
    /// By task.
    pub tasks: BTreeMap<String, AllocatedTask>,
    /// By task; always `null`.
    pub task_lifecycles: BTreeMap<String, Null>,
    pub shared: Shared,
}

impl AllocatedResources {
    /// What one instance of `group` holds on the node with address `ip`.
    #[must_use]
    pub fn new(group: &TaskGroup, ports: &[AllocatedPort], ip: &str) -> Self {
        let tasks = group.tasks.iter().map(|task| {
            let TaskResources {
                cpu,
                cores: _,
                memory,
                memory_max,
                devices: _,
            } = &task.resources;
            let held = AllocatedTask {
                cpu: AllocatedCpu {
                    cpu_shares: u64::from(cpu.0),
                    reserved_cores: Null,
                },
                memory: AllocatedMemory {
                    memory_mb: u64::from(memory.0),
                    memory_max_mb: memory_max.map_or(0, |max| u64::from(max.0)),
                },
                ..AllocatedTask::default()
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
            shared: Shared {
                networks: group
                    .network
                    .iter()
                    .map(|_| held_network(group, ports, ip))
                    .collect(),
                disk_mb: u64::from(group.ephemeral_disk.size.0),
                ports: ports.iter().map(|port| HeldPort::new(port, ip)).collect(),
            },
        }
    }
}

fn held_network(group: &TaskGroup, ports: &[AllocatedPort], ip: &str) -> Network {
    let is_fixed = |port: &AllocatedPort| {
        let asked = group.network.iter().flat_map(|network| &network.ports);
        asked
            .into_iter()
            .any(|ask| ask.label == port.label && ask.fixed.is_some())
    };
    let shape = |port: &AllocatedPort| Port {
        label: port.label.clone(),
        value: port.value,
        to: i32::from(port.to),
        host_network: "default".to_owned(),
    };
    let (fixed, dynamic): (Vec<_>, Vec<_>) = ports.iter().partition(|port| is_fixed(port));
    Network {
        mode: "host".to_owned(),
        ip: ip.to_owned(),
        reserved_ports: fixed.into_iter().map(shape).collect(),
        dynamic_ports: dynamic.into_iter().map(shape).collect(),
        ..Network::default()
    }
}

/// What one task holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AllocatedTask {
    pub cpu: AllocatedCpu,
    pub memory: AllocatedMemory,
    pub networks: Null,
    pub devices: Null,
}

/// CPU a task holds, in MHz.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AllocatedCpu {
    pub cpu_shares: u64,
    pub reserved_cores: Null,
}

/// Memory a task holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AllocatedMemory {
    #[serde(rename = "MemoryMB")]
    pub memory_mb: u64,
    #[serde(rename = "MemoryMaxMB")]
    pub memory_max_mb: u64,
}

/// What the tasks of a group hold together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Shared {
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
            host_ip: ip.to_owned(),
        }
    }
}
