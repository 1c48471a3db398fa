//! The facts about a host that it sends to its drivers: its topology, and the ports that drivers may listen on.
//!
//! Drivers made for Nomad compute with these facts: shares of the machine from a task's MHz, and sets of cores. Some
//! drivers refuse their configuration without them.

use std::ops::RangeInclusive;

use crate::limits::{DRIVER_PORT_MAX, DRIVER_PORT_MIN};

/// The facts about a host that it sends to its drivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostInfo {
    /// Loopback ports that drivers may listen on. The host gives none of them to tasks.
    pub ports: RangeInclusive<u16>,
    pub topology: Topology,
}

impl HostInfo {
    /// Creates the facts of a host with this topology and with the ports that drivers expect.
    pub fn new(topology: Topology) -> Self {
        Self {
            ports: DRIVER_PORT_MIN..=DRIVER_PORT_MAX,
            topology,
        }
    }
}

/// The processors of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// Numbers of the NUMA nodes, sorted.
    pub numa_nodes: Vec<u32>,
    /// The kernel's distances, one row for each node in the order of the nodes; empty where the kernel reports none.
    pub distances: Vec<Vec<u32>>,
    /// All cores of the machine.
    pub cores: Vec<Core>,
    /// MHz that are reserved and not available to tasks.
    pub withheld_mhz: u64,
}

/// A logical core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Core {
    pub id: u32,
    /// The NUMA node of the core.
    pub numa_node: u32,
    /// The socket of the core.
    pub socket: u32,
    /// The weight of the core in placement, in MHz.
    pub mhz: u64,
    /// No task may run on it.
    pub is_reserved: bool,
}
